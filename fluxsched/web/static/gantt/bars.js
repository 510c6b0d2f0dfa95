// Bars of jobs as rectangles over targets and time. Law: jobs that share a target lie beside each other in its row, as
// high as their part of its cores; a bar without targets is none of these rectangles, but has a line of its own. A job
// that has grown or shrunk is drawn where it was when.

import { ranges, sizeOf } from "../base/sets.js";

/** The fields of a bar, in the order in which the instance gives them. */
export const ID = 0;
export const RANKS = 1;
export const START = 2;
export const END = 3;
export const KIND = 4;
export const CORES = 5;
export const USER = 6;
export const QUEUE = 7;
export const NAME = 8;
/** What a job had before it grew or shrank: [idset, until, cores], from its start on; most bars have none. */
export const BEFORE = 9;

/** A target of more cores than this is divided by proportion only. */
const SLOTS_MAX = 256;

export class Rectangles {
  constructor(bars, coresOfTarget) {
    this.bars = bars;
    this.cores = coresOfTarget || inferred(bars);
    const found = [];
    this.unplaced = [];
    const slots = new Map();
    const sizes = [];
    bars.forEach((bar, at) => {
      for (const size of sizesOf(bar)) sizes.push([...size, at]);
    });
    for (const size of sizes.sort((one, other) => one[1] - other[1])) {
      if (size[0]) this.place(found, slots, size);
      else this.unplaced.push(size[4]);
    }
    this.count = found.length / 5;
    this.times = new Float64Array(this.count * 2);
    this.rows = new Float32Array(this.count * 2);
    this.owner = new Uint32Array(this.count);
    for (let at = 0; at < this.count; at += 1) {
      this.times.set([found[at * 5], found[at * 5 + 1]], at * 2);
      this.rows.set([found[at * 5 + 2], found[at * 5 + 3]], at * 2);
      this.owner[at] = found[at * 5 + 4];
    }
  }

  place(found, slots, [ranks, start, end, cores, at]) {
    const runs = runsOf(ranks);
    const targets = sizeOf(ranks);
    const wanted = Math.max(1, Math.round(cores / Math.max(1, targets)));
    if (wanted >= this.cores || this.cores > SLOTS_MAX) {
      const part = this.cores > SLOTS_MAX ? Math.min(1, wanted / this.cores) : 1;
      for (const [first, last] of runs) found.push(start, end, first, last + (targets === 1 ? part : 1), at);
      return;
    }
    for (const [first, last] of runs) {
      for (let rank = first; rank <= last; rank += 1) {
        const free = this.slot(slots, rank, wanted, start, end);
        found.push(start, end, rank + free / this.cores, rank + (free + wanted) / this.cores, at);
      }
    }
  }

  /** The first of as many cores of a target, side by side, as were free by then; the last ones if none were. */
  slot(slots, rank, wanted, start, end) {
    let ends = slots.get(rank);
    if (!ends) slots.set(rank, (ends = new Float64Array(this.cores).fill(-Infinity)));
    let first = 0, length = 0;
    for (let core = 0; core < this.cores && length < wanted; core += 1) {
      if (ends[core] <= start + 1e-6) length += 1;
      else [first, length] = [core + 1, 0];
    }
    if (length < wanted) first = this.cores - wanted;
    ends.fill(end, first, first + wanted);
    return first;
  }

  /** The bar at a time and a row (a rank and the place within), the last one drawn; -1 where there is none. */
  find(time, row) {
    const { times, rows } = this;
    for (let at = this.count - 1; at >= 0; at -= 1) {
      if (times[at * 2] <= time && time < times[at * 2 + 1] && rows[at * 2] <= row && row < rows[at * 2 + 1]) {
        return this.owner[at];
      }
    }
    return -1;
  }
}

/** The ranges of an idset as pairs. */
export function runsOf(text) {
  const found = [];
  ranges(text, (first, last) => found.push([first, last]));
  return found;
}

/** What a job has or had when: [idset, from, to, cores], where that is known; of what is planned the idset may be "". */
export function sizesOf(bar) {
  const found = [];
  let start = bar[START];
  for (const [ranks, until, cores] of bar[BEFORE] ?? []) {
    if (ranks) found.push([ranks, start, until, cores]);
    start = until;
  }
  found.push([bar[RANKS], start, endOf(bar), bar[CORES]]);
  return found;
}

/** When a bar ends: one without a limit never does. */
export function endOf(bar) {
  return bar[END] || Infinity;
}

/** Cores of a target, as far as bars tell: the most that one job has on one. */
function inferred(bars) {
  let most = 1;
  for (const bar of bars) {
    if (!bar[RANKS]) continue;
    most = Math.max(most, Math.ceil(bar[CORES] / Math.max(1, sizeOf(bar[RANKS]))));
  }
  return most;
}

/** Cores in use in equal parts of a time, for an overview: jobs that run or ran, and apart from them planned ones. */
export function usedCores(bars, begin, end, parts, now) {
  const used = new Float64Array(parts), planned = new Float64Array(parts);
  const width = (end - begin) / parts;
  for (const bar of bars) {
    const over = bar[KIND] === "running" || bar[KIND] === "ended";
    for (const [, start, last, cores] of sizesOf(bar)) {
      const until = Math.min(last, end);
      for (let at = Math.max(0, Math.floor((start - begin) / width)); at < parts; at += 1) {
        const from = begin + at * width;
        if (from >= until) break;
        const part = Math.max(0, (Math.min(until, from + width) - Math.max(start, from)) / width);
        (over && from < now ? used : planned)[at] += part * cores;
      }
    }
  }
  return { used, planned };
}
