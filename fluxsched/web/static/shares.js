// The shares: the tree of accounts as `fluxsched fair` shows it, with usage against share as bars. Law: an account without
// jobs has no share now; what it would have is not drawn, since such shares add up to more than all.

import { element, keyed, setText, show as reveal } from "./base/dom.js";
import { number } from "./base/words.js";

export function show(root, source) {
  const view = new Shares(root, source);
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.whole({ ...view.data, ...change }));
}

class Shares {
  constructor(root, source) {
    this.source = source;
    this.table = root.querySelector("#accounts");
    this.body = this.table.querySelector("tbody");
    this.note = root.querySelector("#shares-note");
    this.settings = root.querySelector("#shares-settings");
    this.groups = element("select", { onchange: (event) => source.filter({ group: event.target.value }) });
    this.choice = element("label", { hidden: true }, "Group", this.groups);
    root.querySelector("h1").after(element("div", { class: "filters" }, this.choice));
  }

  whole(whole) {
    this.data = whole;
    const kept = Boolean(whole.accounts);
    reveal(this.table, kept && whole.accounts.length > 0);
    reveal(this.note, !kept || whole.accounts.length === 0);
    setText(this.note, kept ? "No accounts yet: the first job of a user in a bank makes one." : whole.why ?? whole.refused ?? "");
    const groups = whole.groups ?? [];
    reveal(this.choice, groups.length > 1);
    if (this.groups.length !== groups.length) {
      this.groups.replaceChildren(...groups.map((name) => element("option", { selected: name === whole.group }, name)));
    }
    if (!kept) return setText(this.settings, "");
    setText(this.settings, inForce(whole));
    const lines = tree(whole.accounts), most = widest(lines, whole);
    keyed(this.body, lines, (line) => line.path.join("/"), () => element("tr"), (row, line) => fill(row, line, whole, most));
    return undefined;
  }
}

function inForce(whole) {
  const half = whole.half_life ? `, forgotten by half in ${number(Math.round(whole.half_life / 3600))} h` : "";
  return `Turns go by ${whole.signal}${half}; shares are among ${whole.shares === "all" ? "all accounts" : "accounts that have jobs"}.`;
}

/** Accounts as lines, each below the one that it is in, banks before users, by name. */
function tree(accounts) {
  const users = new Map(accounts.map((account) => [account.path.join("/"), account.user]));
  const place = ({ path }) => path.map((name, at) => `${users.get(path.slice(0, at + 1).join("/")) ? 1 : 0}${name}`).join("\u0000");
  return accounts.map((account) => ({ ...account, place: place(account) }))
    .sort((one, other) => (one.place < other.place ? -1 : 1))
    .map((account) => ({ ...account, depth: account.path.filter((_, at) => at && users.has(account.path.slice(0, at).join("/"))).length }));
}

/** The scale of all bars: parts of the machine up to the largest usage or share. */
function widest(lines, { capacity }) {
  return Math.max(1e-9, ...lines.map((line) => Math.max(line.usage, line.signal, share(line) ?? 0))) / (capacity || 1);
}

function share(line) {
  return line.active ? line.fair_usage : null;
}

function percent(part) {
  return part === null ? "–" : `${(100 * part).toFixed(100 * part < 10 ? 1 : 0)}%`;
}

function fill(row, line, { capacity, shares }, most) {
  const of = (usage) => (usage === null || !capacity ? null : usage / capacity);
  const [used, wanted, past] = [of(line.usage), of(shares === "all" ? line.fair_usage : share(line)), of(line.signal)];
  const bar = element("i"), tick = wanted === null ? null : element("b");
  bar.style.width = `${Math.min(100, (100 * (used ?? 0)) / most)}%`;
  if (tick) tick.style.left = `calc(${Math.min(100, (100 * wanted) / most)}% - 1px)`;
  const words = `uses ${percent(used)} of the machine${wanted === null ? "" : `, its share is ${percent(wanted)}`}`;
  const over = wanted !== null && used > wanted * 1.001;
  const name = element("th", { scope: "row", class: line.user ? "" : "bank" }, line.path.at(-1));
  name.style.paddingLeft = `${10 + 18 * line.depth}px`;
  row.replaceChildren(name,
    element("td", { class: "number wide" }, number(line.weight)), element("td", { class: "number" }, percent(wanted)),
    element("td", { class: "number" }, percent(used)),
    element("td", { class: "grows" }, element("span", { class: `bar ${over ? "over" : ""}`, role: "img", "aria-label": words, title: words }, bar, tick)),
    element("td", { class: "number wide" }, percent(past)), element("td", { class: "number" }, number(line.running)),
    element("td", { class: "number" }, number(line.waiting)), element("td", { class: "number wide" }, number(line.preempted)));
}
