// A Gantt chart on a canvas: targets down, time across, one window on both that is zoomed and moved by pointer and keys.
// Law: it draws what it is given and says what is pointed at or chosen; what a job is called is only ever text.

import { choose, chosen } from "../base/address.js";
import { CORES, END, KIND, Rectangles, START, USER, usedCores } from "./bars.js";
import { Raster, PIXELS_MAX } from "./raster.js";
import { Painter } from "./painter.js";
import { onTheme, Palette } from "../charts/palette.js";
import { control } from "./pointing.js";

/** Parts of the time in the overview below. */
const OVERVIEW_PARTS = 480;

/** The least that a window shows: seconds, targets. */
const SPAN_LEAST = 10, ROWS_LEAST = 1;

/** Cores in use by sums, for the overview. */
function addSums({ used, planned }, { sums, begin, end, now }) {
  const width = (end - begin) / OVERVIEW_PARTS;
  for (const { steps } of sums ?? []) {
    let step = 0;
    for (let at = 0; at < OVERVIEW_PARTS; at += 1) {
      const time = begin + (at + 0.5) * width;
      while (step + 1 < steps.length && steps[step + 1][0] <= time) step += 1;
      if (steps.length && steps[step][0] <= time) (time < now ? used : planned)[at] += steps[step][1];
    }
  }
}

/** What is near: so many usual lengths of a job before and after now, and no less than this. */
const NEAR_LENGTHS = 50, NEAR_LEAST_S = 450;

/** A window is put into the address once it is still. */
const STILL_MS = 300;

export class Gantt {
  /**
   * `label` is for readers of the screen; times are of the day (`ofDay`), or since the beginning; `overview`: the strip below.
   * @param {HTMLElement} host
   * @param {{label?: string, ofDay?: boolean, overview?: boolean, palette?: Palette, chosen?: (bar) => void, selected?: (bar) => void, pointed?: (bar, event) => void, moved?: (window, whole: boolean) => void, recoloured?: () => void}} options
   */
  constructor(host, options = {}) {
    this.options = { ofDay: true, overview: true, label: "Jobs on targets over time", ...options };
    this.canvas = document.createElement("canvas");
    this.canvas.className = "gantt";
    this.canvas.tabIndex = 0;
    this.canvas.gantt = this;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", this.options.label);
    host.append(this.canvas);
    this.palette = options.palette ?? new Palette();
    this.raster = new Raster();
    this.painter = new Painter(this);
    this.keyOf = (bar) => bar[USER];
    this.data = { now: 0, begin: 0, end: 1, targets: [0, 0], spans: [] };
    this.rectangles = new Rectangles([], 1);
    this.overview = usedCores([], 0, 1, OVERVIEW_PARTS, 0);
    this.window = { begin: 0, end: 1, top: 0, bottom: 1 };
    this.whole = this.isNew = true;
    this.keeping = 0;
    this.selected = this.pointed = -1;
    this.dimmed = null;
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    onTheme(() => { this.palette.refresh(); this.draw(); });
    control(this);
  }

  /**
   * Show the part of the time in which there are bars, if that is much less than all; of short jobs (`isNear`) the time
   * about now.
   */
  fit(isNear = false) {
    const { begin, end, now = begin } = this.data, bars = this.bars();
    const ended = bars.filter((bar) => bar[KIND] === "ended");
    const lengths = ended.map((bar) => bar[END] - bar[START]).sort((one, other) => one - other);
    const half = isNear && lengths.length ? Math.max(NEAR_LEAST_S, NEAR_LENGTHS * lengths[lengths.length >> 1]) : Infinity;
    const from = Math.max(begin, now - half, Math.min(end, ...bars.map((bar) => bar[START])));
    const to = Math.min(end, now + half, Math.max(now, ...bars.map((bar) => bar[END] || bar[START])));
    const margin = (to - from) * 0.05;
    if (to <= from || to - from >= (end - begin) * 0.7) return;
    this.look({ ...this.window, begin: from - margin, end: to + margin }, false);
    this.options.moved?.(this.window, this.whole);
  }

  /** What is shown: `bars`, `spans` ([idset, state, from, to, note]), `now`, `begin`, `end`, `targets` ([first, last]),
   * `cores` (of a target), `sums` (instead of bars: `ranks` [first, last], `cores`, `steps` [[time, cores in use]...]).
   * The window is that of the address at first; it keeps its place in the time shown, which moves with now, or goes on
   * showing everything. */
  show(data) {
    const chosen = this.bars()[this.selected]?.[0], passed = data.begin - this.data.begin;
    this.data = { spans: [], ...data };
    this.rectangles = new Rectangles(data.bars, data.cores);
    this.selected = chosen === undefined ? -1 : data.bars.findIndex((bar) => bar[0] === chosen);
    this.pointed = -1;
    this.overview = usedCores(data.bars, data.begin, data.end, OVERVIEW_PARTS, data.now ?? data.end);
    addSums(this.overview, data);
    this.rank();
    if (this.whole) this.reset(false);
    if (this.isNew) this.restore();
    else if (!this.whole) this.look({ ...this.window, begin: this.window.begin + passed, end: this.window.end + passed }, false);
    this.draw();
  }

  restore() {
    const [begin, end, top, bottom] = chosen("window").split(",").map(Number);
    this.isNew = false;
    if (end > begin && bottom > top) this.look({ begin, end, top, bottom });
  }

  bars() {
    return this.rectangles.bars;
  }

  /** Colour bars by a key of theirs; `keys`, if there are any, are all of them, in order. */
  colourBy(keyOf, keys = null) {
    this.keyOf = keyOf;
    this.dimmed = null;
    this.palette.reset(keys);
    this.rank();
    this.draw();
  }

  /** The keys with most core-seconds get colours. */
  rank() {
    const weights = new Map(), { begin, end } = this.data;
    for (const bar of this.bars()) {
      const key = this.keyOf(bar), length = Math.min(bar[END] || end, end) - Math.max(bar[START], begin);
      weights.set(key, (weights.get(key) ?? 0) + Math.max(1, length) * Math.max(1, bar[CORES]));
    }
    this.keys = this.palette.rank(weights);
  }

  /** Everything that there is. */
  reset(says = true) {
    const { begin, end, targets } = this.data;
    this.whole = true;
    this.window = { begin, end: Math.max(end, begin + SPAN_LEAST), top: targets[0], bottom: targets[1] + 1 };
    if (says) this.moved();
  }

  /** Show this part of it, as far as there is one. */
  look(window, says = true) {
    const { begin, end, targets } = this.data;
    const span = Math.min(Math.max(window.end - window.begin, SPAN_LEAST), Math.max(end - begin, SPAN_LEAST));
    const all = targets[1] + 1 - targets[0];
    const rows = Math.min(Math.max(window.bottom - window.top, ROWS_LEAST), all);
    const left = Math.min(Math.max(window.begin, begin), Math.max(end, begin + SPAN_LEAST) - span);
    const top = Math.min(Math.max(window.top, targets[0]), targets[1] + 1 - rows);
    this.window = { begin: left, end: left + span, top, bottom: top + rows };
    this.whole = span >= (end - begin) * 0.999 && rows >= all * 0.999;
    if (says) this.moved();
    else this.draw();
  }

  moved() {
    this.options.moved?.(this.window, this.whole);
    const { begin, end, top, bottom } = this.window;
    clearTimeout(this.keeping);
    this.keeping = setTimeout(() => choose("window", this.whole ? "" : [begin, end, top, bottom].map((each) => Number(each.toFixed(2))).join()), STILL_MS);
    this.draw();
  }

  /** Zoom by a factor, at a place of the window (0 to 1). */
  zoom(factorX, factorY = 1, atX = 0.5, atY = 0.5) {
    const { begin, end, top, bottom } = this.window;
    const time = begin + (end - begin) * atX, row = top + (bottom - top) * atY;
    this.look({
      begin: time - (time - begin) * factorX, end: time + (end - time) * factorX,
      top: row - (row - top) * factorY, bottom: row + (bottom - row) * factorY,
    });
  }

  /** Move the window by parts of itself. */
  pan(partX, partY = 0) {
    const { begin, end, top, bottom } = this.window;
    const time = (end - begin) * partX, rows = (bottom - top) * partY;
    this.look({ begin: begin + time, end: end + time, top: top + rows, bottom: bottom + rows });
  }

  /** The bar at a point of the canvas (CSS pixels), or -1. */
  at(x, y) {
    const { plot, lines } = this.painter.layout;
    const { begin, end, top, bottom } = this.window;
    if (x < plot.left || x >= plot.right) return -1;
    const time = begin + ((x - plot.left) / (plot.right - plot.left)) * (end - begin);
    if (y >= plot.top && y < plot.bottom) {
      return this.rectangles.find(time, top + ((y - plot.top) / (plot.bottom - plot.top)) * (bottom - top));
    }
    const line = lines.find((each) => y >= each.top && y < each.bottom && each.from <= time && time < each.to);
    return line ? line.bar : -1;
  }

  /** Make this bar the selected one, and have it in the window. */
  select(at) {
    this.selected = at;
    const bar = this.bars()[at];
    if (bar) {
      const { begin, end } = this.window;
      const last = Math.min(bar[END] || this.data.end, this.data.end);
      if (last < begin || bar[START] > end) {
        const middle = (Math.max(bar[START], this.data.begin) + last) / 2, half = (end - begin) / 2;
        this.look({ ...this.window, begin: middle - half, end: middle + half });
      }
    }
    this.options.selected?.(bar ?? null);
    this.draw();
  }

  /** The next or the previous bar of the window, by start. */
  step(direction) {
    const { begin, end } = this.window;
    const order = this.bars()
      .map((bar, at) => [bar[START], at, bar])
      .filter(([start, , bar]) => start < end && (bar[END] || Infinity) > begin)
      .sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    if (order.length === 0) return;
    const here = order.findIndex(([, at]) => at === this.selected);
    const next = here < 0 ? (direction > 0 ? 0 : order.length - 1) : (here + direction + order.length) % order.length;
    this.select(order[next][1]);
  }

  /** Draw in the next frame. */
  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.canvas.isConnected && this.canvas.clientWidth > 0) this.painter.draw();
    });
  }

  /** Pixels of the screen for one of the page, as far as they are not too many. */
  ratio() {
    const wanted = Math.min(window.devicePixelRatio || 1, 2);
    const pixels = this.canvas.clientWidth * this.canvas.clientHeight * wanted * wanted;
    return pixels > PIXELS_MAX ? wanted * Math.sqrt(PIXELS_MAX / pixels) : wanted;
  }

  /** Does a bar count as one that is planned only? */
  static isPlanned(bar) {
    return bar[KIND] === "reserved" || bar[KIND] === "forecast";
  }
}
