// Tables whose headings the server has rendered: sorted, a page at a time, with the columns that a reader wants, and as a file
// for spreadsheets. Law: a row that stays keeps its elements, and with them focus and ticks; while one is pointed at, has
// the focus or is ticked, all hold still, for that row is meant. Order and columns stand in the address.

import {choose, chosen} from "./address.js";
import {element, keyed, setText, show as reveal} from "./dom.js";
import {csvButton} from "./file.js";
import {count, duration, exact, iso, number, time} from "./words.js";

const PAGE = 200; // rows that are shown at first, and that "Show more" adds
const CHOICE_MIN = 5; // columns of a table of which some may be left out
const ORDER = new Intl.Collator("en", {numeric: true});

/**
 * A column. `value` is what rows are sorted by and what stands in the file, there as `text` writes it, with `unit` in the
 * heading; a mere picture has none. `show` gives what the cell has instead: a text, a node or several, or a function that
 * fills the cell. What `passes` with time is shown anew by each `show` and `tick`; an `optional` column is seen only if a
 * row has a value. `order` is what a server that sorts calls the column.
 * @template Row
 * @typedef {{
 *   order?: string, value?: (row: Row) => any, show?: (row: Row) => any, text?: (value: any) => string, unit?: string,
 *   passes?: boolean, optional?: boolean,
 * }} Column
 */

const isKnown = (value) => value !== null && value !== undefined && value !== "";

export function numbers(value, more = {}) {
  return {value, show: (row) => (isKnown(value(row)) ? number(value(row)) : ""), ...more};
}

export function durations(value, more = {}) {
  return {value, show: (row) => (isKnown(value(row)) ? duration(value(row)) : ""), unit: "s", ...more};
}

export function times(value, more = {}) {
  return {value, show: (row) => titled(time(value(row)), exact(value(row))), text: iso, ...more};
}

/** A text in a cell, which says more when it is pointed at. */
export function titled(text, title) {
  return (cell) => {
    setText(cell, text);
    if (cell.title !== title) cell.title = title;
  };
}

/** A link in a cell, and a text after it: elements that stay, and with them focus. */
export function linked(words, address, after = "", title = "") {
  return (cell) => {
    if (!cell.firstElementChild) cell.append(element("a"), element("span"));
    const [link, rest] = cell.children;
    setText(link, words);
    if (link.getAttribute("href") !== address) link.setAttribute("href", address);
    setText(rest, after && ` ${after}`);
    if (cell.title !== title) cell.title = title;
  };
}

/** Time in which rows move to their places. */
const GLIDE_MS = 150;

/** @template Row */
export class Table {
  /**
   * Rows are known by `key(row)`; columns are those of the headings, plain functions where the value is shown as it is.
   * Options: `noun` of a row; `said`, an element that says how many there are, with the tools after it; `pages` of a server
   * that sorts: its parameters (`order`, `start`, `max_entries`) now, how others are asked for, and the greatest start;
   * `isTree`: rows have one order; `drawn()` is called after each change, `filled(line, row)` of each row.
   * @param {HTMLTableElement} table
   * @param {(row: Row) => any} key
   * @param {(Column<Row> | ((row: Row) => any))[]} columns
   * @param {{
   *   noun?: string, said?: HTMLElement, isTree?: boolean, hasFile?: boolean, drawn?: () => void,
   *   pages?: {params: () => Record<string, any>, ask: (params: object) => Promise<string | null>, reach: number},
   *   filled?: (line: HTMLTableRowElement, row: Row) => void,
   * }} options
   */
  constructor(table, key, columns, options = {}) {
    this.table = table;
    this.key = (row) => String(key(row));
    this.columns = columns.map((column) => (typeof column === "function" ? {value: column} : column));
    this.options = {noun: "row", ...options};
    this.body = table.tBodies[0];
    this.headings = [...table.tHead.rows[0].cells];
    this.titles = this.headings.map((heading) => heading.textContent.trim());
    this.names = this.titles.map((title) => title.toLowerCase().replace(/\W+/g, "-"));
    this.home = table.closest("section, details, .card");
    this.empty = this.home.querySelector(".empty");
    this.name = (table.id || this.home.id).replace(/-(table|section)$/, "");
    this.orders = this.columns.map(({value, order}, at) => (options.pages ? order : value && this.names[at]));
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    /** @type {WeakMap<Element, Row>} */
    this.items = new WeakMap();
    /** @type {Row[] | null} */
    this.held = null;
    this.left = 0;
    this.size = options.pages ? Infinity : PAGE;
    this.isPointedAt = false;
    this.isBegun = false; // until there are data, the rows are the server's
    this.addTools();
    if (!this.options.isTree) this.addOrder();
    this.watchUse();
  }

  /** Show these rows, in this order unless another is chosen; there are `left` more. */
  show(rows, left = 0) {
    if (!this.isBegun) this.body.replaceChildren(); // the server's have the same content, but are not our elements
    this.isBegun = true;
    this.rows = new Map(rows.map((row) => [this.key(row), row]));
    this.left = left;
    if (this.isInUse()) this.hold();
    this.draw();
  }

  /** Show anew what passes with time. */
  tick() {
    if (!this.isBegun) return;
    for (const line of this.body.rows) this.fill(line, this.items.get(line));
  }

  /** The row that an element is of. */
  rowOf(at) {
    return this.items.get(at.closest("tr"));
  }

  draw() {
    if (!this.isBegun) return;
    if (!this.options.isTree) this.tellOrder();
    const passing = this.sorted().slice(0, this.size);
    const shown = this.held?.map((row) => this.rows.get(this.key(row)) ?? row) ?? passing;
    const before = new Map([...this.body.rows].map((line) => [line, line.getBoundingClientRect().top]));
    keyed(this.body, shown, this.key, () => this.make(), (line, row) => this.fill(line, row));
    this.hideColumns();
    this.tell(passing, shown);
    this.glide(before);
    this.options.drawn?.();
  }

  /** Rows that come or go move the others, which can be followed by the eye: they glide from where they were. */
  glide(before) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    for (const line of this.body.rows) {
      const moved = (before.get(line) ?? NaN) - line.getBoundingClientRect().top;
      if (Math.abs(moved) >= 1) line.animate([{transform: `translateY(${moved}px)`}, {transform: "none"}], GLIDE_MS);
    }
  }

  make() {
    const cell = (heading, at) => element(at ? "td" : "th", {class: heading.className, scope: at ? null : "row", "data-label": at ? this.titles[at] : null},
      heading.classList.contains("wraps") && element("div"));
    return element("tr", {}, this.headings.map(cell));
  }

  /** A row that is gone, but held, says what it said last, and cannot be chosen. */
  fill(line, row) {
    const isSame = this.items.get(line) === row, isGone = !this.rows.has(this.key(row));
    this.items.set(line, row);
    line.classList.toggle("gone", isGone);
    for (const box of line.querySelectorAll("input")) {
      box.disabled = isGone;
      if (isGone) box.checked = false;
    }
    if (isGone) return;
    this.columns.forEach(({value, show = value, passes}, at) => {
      const cell = line.cells[at];
      if (!isSame || passes) put(this.headings[at].classList.contains("wraps") ? cell.firstChild : cell, show(row));
    });
    this.options.filled?.(line, row);
  }

  tell(passing, shown) {
    const {noun, said, pages} = this.options, total = this.rows.size + this.left, {start, size} = this.page();
    const isPart = shown.length < total, next = start + size;
    const part = pages && shown.length ? `${number(start + 1)}–${number(start + shown.length)}` : number(shown.length);
    const isBeyond = pages && next < total && next > pages.reach;
    const more = isBeyond ? ": others are found by filters, or in another order"
      : !pages && this.left && this.order() ? ", sorted among themselves" : "";
    const all = count(total, noun), one = `${noun} ${number(start + 1)} of ${number(total)}`;
    const words = !isPart ? all : pages && shown.length === 1 ? one : `${part} of ${all}`;
    setText(this.said, said || isPart ? `${words} shown${more}` : "");
    reveal(this.more, this.rows.size > this.size);
    reveal(this.previous, start > 0);
    reveal(this.next, Boolean(pages) && next < total && next <= pages.reach);
    const there = new Set(this.held?.map(this.key) ?? []);
    const coming = this.held ? passing.filter((row) => !there.has(this.key(row))).length : 0;
    setText(this.news, `${count(coming, `new ${noun}`)}: show`);
    reveal(this.news, coming > 0);
    reveal(this.empty ? this.table : this.home, shown.length > 0);
    if (this.empty) reveal(this.empty, !shown.length);
    reveal(this.tools, shown.length > 0);
  }

  /* rows that hold still */

  isInUse() {
    return this.isPointedAt || Boolean(this.body.querySelector(":focus-visible, input:checked"));
  }

  holdOrDraw() {
    if (this.isInUse()) this.hold();
    else this.release();
  }

  hold() {
    if (!this.isBegun || this.held || !this.body.rows.length) return;
    this.held = [...this.body.rows].map((line) => this.items.get(line));
    const blocks = this.body.querySelectorAll(".wraps > div");
    const widths = this.headings.map((heading) => heading.getBoundingClientRect().width);
    const heights = [...blocks].map((block) => block.getBoundingClientRect().height);
    this.headings.forEach((heading, at) => (heading.style.width = widths[at] ? `${widths[at]}px` : ""));
    blocks.forEach((block, at) => (block.style.height = `${heights[at]}px`));
    this.table.classList.add("held");
  }

  release() {
    if (!this.held) return;
    this.held = null;
    for (const each of [...this.headings, ...this.body.querySelectorAll(".wraps > div")]) each.style.removeProperty(each.tagName === "TH" ? "width" : "height");
    this.table.classList.remove("held");
    this.draw();
  }

  watchUse() {
    const point = (event) => {
      if (event.pointerType === "touch") return; // a finger stays nowhere
      this.isPointedAt = event.type === "pointerenter";
      this.holdOrDraw();
    };
    this.body.addEventListener("pointerenter", point);
    this.body.addEventListener("pointerleave", point);
    for (const kind of ["focusin", "focusout", "change"]) this.body.addEventListener(kind, () => setTimeout(() => this.holdOrDraw()));
  }

  /* order */

  /** The column by which rows are sorted and 1 or -1, or null. */
  order() {
    const by = this.chosenOrder(), at = this.orders.indexOf(by.replace(/^-/, ""));
    return this.options.isTree || at < 0 ? null : [at, by.startsWith("-") ? -1 : 1];
  }

  chosenOrder() {
    const {pages} = this.options;
    return (pages ? pages.params().order : chosen(this.name)) || "";
  }

  sorted() {
    const rows = [...this.rows.values()], order = this.order();
    if (!order || this.options.pages) return rows;
    const [at, sign] = order, {value} = this.columns[at];
    const compare = (one, other) => (isKnown(one) && isKnown(other) ? sign * compared(one, other) : Number(isKnown(other)) - Number(isKnown(one)));
    return rows.map((row) => [value(row), row]).sort(([one], [other]) => compare(one, other)).map(([, row]) => row);
  }

  addOrder() {
    for (const [at, heading] of this.headings.entries()) {
      const sort = {type: "button", class: "quiet", title: "Sort by this", onclick: () => this.sortBy(this.orders[at])};
      if (this.orders[at]) heading.replaceChildren(element("button", sort, ...heading.childNodes));
    }
    this.tellOrder();
  }

  sortBy(name) {
    const before = this.chosenOrder(), order = before === name ? `-${name}` : before === `-${name}` ? "" : name;
    if (this.options.pages) return this.ask({order, start: ""});
    choose(this.name, order);
    this.release();
    this.draw();
  }

  /* pages */

  page() {
    const {start = 0, max_entries: size = PAGE} = this.options.pages?.params() ?? {};
    return {start: Number(start), size: Number(size)};
  }

  /** Ask for the next page (1), or for the one before (-1): the last one, if that has no rows. */
  turn(by) {
    const {start, size} = this.page();
    const last = size * (Math.ceil((this.rows.size + this.left) / size) - 1);
    this.ask({start: Math.max(0, by < 0 ? Math.min(start - size, last) : start + size) || ""});
  }

  async ask(params) {
    if (!(await this.options.pages.ask(params))) this.release();
  }

  tellOrder() {
    const [by, sign] = this.order() ?? [-1];
    for (const [at, heading] of this.headings.entries()) {
      if (at === by) heading.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  }

  /* columns */

  without() {
    return new Set(chosen(`${this.name}-without`).split(".").filter(Boolean));
  }

  isHidden(at) {
    const {value, optional} = this.columns[at];
    return this.without().has(this.names[at]) || (Boolean(optional) && !this.held && ![...this.rows.values()].some((row) => isKnown(value(row))));
  }

  hideColumns() {
    if (this.held) return;
    const hidden = this.columns.map((_, at) => this.isHidden(at));
    for (const line of [this.table.tHead.rows[0], ...this.body.rows]) hidden.forEach((isHidden, at) => reveal(line.cells[at], !isHidden));
  }

  columnMenu() {
    const without = this.without();
    const box = (at) => element("label", {}, element("input", {type: "checkbox", value: this.names[at], checked: !without.has(this.names[at])}), this.titles[at]);
    const menu = element("details", {class: "menu"}, element("summary", {}, "Columns"), element("div", {class: "card"}, this.titles.map((_, at) => at > 0 && box(at))));
    menu.addEventListener("change", () => {
      choose(`${this.name}-without`, [...menu.querySelectorAll("input:not(:checked)")].map((each) => each.value).join("."));
      this.release();
      this.draw();
    });
    return menu;
  }

  /* tools */

  addTools() {
    const {said, hasFile = true} = this.options;
    const button = (kind, words, deed) => element("button", {type: "button", class: `quiet ${kind}`, hidden: true, onclick: deed}, words);
    this.said = said ?? element("p", {class: "note", role: "status"});
    this.more = button("further", `Show ${PAGE} more`, () => {
      this.size += PAGE;
      this.release();
      this.draw();
    });
    this.previous = button("previous", "‹ Previous", () => this.turn(-1));
    this.next = button("next", "Next ›", () => this.turn(1));
    this.news = button("news", "", () => (this.release(), this.holdOrDraw()));
    const heading = this.home.querySelector(":scope > h2");
    this.tools = element("div", {class: "tools"}, this.news, this.headings.length >= CHOICE_MIN && this.columnMenu(), hasFile && csvButton(this.name, () => this.lines()));
    if (said) return said.after(this.previous, this.next, this.tools);
    (this.table.closest(".scrolls") ?? this.table).after(element("div", {class: "tools"}, this.said, this.more, !heading && this.tools));
    heading?.after(this.tools);
  }

  /** The file: all rows as they are sorted, of the columns that are seen. */
  lines() {
    const seen = [...this.columns.keys()].filter((at) => this.columns[at].value && !this.isHidden(at));
    const heading = (at) => (this.columns[at].unit ? `${this.titles[at]} [${this.columns[at].unit}]` : this.titles[at]);
    const written = (value, text) => (isKnown(value) && text ? text(value) : value);
    return [seen.map(heading), ...this.sorted().map((row) => seen.map((at) => written(this.columns[at].value(row), this.columns[at].text)))];
  }
}

function compared(one, other) {
  return typeof one === "number" && typeof other === "number" ? one - other : ORDER.compare(one, other);
}

function put(place, content) {
  if (typeof content === "function") content(place);
  else if (content instanceof Node) place.replaceChildren(content);
  else if (Array.isArray(content)) place.replaceChildren(...content);
  else setText(place, content ?? "");
}
