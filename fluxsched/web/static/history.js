// The history: utilisation, jobs, waits and what ended, over hours to months, and what users or queues used. Law: panels
// share one axis of time; when no instance ran is a gap, when targets were out is shaded; tables say the same.

import { element, keyed, setText, show as reveal } from "./base/dom.js";
import { sizeOf } from "./base/sets.js";
import { duration, number, time } from "./base/words.js";
import { Panels } from "./charts/lines.js";
import { shortNumber, timeText } from "./charts/scale.js";

/** How far back: seconds from now. */
const RANGES = [["-3600", "1 hour"], ["-21600", "6 hours"], ["-86400", "1 day"], ["-604800", "7 days"], ["-2592000", "30 days"],
  ["-7776000", "90 days"], ["-31536000", "1 year"]];

const BY = ["user", "bank", "queue", "group", "property"];

/** Intervals that are shaded and listed, and steps in the table. */
const INTERVALS_MAX = 400, ROWS_MAX = 200;

const HUES = 8;

export function show(root, source) {
  const view = new History(root, source);
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.whole({ ...view.data, ...change }));
}

class History {
  constructor(root, source) {
    this.root = root;
    const { params } = source;
    const choice = (label, name, pairs, chosen) => element("label", {}, label,
      element("select", { onchange: (event) => source.filter({ [name]: event.target.value }) },
        ...pairs.map(([value, word]) => element("option", { value, selected: value === chosen }, word))));
    const tools = element("div", { class: "filters" }, choice("Range", "since", RANGES, params.since ?? "-86400"),
      choice("Report by", "by", BY.map((name) => [name, name]), params.by ?? "user"));
    const chart = (this.chart = element("div", { class: "card" }));
    this.note = element("p", { class: "note", role: "status" });
    root.querySelector("h1").after(tools, chart, this.note);
    this.panels = new Panels(chart, { height: 96, label: "History: arrow keys move the line that reads values" });
    this.report = root.querySelector("#report");
    this.table = root.querySelector("#steps");
    this.steps = this.table.querySelector("tbody");
    this.outages = root.querySelector("#outages");
  }

  whole(whole) {
    if (whole.refused) {
      setText(this.note, whole.refused);
      return;
    }
    this.data = whole;
    this.fillReport(whole.report);
    const { samples, since, until, now } = whole, intervals = (whole.intervals ?? []).slice(-INTERVALS_MAX);
    this.fillOutages(intervals);
    reveal(this.chart, Boolean(samples));
    reveal(this.table, Boolean(samples));
    if (!samples) {
      setText(this.note, "Samples are not shown to guests of an instance whose jobs are private.");
      return;
    }
    this.panels.show({
      begin: since, end: until, now, panels: panelsOf(samples),
      spans: outages(samples),
    });
    setText(this.note, samples.t.length ? `Steps of ${duration(samples.step)}; shaded: targets out of use, the darker the more.` : "Nothing was sampled in this time: the instance samples once a minute.");
    this.fillSteps(samples);
  }

  fillReport(report) {
    const rows = report?.rows ?? [];
    setText(this.root.querySelector("#report-heading"), `Report by ${report?.by ?? "user"}`);
    reveal(this.report, rows.length > 0);
    const most = Math.max(1, ...rows.map((row) => row.core_seconds));
    keyed(this.report.querySelector("tbody"), rows, (row) => row.name, () => element("tr"), (line, row) => {
      const bar = element("i");
      bar.style.width = `${(100 * row.core_seconds) / most}%`;
      line.replaceChildren(element("th", { scope: "row", class: "wraps" }, row.name || "none"), numeric(number(row.jobs)),
        numeric(hours(row.core_seconds)), element("td", { class: "wide" }, element("span", { class: "bar", "aria-hidden": "true" }, bar)),
        numeric(hours(row.gpu_seconds), "wide"), numeric(wait(row.wait_mean)), numeric(wait(row.wait_p50), "wide"),
        numeric(wait(row.wait_p95)), numeric(number(row.jobs - (row.results.completed ?? 0))));
    });
  }

  fillOutages(intervals) {
    reveal(this.outages, intervals.length > 0);
    const { now } = this.data;
    this.outages.querySelector("tbody").replaceChildren(...[...intervals].reverse().slice(0, ROWS_MAX).map(([ranks, state, from, to, note]) =>
      element("tr", {}, element("th", { scope: "row", class: "mono wraps" }, ranks), numeric(number(sizeOf(ranks))),
        element("td", {}, state), element("td", {}, time(from, now)), numeric(to === null ? "lasts" : duration(to - from)),
        element("td", { class: "wraps" }, note))));
  }

  fillSteps(samples) {
    const queued = total(samples.pending), running = total(samples.running), first = Math.max(0, samples.t.length - ROWS_MAX);
    const usable = usableCores(samples);
    const rows = samples.t.slice(first).map((when, at) => {
      const step = first + at, used = samples.cores.allocated?.[step] ?? 0;
      return element("tr", {}, element("th", { scope: "row" }, timeText(when)), numeric(shortNumber(Math.round(used))),
        numeric(usable[step] ? `${Math.round((100 * used) / usable[step])}%` : "–"), numeric(shortNumber(running[step])),
        numeric(shortNumber(queued[step])), numeric(number(samples.started[step])), numeric(wait(samples.wait_p50[step])), numeric(wait(samples.wait_p95[step])));
    });
    this.steps.replaceChildren(...rows.reverse());
  }
}

function numeric(text, more = "") {
  return element("td", { class: `number ${more}` }, text);
}

function hours(seconds) {
  const value = (seconds ?? 0) / 3600;
  return value && value < 100 ? value.toFixed(1) : number(Math.round(value));
}

function wait(seconds) {
  return seconds === null || seconds === undefined ? "–" : duration(seconds);
}

/** Columns by queue as their sum. */
function total(columns) {
  const sums = [];
  for (const column of Object.values(columns)) column.forEach((value, at) => (sums[at] = (sums[at] ?? 0) + value));
  return sums;
}

/** Cores of targets that jobs may be put on. */
function usableCores({ cores, t }) {
  return t.map((_, at) => (cores.allocated?.[at] ?? 0) + (cores.free?.[at] ?? 0));
}

/** Times in which cores could not be used, as dark as their part of all. */
function outages({ t, step, cores }) {
  const found = [];
  t.forEach((when, at) => {
    const out = (cores.drained?.[at] ?? 0) + (cores.down?.[at] ?? 0);
    const all = Object.values(cores).reduce((sum, column) => sum + column[at], 0);
    const strength = out > 0 ? Math.min(1, 0.3 + Math.ceil((10 * out) / all) / 10) : 0;
    const last = found.at(-1);
    if (!strength) return;
    if (last && last[1] === when && last[3] === strength) last[1] = when + step;
    else found.push([when, when + step, "out of use", strength]);
  });
  return found;
}

function panelsOf(samples) {
  const { t, step } = samples;
  const line = (values, more) => ({ points: gaps(t, step, values), ...more });
  const queues = Object.keys(samples.pending).filter((name) => samples.pending[name].some(Boolean) || samples.running[name]?.some(Boolean)).slice(0, HUES);
  const byQueue = (columns) => (queues.length > 1
    ? queues.map((name, at) => line(columns[name] ?? [], { name: name || "no queue", hue: `hue-${at + 1}` }))
    : [line(total(columns).length ? total(columns) : t.map(() => 0), { hue: "hue-1", filled: true })]);
  const usable = usableCores(samples);
  const whole = t.map((_, at) => Object.values(samples.cores).reduce((sum, column) => sum + column[at], 0));
  const failed = Object.entries(samples.ended).filter(([result]) => result !== "completed").map(([, column]) => column);
  return [
    { title: "Cores in use", top: Math.max(1, ...whole), lines: [
      line(samples.cores.allocated ?? [], { name: "in use", hue: "hue-1", filled: true }), line(usable, { name: "usable", hue: "ink", dotted: true })] },
    { title: "Jobs waiting", lines: byQueue(samples.pending) },
    { title: "Jobs running", lines: byQueue(samples.running) },
    { title: "Wait of started jobs", logarithmic: true, text: duration, lines: [
      line(samples.wait_p50, { name: "median", hue: "hue-1" }), line(samples.wait_p95, { name: "95th percentile", hue: "hue-2" })] },
    { title: `Jobs per ${duration(step)}`, lines: [
      line(samples.started, { name: "started", hue: "hue-1" }), line(total(failed).length ? total(failed) : t.map(() => 0), { name: "not completed", hue: "hue-2" })] },
  ];
}

/** Points of a column, with a gap where steps are missing. */
function gaps(t, step, values) {
  const points = [];
  t.forEach((when, at) => {
    points.push([when, values[at] ?? null]);
    if (at + 1 === t.length || t[at + 1] > when + 1.5 * step) points.push([when + step, null]);
  });
  return points;
}
