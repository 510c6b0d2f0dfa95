// Lines over time, one panel below the other on one axis of time: cores in use, jobs that wait, how long they waited.
// Law: panels of one `scale` have the same one; times without a value are gaps, not zeros; one line goes through all
// panels at the time that is pointed at, with the values there in words.

import { element, setText } from "../base/dom.js";
import { drawingsPicture } from "./picture.js";
import {
  axisNumber, durationTicks, elapsed, linear, logarithmic, numberText, numberTicks, timeText, timeTicks,
} from "./scale.js";
import { svg } from "./svg.js";

const LEFT = 56, RIGHT = 12, TOP = 6, AXIS = 20;
const HEADROOM = 4; // above the highest value, for the width of its line

export class Panels {
  /** `options`: `ofDay` (times are of the day, else since the beginning), `height` (of a panel, in pixels), `label`. */
  constructor(host, options = {}) {
    this.options = { ofDay: true, height: 92, label: "Values over time", ...options };
    this.root = element("div", { class: "panels", tabindex: 0, role: "group", "aria-label": this.options.label });
    host.append(this.root);
    this.cursor = this.drawn = null;
    this.width = 0;
    new ResizeObserver(() => this.draw()).observe(this.root);
    this.root.addEventListener("pointermove", (event) => this.point(event));
    this.root.addEventListener("pointerleave", () => this.move(null));
    this.root.addEventListener("keydown", (event) => this.key(event));
  }

  /** `data`: `begin`, `end`, `now`, `spans` (`[[from, to or null, name, strength]...]`, shaded), and `panels`: each with `title`,
   * `scale`, `text(value)`, `logarithmic`, `top` and `lines` (`name`, `hue`, `points` [[time, value or null]...], `filled`,
   * `dotted`). */
  show(data) {
    this.data = { spans: [], ...data };
    this.draw();
  }

  draw() {
    const width = this.root.clientWidth;
    if (!this.data || width < 80 || (width === this.width && this.data === this.drawn)) return;
    [this.width, this.drawn] = [width, this.data];
    const { begin, end, panels } = this.data;
    this.x = linear(begin, end, LEFT, width - RIGHT);
    const tops = new Map();
    for (const panel of panels) {
      const scale = panel.scale ?? panel.title;
      tops.set(scale, Math.max(tops.get(scale) ?? panel.top ?? 0, ...panel.lines.map(highest)));
    }
    this.rows = panels.map((panel, at) => this.row(panel, tops.get(panel.scale ?? panel.title), at === panels.length - 1));
    this.root.replaceChildren(...this.rows.map((row) => row.root));
    this.move(this.cursor);
  }

  row(panel, highestValue, last) {
    const values = panel.lines.map(() => element("span", { class: "value" })), when = element("span", { class: "when" });
    const legend = panel.lines.map(({ name, hue = "", dotted }, at) =>
      (name ? element("span", { class: `key ${hue} ${dotted ? "dotted" : ""}` }, name, " ", values[at]) : values[at]));
    const head = element("figcaption", {}, element("span", { class: "title" }, panel.title), ...legend, when);
    const drawing = this.drawing(panel, highestValue, last);
    const root = element("figure", { class: "panel-chart" }, head, drawing.root);
    return { root, values, when, panel, cursor: drawing.cursor };
  }

  drawing(panel, highestValue, last) {
    const { height, ofDay } = this.options, { begin, end, spans, now } = this.data, width = this.width;
    const bottom = TOP + height, top = highestValue > 0 ? highestValue : 1;
    const y = panel.logarithmic ? logarithmic(top, bottom, TOP + HEADROOM) : linear(0, top, bottom, TOP + HEADROOM);
    const root = svg("svg", {
      width, height: bottom + (last ? AXIS : 3), role: "img", "aria-label": this.words(panel),
    });
    for (const [from, to, , strength] of spans) {
      const x0 = Math.max(LEFT, this.x(from)), x1 = Math.min(width - RIGHT, to === null ? width : this.x(to));
      if (x1 > x0) root.append(svg("rect", { class: "shade", x: x0, y: TOP, width: x1 - x0, height, opacity: strength }));
    }
    for (const [time, text] of timeTicks(begin, end, Math.max(2, (width - LEFT) / 96), ofDay)) {
      const x = Math.round(this.x(time)) + 0.5;
      root.append(svg("line", { class: "grid", x1: x, x2: x, y1: TOP, y2: bottom }));
      if (last && x > LEFT + 10 && x < width - RIGHT - 16) {
        root.append(svg("text", { x, y: bottom + 15, "text-anchor": "middle" }, text));
      }
    }
    const ticks = panel.logarithmic ? spaced(durationTicks(top), y) : numberTicks(top, Math.max(2, height / 32));
    const tickText = panel.logarithmic ? elapsed : panel.text ?? axisNumber(ticks.at(-1));
    for (const tick of ticks) {
      const at = Math.round(y(tick)) + 0.5;
      root.append(svg("line", { class: tick === 0 ? "base" : "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      root.append(svg("text", { x: LEFT - 7, y: at + 4, "text-anchor": "end" }, tickText(tick)));
    }
    for (const line of panel.lines) this.line(root, line, y, bottom);
    if (now >= begin && now <= end) {
      root.append(svg("line", { class: "now", x1: this.x(now), x2: this.x(now), y1: TOP, y2: bottom }));
    }
    const cursor = svg("line", { class: "cursor", y1: TOP, y2: bottom, visibility: "hidden" });
    root.append(cursor);
    return { root, cursor };
  }

  /** Steps: a value holds up to the next one. */
  line(root, line, y, bottom) {
    let path = "", area = "", open = null;
    const right = this.width - RIGHT;
    const close = (x) => {
      if (open !== null) area += `H${x.toFixed(1)}V${bottom}Z`;
      open = null;
    };
    for (const [time, value] of within(line.points, this.data.begin, this.data.end)) {
      const x = Math.min(right, Math.max(LEFT, this.x(time)));
      if (value === null || value === undefined) {
        if (open !== null) path += `H${x.toFixed(1)}`;
        close(x);
        continue;
      }
      const height = y(value).toFixed(1);
      if (open === null) [path, area] = [`${path}M${x.toFixed(1)} ${height}`, `${area}M${x.toFixed(1)} ${bottom}V${height}`];
      else [path, area] = [`${path}H${x.toFixed(1)}V${height}`, `${area}H${x.toFixed(1)}V${height}`];
      open = x;
    }
    if (open !== null) path += `H${right}`;
    close(right);
    if (line.filled) root.append(svg("path", { class: `area ${line.hue ?? ""}`, d: area }));
    root.append(svg("path", { class: `line ${line.hue ?? ""} ${line.dotted ? "dotted" : ""}`, d: path }));
  }

  words(panel) {
    const text = panel.text ?? numberText;
    const parts = panel.lines.map((line) => {
      const values = line.points.map(([, value]) => value).filter((value) => value !== null && value !== undefined);
      const last = values.at(-1);
      return values.length ? `${line.name ?? ""} last ${text(last)}, highest ${text(highest(line))}` : "no values";
    });
    return `${panel.title}: ${parts.join("; ")}`;
  }

  point(event) {
    const x = event.clientX - this.root.getBoundingClientRect().left;
    const { begin, end } = this.data ?? {};
    if (begin === undefined || x < LEFT || x > this.width - RIGHT) return this.move(null);
    return this.move(begin + ((x - LEFT) / (this.width - RIGHT - LEFT)) * (end - begin));
  }

  /** The panels as a picture. */
  picture() {
    return drawingsPicture(this.rows.map(({ root, panel }) => [[panel.title, ...panel.lines.map((line) => line.name).filter(Boolean)].join(" · "), root.querySelector("svg")]));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (!(event.key in steps) || !this.data) return;
    event.preventDefault();
    event.stopPropagation();
    const { begin, end } = this.data, step = ((end - begin) / 60) * steps[event.key];
    this.move(Math.min(end, Math.max(begin, (this.cursor ?? end) + step)));
  }

  /** The line of the pointer, and what the values are there. */
  move(time) {
    this.cursor = time;
    this.rows?.forEach(({ panel, values, when, cursor }, at) => {
      cursor.setAttribute("visibility", time === null ? "hidden" : "visible");
      if (time !== null) for (const side of ["x1", "x2"]) cursor.setAttribute(side, this.x(time));
      setText(when, time !== null && at === 0 ? timeText(time, this.options.ofDay) : "");
      panel.lines.forEach((line, each) => {
        const there = time === null ? line.points.findLast(([, known]) => known !== null)?.[1] : valueAt(line.points, time);
        const isKnown = there !== null && there !== undefined;
        setText(values[each], time === null && panel.quiet ? "" : isKnown ? (panel.text ?? numberText)(there) : "–");
      });
    });
  }
}

/** The points of a time, and the last one before it. */
function within(points, begin, end) {
  const first = Math.max(0, points.findIndex(([time]) => time > begin) - 1);
  const after = points.findIndex(([time]) => time >= end);
  if (points.length && points.at(-1)[0] <= begin) return points.slice(-1);
  return points.slice(first, after < 0 ? points.length : after);
}

function highest(line) {
  let most = 0;
  for (const [, value] of line.points) if (value > most) most = value;
  return most;
}

function spaced(ticks, y) {
  const kept = [];
  for (const tick of ticks) if (kept.length === 0 || Math.abs(y(tick) - y(kept.at(-1))) > 13) kept.push(tick);
  return kept;
}

function valueAt(points, time) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low ? points[low - 1][1] : null;
}
