// The page of a simulation study (`fluxsched sim --html`): several policies on one trace, side by side on shared axes.
// Law: it draws what is in the page's own data; the table of figures above is there without the script, too.

import { element, setText } from "./base/dom.js";
import { offer } from "./base/file.js";
import { Table, durations, numbers } from "./base/table.js";
import { count, duration, number, time } from "./base/words.js";
import { CORES, ID, NAME, QUEUE, RANKS, START, END, USER } from "./gantt/bars.js";
import { Gantt } from "./gantt/gantt.js";
import { drawLegend, tipFor } from "./gantt/legend.js";
import { bar } from "./charts/bar.js";
import { Panels } from "./charts/lines.js";
import { Palette } from "./charts/palette.js";
import { machineAt } from "./gantt/cells.js";
import { waitCurves, waitRows } from "./charts/waits.js";

/** Fields of a bar that only a study has, after those of `bars.js`: how long the job waited, whether its size changed. */
const WAIT = 10, RESIZED = 11;

const WAITS = [
  [1, "no wait"], [60, "under 1 min"], [600, "under 10 min"], [3600, "under 1 h"], [21600, "under 6 h"],
  [86400, "under 1 day"], [Infinity, "1 day or more"],
];

const SIZES = [[1, "1 core"], [4, "2–4"], [16, "5–16"], [64, "17–64"], [256, "65–256"], [1024, "257–1,024"], [Infinity, "more"]];

const COLOURS = {
  user: [(bar) => bar[USER] || "unknown"],
  queue: [(bar) => bar[QUEUE] || "no queue"],
  wait: [(bar) => WAITS.find(([most]) => bar[WAIT] < most)[1], WAITS.map(([, word]) => word)],
  size: [(bar) => SIZES.find(([most]) => bar[CORES] <= most)[1], SIZES.map(([, word]) => word)],
};

export function show(root, source) {
  source.whole((study) => new Study(root, study));
}

class Study {
  constructor(root, study) {
    this.study = study;
    this.isDated = study.unix_start !== null;
    if (this.isDated) date(study);
    this.titles = study.policies.map((policy) => policy.title);
    this.gantts = [];
    this.keyPolicies(root);
    offer(root.querySelector("#figures"));
    root.append(this.timeline(), this.courses(), this.machine(), this.waits());
    if (study.policies.some((policy) => policy.accounts.length)) root.append(this.accounts());
    this.colour("wait");
  }

  /** The colour of each policy, in the head of the table. */
  keyPolicies(root) {
    root.querySelectorAll("#figures thead th").forEach((head, at) => {
      if (at) head.replaceChildren(element("span", { class: `key hue-${at}` }, head.textContent));
    });
  }

  timeline() {
    const section = part("Jobs on targets", "timeline");
    this.palette = new Palette();
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Colours" });
    const options = [["wait", "wait"], ["user", "user"], ["size", "cores"]];
    if (this.study.queues.length > 1) options.push(["queue", "queue"]);
    const choice = element("select", { onchange: (event) => this.colour(event.target.value) },
      ...options.map(([value, word]) => element("option", { value }, word)));
    const button = (text, label, deed) =>
      element("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: deed }, text);
    section.append(element("div", { class: "filters" }, element("label", {}, "Colour by", choice), this.legend,
      element("span", { class: "buttons" }, button("−", "Zoom out (-)", () => this.gantts[0].zoom(1 / 0.6)),
        button("+", "Zoom in (+)", () => this.gantts[0].zoom(0.6)),
        button("Show all", "Show all of it (0)", () => this.gantts[0].reset()))));
    this.study.policies.forEach((policy, at) => section.append(this.gantt(policy, at)));
    section.append(element("p", { class: "note" },
      "Drag to move, Ctrl and wheel to zoom (with Alt targets, too), Shift and drag to choose a part; by keys: arrows, +, -, 0, and full stop and comma for jobs. All charts move together."));
    return section;
  }

  gantt(policy, at) {
    const { study } = this, last = at === study.policies.length - 1;
    const chart = element("div", { class: `chart ${last ? "with-overview" : ""}` });
    const left = policy.left_out ? `${number(policy.left_out)} smaller jobs are not drawn` : "";
    const figure = element("figure", { class: "card policy" },
      element("figcaption", {}, element("span", { class: `key hue-${at + 1}` }, policy.title), element("span", { class: "note" }, left)), chart);
    const tip = tipFor(chart);
    const gantt = new Gantt(chart, {
      ofDay: this.isDated, overview: last, palette: this.palette, label: `${policy.title}: jobs on targets over time`,
      pointed: (bar, event) => tip(bar && this.words(bar), event),
      moved: (window) => this.moved(gantt, window),
    });
    gantt.show({
      bars: barsOf(study, policy), spans: [], now: null, begin: study.begin, end: study.end,
      targets: [0, study.targets - 1], cores: Math.ceil(study.cores / study.targets), coresInAll: study.cores,
    });
    this.gantts.push(gantt);
    return figure;
  }

  moved(from, window) {
    for (const gantt of this.gantts) {
      if (gantt === from) continue;
      gantt.window = { ...window };
      gantt.whole = from.whole;
      gantt.draw();
    }
    this.panels?.forEach(({ panels, data }) => panels.show({ ...data, begin: window.begin, end: window.end }));
  }

  colour(name) {
    for (const gantt of this.gantts) gantt.colourBy(...COLOURS[name]);
    const all = { palette: this.palette, keys: this.gantts[0].keys, dimmed: null, draw: () => this.dim(all.dimmed) };
    drawLegend(this.legend, all);
  }

  dim(key) {
    for (const gantt of this.gantts) {
      gantt.dimmed = key;
      gantt.draw();
    }
  }

  courses() {
    const section = part("Over time", "courses"), { study } = this;
    const each = (title, lines) => study.policies.map((policy, at) => ({
      title: policy.title, scale: title, lines: lines(policy, `hue-${at + 1}`),
    }));
    const charts = [
      ["Cores in use", "of the usable ones, dotted", (policy, hue) => [
        { points: policy.used, hue, filled: true }, { points: policy.usable, hue: "ink", dotted: true }]],
      ["Jobs waiting", "submitted and not started", (policy, hue) => [{ points: policy.waiting, hue, filled: true }]],
    ];
    this.panels = charts.map(([title, note, lines]) => {
      const card = element("div", { class: "card" }, element("h3", {}, title, " ", element("span", { class: "note" }, note)));
      const panels = new Panels(card, { ofDay: this.isDated, height: 70, label: `${title} over time` });
      const data = { begin: study.begin, end: study.end, spans: outages(study.policies[0].usable), panels: each(title, lines).map((panel) => ({ ...panel, quiet: true })) };
      panels.show({ ...data, begin: this.gantts[0].window.begin, end: this.gantts[0].window.end });
      section.append(card);
      return { panels, data };
    });
    return section;
  }

  machine() {
    const section = part("The machine at a time", "machine"), { study } = this;
    const most = study.end - study.begin, said = element("output", {});
    const middle = [study.begin + most / 2, 0];
    const [crowded] = study.policies[0].waiting.reduce((longest, each) => (each[1] > longest[1] ? each : longest), middle);
    const value = Math.round((1000 * (crowded - study.begin)) / most);
    const slider = element("input", { type: "range", min: 0, max: 1000, value, "aria-label": "Time" });
    const maps = study.policies.map((policy, at) => {
      const canvas = element("canvas", { class: "cells", role: "img", "aria-label": `${policy.title}: targets in use` });
      section.append(element("figure", { class: "card" }, element("figcaption", {},
        element("span", { class: `key hue-${at + 1}` }, policy.title), element("span", { class: "note" })), canvas));
      return [canvas, this.gantts[at]];
    });
    const draw = () => {
      const moment = study.begin + (most * Number(slider.value)) / 1000;
      setText(said, this.moment(moment));
      for (const [canvas, gantt] of maps) {
        const busy = machineAt(canvas, gantt, moment, study.targets);
        setText(canvas.previousElementSibling.lastChild, `${count(busy, "target")} in use`);
      }
    };
    slider.addEventListener("input", draw);
    section.children[0].append(" ", element("span", { class: "note" }, `at first when most jobs wait under ${this.titles[0]}`));
    section.children[0].after(element("label", { class: "slider" }, "Time", slider, said));
    new ResizeObserver(draw).observe(section);
    this.gantts.at(-1).options.recoloured = draw;
    return section;
  }

  /** A time of the day, or since the beginning of a trace that has no date. */
  moment(seconds) {
    return this.isDated ? time(seconds) : duration(seconds);
  }

  words(bar) {
    return [
      `job ${bar[ID]}`, bar[USER] ? `user ${bar[USER]}` : "", `waited ${duration(bar[WAIT])}, ran ${bar[RESIZED] ? "like this " : ""}${duration(bar[END] - bar[START])}`,
      `${count(bar[CORES], "core")} on targets ${bar[RANKS].length > 40 ? `${bar[RANKS].slice(0, 38)}…` : bar[RANKS]}`,
      `from ${this.moment(bar[START])} to ${this.moment(bar[END])}`,
    ].filter(Boolean);
  }

  /** How accounts shared the machine, by the policies that keep some. */
  accounts() {
    const section = part("Shares", "shares"), kept = this.study.policies.filter((policy) => policy.accounts.length);
    const most = Math.max(...kept.flatMap((policy) => policy.accounts.map((each) => Math.max(each.usage, each.share))), 1e-9);
    for (const policy of kept) {
      const at = this.study.policies.indexOf(policy) + 1;
      const table = element("table", { class: "rows accounts", id: `shares-${at}` }, element("caption", { class: `key hue-${at}` }, policy.title),
        element("thead", {}, element("tr", {}, ["Account", "Jobs", "Mean usage", "Mean share"].map((name, column) =>
          element("th", { scope: "col", class: column ? "number" : "" }, name)), element("th", { scope: "col", class: "scale" },
          element("span", { class: `key hue-${at}` }, "usage"), element("span", { class: "mark-share" }, "share")),
        element("th", { scope: "col", class: "number" }, "Shortfall"), element("th", { scope: "col", class: "number" }, "Mean wait"))),
        element("tbody"));
      section.append(element("div", { class: "card scrolls" }, table));
      new Table(table, (each) => each.name, [
        (each) => each.name, numbers((each) => each.jobs), numbers((each) => Math.round(each.usage)), numbers((each) => Math.round(each.share)), { show: (each) => bar(each.usage / most, { marks: [[each.share / most, ""]], kind: `hue-${at}` }) },
        { value: (each) => each.shortfall_s, show: (each) => `${number(Math.round(each.shortfall_s / 3600))} h`, unit: "s" }, durations((each) => each.wait_mean_s),
      ], { noun: "account" }).show(policy.accounts);
    }
    return section;
  }

  waits() {
    const section = part("Waits", "waits"), { study, titles } = this;
    const rowsOf = (classes) => classes.map((each) => ({
      label: each.label, waits: each.waits.map((wait) => wait && { median: wait[0], p95: wait[1], jobs: wait[2] }),
    }));
    const key = () => element("p", { class: "keys" }, titles.map((title, at) => element("span", { class: `key hue-${at + 1}` }, title)));
    const card = (title, note) => {
      const made = element("div", { class: "card" }, element("h3", {}, title, " ", element("span", { class: "note" }, note)), key());
      section.append(made);
      return made;
    };
    waitCurves(card("All jobs", "part that waited at most so long"),
      study.policies.map((policy) => ({ quantiles: policy.quantiles })), "Part of the jobs by wait, one curve a policy");
    waitRows(card("By user", "those who used most; median to 95th percentile"), rowsOf(study.by_user), titles, "Waits by user");
    waitRows(card("By cores of the job", "median to 95th percentile"), rowsOf(study.by_size), titles, "Waits by cores of the job");
    return section;
  }
}

/** Make times of a study those of the day. */
function date(study) {
  const later = (seconds) => (seconds === null ? null : seconds + study.unix_start);
  [study.begin, study.end, study.jobs.submit] = [later(study.begin), later(study.end), study.jobs.submit.map(later)];
  for (const { bars, ...policy } of study.policies) {
    [bars.start, bars.end] = [bars.start.map(later), bars.end.map(later)];
    for (const steps of [policy.used, policy.usable, policy.waiting]) for (const step of steps) step[0] = later(step[0]);
  }
}

/** Times in which less than at the beginning could be used. */
function outages(usable) {
  const whole = usable[0][1];
  return usable.flatMap(([time, cores], at) => (cores < whole ? [[time, usable[at + 1]?.[0] ?? null]] : []));
}

function part(title, name) {
  return element("section", { class: `part ${name}` }, element("h2", {}, title));
}

/** The columns of the data as bars: those of the trace once, those of a policy its own. A job has several bars if it
 * was preempted, or changed its size: then one ends when the next starts. */
function barsOf(study, policy) {
  const { jobs, users, queues } = study, { at, start, end, ranks, procs } = policy.bars;
  const goesOn = (row) => row > 0 && at[row - 1] === at[row] && end[row - 1] === start[row];
  let begun = 0;
  return at.map((job, row) => {
    if (!goesOn(row)) begun = start[row];
    const made = [];
    made[ID] = jobs.id[job];
    made[RANKS] = ranks[row];
    [made[START], made[END], made[4]] = [start[row], end[row] ?? study.end, "ended"];
    [made[CORES], made[USER], made[QUEUE], made[NAME]] = [procs[row], users[jobs.user[job]], queues[jobs.queue[job]], ""];
    [made[WAIT], made[RESIZED]] = [begun - jobs.submit[job], goesOn(row) || goesOn(row + 1)];
    return made;
  });
}
