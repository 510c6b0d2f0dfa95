// Files that a reader takes away: tables as CSV (RFC 4180), as `/jobs.csv` has it.

import {element, printable} from "./dom.js";

const BYTE_ORDER_MARK = "\ufeff"; // spreadsheets then take it for UTF-8
const FORMULA = /^[=+\-@\t]/; // beginnings of text that spreadsheets take for a formula

/** A button that saves the lines which `lines()` gives as `NAME.csv`, each a list of texts and numbers. */
export function csvButton(name, lines) {
  return element("button", {type: "button", class: "quiet csv", title: "This table for a spreadsheet",
    onclick: () => save(`${name}.csv`, [BYTE_ORDER_MARK, csv(lines())], "text/csv")}, "CSV");
}

/** Offer a table that stays as it is. */
export function offer(table) {
  const lines = () => [...table.rows].map((line) => [...line.cells].map((cell) => cell.textContent));
  table.closest(".scrolls").after(element("div", {class: "tools"}, csvButton(table.id, lines)));
}

/** Have the browser save `parts` as a file. */
export function save(name, parts, type) {
  const link = element("a", {href: URL.createObjectURL(new Blob(parts, {type})), download: name});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
}

/** Lines as CSV; text that a spreadsheet would take for a formula gets an apostrophe in front. */
export function csv(lines) {
  return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

function cell(value) {
  if (typeof value !== "string") return String(value ?? "");
  const text = printable(value), safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
