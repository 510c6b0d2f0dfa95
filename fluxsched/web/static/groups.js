// The groups: who has acquired what, in which dialect, what is on its way out and in; below, the messages between the
// instance and its peers as they pass. Law: of the messages the last ones are kept; while they are paused none is drawn,
// and what they say is only ever text.

import { element, keyed, setText, show as reveal } from "./base/dom.js";
import { sizeOf } from "./base/sets.js";
import { count, duration, number } from "./base/words.js";

/** Messages in the list. */
const MESSAGES_MAX = 500;

export function show(root, source) {
  const view = new Groups(root);
  new Messages(root.querySelector("#messages"), source.events ?? ((params) => new EventSource(`/events?${new URLSearchParams(params)}`)));
  source.whole((whole) => view.whole(whole));
  source.change((change) => view.whole(change));
}

class Groups {
  constructor(root) {
    this.place = root.querySelector("#groups");
    this.data = { groups: [], queues: [], holders: {} };
  }

  whole(whole) {
    this.data = { ...this.data, ...whole };
    const { groups = [], queues = [], holders = {} } = this.data;
    const there = groups.filter((group) => group.targets || group.incoming || group.acquired || group.name !== "exclude");
    keyed(this.place, there, (group) => group.name, () => element("section", { class: "card group" }),
      (card, group) => this.fill(card, group, queues.filter((queue) => (queue.groups ?? [queue.group]).includes(group.name)), holders[group.name] ?? []));
  }

  fill(card, group, queues, holders) {
    const seen = JSON.stringify([group, queues, holders]);
    if (card.dataset.seen === seen) return;
    card.dataset.seen = seen;
    const all = sizeOf(group.targets), leaving = sizeOf(group.leaving), awaited = sizeOf(group.incoming);
    const parts = Object.entries(group.states ?? {});
    const flow = element("div", { class: "flow", "aria-hidden": "true" }, parts.map(([word, size]) => {
      const piece = element("i", { class: `state-${word}` });
      piece.style.width = `${(100 * size) / Math.max(1, all)}%`;
      return piece;
    }));
    const key = element("p", { class: "keys" }, element("b", {}, count(all, "target")),
      parts.map(([word, size]) => element("span", { class: `state-${word}` }, element("span", { class: "swatch", "aria-hidden": "true" }), `${number(size)} ${word}`)),
      leaving ? element("span", {}, `${number(leaving)} leaving`) : "", awaited ? element("span", {}, `${number(awaited)} awaited`) : "");
    const pill = group.acquired
      ? element("span", { class: "pill good" }, "acquired")
      : element("span", { class: "pill" }, group.name === "exclude" ? "withdrawn" : "not acquired");
    card.replaceChildren(element("h2", {}, group.name, pill), flow, key, element("dl", { class: "record" },
      fact("Acquired by", group.acquirer ?? (group.acquired ? "a scheduler" : "")),
      fact("Targets", group.targets, "mono"), fact("Leaving", group.leaving, "mono"), fact("Awaits", group.incoming, "mono"),
      ...queues.map((queue) => fact(queue.name ? `Queue ${queue.name}` : "Queue", queueWords(queue)))),
      holders.length ? element("p", { class: "note" }, "Leaves when these end: ", holders.flatMap((each, at) => holder(each, at, this.data.now ?? Date.now() / 1000))) : "");
  }
}

function fact(name, value, kind = "") {
  return value ? element("div", {}, element("dt", {}, name), element("dd", { class: kind }, value)) : null;
}

function queueWords(queue) {
  const states = [queue.enabled ? "" : "disabled", queue.started ? "" : "stopped"].filter(Boolean);
  const jobs = queue.waiting === null || queue.waiting === undefined ? [] : [`${number(queue.running)} running`, `${number(queue.waiting)} waiting`];
  return [...jobs, ...states].join(", ") || "open";
}

function holder([jobid, , end, user, name], at, now) {
  const left = end ? ` at most ${duration(Math.max(0, end - now))} more` : " no limit";
  return [at ? ", " : "", element("a", { href: `/jobs/${encodeURIComponent(jobid)}` }, name || jobid), ` (${user},${left})`];
}

class Messages {
  /** `open(params)` opens a stream of events: one of its own, only while messages are followed. */
  constructor(root, open) {
    this.open = open;
    this.stream = null;
    this.topics = "";
    this.kept = [];
    this.rows = new Map();
    this.dropped = 0;
    this.paused = false;
    this.list = element("ol", { class: "messages", tabindex: 0, "aria-label": "Messages", hidden: true });
    this.note = element("p", { class: "note", role: "status" });
    this.follow = element("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "Follow");
    this.pause = element("button", { type: "button", "aria-pressed": "false", hidden: true, onclick: () => this.hold() }, "Pause");
    const field = (name, label, placeholder, deed) => element("label", { class: "grows" }, label,
      element("input", { name, placeholder, autocomplete: "off", onchange: deed, oninput: name === "text" ? deed : null }));
    this.tools = element("div", { class: "filters" }, this.follow, this.pause,
      field("topics", "Topics", "resource., sched.", (event) => { this.topics = event.target.value; if (this.stream) this.connect(); }),
      field("text", "Text", "in the payload", (event) => { this.text = event.target.value.toLowerCase(); this.draw(); }));
    this.list.addEventListener("click", (event) => /** @type {Element} */ (event.target).closest("li")?.classList.toggle("open"));
    root.querySelector("#messages-tools").replaceChildren(this.tools);
    root.querySelector("#messages-list").replaceChildren(this.list, this.note);
    addEventListener("pagehide", () => this.stream?.close());
    setText(this.note, "Follow shows every message between the instance and its peers, as start --trace does; for the owner of the instance only.");
  }

  toggle() {
    const on = this.follow.getAttribute("aria-pressed") !== "true";
    this.follow.setAttribute("aria-pressed", String(on));
    reveal(this.pause, on);
    if (!on && this.paused) this.hold();
    reveal(this.list, on);
    setText(this.note, "");
    this.stream?.close();
    this.stream = null;
    if (on) this.connect();
  }

  connect() {
    this.stream?.close();
    const stream = (this.stream = this.open({ view: "messages", topics: this.topics }));
    for (const name of ["whole", "change", "refused"]) {
      stream.addEventListener(name, (event) => stream === this.stream && this.take(JSON.parse(event.data), name === "whole"));
    }
    stream.addEventListener("error", () => stream.readyState === EventSource.CLOSED && setText(this.note, "The page's server refused the stream: try again."));
  }

  hold() {
    this.paused = !this.paused;
    this.pause.setAttribute("aria-pressed", String(this.paused));
    setText(this.pause, this.paused ? "Resume" : "Pause");
    this.draw();
  }

  /** `given` is `{messages, dropped}`, or says why there are none. */
  take(given, anew) {
    if (anew) this.kept = [];
    if (given.refused || given.error) {
      reveal(this.list, false);
      setText(this.note, `Messages are not shown: ${given.refused ?? given.error}`);
      return;
    }
    this.dropped = given.dropped ?? 0;
    this.kept = [...this.kept, ...given.messages].slice(-MESSAGES_MAX);
    this.draw();
  }

  draw() {
    if (this.paused || this.waits) return;
    this.waits = requestAnimationFrame(() => {
      this.waits = 0;
      const shown = this.kept.filter((message) => !this.text || `${message.topic} ${message.peer} ${message.text}`.toLowerCase().includes(this.text));
      const atEnd = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 30;
      this.rows = new Map(shown.map((message) => [message, this.rows.get(message) ?? messageRow(message)]));
      this.list.replaceChildren(...this.rows.values());
      if (atEnd) this.list.scrollTop = this.list.scrollHeight;
      const parts = [`${count(shown.length, "message")} of the last ${number(MESSAGES_MAX)}`];
      if (this.dropped) parts.push(`${number(this.dropped)} more passed too quickly to be sent here`);
      setText(this.note, parts.join(" · "));
    });
  }
}

function messageRow(message) {
  const when = new Date(message.t * 1000);
  const clock = `${when.toLocaleTimeString("en-GB")}.${String(when.getMilliseconds()).padStart(3, "0")}`;
  return element("li", {}, element("time", {}, clock),
    element("span", { class: "direction", title: message.direction === "<-" ? "received" : "sent" }, message.direction === "<-" ? "←" : "→"),
    element("span", { class: "peer", title: message.peer }, message.peer),
    element("span", { class: `text ${/errnum/.test(message.text) ? "error" : ""}` }, element("b", {}, message.topic), ` ${message.type === "response" ? "answer " : ""}${message.text}`));
}
