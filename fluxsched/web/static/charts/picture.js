// Pictures of what is drawn, as files. Law: a picture has the colours that are seen, and needs no style sheet.

import { element } from "../base/dom.js";
import { save } from "../base/file.js";
import { property } from "./palette.js";
import { svg } from "./svg.js";

/** What of the style of a drawing's part is seen. */
const SEEN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-weight"];
const TYPES = { png: "image/png", svg: "image/svg+xml" };
const TITLE = 24, MARGIN = 10;

/** A button that saves a picture: `draw()` gives a Blob or a promise of one. `kind` is `png` or `svg`. */
export function pictureButton(kind, name, draw) {
  return element("button", { type: "button", class: "quiet picture", title: `Save as a picture (${kind.toUpperCase()})`, onclick: async () => save(`${name}.${kind}`, [await draw()], TYPES[kind]) }, kind.toUpperCase());
}

/** What a canvas shows, on the colour of cards. */
export function canvasPicture(canvas) {
  const copy = new OffscreenCanvas(canvas.width, canvas.height), context = copy.getContext("2d");
  context.fillStyle = property("--surface-2");
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(canvas, 0, 0);
  return copy.convertToBlob({ type: TYPES.png });
}

/** Drawings below one another, each `[title, svg element]`. */
export function drawingsPicture(drawings) {
  const width = Math.max(...drawings.map(([, drawing]) => drawing.clientWidth)) + 2 * MARGIN;
  const root = svg("svg", { width, "font-family": "system-ui, sans-serif" });
  let top = MARGIN;
  for (const [title, drawing] of drawings) {
    root.append(svg("text", { x: MARGIN, y: top + TITLE - 8, fill: property("--ink"), "font-size": 13, "font-weight": 600 }, title));
    const copy = styled(drawing);
    copy.setAttribute("x", MARGIN);
    copy.setAttribute("y", top + TITLE);
    root.append(copy);
    top += TITLE + drawing.clientHeight;
  }
  root.setAttribute("height", top + MARGIN);
  root.prepend(svg("rect", { width: "100%", height: "100%", fill: property("--surface-2") }));
  return new Blob([new XMLSerializer().serializeToString(root)], { type: TYPES.svg });
}

/** A table of coloured cells below its title, and a note below it; of its texts those that are seen. */
export function tablePicture(title, table, note) {
  const { width, height, left, top } = table.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
  const ink = property("--ink"), font = "12px system-ui, sans-serif", ruler = new OffscreenCanvas(1, 1).getContext("2d");
  ruler.font = font;
  const wide = Math.max(width, ruler.measureText(note).width) + 2 * MARGIN;
  const high = height + 2 * (MARGIN + TITLE);
  const canvas = new OffscreenCanvas(Math.ceil(wide * ratio), Math.ceil(high * ratio)), context = canvas.getContext("2d");
  const write = (text, x, y, style = font) =>
    Object.assign(context, { fillStyle: ink, font: style }) && context.fillText(text, x, y);
  context.scale(ratio, ratio);
  context.fillStyle = property("--surface-2");
  context.fillRect(0, 0, canvas.width, canvas.height);
  write(title, MARGIN, MARGIN + TITLE - 8, `600 13px system-ui, sans-serif`);
  for (const cell of table.querySelectorAll("th, td")) {
    const place = cell.getBoundingClientRect(), x = place.left - left + MARGIN, y = place.top - top + MARGIN + TITLE;
    context.fillStyle = getComputedStyle(cell).backgroundColor;
    context.fillRect(x, y, place.width, place.height);
    if (!cell.querySelector(".unseen")) write(cell.textContent, x, y + place.height - 4);
  }
  write(note, MARGIN, MARGIN + TITLE + height + TITLE - 8);
  return canvas.convertToBlob({ type: TYPES.png });
}

/** A copy whose parts have the look of the original's as attributes of their own. */
function styled(drawing) {
  const copy = drawing.cloneNode(true), copies = copy.querySelectorAll("*");
  drawing.querySelectorAll("*").forEach((part, at) => {
    const look = getComputedStyle(part);
    for (const name of SEEN) copies[at].setAttribute(name, look.getPropertyValue(name));
  });
  return copy;
}
