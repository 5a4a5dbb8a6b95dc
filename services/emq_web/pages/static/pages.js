// The only script of these pages. It knows nothing of their content:
//   data-options='{...}' data-chart="id"   draws these ECharts options in the element with that id
//   data-live                              a button that stops and resumes the renewing of parts
//   data-picks="id"                        a list of boxes that write their values into that field, as words
//   data-finds="id"                        a field that hides the entries of that list without its text
//   data-from-fragment                     a field that takes the fragment of the address and sends its form
"use strict";

// Colours come from the style sheet: an option "--name" stands for the custom property of that name.
function withColours(options) {
  const style = getComputedStyle(document.documentElement);
  return JSON.parse(options, (_, value) =>
    typeof value === "string" && value.startsWith("--") ? style.getPropertyValue(value).trim() : value);
}

function drawCharts(root) {
  const found = root.querySelectorAll("[data-chart]");
  for (const data of found) {
    const place = document.getElementById(data.dataset.chart);
    if (!place || !window.echarts) continue;
    const chart = echarts.getInstanceByDom(place) || echarts.init(place, null, { renderer: "canvas" });
    chart.setOption(withColours(data.dataset.options), { notMerge: true });
  }
}

function resizeCharts() {
  for (const place of document.querySelectorAll("[_echarts_instance_]")) echarts.getInstanceByDom(place).resize();
}

let live = true;
for (const button of document.querySelectorAll("[data-live]")) {
  button.addEventListener("click", () => {
    live = !live;
    button.setAttribute("aria-pressed", String(live));
  });
}
document.body.addEventListener("htmx:beforeRequest", (event) => {
  const trigger = event.detail.elt.getAttribute("hx-trigger") || "";
  if (trigger.startsWith("every") && (!live || document.hidden)) event.preventDefault();
});
document.body.addEventListener("htmx:afterSettle", (event) => drawCharts(event.detail.target));
window.addEventListener("resize", resizeCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(document));

for (const field of document.querySelectorAll("[data-from-fragment]")) {
  if (location.hash.length < 2) continue;
  field.value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  field.form.requestSubmit();
}
for (const list of document.querySelectorAll("[data-picks]")) {
  const field = document.getElementById(list.dataset.picks);
  const words = () => field.value.split(/\s+/).filter(Boolean);
  const boxes = [...list.querySelectorAll("input[type=checkbox]")];
  const show = () => {
    const there = new Set(words());
    for (const box of boxes) box.checked = there.has(box.value);
  };
  list.addEventListener("change", ({ target }) => {
    if (!boxes.includes(target)) return;
    const others = words().filter((word) => word !== target.value && word !== "*");
    field.value = (target.checked ? [...others, target.value] : others).join(" ") || "*";
  });
  field.addEventListener("input", show);
  list.hidden = false;
  show();
}

for (const field of document.querySelectorAll("[data-finds]")) {
  const list = document.getElementById(field.dataset.finds);
  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    for (const entry of list.children) entry.hidden = !entry.textContent.toLowerCase().includes(wanted);
    list.nextElementSibling.hidden = [...list.children].some((entry) => !entry.hidden);
  });
  // Enter would send the form.
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
}
drawCharts(document);
