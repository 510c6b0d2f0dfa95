// What a Gantt chart looks like. From below: shaded times of targets that are out, bars (solid so far, paler up to their
// limit), planned bars (hatched if promised, outlined if forecast), then edges, labels, axes and the line of now.

import { number } from "../base/words.js";
import { END, endOf, ID, KIND, NAME, runsOf, START } from "./bars.js";
import { inkOn, property } from "../charts/palette.js";
import { linear, numberTicks, timeTicks } from "../charts/scale.js";

const LEFT = 62, RIGHT = 10, TOP = 26, LINE = 18, OVERVIEW = 44;

/** Lines of planned jobs without targets, and labels in bars: more are not read. */
const LINES_MAX = 10, LABELS_MAX = 600;

/** Rows at least so high have a name each; bars at least so large a label. */
const ROW_NAMED = 13, LABEL_WIDTH = 34, LABEL_HEIGHT = 11;

const FONT = "11.5px system-ui, sans-serif";

export class Painter {
  constructor(gantt) {
    this.gantt = gantt;
    this.box = null;
    this.layer = document.createElement("canvas");
    this.hatches = new Map();
    this.layout = { plot: { left: 0, right: 1, top: 0, bottom: 1 }, lines: [], overview: null };
  }

  draw() {
    const { gantt } = this, { canvas } = gantt;
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = gantt.ratio();
    const wide = Math.round(width * ratio), high = Math.round(height * ratio);
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    this.ratio = ratio;
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = FONT;
    this.colours = Object.fromEntries(
      ["ink", "ink-2", "line", "surface", "surface-2", "accent", "shade"].map((name) => [name, property(`--${name}`)]),
    );
    this.place(width, height);
    this.shades();
    this.bars();
    this.planned();
    this.marks();
    this.lines();
    this.axes();
    if (this.layout.overview) this.overview();
    if (this.box) this.rubber();
  }

  /** Where everything is. */
  place(width, height) {
    const { gantt } = this, { window } = gantt;
    const overview = gantt.options.overview ? { top: height - OVERVIEW, bottom: height - 14 } : null;
    const lines = this.assigned();
    const count = lines.reduce((most, each) => Math.max(most, each.line + 1), 0);
    const below = (overview ? OVERVIEW + 10 : 4) + (count ? count * LINE + 10 : 0);
    const plot = { left: LEFT, right: width - RIGHT, top: TOP, bottom: Math.max(TOP + 40, height - below) };
    for (const each of lines) {
      each.top = plot.bottom + 8 + each.line * LINE;
      each.bottom = each.top + LINE - 3;
    }
    this.layout = { plot, lines, overview };
    this.x = linear(window.begin, window.end, plot.left, plot.right);
    this.y = linear(window.top, window.bottom, plot.top, plot.bottom);
  }

  /** Planned bars without targets, each on the first line that is free then. */
  assigned() {
    const ends = [], found = [], { rectangles, data } = this.gantt;
    for (const at of rectangles.unplaced) {
      const bar = rectangles.bars[at], to = Math.min(endOf(bar), data.end);
      let line = ends.findIndex((end) => end <= bar[START]);
      if (line < 0) line = ends.length;
      if (line >= LINES_MAX) continue;
      ends[line] = to;
      found.push({ line, bar: at, from: bar[START], to });
    }
    return found;
  }

  clip(deed) {
    const { context } = this, { plot } = this.layout;
    context.save();
    context.beginPath();
    context.rect(plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top);
    context.clip();
    deed(context, plot);
    context.restore();
  }

  /** Targets that are drained, down or away, for as long as they are; those that will be, hatched. */
  shades() {
    this.clip((context, plot) => {
      context.fillStyle = this.colours["surface-2"];
      context.fillRect(plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top);
      for (const [idset, state, from, to] of this.gantt.data.spans) {
        const x0 = this.x(from), x1 = to === null ? plot.right : this.x(to);
        context.fillStyle = state === "planned" ? this.hatch(this.colours["ink-2"]) : this.colours.shade;
        for (const [first, last] of runsOf(idset)) {
          context.fillRect(x0, this.y(first), x1 - x0, this.y(last + 1) - this.y(first));
        }
      }
      for (const [time] of this.ticks()) {
        context.fillStyle = this.colours.line;
        context.fillRect(Math.round(this.x(time)), plot.top, 1, plot.bottom - plot.top);
      }
    });
  }

  ticks() {
    const { plot } = this.layout, { window, options } = this.gantt;
    return timeTicks(window.begin, window.end, Math.max(2, (plot.right - plot.left) / 90), options.ofDay);
  }

  /** The visible rectangles: `each(bar, place of the bar, x0, y0, x1, y1)` in pixels of the page. */
  visible(each) {
    const { window, rectangles: { times, rows, owner, count, bars } } = this.gantt;
    for (let at = 0; at < count; at += 1) {
      const from = times[at * 2], to = times[at * 2 + 1], top = rows[at * 2], bottom = rows[at * 2 + 1];
      if (to <= window.begin || from >= window.end || bottom <= window.top || top >= window.bottom) continue;
      each(bars[owner[at]], owner[at], this.x(from), this.y(top), this.x(Math.min(to, window.end + 1)), this.y(bottom));
    }
  }

  /** All that runs or ran, by what it covers of each pixel. */
  bars() {
    const { gantt, ratio } = this, { raster, palette } = gantt, { plot } = this.layout;
    raster.clear((plot.right - plot.left) * ratio, (plot.bottom - plot.top) * ratio);
    const now = gantt.data.now === null || gantt.data.now === undefined ? Infinity : this.x(gantt.data.now);
    const put = (x0, y0, x1, y1, colour, weight) => raster.add(
      (x0 - plot.left) * ratio, (y0 - plot.top) * ratio, (x1 - plot.left) * ratio, (y1 - plot.top) * ratio, colour, weight,
    );
    this.visible((bar, _place, x0, y0, x1, y1) => {
      if (bar[KIND] === "reserved" || bar[KIND] === "forecast") return;
      const key = gantt.keyOf(bar), colour = palette.channels(key);
      const weight = gantt.dimmed !== null && gantt.dimmed !== key ? 0.18 : 1;
      const right = x1 - x0 > 4 ? x1 - 1 : x1, bottom = y1 - y0 > 4 ? y1 - 1 : y1;
      if (bar[KIND] !== "running" || right <= now) put(x0, y0, right, bottom, colour, weight);
      else {
        put(x0, y0, Math.max(x0, now), bottom, colour, weight);
        put(Math.max(x0, now), y0, right, bottom, colour, weight * 0.45);
      }
    });
    this.sums(put, now);
    [this.layer.width, this.layer.height] = [raster.width, raster.height];
    this.layer.getContext("2d").putImageData(raster.image(), 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(this.layer, plot.left, plot.top, plot.right - plot.left, plot.bottom - plot.top);
  }

  /** Cores in use of many targets each, where single bars are too many: the deeper, the more. */
  sums(put, now) {
    const { data, window } = this.gantt, colour = this.gantt.palette.named("--hue-1")[1];
    for (const { ranks, cores, steps } of data.sums ?? []) {
      const [top, bottom] = [this.y(ranks[0]), this.y(ranks[1] + 1)];
      steps.forEach(([time, used], at) => {
        const until = steps[at + 1]?.[0] ?? data.end;
        if (!used || until <= window.begin || time >= window.end) return;
        const weight = Math.min(1, used / cores), x0 = this.x(time), x1 = this.x(until);
        put(x0, top, Math.min(x1, Math.max(x0, now)), bottom, colour, weight);
        put(Math.max(x0, now), top, x1, bottom, colour, weight * 0.45);
      });
    }
  }

  /** Reservations hatched, forecasts pale with an outline. */
  planned() {
    this.clip((context) => this.visible((bar, _place, x0, y0, x1, y1) => {
      if (bar[KIND] === "reserved" || bar[KIND] === "forecast") this.plan(context, bar, x0, y0, x1 - 1, y1 - (y1 - y0 > 4 ? 1 : 0));
    }));
  }

  plan(context, bar, x0, y0, x1, y1) {
    const { gantt } = this, key = gantt.keyOf(bar), promised = bar[KIND] === "reserved";
    context.globalAlpha = gantt.dimmed !== null && gantt.dimmed !== key ? 0.2 : 1;
    const colour = gantt.palette.colour(key);
    context.fillStyle = promised ? this.hatch(colour) : colour;
    if (!promised) context.globalAlpha *= 0.22;
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
    context.globalAlpha = Math.min(1, context.globalAlpha * (promised ? 1 : 3));
    if (y1 - y0 > 5 && x1 - x0 > 5) {
      context.strokeStyle = colour;
      context.setLineDash(promised ? [] : [3, 3]);
      context.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
      context.setLineDash([]);
    }
    context.globalAlpha = 1;
  }

  hatch(colour) {
    const name = `${colour} ${this.ratio}`;
    if (!this.hatches.has(name)) {
      const size = 7, tile = document.createElement("canvas");
      tile.width = tile.height = size * this.ratio;
      const context = tile.getContext("2d");
      context.scale(this.ratio, this.ratio);
      context.globalAlpha = 0.25;
      context.fillStyle = context.strokeStyle = colour;
      context.fillRect(0, 0, size, size);
      context.globalAlpha = 1;
      context.lineWidth = 1.6;
      context.beginPath();
      for (const shift of [-size, 0, size]) {
        context.moveTo(shift - 1, size + 1);
        context.lineTo(shift + size + 1, -1);
      }
      context.stroke();
      const pattern = this.context.createPattern(tile, "repeat");
      pattern.setTransform(new DOMMatrix().scale(1 / this.ratio));
      this.hatches.set(name, pattern);
    }
    return this.hatches.get(name);
  }

  /** Limits as ends, labels, and what is pointed at or selected. */
  marks() {
    const { gantt } = this;
    let labels = 0;
    this.clip((context, plot) => {
      this.visible((bar, place, x0, y0, x1, y1) => {
        const isLimit = bar[KIND] === "running" && bar[END] && x1 === this.x(Math.min(bar[END], gantt.window.end + 1));
        if (isLimit && x1 - x0 > 6) {
          context.fillStyle = gantt.palette.colour(gantt.keyOf(bar));
          context.fillRect(x1 - 3, y0, 2, y1 - y0 - (y1 - y0 > 4 ? 1 : 0));
        }
        const left = Math.max(x0, plot.left), right = Math.min(x1, plot.right);
        if (right - left > LABEL_WIDTH && y1 - y0 >= LABEL_HEIGHT && labels < LABELS_MAX) {
          labels += 1;
          this.label(context, bar, left, y0, right, y1);
        }
        if (place === gantt.selected || place === gantt.pointed) {
          context.strokeStyle = place === gantt.selected ? this.colours.accent : this.colours.ink;
          context.lineWidth = place === gantt.selected ? 2 : 1.25;
          context.strokeRect(x0 + 0.5, y0 + 0.5, Math.max(2, x1 - x0 - 2), Math.max(1, y1 - y0 - 1));
          context.lineWidth = 1;
        }
      });
    });
  }

  label(context, bar, left, top, right, bottom) {
    const { gantt } = this, solid = bar[KIND] === "running" || bar[KIND] === "ended";
    const past = solid && (bar[KIND] === "ended" || left + 30 < this.x(gantt.data.now));
    const dim = gantt.dimmed !== null && gantt.dimmed !== gantt.keyOf(bar);
    context.fillStyle = past && !dim ? inkOn(gantt.palette.channels(gantt.keyOf(bar))) : this.colours.ink;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(left, top, right - left - 5, bottom - top);
    context.clip();
    if (!past) {  // what is hatched would run through the letters
      context.strokeStyle = this.colours["surface-2"];
      context.lineWidth = 3;
      context.lineJoin = "round";
      context.strokeText(bar[NAME] || bar[ID], left + 5, Math.min((top + bottom) / 2, top + 40));
    }
    context.fillText(bar[NAME] || bar[ID], left + 5, Math.min((top + bottom) / 2, top + 40));
    context.restore();
  }

  /** Planned jobs whose targets are not chosen yet. */
  lines() {
    const { plot, lines } = this.layout, { context } = this;
    if (lines.length === 0) return;
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = this.colours["ink-2"];
    context.fillText("planned", plot.left - 8, lines[0].top + LINE / 2 - 1);
    for (const each of lines) {
      const bar = this.gantt.bars()[each.bar];
      const x0 = Math.max(plot.left, this.x(each.from)), x1 = Math.min(plot.right, this.x(each.to));
      if (x1 <= x0) continue;
      this.plan(context, bar, x0, each.top, Math.max(x1 - 1, x0 + 2), each.bottom);
      if (x1 - x0 > LABEL_WIDTH) this.label(context, bar, x0, each.top, x1, each.bottom);
      if (each.bar === this.gantt.selected || each.bar === this.gantt.pointed) {
        context.strokeStyle = this.colours.accent;
        context.strokeRect(x0 - 0.5, each.top - 0.5, Math.max(2, x1 - x0), each.bottom - each.top + 1);
      }
    }
  }

  axes() {
    const { context, gantt } = this, { plot } = this.layout, { window, data } = gantt;
    context.textBaseline = "middle";
    context.fillStyle = this.colours["ink-2"];
    context.textAlign = "center";
    for (const [time, text] of this.ticks()) {
      const x = this.x(time);
      if (x > plot.left + 14 && x < plot.right - 14) context.fillText(text, x, TOP - 11);
    }
    this.targets(plot, window);
    const now = data.now === undefined || data.now === null ? -1 : this.x(data.now);
    if (now >= plot.left && now <= plot.right) {
      context.fillStyle = this.colours.accent;
      context.fillRect(Math.round(now) - 0.75, plot.top - 3, 1.5, plot.bottom - plot.top + 3);
      context.beginPath();
      context.arc(Math.round(now), plot.top - 4, 3, 0, 7);
      context.fill();
    }
    context.strokeStyle = this.colours.line;
    context.strokeRect(plot.left - 0.5, plot.top - 0.5, plot.right - plot.left + 1, plot.bottom - plot.top + 1);
  }

  /** Ranks: all, or round numbers. */
  targets(plot, { top, bottom }) {
    const { context } = this, row = (plot.bottom - plot.top) / (bottom - top);
    context.textAlign = "right";
    context.fillText("target", plot.left - 8, plot.top - 8);
    const named = row >= ROW_NAMED;
    const ticks = named
      ? Array.from({ length: Math.ceil(bottom) - Math.floor(top) }, (_, at) => Math.floor(top) + at)
      : numberTicks(bottom - 1, Math.max(2, (plot.bottom - plot.top) / 34), top).filter(Number.isInteger);
    for (const rank of ticks) {
      const y = this.y(rank + 0.5);
      if (y < plot.top + 5 || y > plot.bottom - 5) continue;
      context.fillText(number(rank), plot.left - 8, y);
    }
  }

  /** Cores in use over all of the time, and the window in it. */
  overview() {
    const { context, gantt } = this, { plot, overview } = this.layout, { begin, end } = gantt.data;
    const { used, planned } = gantt.overview, parts = used.length;
    let most = gantt.data.coresInAll ?? 0;
    for (let at = 0; at < parts; at += 1) most = Math.max(most, used[at] + planned[at]);
    const x = linear(begin, end, plot.left, plot.right);
    const y = linear(0, most || 1, overview.bottom, overview.top);
    context.fillStyle = this.colours["surface-2"];
    context.fillRect(plot.left, overview.top, plot.right - plot.left, overview.bottom - overview.top);
    const width = (plot.right - plot.left) / parts;
    for (let at = 0; at < parts; at += 1) {
      const left = Math.round(plot.left + at * width), wide = Math.round(plot.left + (at + 1) * width) - left;
      context.globalAlpha = 0.55;
      context.fillStyle = this.colours["ink-2"];
      context.fillRect(left, y(used[at]), wide, overview.bottom - y(used[at]));
      context.globalAlpha = 0.22;
      context.fillRect(left, y(used[at] + planned[at]), wide, y(used[at]) - y(used[at] + planned[at]));
    }
    context.globalAlpha = 1;
    const from = Math.max(plot.left, x(gantt.window.begin)), to = Math.min(plot.right, x(gantt.window.end));
    context.fillStyle = this.colours.surface;
    context.globalAlpha = 0.7;
    context.fillRect(plot.left, overview.top, from - plot.left, overview.bottom - overview.top);
    context.fillRect(to, overview.top, plot.right - to, overview.bottom - overview.top);
    context.globalAlpha = 1;
    context.strokeStyle = gantt.whole ? this.colours.line : this.colours.accent;
    context.strokeRect(from + 0.5, overview.top + 0.5, Math.max(2, to - from - 1), overview.bottom - overview.top - 1);
    context.fillStyle = this.colours["ink-2"];
    context.textAlign = "right";
    context.fillText("cores", plot.left - 8, (overview.top + overview.bottom) / 2);
  }

  rubber() {
    const [x0, y0, x1, y1] = this.box, { context } = this;
    context.fillStyle = context.strokeStyle = this.colours.accent;
    context.globalAlpha = 0.12;
    context.fillRect(x0, y0, x1 - x0, y1 - y0);
    context.globalAlpha = 1;
    context.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0, y1 - y0);
  }
}
