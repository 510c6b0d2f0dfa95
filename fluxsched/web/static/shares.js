// The shares: the tree of accounts as `fluxsched fair` shows it, with usage against share and limits as bars. Law: an account without
// jobs has no share now; what it would have is not drawn, since such shares add up to more than all.

import { element, setText, show as reveal } from "./base/dom.js";
import { Table, numbers } from "./base/table.js";
import { duration } from "./base/words.js";
import { bar } from "./charts/bar.js";

export function show(root, source) {
  const view = new Shares(root, source);
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.whole({ ...view.data, ...change }));
}

class Shares {
  constructor(root, source) {
    this.source = source;
    const part = (value) => ({ value, show: (line) => percent(value(line)), text: (known) => known.toFixed(4) });
    this.table = new Table(root.querySelector("#accounts"), (line) => line.path.join("/"), [
      { value: (line) => line.path.join("/"), show: (line) => (cell) => named(cell, line) }, numbers((line) => line.weight), part((line) => line.share), part((line) => line.used),
      { show: (line) => usageBar(line, this.most) }, part((line) => line.past),
      { value: (line) => line.limit, show: limited, text: (known) => known.toFixed(4), optional: true },
      numbers((line) => line.budget_left && Math.floor(line.budget_left), { optional: true }),
      numbers((line) => line.running), numbers((line) => line.waiting), numbers((line) => line.preempted),
    ], { noun: "account", isTree: true });
    this.settings = root.querySelector("#shares-settings");
    this.groups = element("select", { onchange: (event) => source.filter({ group: event.target.value }) });
    this.choice = element("label", { hidden: true }, "Group", this.groups);
    root.querySelector("h1").after(element("div", { class: "filters" }, this.choice));
  }

  whole(whole) {
    this.data = whole;
    const kept = Boolean(whole.accounts);
    setText(this.table.empty, kept ? "No accounts yet: the first job of a user in a bank makes one." : whole.why ?? whole.refused ?? "");
    const groups = whole.groups ?? [];
    reveal(this.choice, groups.length > 1);
    if (this.groups.length !== groups.length) {
      this.groups.replaceChildren(...groups.map((name) => element("option", { selected: name === whole.group }, name)));
    }
    setText(this.settings, kept ? inForce(whole) : "");
    const lines = tree(whole.accounts ?? []).map((line) => parts(line, whole));
    this.most = Math.max(1e-9, ...lines.flatMap((line) => [line.used, line.past, line.share, line.limit]));
    this.table.show(lines);
  }
}

function inForce(whole) {
  const past = whole.half_life ? ` (${whole.signal}: use of ${duration(whole.half_life)} ago counts half)` : "";
  const among = whole.shares === "all" ? "all accounts" : "accounts that have jobs";
  return `Next is the account that uses and used least of its share${past}; shares are among ${among}.`;
}

/** Accounts as lines, each below the one that it is in, banks before users, by name. */
function tree(accounts) {
  const users = new Map(accounts.map((account) => [account.path.join("/"), account.user]));
  const place = ({ path }) => path.map((name, at) => `${users.get(path.slice(0, at + 1).join("/")) ? 1 : 0}${name}`).join("\u0000");
  return accounts.map((account) => ({ ...account, place: place(account) }))
    .sort((one, other) => (one.place < other.place ? -1 : 1))
    .map((account) => ({ ...account, depth: account.path.filter((_, at) => at && users.has(account.path.slice(0, at).join("/"))).length }));
}

/** Usage, shares and limits of an account as parts of the machine, null where they are not known; so are those of accounts
 * without jobs. */
function parts(line, { capacity, shares }) {
  const of = (usage) => (usage === null || !capacity ? null : usage / capacity), isShown = shares === "all" || line.active;
  return {
    ...line, used: of(line.usage), share: isShown ? of(line.fair_usage) : null, past: of(line.signal),
    firm: of(line.firm_usage), limit: isShown ? of(line.cap) : null,
  };
}

/** What jobs hold that cannot be preempted, of the most that they may. */
function limited({ firm, limit }) {
  return limit === null ? "" : `${percent(firm)} of ${percent(limit)}`;
}

function percent(part) {
  return part === null ? "–" : `${(100 * part).toFixed(100 * part < 10 ? 1 : 0)}%`;
}

function named(cell, { path, user, depth }) {
  setText(cell, path.at(-1));
  cell.classList.toggle("bank", !user);
  cell.style.paddingLeft = `${10 + 18 * depth}px`;
}

function usageBar({ used, share, firm, limit }, most) {
  /** @type {[number, string][]} */
  const marks = [[share, ""], [limit, "limit"]].filter(([at]) => at !== null).map(([at, kind]) => [at / most, kind]);
  const words = [`uses ${percent(used)} of the machine`, share !== null && `its share is ${percent(share)}`,
    limit !== null && `jobs that cannot be preempted use ${limited({ firm, limit })}`].filter(Boolean).join(", ");
  const isOver = share !== null && used > share * 1.001;
  return bar((used ?? 0) / most, { marks, kind: isOver ? "over" : "", words });
}
