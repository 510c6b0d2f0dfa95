// The page around a view: top bar, connection, colours, keyboard, and the forms that act. Loads the view that the body names.

import {announce, element, setText, show} from "./base/dom.js";
import {ask, forms} from "./base/dialog.js";
import {offer} from "./base/file.js";
import {liveSource} from "./base/source.js";
import {fillTimes, number} from "./base/words.js";

const VIEWS = new Set(["machine", "jobs", "job", "queues", "timeline", "groups", "shares", "history"]);
const CHORD_S = 1.5;
const COPIED_S = 2;
const THEMES = {auto: "as the system has them", light: "light", dark: "dark"};
const STATES = JSON.parse(document.querySelector('meta[name="states"]')?.content || "[]");

start();

async function start() {
  theme();
  keyboard();
  link();
  fillTimes(document);
  document.querySelector("nav a[aria-current]")?.scrollIntoView({inline: "center", block: "nearest"}); // on a phone
  const view = document.body.dataset.view;
  if (!VIEWS.has(view)) return document.querySelectorAll("table.rows").forEach(offer);
  const {wall, ...params} = Object.fromEntries(new URLSearchParams(location.search));
  const jobid = view === "job" ? decodeURIComponent(location.pathname.split("/").pop()) : null;
  const source = liveSource(view, jobid ? {id: jobid, terminal: 1} : params, {connection, figures, instance, notices, refused});
  forms(source);
  const module = await import(`./${view}.js`);
  const root = document.getElementById("view");
  module.show(root, source);
  source.whole(() => root.classList.add("live"));
  source.open();
}

/* top bar */

const SILENT_S = 3;
const SILENT = "The server of this page does not answer. What you see is as of then; it is asked again. If it was started anew, open the address that it printed.";
let silence;

const CONNECTIONS = {live: "live", waiting: "reconnecting", off: "not connected", lost: "instance lost"};

function connection(state, words = "") {
  const shown = document.getElementById("connection");
  const isLost = !document.getElementById("lost").hidden;
  const kind = state === "live" || state === "open" ? (isLost ? "lost" : "live") : state;
  if (kind === "live" && state === "open" && shown.dataset.state === "page") return;
  shown.dataset.state = kind;
  setText(shown.querySelector(".said"), CONNECTIONS[kind]);
  shown.title = words;
  if (state === "off" && words) banner(words);
  if (state === "waiting") silence ||= setTimeout(silent, 1000 * SILENT_S);
  else silence = clearTimeout(silence);
  if (state === "live") document.body.classList.remove("stale");
  if (state === "live" && document.getElementById("lost").dataset.of === "page") banner("");
}

function silent() {
  if (document.getElementById("lost").hidden) banner(SILENT);
  document.body.classList.add("stale");
}

function banner(words, of = "page") {
  const lost = document.getElementById("lost");
  setText(lost, words);
  lost.dataset.of = of;
  show(lost, Boolean(words));
}

/** What the instance does not tell this page, and why. */
function refused(words) {
  const lost = document.getElementById("lost");
  if (words || lost.dataset.of === "view") banner(words, "view");
}

function instance(said) {
  const isLost = said.instance === "lost";
  const wasLost = !document.getElementById("lost").hidden;
  banner(isLost ? `The instance does not answer: ${(said.why ?? "no reason is known").replace(/[.?]$/, "")}. What you see is as of then; it is looked for again.` : "", "instance");
  document.body.classList.toggle("stale", isLost);
  connection(isLost ? "lost" : "open"); // live once the view has its data
  if (wasLost && !isLost) announce("The instance is back.");
}

/** Texts of admins to all users; unless they differ the region is left alone, so that it is not announced again. */
function notices(said) {
  const place = document.getElementById("notices");
  const there = [...place.children].map((each) => each.textContent);
  const wanted = said.map((each) => each.text);
  if (there.join("\n") !== wanted.join("\n")) place.replaceChildren(...wanted.map((text) => element("p", {class: "notice"}, text)));
}

let known = {}; // all figures: those that are told later are only what differs

function figures(news) {
  known = {...known, ...news};
  const said = known;
  if (said.cores === undefined || said.running === undefined || !said.targets) return;
  const bar = document.getElementById("figures");
  const percent = said.cores ? Math.round((100 * said.cores_in_use) / said.cores) : 0;
  const figure = (name, value, ...words) => {
    const there = bar.querySelector(`[data-figure="${name}"]`);
    if (there) setText(there, value);
    return there ?? element("p", {class: "figure"}, element("span", {class: "value", "data-figure": name}, value), " ", element("span", {class: "unit"}, ...words));
  };
  const parts = [
    figure("utilisation", `${percent}%`, "of ", element("span", {"data-figure": "cores"}, number(said.cores)), " cores in use"),
    figure("running", number(said.running), "jobs running"),
    figure("waiting", number(said.waiting), "waiting"),
  ];
  figure("cores", number(said.cores));
  if (!bar.childElementCount) bar.append(...parts, element("ul", {class: "by-state", "aria-label": "Targets by state"}));
  const there = STATES.filter((each) => said.targets[each.word]);
  bar.querySelector(".by-state").replaceChildren(...there.map((each) =>
    element("li", {class: `state-${each.word}`}, element("span", {class: "swatch", "aria-hidden": "true"}),
      element("span", {class: "value"}, number(said.targets[each.word])), " ", element("span", {class: "unit"}, each.word))));
  show(bar, true);
}

/* colours */

function theme() {
  const button = document.getElementById("theme");
  const names = Object.keys(THEMES);
  const now = () => document.documentElement.dataset.theme ?? "auto";
  const label = () => {
    setText(button.lastElementChild, now());
    button.title = `Colours: ${THEMES[now()]}`;
    button.setAttribute("aria-label", button.title);
  };
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(now()) + 1) % names.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // storage is blocked: the choice lasts as long as the page
    }
    label();
    dispatchEvent(new Event("colours"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("colours")));
  label();
}

/* the address */

/** Where a browser lets no page of plain HTTP write to the clipboard, the address can be taken from a field. */
function link() {
  const button = document.getElementById("link");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      announce("The address of this view is copied.");
      setText(button, "Copied");
      setTimeout(() => setText(button, "Link"), 1000 * COPIED_S);
    } catch {
      ask({title: "The address of this view", fields: [{name: "address", label: "Address", value: location.href, type: "url"}], confirm: "Done", keep: "Close"});
    }
  });
  show(button, true);
}

function toggleWall() {
  const params = new URLSearchParams(location.search);
  if (params.has("wall")) params.delete("wall");
  else params.set("wall", "1");
  location.assign(`${location.pathname}${params.size ? `?${params}` : ""}${location.hash}`);
}

/* keyboard */

const KEYS = [
  ["/", "search"], ["?", "this help"], ["Esc", "close what is open, leave a field"], ["t t", "light, dark or the system's colours"], ["w", "for a wall: larger and without controls, or as before"],
  ["↑ ↓ ← →", "in the map: another target; with Shift: select"], ["Enter", "in the map: the target's details"], ["+ − 0", "in the map: zoom in, zoom out, show all"],
];

function keyboard() {
  const help = document.getElementById("help");
  help.addEventListener("click", keyHelp);
  let chord = "";
  let timer = 0;
  document.addEventListener("keydown", (event) => {
    const at = /** @type {HTMLElement} */ (event.target);
    if (event.key === "Escape" && at.matches("input, select, textarea")) at.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("input, select, textarea") || document.querySelector("dialog[open]")) return;
    const pressed = chord + event.key;
    clearTimeout(timer);
    chord = !chord && "gt".includes(event.key) ? event.key : "";
    timer = setTimeout(() => (chord = ""), 1000 * CHORD_S);
    const link = pressed.length === 2 && pressed[0] === "g" ? document.querySelector(`nav a[data-key="${CSS.escape(pressed[1])}"]`) : null;
    if (link) link.click();
    else if (pressed === "tt") document.getElementById("theme").click();
    else if (pressed === "w" && VIEWS.has(document.body.dataset.view)) toggleWall();
    else if (event.key === "?") keyHelp();
    else if (event.key === "/") document.querySelector("[data-search]")?.focus();
    else return;
    event.preventDefault();
  });
}

function keyHelp() {
  const links = [...document.querySelectorAll("nav a")].map((link) => [`g ${link.dataset.key}`, link.textContent]);
  const rows = [...links, ...KEYS].flatMap(([keys, words]) => [
    element("dt", {}, keys.split(" ").map((key) => [element("kbd", {}, key), " "])), element("dd", {}, words),
  ]);
  const close = element("button", {autofocus: true}, "Close");
  const dialog = element("dialog", {"aria-labelledby": "keys-title", onclose: () => dialog.remove()},
    element("form", {method: "dialog"}, element("h2", {id: "keys-title"}, "Keyboard"), element("dl", {class: "keys"}, rows),
      element("p", {class: "note"}, `Times are those of your zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone}.`),
      element("p", {class: "buttons"}, close)));
  document.body.append(dialog);
  dialog.showModal();
}
