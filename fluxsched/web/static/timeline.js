// The timeline: what ran, runs and is planned, on targets over time, with limits, reservations and drains. Law: single
// bars while there are few enough, else sums of many targets, of which a closer look shows bars again; the table of the
// next starts says the same in words.

import { chosen, choose } from "./base/address.js";
import { announce, element, setText, show as reveal } from "./base/dom.js";
import { ranges } from "./base/sets.js";
import { Table, linked, numbers, times, titled } from "./base/table.js";
import { duration, exact, number, time } from "./base/words.js";
import { BEFORE, CORES, END, ID, KIND, NAME, QUEUE, RANKS, START, USER } from "./gantt/bars.js";
import { Gantt } from "./gantt/gantt.js";
import { canvasPicture, pictureButton } from "./charts/picture.js";
import { drawLegend, tipFor } from "./gantt/legend.js";

/** How far back and ahead: seconds from now. */
const BACK = [["-900", "15 minutes"], ["-3600", "1 hour"], ["-21600", "6 hours"], ["-86400", "1 day"], ["-604800", "7 days"]];
const AHEAD = [["900", "15 minutes"], ["3600", "1 hour"], ["14400", "4 hours"], ["86400", "1 day"], ["604800", "7 days"]];

/** A closer look waits until the window is still, and is asked for again no sooner than this. */
const STILL_MS = 300, AGAIN_MS = 3000;

const COLOURS = {
  user: [(bar) => bar[USER]],
  queue: [(bar) => bar[QUEUE] || "no queue"],
  name: [(bar) => bar[NAME] || "no name"],
  state: [(bar) => bar[KIND]],
};

const STYLES = [["running", "to its limit"], ["reserved", "reserved"], ["forecast", "forecast"], ["out", "not usable"], ["planned", "outage or reservation"]];

/** Planned outages that are said below the chart. */
const OUTAGES_SAID = 3;

/** States of targets that no job is put on. */
const OUT = ["lost", "excluded", "offline", "torpid", "spare"];

export function show(root, source) {
  const view = new Timeline(root, source);
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.change(change));
}

class Timeline {
  constructor(root, source) {
    this.source = source;
    this.bars = new Map();
    this.closer = null;
    this.chart = element("div", { class: "chart card" });
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Colours" });
    this.note = element("p", { class: "note", role: "status" });
    const starts = root.querySelector("#starts");
    root.replaceChildren(root.querySelector("h1"), this.tools(), this.chart, this.legend, this.note, starts);
    this.by = "user";
    const inTime = ({ start }) => titled(start <= this.data.now ? "now" : `in ${duration(Math.ceil(start - this.data.now))}`, exact(start));
    this.starts = new Table(starts.querySelector("table"), (start) => start.jobid, [
      { value: (start) => start.jobid, show: ({ jobid }) => linked(jobid, `/jobs/${encodeURIComponent(jobid)}`) }, times((start) => start.start, { show: inTime, passes: true }),
      (start) => (start.promised ? "reserved" : "forecast"), (start) => start.user, (start) => start.name, numbers((start) => start.ncores ?? 0),
      { value: (start) => start.targets || "not chosen yet", show: (start) => shortened(start.targets || "not chosen yet") },
    ], { noun: "start" });
    this.tip = tipFor(this.chart);
    this.gantt = new Gantt(this.chart, {
      label: "Jobs on targets over time. Arrow keys move, plus and minus zoom, full stop and comma select jobs, Enter opens one.",
      chosen: (bar) => location.assign(`/jobs/${encodeURIComponent(bar[ID])}`),
      pointed: (bar, event) => this.tip(bar && this.words(bar), event),
      selected: (bar) => bar && announce(this.words(bar).join(", ")),
      moved: (_, whole) => this.moved(whole),
    });
    if (chosen("colour") in COLOURS) this.colour(chosen("colour"));
  }

  tools() {
    const choice = (label, pairs, chosen, deed) => element("label", {}, label,
      element("select", { onchange: (event) => deed(event.target.value) },
        ...pairs.map(([value, word]) => element("option", { value, selected: value === chosen }, word))));
    const button = (text, label, deed) =>
      element("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: deed }, text);
    const { params } = this.source;
    this.back = button("Show all", "Show all of it (0)", () => this.gantt.reset());
    this.back.classList.remove("quiet");
    this.back.hidden = true;
    return element("div", { class: "filters" },
      choice("Back", BACK, params.since ?? "-3600", (since) => this.filter({ since })),
      choice("Ahead", AHEAD, params.until ?? "14400", (until) => this.filter({ until })),
      this.colours = choice("Colour by", Object.keys(COLOURS).map((name) => [name, name]), "user", (name) => this.colour(name, true)),
      element("form", { onsubmit: (event) => { event.preventDefault(); this.filter({ targets: event.target.targets.value }); } },
        element("label", {}, "Targets", this.targets = element("input", { name: "targets", "aria-describedby": "filter-fault", value: params.targets ?? "", size: 12, placeholder: "0-3,7 or node[0-3]", "data-search": true, autocomplete: "off" }))),
      element("span", { class: "buttons" }, button("−", "Zoom out (-)", () => this.gantt.zoom(1 / 0.7, 1 / 0.7)),
        button("+", "Zoom in (+)", () => this.gantt.zoom(0.7, 0.7)), this.back,
        pictureButton("png", "timeline", () => canvasPicture(this.gantt.canvas))),
      this.fault = element("p", { class: "answer failed", id: "filter-fault", role: "alert" }));
  }

  /** Colour bars by an attribute; one that the reader has chosen is kept in the address. */
  colour(name, isChosen = false) {
    this.by = name;
    this.colours.querySelector("select").value = name;
    this.gantt.colourBy(...COLOURS[name]);
    this.drawLegend();
    if (isChosen) choose("colour", name);
  }

  /** Unless one was chosen: the first attribute that tells jobs apart. One that does is kept. */
  chooseColour() {
    if (chosen("colour")) return;
    const differs = (name) => new Set([...this.bars.values()].map(COLOURS[name][0])).size > 1;
    const name = differs(this.by) ? this.by : Object.keys(COLOURS).find(differs) ?? this.by;
    if (name !== this.by) this.colour(name);
  }

  /** What is refused is said by the field, and the chart stays as it is. */
  async filter(params) {
    const words = await this.source.filter(params);
    if (words === null) return;
    if (!words) this.gantt.whole = true;
    setText(this.fault, words);
    this.targets.setAttribute("aria-invalid", String(Boolean(words) && "targets" in params));
  }

  whole(whole) {
    if (whole.refused) {
      setText(this.note, whole.refused);
      return;
    }
    this.data = whole;
    this.bars = new Map(whole.bars.map((bar) => [bar[ID], bar]));
    this.chooseColour();
    this.draw();
    const { since, until } = this.source.params;
    if (!this.isFitted && !whole.rows && this.gantt.whole) this.gantt.fit(!since && !until);
    this.isFitted = true;
  }

  change(change) {
    if (!this.data) return;
    const { bars = [], gone = [], ...others } = change;
    Object.assign(this.data, others);
    for (const id of gone) this.bars.delete(id);
    for (const bar of bars) this.bars.set(bar[ID], bar);
    this.chooseColour();
    this.draw();
    if (this.closer && performance.now() - this.lookedAt > AGAIN_MS) this.look();
  }

  /** The window has moved: of sums a closer look is asked for. */
  moved(whole) {
    reveal(this.back, !whole);
    clearTimeout(this.still);
    if (whole && this.closer) {
      this.closer = null;
      this.draw();
    }
    if (!whole && this.data?.rows) this.still = setTimeout(() => this.look(), STILL_MS);
  }

  async look() {
    const { begin, end, top, bottom } = this.gantt.window;
    this.lookedAt = performance.now();
    const targets = `${Math.floor(top)}-${Math.ceil(bottom) - 1}`;
    try {
      const seen = await this.source.fetch("timeline", { since: begin, until: end, targets });
      this.closer = seen.rows ? null : seen;
    } catch {
      this.closer = null;
    }
    this.draw();
  }

  draw() {
    const { data, closer } = this, { now } = data;
    const out = OUT.filter((state) => data.states[state]).map((state) => [data.states[state], state, now, null, ""]);
    const after = this.isEnding() ? [[data.ranks, "", data.expires, null, ""]] : [];
    this.gantt.show({
      bars: closer ? closer.bars : [...this.bars.values()], spans: [...data.spans, ...out, ...after], now, begin: data.begin,
      end: data.end, targets: bounds(data.ranks), cores: data.cores_per_target, sums: closer ? null : sums(data.rows),
    });
    this.drawLegend();
    this.starts.show(data.starts);
    setText(this.note, this.summary());
  }

  /** Whether the time of the instance itself ends within what is shown. */
  isEnding() {
    return Boolean(this.data.expires) && this.data.expires < this.data.end;
  }

  summary() {
    const { data, closer } = this, counts = new Map();
    for (const bar of closer ? closer.bars : this.bars.values()) counts.set(bar[KIND], (counts.get(bar[KIND]) ?? 0) + 1);
    const parts = [...counts].map(([kind, many]) => `${number(many)} ${kind}`);
    if (data.rows && !closer) parts.push("too many jobs to draw each: the depth of colour is the share of cores in use; zoom in for jobs");
    const outages = new Map(data.spans.filter(([, state]) => state === "planned").map(([, , from, to, note]) => [note, `${note}, ${time(from, data.now)} to ${time(to, data.now)}`]));
    parts.push(...[...outages.values()].slice(0, OUTAGES_SAID));
    if (data.left_out) parts.push(`${number(data.left_out)} smaller ones are not drawn`);
    if (this.isEnding()) parts.push(`the instance ends ${time(data.expires, data.now)}`);
    return parts.length ? parts.join(" · ") : "Nothing runs, and nothing is planned.";
  }

  drawLegend() {
    drawLegend(this.legend, this.gantt, STYLES);
  }

  words(bar) {
    const { now } = this.data, [kind, end] = [bar[KIND], bar[END]];
    const last = kind === "ended" ? "ended" : kind === "running" ? "limit" : "until";
    return [
      `${bar[NAME] || "job"} ${bar[ID]}`,
      [bar[USER], bar[QUEUE]].filter(Boolean).join(" in "),
      `${kind}, ${bar[START] <= now ? "since" : "from"} ${time(bar[START], now)}, ${end ? `${last} ${time(end, now)}` : "no limit"}`,
      `${number(bar[CORES])} cores, ${bar[RANKS] ? `targets ${shortened(bar[RANKS])}` : "targets not chosen yet"}`,
      bar[BEFORE] ? `has changed its size ${bar[BEFORE].length === 1 ? "once" : `${number(bar[BEFORE].length)} times`}` : "",
    ].filter(Boolean);
  }
}

function shortened(text) {
  return text.length > 40 ? `${text.slice(0, 38)}…` : text;
}

/** The first and the last rank of an idset. */
function bounds(idset) {
  let found = null;
  ranges(idset, (first, last) => (found = found ? [Math.min(found[0], first), Math.max(found[1], last)] : [first, last]));
  return found ?? [0, 0];
}

function sums(rows) {
  return rows && rows.map((row) => ({ ranks: bounds(row.ranks), cores: row.cores || 1, steps: row.steps }));
}
