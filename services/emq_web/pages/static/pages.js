// The only script of these pages. It knows nothing of their content:
//   data-options='{...}' data-chart="id"   draws these ECharts options in the element with that id
//   data-live                              a button that stops and resumes the renewing of parts
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
drawCharts(document);
