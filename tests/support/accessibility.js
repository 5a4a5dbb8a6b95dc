// Returns a line for each fault of a page: names, headings, ids, contrast, size. Run in the page.
(() => {
  const faults = [];
  const seen = (e) => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !e.closest("[hidden]");
  const name = (e) => e.tagName.toLowerCase() + (e.id ? `#${e.id}` : "") + ` "${(e.innerText || "").trim().slice(0, 30)}"`;

  if (!document.documentElement.lang) faults.push("no language");
  if (!document.title) faults.push("no title");
  for (const tag of ["main", "header"]) if (document.querySelectorAll(tag).length !== 1) faults.push(`not one ${tag}`);
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((h) => Number(h.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) faults.push("not one h1");
  levels.forEach((level, i) => { if (i && level > levels[i - 1] + 1) faults.push(`a heading skips a level to h${level}`); });
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) faults.push(`the id ${id} is there twice`);

  for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea"))
    if (!e.labels.length && !e.getAttribute("aria-label")) faults.push(`no label: ${name(e)}`);
  for (const e of document.querySelectorAll("a, button"))
    if (!e.textContent.trim() && !e.getAttribute("aria-label")) faults.push(`no text: ${name(e)}`);
  for (const e of document.querySelectorAll("[aria-labelledby], [aria-describedby]"))
    for (const id of `${e.getAttribute("aria-labelledby") || ""} ${e.getAttribute("aria-describedby") || ""}`.split(" ").filter(Boolean))
      if (!document.getElementById(id)) faults.push(`${name(e)} refers to ${id}, which is not there`);
  for (const e of document.querySelectorAll("th")) if (!e.scope) faults.push(`a head of a table without scope: ${name(e)}`);
  for (const e of document.querySelectorAll("svg, canvas, img"))
    if (!e.closest("[aria-hidden=true], [role=img], dt, dd") && !e.getAttribute("alt")) faults.push(`a picture without text: ${name(e)}`);

  // Contrast by WCAG 2: 4.5 to 1, and 3 to 1 for large text.
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return context.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => {
    const part = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const e = node.parentElement;
    if (!node.nodeValue.trim() || !seen(e) || e.closest("svg, option, .unseen, .skip")) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgba(style.color)), light(behind(e))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least) faults.push(`contrast ${ratio.toFixed(2)}: ${name(e)}`);
  }

  if (document.documentElement.scrollWidth > innerWidth) faults.push(`wider than the screen: ${document.documentElement.scrollWidth}`);
  for (const e of document.querySelectorAll("button, .button, input:not([type=hidden]), select, nav a"))
    if (seen(e) && e.getBoundingClientRect().height < 24) faults.push(`too small for a finger: ${name(e)}`);
  return faults;
})()
