// One job: its record, why it waits, its events and the end of its output, and what may be done to it.

import {element, keyed, setText, show as shown} from "./base/dom.js";
import {acted, ask} from "./base/dialog.js";
import {Table} from "./base/table.js";
import {bytes, commandLine, context, duration, exact, number, time} from "./base/words.js";
import {estimate, runtime, stateOf} from "./jobs.js";
import {Terminal} from "./terminal.js";

const CLOCK_S = 1;
const ENDS = {finish: ["CLEANUP", "ending", "t_cleanup"], clean: ["INACTIVE", "ended", "t_inactive"]};
const ORDER = ["RUN", "CLEANUP", "INACTIVE"];
const HELD = 0;
const DEFAULT = 16;
const EXPEDITED = 31;

/** Follow the job that the server has rendered into `root`. */
export function show(root, source) {
  const may = new Set((document.querySelector('meta[name="may"]')?.content ?? "").split(" "));
  const at = (id) => root.querySelector(`#${id}`);
  let job = null;
  let why = null;
  let usage = null;
  let ahead_s = 0;
  let isTelling = false;
  const terminal = new Terminal(at("output"));
  const used = new Table(root.querySelector("#usage table"), ([name]) => name, [0, 1, 2, 3].map((column) => (line) => line[column]), {isTree: true});
  const now = () => Date.now() / 1000 + ahead_s;

  source.whole((data) => {
    at("events").replaceChildren();
    terminal.clear();
    if (data.output_left_out) addOutput([["stdout", `[${bytes(data.output_left_out)} before this are not shown]\n`]]);
    take(data);
  });
  source.change(take);

  function take(data) {
    if (data.now) ahead_s = data.now - Date.now() / 1000;
    if (data.job) job = data.job;
    if ("why" in data) why = data.why;
    if ("usage" in data) usage = data.usage;
    addEvents(data.events ?? []);
    addOutput(data.output ?? []);
    if (!job) return;
    for (const event of data.events ?? []) foretell(event);
    tellState();
    tellRecord();
    tellPlaces();
    tellWhy();
    tellUsage();
    tellActions();
    tellEnd();
  }

  /** What an event says of the job, whose record is asked for again a moment later. */
  function foretell({name, timestamp}) {
    const [state, word, time] = ENDS[name] ?? [];
    const isLater = ORDER.indexOf(job.state) < ORDER.indexOf(state);
    if (isLater) job = {...job, state, status: state, word, [time]: job[time] ?? timestamp};
  }

  /* what it is */

  function tellState() {
    const [state, kind] = stateOf(job);
    setText(at("job-state"), state);
    at("job-state").className = `pill ${kind}`;
    setText(at("job-name"), job.name);
  }

  function record() {
    const limit_s = job.duration;
    return [
      ["user", job.user ?? job.userid], ["queue", job.queue], ["bank", job.bank], ["command", job.command && commandLine(job.command)],
      ["asked for", job.asked], ["tasks", job.ntasks], ["nodes", job.nnodes], ["cores", job.ncores], ["targets", job.nodelist], ["ranks", job.ranks],
      ["parts", job.parts && Object.entries(job.parts).map(([label, ranks]) => `${label}:${ranks}`).join(" ")],
      ["urgency", job.urgency === HELD ? "0 (held)" : job.urgency], ["priority", job.priority],
      ["submitted", time(job.t_submit), exact(job.t_submit)], ["started", time(job.t_run), exact(job.t_run)], ["ended", time(job.t_inactive), exact(job.t_inactive)],
      ["runtime", duration(runtime(job, now()))], ["limit", limit_s ? duration(limit_s) : "none"], ["expires", job.state === "RUN" && job.expiration ? time(job.expiration) : ""],
      ["exit status", job.returncode], ["exception", job.exception && [job.exception.type, job.exception.note].filter(Boolean).join(": ")],
      ["attempt", job.attempt], ["depends on", job.dependencies?.join(", ")], ["set", job.job_set],
    ].filter(([, value]) => value !== undefined && value !== null && value !== "");
  }

  /** What it used of what it asked for; the server has the words. */
  function tellUsage() {
    shown(at("usage"), Boolean(usage));
    if (!usage) return;
    used.show(usage.lines);
    keyed(at("usage-said"), usage.advice, (text) => text, () => element("p", {}), setText);
  }

  /** Where it is to be seen, as long as it holds anything. */
  function tellPlaces() {
    const places = job.ranks && job.state !== "INACTIVE" ? [["/machine#find=", job.jobid, "On the map"], ["/timeline?targets=", job.ranks, "In the timeline"]] : [];
    keyed(at("job-places"), places, ([, , words]) => words, ([, , words]) => element("a", {}, words), (link, [address, of]) => (link.href = address + encodeURIComponent(of)));
  }

  function tellRecord() {
    keyed(at("record"), record(), ([name]) => name, ([name]) => element("div", {}, element("dt", {}, name), element("dd", {})), (row, [, value, title]) => {
      setText(row.lastChild, typeof value === "number" ? number(value) : value);
      if (title) row.lastChild.title = title;
    });
  }

  function tellWhy() {
    const waits = why?.reason && job.state !== "INACTIVE" && job.state !== "RUN" && job.state !== "CLEANUP";
    shown(at("why"), Boolean(waits));
    if (!waits) return;
    const start_s = why.earliest ?? estimate(job);
    const lines = [["", why.reason], ["start", start_s && `Can start ${start_s > now() ? `in ${duration(Math.ceil(start_s - now()))}, at ${time(start_s)}` : "soon"}${why.when ? `: ${why.when}` : ""}.`], ["unit", why.rule], ["unit ", why.attempt]];
    keyed(at("why-said"), lines.filter(([, text]) => text), ([kind]) => `k${kind}`, ([kind]) => element("p", {class: kind}), (line, [, text]) => setText(line, text));
  }

  setInterval(() => job && !document.hidden && job.state !== "INACTIVE" && (tellRecord(), tellWhy()), 1000 * CLOCK_S);

  /* what happened, and what it wrote */

  function addEvents(events) {
    for (const event of events) {
      at("events").append(element("li", {}, element("time", {title: exact(event.timestamp)}, time(event.timestamp, now())),
        element("span", {class: "event"}, event.name), element("span", {class: "context"}, told(event.context ?? {}))));
    }
  }

  /** Plain values in words; objects, such as R and usage, on demand. */
  function told(values) {
    const [plain, deep] = [false, true].map((isDeep) => Object.entries(values).filter(([, value]) => (value !== null && typeof value === "object") === isDeep));
    return [context(Object.fromEntries(plain)), deep.length > 0 && element("details", {}, element("summary", {}, deep.map(([name]) => name).join(", ")), context(Object.fromEntries(deep)))];
  }

  function addOutput(pieces) {
    const output = at("output");
    const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
    for (const [stream, text] of pieces) terminal.write(stream, text);
    if (isAtEnd && pieces.length) output.scrollTop = output.scrollHeight;
  }

  /* "Tell me when it ends": a notification of the browser, also from a tab that is not seen */

  const bell = element("button", {type: "button", hidden: true, onclick: toggle, "aria-pressed": "false"}, "Tell me when it ends");
  at("job-actions").after(bell);

  async function toggle() {
    const isAllowed = isTelling || (await Notification.requestPermission()) === "granted";
    setText(at("job-answer"), isAllowed ? "" : "The browser does not let this page notify you: allow it in the settings of this site.");
    tells(isAllowed && !isTelling);
    tellEnd(); // it may have ended while the browser asked
  }

  function tells(wanted) {
    isTelling = wanted;
    bell.setAttribute("aria-pressed", wanted);
    source.stay(wanted);
  }

  function tellEnd() {
    const isOver = Boolean(job.result);
    const isAllowed = window.isSecureContext && "Notification" in window; // elsewhere browsers deny it
    shown(bell, job.state !== "INACTIVE" && isAllowed);
    if (!isOver || !isTelling) return;
    tells(false);
    const words = `${job.jobid} ${stateOf(job)[0]}`;
    try {
      new Notification(words, {body: job.name, tag: job.jobid}).onclick = () => window.focus();
    } catch { // Chrome on Android has it for service workers alone
      setText(at("job-answer"), words);
    }
  }

  /* what may be done */

  function buttons() {
    const isActive = job.state !== "INACTIVE";
    const isWaiting = isActive && job.state !== "RUN" && job.state !== "CLEANUP";
    const named = `${job.jobid} (${job.name})`;
    return [
      isWaiting && may.has("urgency") && (job.urgency === HELD
        ? ["release", "Release…", {title: `Release ${named}?`, text: "It waits for its turn again.", confirm: "Release"}, "urgency", {urgency: DEFAULT}]
        : ["hold", "Hold…", {title: `Hold ${named}?`, text: "It is not scheduled until it is released.", confirm: "Hold"}, "urgency", {urgency: HELD}]),
      isWaiting && may.has("urgency") && ["urgency", "Urgency…", {title: `Change the urgency of ${named}`, confirm: "Set", text: `0 holds it, ${DEFAULT} is usual, ${EXPEDITED} puts it before all others.`,
        fields: [{name: "urgency", label: "Urgency, 0 to 31", type: "number", min: 0, max: 31, value: job.urgency, required: true}]}, "urgency", {}],
      isActive && may.has("cancel") && ["cancel", "Cancel…", {title: `Cancel ${named}?`, text: job.state === "RUN" ? "Its tasks are ended." : "It will not run.", confirm: "Cancel the job", keep: "Keep it", danger: true}, "cancel", {}],
      isActive && may.has("raise") && ["raise", "Raise…", {title: `Raise an exception on ${named}?`, text: "It ends the job, and its type and note stand in the event log.", confirm: "Raise it", keep: "Keep it as it is", danger: true,
        fields: [{name: "type", label: "Type, one word", value: "exec", required: true}, {name: "note", label: "Note"}]}, "raise", {}],
    ].filter(Boolean);
  }

  function tellActions() {
    keyed(at("job-actions"), buttons(), ([name]) => name, ([name]) => element("button", {type: "button", class: name === "cancel" || name === "raise" ? "danger" : ""}), (button, [, label, asked, action, fields]) => {
      setText(button, label);
      button.onclick = async () => {
        const typed = await ask(asked);
        if (typed) await acted(source, action, {ids: job.jobid, ...fields, ...typed}, button, at("job-answer"));
      };
    });
  }
}
