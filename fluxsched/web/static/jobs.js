// Jobs: a table that follows the instance row by row; filters are those of `fluxsched jobs`.

import {element, setText, show as reveal} from "./base/dom.js";
import {isUnfinished} from "./base/sets.js";
import {Table, durations, numbers, titled} from "./base/table.js";
import {count, duration, exact, number} from "./base/words.js";

const TYPED_S = 0.35;
const CLOCK_S = 1;
const KINDS = {RUN: "on", CLEANUP: "on", COMPLETED: "good", FAILED: "bad", TIMEOUT: "bad"};
const START_MAX = 5000; // LIST_START_MAX of protocol/messages/jobs.py
const NO_FILTERS = new Set(["order", "start", "max_entries"]);
const NAMED_MAX = 8; // jobs that a dialog names

/** The word for the state or result of a job, and what kind of pill it is. */
export function stateOf(job) {
  return [job.word, KINDS[job.status] ?? ""];
}

/** How long a job has run, or ran, at a time. */
export function runtime(job, now_s) {
  return job.t_run ? (job.t_cleanup ?? job.t_inactive ?? now_s) - job.t_run : undefined;
}

/** How long a job waits, or waited, for its start or its end. */
export function waited(job, now_s) {
  return (job.t_run ?? job.t_inactive ?? now_s) - job.t_submit;
}

/** When a job that waits can start (seconds since 1970), as its scheduler says; undefined if it does not. */
export function estimate(job) {
  return job.estimate || undefined;
}

/** Follow jobs in the table in `root`. */
export function show(root, source) {
  const form = root.querySelector("#filters");
  const chosen = root.querySelector("#jobs-chosen");
  const mayAct = !root.querySelector("#jobs-actions").hidden;
  const csv = root.querySelector("#jobs-csv");
  csv.addEventListener("click", () => (csv.search = location.search)); // the filters as they are now
  let rows = new Map();
  let order = [];
  let left = 0;
  let ahead_s = 0; // what the instance's clock is ahead of this one
  const now = () => Date.now() / 1000 + ahead_s;

  /* rows */

  const table = new Table(root.querySelector("#jobs-table"), (job) => job.jobid, [
    {order: "t_submit", show: (job) => (cell) => named(cell, job)},
    {order: "state", show: (job) => (cell) => stated(cell, job)},
    {order: "userid", show: (job) => job.user}, {order: "name", show: (job) => titled(job.name, job.name)},
    {order: "queue", value: (job) => job.queue, optional: true}, {order: "bank", value: (job) => job.bank, optional: true},
    numbers((job) => job.ntasks, {order: "ntasks"}), numbers((job) => job.nnodes ?? job.nodes_asked, {order: "nnodes"}),
    numbers((job) => job.ncores ?? job.cores_asked, {order: "ncores"}),
    durations((job) => Math.floor(waited(job, now())), {order: "waited", passes: true}),
    {order: "runtime", show: (job) => (cell) => timed(cell, job), passes: true},
    {order: "duration", show: (job) => (job.duration ? duration(job.duration) : "none")},
    {order: "urgency", show: (job) => job.urgency},
    numbers((job) => (job.priority === job.urgency ? null : job.priority || null), {order: "priority", optional: true}),
    {show: (job) => (cell) => placed(cell, job), passes: true},
  ], {
    noun: "job", said: root.querySelector("#jobs-note"), hasFile: false, drawn: tellChosen,
    pages: {params: () => source.params, ask: (params) => source.filter(params), reach: START_MAX},
    filled: (line, job) => line.classList.toggle("asks", !job.t_run),
  });

  function named(cell, job) {
    if (cell.firstChild) return;
    const box = mayAct && element("input", {type: "checkbox", name: "ids", value: job.jobid, "aria-label": `Choose ${job.jobid}`});
    cell.append(box || "", " ", element("a", {href: `/jobs/${encodeURIComponent(job.jobid)}`}, job.jobid));
  }

  function stated(cell, job) {
    const [state, kind] = stateOf(job), pill = cell.firstChild ?? cell.appendChild(element("span"));
    setText(pill, state);
    pill.className = `pill ${kind}`;
  }

  function timed(cell, job) {
    const ran_s = runtime(job, now());
    setText(cell, duration(ran_s));
    cell.style.setProperty("--part", job.state === "RUN" && job.duration ? `${Math.min(100, (100 * ran_s) / job.duration)}%` : "0");
  }

  function placed(cell, job) {
    if (!cell.firstChild) cell.append(element("span"), element("span", {class: "eta"}));
    const start_s = estimate(job);
    setText(cell.firstChild, job.reason || job.nodelist || "");
    setText(cell.lastChild, start_s ? `${job.reason ? " · " : ""}${starts(start_s - now(), job.promised)}` : "");
    cell.lastChild.title = exact(start_s);
  }

  /** What is not promised is a bound: jobs ahead may take longer than that. */
  function starts(delay_s, promised) {
    if (delay_s <= 0) return promised === false ? "may start at any time" : "starts soon";
    return `starts in ${duration(Math.ceil(delay_s))}${promised === false ? " at the earliest" : ""}`;
  }

  setInterval(() => document.hidden || table.tick(), 1000 * CLOCK_S);

  table.body.addEventListener("click", (event) => {
    const at = /** @type {Element} */ (event.target), row = at.closest("tr");
    if (row && !at.closest("a, input") && String(getSelection()) === "") row.querySelector("a").click();
  });

  /* data */

  source.whole((data) => {
    rows = new Map(data.jobs.map((job) => [job.jobid, job]));
    order = data.order ?? data.jobs.map((job) => job.jobid);
    take(data);
  });

  source.change((data) => {
    for (const jobid of data.gone ?? []) rows.delete(jobid);
    for (const job of data.jobs ?? []) rows.set(job.jobid, job);
    order = data.order ?? order.filter((jobid) => rows.has(jobid));
    take(data);
  });

  function take(data) {
    if (data.now) ahead_s = data.now - Date.now() / 1000;
    left = data.left_out ?? left;
    const isFiltered = Object.keys(source.params).some((name) => !NO_FILTERS.has(name));
    setText(table.empty, left ? "No job is on this page any more." : isFiltered ? "No job passes these filters."
      : "Nothing runs or waits. To begin: fluxsched submit -n4 ./app");
    table.show(order.map((jobid) => rows.get(jobid)).filter(Boolean), left);
  }

  /* what is done with several */

  function tellChosen() {
    const size = table.body.querySelectorAll("input:checked").length;
    setText(chosen, size ? `${count(size, "job")} chosen:` : "Tick jobs to hold, release or cancel them together.");
    for (const button of root.querySelectorAll("#jobs-actions > button")) button.hidden = !size;
  }

  const acting = root.querySelector("#chosen-jobs");
  acting.wording = (label) => {
    const boxes = [...table.body.querySelectorAll("input:checked")];
    const picked = boxes.map((box) => table.rowOf(box)).filter(Boolean); // none in the server's rows
    const size = count(boxes.length, "job");
    const lines = picked.slice(0, NAMED_MAX).map((job) => `${job.jobid} ${job.name}: ${[stateOf(job)[0], job.nodelist].filter(Boolean).join(" on ")}`);
    if (picked.length > NAMED_MAX) lines.push(`and ${number(picked.length - NAMED_MAX)} more`);
    return {title: `${label} ${size}?`, text: lines.join("\n"), confirm: `${label} ${size}`, keep: picked.length > 1 ? "Keep them as they are" : "Keep it as it is"};
  };
  /** Jobs get back the urgency that each had. */
  acting.undoing = (name, {ids, urgency}) => {
    const meant = name === "urgency" ? ids.split(" ").map((jobid) => rows.get(jobid)) : [];
    const changed = meant.filter((job) => job && String(job.urgency) !== urgency);
    return [...new Set(changed.map((job) => job.urgency))].map((former) =>
      ({ids: changed.filter((job) => job.urgency === former).map((job) => job.jobid).join(" "), urgency: String(former)}));
  };
  table.body.addEventListener("change", tellChosen);
  acting.addEventListener("reset", () => setTimeout(() => (tellChosen(), table.holdOrDraw())));
  tellChosen();

  /* filters */

  let typed = 0;
  const fault = element("p", {class: "failed", id: "filter-fault", role: "alert", hidden: true});
  form.append(fault);

  /** What is refused is said here, and the list stays as it is. */
  async function apply() {
    const given = Object.fromEntries(new FormData(form));
    const changed = Object.keys(given).filter((name) => given[name] !== (source.params[name] ?? ""));
    const words = await source.filter({...given, start: ""});
    if (words === null) return; // another filter was given meanwhile
    if (!words) table.release();
    setText(fault, words);
    reveal(fault, Boolean(words));
    for (const field of form.elements) {
      const isWrong = Boolean(words) && changed.includes(field.name);
      field.setAttribute("aria-invalid", String(isWrong));
      field.setAttribute("aria-describedby", fault.id);
    }
  }

  form.addEventListener("submit", (event) => (event.preventDefault(), apply()));
  form.addEventListener("change", () => (clearTimeout(typed), apply()));
  form.addEventListener("input", (event) => {
    clearTimeout(typed);
    if (!isUnfinished(event.target.value)) typed = setTimeout(apply, 1000 * TYPED_S);
  });
}
