// What the colours of a Gantt chart mean, and the words beside the pointer. Law: texts are text.

import { element } from "../base/dom.js";

/** Samples of the styles of bars, by their names. */
export function drawLegend(place, gantt, styles = []) {
  const wanted = gantt.keys ?? [];
  const entries = wanted.map((key) => entry(gantt, String(key), key));
  if (gantt.palette.more) entries.push(element("span", { class: "key others" }, "others"));
  const samples = styles.map(([name, word]) => element("span", { class: `sample ${name}` }, word));
  if (place.contains(document.activeElement) && place.children.length === entries.length + samples.length) {
    entries.forEach((each, at) => place.children[at].replaceChildren(...each.childNodes));
    return;
  }
  place.replaceChildren(...entries, ...samples);
}

function entry(gantt, text, key) {
  const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = gantt.palette.colour(key);
  return element("button", {
    type: "button", "aria-pressed": String(gantt.dimmed === key), title: "Show these alone",
    onclick: (event) => {
      gantt.dimmed = gantt.dimmed === key ? null : key;
      for (const each of event.currentTarget.parentElement.querySelectorAll("button")) each.setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", String(gantt.dimmed === key));
      gantt.draw();
    },
  }, swatch, text.length > 24 ? `${text.slice(0, 23)}…` : text);
}

/** A function that shows lines beside the pointer, or, given none, hides them. */
export function tipFor(host) {
  const tip = element("div", { class: "tip", hidden: true });
  host.append(tip);
  return (lines, event) => {
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(element("strong", {}, lines[0]), ...lines.slice(1).map((line) => element("div", {}, line)));
    const box = host.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    tip.style.left = `${Math.max(4, Math.min(x + 14, box.width - tip.offsetWidth - 6))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > box.height ? Math.max(4, y - tip.offsetHeight - 12) : y + 18}px`;
  };
}
