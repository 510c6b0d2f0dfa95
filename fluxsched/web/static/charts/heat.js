// Hours of many days as coloured cells, a row for each day, and days of queues and properties, a row for each of these.
// Law: a cell says in words what its colour says; a time in which no instance ran has no cell's colour and no number.

import { choose, chosen } from "../base/address.js";
import { element, setText } from "../base/dom.js";
import { offer } from "../base/file.js";
import { duration, number } from "../base/words.js";
import { pictureButton, tablePicture } from "./picture.js";

const DAYS = 90;
const HOURS = 24, HOUR_S = 3600, DAY_S = HOURS * HOUR_S;

/** What to ask view `history` for: steps of an hour, or what queues or properties used each day. */
const PERIOD = { since: -DAYS * DAY_S };
const BY_HOUR = { ...PERIOD, points: DAYS * HOURS + 1 };
const byDay = (by) => ({ ...PERIOD, points: 1, by, days: 1 });

const percent = (part) => `${Math.round(100 * part)}%`;
const sum = (columns, at) => Object.values(columns).reduce((all, column) => all + (column[at] ?? 0), 0);
const part = (samples, at, ...states) => states.reduce((all, state) => all + (samples.cores[state]?.[at] ?? 0), 0) / (sum(samples.cores, at) || 1);

/** What may be shown of hours: its name, its value at a step, its text, and whether colours follow the logarithm.
 * @type {Record<string, [string, (samples: any, at: number) => number, (value: number) => string, boolean]>} */
const MEASURES = {
  use: ["Cores in use, of all", (samples, at) => part(samples, at, "allocated"), percent, false],
  out: ["Cores out of use, of all", (samples, at) => part(samples, at, "drained", "down"), percent, false],
  drained: ["Cores drained, of all", (samples, at) => part(samples, at, "drained"), percent, false],
  wait: ["Median wait", (samples, at) => samples.wait_p50[at], duration, true],
  waiting: ["Jobs waiting", (samples, at) => sum(samples.pending, at), (jobs) => number(Math.round(jobs)), true],
};

/** What may be shown of days. */
const OWNERS = { queue: "Cores in use, by queue", property: "Cores in use, by property" };

/** The card: `ask(params)` gives the view `history`; it is asked once the card is opened. */
export function heatCard(ask) {
  const named = [...Object.entries(MEASURES).map(([key, [name]]) => [key, name]), ...Object.entries(OWNERS)];
  const choice = element("select", { onchange: () => (choose("heat", choice.value), show()) },
    ...named.map(([key, name]) => element("option", { value: key, selected: key === chosen("heat") }, name)));
  const note = element("p", { class: "note", role: "status" }, "");
  const table = element("table", { class: "heat", id: "hours" });
  const card = element("details", { class: "card", id: "heat", open: chosen("heat") !== "", ontoggle: () => card.open && show() },
    element("summary", {}, `By day and hour, ${DAYS} days`),
    element("div", { class: "filters" }, element("label", {}, "Colour", choice)), element("div", { class: "scrolls", tabindex: 0, role: "region", "aria-label": "Cells" }, table), note);
  let asked = 0;
  offer(table);
  const picture = () => tablePicture(table.caption.textContent, table, note.textContent);
  card.querySelector(".tools").append(pictureButton("png", "hours", picture));

  async function show() {
    const mine = (asked += 1), key = choice.value, ofHours = MEASURES[key];
    try {
      const found = await ask(ofHours ? BY_HOUR : byDay(key));
      if (mine === asked) draw(ofHours ? hoursOf(found.samples, ...ofHours) : daysOf(found.report, OWNERS[key]));
    } catch (error) {
      if (mine === asked) setText(note, error.message);
    }
  }

  /** `rows` are `[name, [value or null...]]`, `columns` their times and the words that some of them show. */
  function draw({ name, by, of, rows, columns, text, isLogarithmic, said }) {
    const values = rows.flatMap(([, cells]) => cells).filter((value) => value !== null);
    const scale = isLogarithmic ? Math.log1p : (value) => value, top = text === percent ? 1 : Math.max(...values, 0);
    const cell = (value, column, row) => {
      const words = value === null ? "" : text(value);
      const made = element("td", { title: words ? `${row} ${columns[column][0]}: ${words}` : null }, element("span", { class: "unseen" }, words || "–"));
      if (words) made.style.setProperty("--level", `${top ? Math.min(100, (100 * scale(value)) / scale(top)) : 0}%`);
      return made;
    };
    table.classList.toggle("days", of !== "Day");
    table.replaceChildren(element("caption", { class: "unseen" }, `${name} by ${by}`),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, of),
        ...columns.map(([words, isShown]) => element("th", { scope: "col" }, isShown ? words : element("span", { class: "unseen" }, words))))),
      element("tbody", {}, rows.map(([row, cells]) => element("tr", {}, element("th", { scope: "row" }, row), ...cells.map((value, at) => cell(value, at, row))))));
    setText(note, values.length ? `${name}: from nothing to ${text(top)}, the stronger the colour the more. ${said}` : `${name}: nothing is known of these days.`);
  }

  return card;
}

const clock = (hour) => `${String(hour).padStart(2, "0")}:00`;
const dayName = (date) => date.toLocaleDateString("en", { month: "short", day: "numeric" });

/** A row for each day that has samples, with a value or null for each hour, the latest first. */
function hoursOf(samples, name, valueAt, text, isLogarithmic) {
  if (!samples) throw new Error("Samples are not shown to guests of an instance whose jobs are private.");
  const found = new Map();
  samples.t.forEach((time, at) => {
    const date = new Date(time * 1000), day = date.toDateString();
    if (!found.has(day)) found.set(day, Array(HOURS).fill(null));
    found.get(day)[date.getHours()] = valueAt(samples, at) ?? null;
  });
  const words = (day) => new Date(day).toLocaleDateString("en", { weekday: "short", month: "short", day: "numeric" });
  return {
    name, by: "day and hour", of: "Day", rows: [...found].map(([day, hours]) => [words(day), hours]).reverse(),
    columns: Array.from({ length: HOURS }, (_, hour) => [clock(hour), hour % 6 === 0]), text, isLogarithmic,
    said: "Hours of your zone, of which days without any are left out.",
  };
}

/** A row for each queue or property that is there now, with its part of its cores for each day from the first use on. */
function daysOf(report, name) {
  const { days, until } = report, rows = report.rows.filter((row) => row.cores);
  const first = Math.max(0, days.findIndex((_, at) => report.rows.some((row) => row.days[at])));
  const part = (row, at) => row.days[at] / (row.cores * Math.max(1, (days[at + 1] ?? until) - days[at]));
  const shown = [...days.keys()].slice(first);
  return {
    name, by: "day", of: "Name", rows: rows.map((row) => [row.name || "(unnamed)", shown.map((at) => part(row, at))]),
    columns: shown.map((at, place) => [dayName(new Date(1000 * (days[at] + DAY_S / 2))), place % 7 === 0]), text: percent, isLogarithmic: false,
    said: "Parts of the cores that it has now; days of the instance's zone, from the first with any use.",
  };
}
