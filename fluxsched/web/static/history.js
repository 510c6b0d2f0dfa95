// The history: utilisation, jobs, waits and what ended, over hours to months, and what users or queues used. Law: panels
// share one axis of time; when no instance ran is a gap, when targets were out is shaded; tables say the same.

import { element, setText, show as reveal } from "./base/dom.js";
import { sizeOf } from "./base/sets.js";
import { Table, durations, numbers, times } from "./base/table.js";
import { duration, number } from "./base/words.js";
import { bar } from "./charts/bar.js";
import { heatCard } from "./charts/heat.js";
import { Panels } from "./charts/lines.js";
import { pictureButton } from "./charts/picture.js";

/** How far back: seconds from now. */
const RANGES = [["-900", "15 minutes"], ["-3600", "1 hour"], ["-21600", "6 hours"], ["-86400", "1 day"], ["-604800", "7 days"], ["-2592000", "30 days"],
  ["-7776000", "90 days"], ["-31536000", "1 year"]];

const BY = ["user", "bank", "queue", "group", "property"];

const HUES = 8;

export function show(root, source) {
  const view = new History(root, source);
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.whole({ ...view.data, ...change }));
}

class History {
  constructor(root, source) {
    this.root = root;
    this.source = source;
    const { params } = source;
    const choice = (label, name, pairs, chosen) => element("label", {}, label,
      element("select", { onchange: (event) => source.filter({ [name]: event.target.value }) },
        ...pairs.map(([value, word]) => element("option", { value, selected: value === chosen }, word))));
    const tools = element("div", { class: "filters" }, this.range = choice("Range", "since", RANGES, params.since ?? "-86400"),
      choice("Report by", "by", BY.map((name) => [name, name]), params.by ?? "user"),
      pictureButton("svg", "history", () => this.panels.picture()));
    const chart = (this.chart = element("div", { class: "card" }));
    this.note = element("p", { class: "note", role: "status" });
    root.querySelector("h1").after(tools, chart, this.note, heatCard((params) => source.fetch("history", params)));
    this.panels = new Panels(chart, { height: 96, label: "History: arrow keys move the line that reads values" });
    this.report = new Table(root.querySelector("#report"), (row) => row.name, [
      (row) => row.name || "none", numbers((row) => row.jobs), hours((row) => row.core_seconds),
      { show: (row) => bar(row.core_seconds / this.most) }, hours((row) => row.gpu_seconds),
      parts((row) => row.gpu_busy_seconds, (row) => row.gpu_sampled_seconds),
      durations((row) => row.wait_mean), durations((row) => row.wait_p50), durations((row) => row.wait_p95),
      numbers((row) => row.jobs - (row.results.completed ?? 0)),
    ], { noun: "name" });
    this.outages = new Table(root.querySelector("#outages table"), ([ranks, state, from]) => `${ranks} ${state} ${from}`, [
      ([ranks]) => ranks, numbers(([ranks]) => sizeOf(ranks)), ([, state]) => state, times(([, , from]) => from),
      durations(([, , from, to]) => to && to - from, { show: ([, , from, to]) => (to === null ? "ongoing" : duration(to - from)) }), ([, , , , note]) => note,
    ]);
    this.steps = new Table(root.querySelector("#steps table"), (step) => step.when, [
      times((step) => step.when), numbers((step) => Math.round(step.used)),
      parts((step) => step.used, (step) => step.usable),
      numbers((step) => rounded(step.running)), numbers((step) => rounded(step.waiting)), numbers((step) => step.started),
      durations((step) => step.median), durations((step) => step.p95),
    ], { noun: "step" });
  }

  whole(whole) {
    if (whole.refused) {
      setText(this.note, whole.refused);
      return;
    }
    this.data = whole;
    if (!this.source.params.since) this.range.querySelector("select").value = String(Math.round(whole.since - whole.until)); // the server's choice
    const { report, samples, since, until, now } = whole, rows = report?.rows ?? [];
    setText(this.root.querySelector("#report-heading"), `Report by ${report?.by ?? "user"}`);
    this.most = Math.max(1, ...rows.map((row) => row.core_seconds));
    this.report.show(rows, report?.left_out);
    this.outages.show(joined(whole.intervals ?? []).reverse());
    this.steps.show(samples ? stepsOf(samples) : []);
    reveal(this.chart, Boolean(samples?.t.length));
    if (!samples) {
      setText(this.note, "Samples are not shown to guests of an instance whose jobs are private.");
      return;
    }
    this.panels.show({
      begin: since, end: until, now, panels: panelsOf(samples),
      spans: outages(samples),
    });
    const means = `Steps of ${duration(samples.step)}: cores and numbers of jobs are their means.`;
    setText(this.note, samples.t.length ? `${means} Shaded: targets out of use, the stronger the more.`
      : "Nothing was sampled in this time yet: the instance samples once a minute.");
  }
}

function hours(seconds) {
  const value = (row) => (seconds(row) ?? 0) / 3600;
  const show = (row) => (value(row) && value(row) < 100 ? value(row).toFixed(1) : number(Math.round(value(row))));
  return { value, show, text: (known) => known.toFixed(3) };
}

/** A column of parts of a whole; without the whole, the part is not known. */
function parts(some, all) {
  const value = (row) => (all(row) ? some(row) / all(row) : null);
  const show = (row) => (value(row) === null ? "" : `${Math.round(100 * value(row))}%`);
  return { value, show, text: (part) => part.toFixed(3) };
}

/** Phases of one outage as one, such as "draining, drained", which has the beginning of the first. */
function joined(intervals) {
  const found = [], ends = new Map();
  for (const [ranks, state, from, to, note] of intervals) {
    const before = ends.get(`${ranks} ${from}`);
    const one = before ?? [ranks, state, from, to, note];
    if (before) [one[1], one[3], one[4]] = [`${one[1]}, ${state}`, to, note || one[4]];
    else found.push(one);
    ends.set(`${ranks} ${to}`, one);
  }
  return found;
}

/** The latest first. */
function stepsOf(samples) {
  const waiting = total(samples.pending), running = total(samples.running), usable = usableCores(samples);
  return samples.t.map((when, at) => ({
    when, used: samples.cores.allocated?.[at] ?? 0, usable: usable[at], running: running[at] ?? 0, waiting: waiting[at] ?? 0,
    started: samples.started[at], median: samples.wait_p50[at], p95: samples.wait_p95[at],
  })).reverse();
}

/** Means of few jobs have a decimal. */
function rounded(mean) {
  return Number(mean.toFixed(mean < 10 ? 1 : 0));
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
