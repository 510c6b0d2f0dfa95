// One job: its record, why it waits, its events and the end of its output, and what may be done to it.

import {element, keyed, setText, show as shown} from "./base/dom.js";
import {acted, ask} from "./base/dialog.js";
import {bytes, context, duration, exact, number, time} from "./base/words.js";
import {estimate, runtime, stateOf} from "./jobs.js";

const OUTPUT_CHARS_MAX = 200_000;
const CLOCK_S = 1;
const HELD = 0;
const DEFAULT = 16;
const EXPEDITED = 31;
const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Follow the job that the server has rendered into `root`. */
export function show(root, source) {
  const may = new Set((document.querySelector('meta[name="may"]')?.content ?? "").split(" "));
  const at = (id) => root.querySelector(`#${id}`);
  let job = null;
  let why = null;
  let ahead_s = 0;
  let written = 0;
  const now = () => Date.now() / 1000 + ahead_s;

  source.whole((data) => {
    at("events").replaceChildren();
    at("output").replaceChildren();
    written = 0;
    if (data.output_left_out) addOutput([["stdout", `[${bytes(data.output_left_out)} before this are not shown]\n`]]);
    take(data);
  });
  source.change(take);

  function take(data) {
    if (data.now) ahead_s = data.now - Date.now() / 1000;
    if (data.job) job = data.job;
    if ("why" in data) why = data.why;
    addEvents(data.events ?? []);
    addOutput(data.output ?? []);
    if (!job) return;
    tellState();
    tellRecord();
    tellWhy();
    tellActions();
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
    const usage = job.usage;
    return [
      ["user", job.user ?? job.userid], ["queue", job.queue], ["bank", job.bank], ["command", job.command?.join(" ")],
      ["asked for", job.asked], ["tasks", job.ntasks], ["nodes", job.nnodes], ["cores", job.ncores], ["targets", job.nodelist], ["ranks", job.ranks],
      ["parts", job.parts && Object.entries(job.parts).map(([label, ranks]) => `${label}:${ranks}`).join(" ")],
      ["urgency", job.urgency === HELD ? "0 (held)" : job.urgency], ["priority", job.priority],
      ["submitted", time(job.t_submit), exact(job.t_submit)], ["started", time(job.t_run), exact(job.t_run)], ["ended", time(job.t_inactive), exact(job.t_inactive)],
      ["runtime", duration(runtime(job, now()))], ["limit", limit_s ? duration(limit_s) : "none"], ["expires", job.state === "RUN" && job.expiration ? time(job.expiration) : ""],
      ["exit status", job.returncode], ["exception", job.exception && [job.exception.type, job.exception.note].filter(Boolean).join(": ")],
      ["CPU time", usage && duration(usage.user_s + usage.system_s)], ["peak memory", usage && bytes(usage.max_rss_bytes)],
      ["attempt", job.attempt], ["depends on", job.dependencies?.join(", ")], ["set", job.job_set],
    ].filter(([, value]) => value !== undefined && value !== null && value !== "");
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
        element("span", {class: "event"}, event.name), element("span", {class: "context"}, context(event.context))));
    }
  }

  function addOutput(pieces) {
    const output = at("output");
    const isAtEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 30;
    for (const [stream, text] of pieces) {
      output.append(element("span", {class: stream}, text.replaceAll("\r\n", "\n").replace(CONTROLS, "\ufffd")));
      written += text.length;
    }
    while (written > OUTPUT_CHARS_MAX && output.childElementCount > 1) {
      written -= output.firstChild.textContent.length;
      output.firstChild.remove();
    }
    if (isAtEnd && pieces.length) output.scrollTop = output.scrollHeight;
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
      isActive && may.has("cancel") && ["cancel", "Cancel…", {title: `Cancel ${named}?`, text: job.state === "RUN" ? "Its tasks are ended." : "It will not run.", confirm: "Cancel the job", danger: true}, "cancel", {}],
      isActive && may.has("raise") && ["raise", "Raise…", {title: `Raise an exception on ${named}?`, text: "It ends the job, and its type and note stand in the event log.", confirm: "Raise it", danger: true,
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
