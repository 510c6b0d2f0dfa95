// Jobs: a table that follows the instance row by row; filters are those of `fluxsched jobs`.

import {element, keyed, setText} from "./base/dom.js";
import {count, duration, exact} from "./base/words.js";

const TYPED_S = 0.35;
const CLOCK_S = 1;
const KINDS = {RUN: "on", CLEANUP: "on", COMPLETED: "good", FAILED: "bad", TIMEOUT: "bad"};
const SORT = "#sort=";

/** The word for the state or result of a job, and what kind of pill it is. */
export function stateOf(job) {
  return [job.word, KINDS[job.status] ?? ""];
}

/** How long a job has run, or ran, at a time. */
export function runtime(job, now_s) {
  return job.t_run ? (job.t_cleanup ?? job.t_inactive ?? now_s) - job.t_run : undefined;
}

/** When a job that waits can start (seconds since 1970), as its scheduler says; undefined if it does not. */
export function estimate(job) {
  return job.estimate || undefined;
}

/** Follow jobs in the table in `root`. */
export function show(root, source) {
  const body = root.querySelector("#jobs-table tbody");
  const note = root.querySelector("#jobs-note");
  const form = root.querySelector("#filters");
  const chosen = root.querySelector("#jobs-chosen");
  const mayAct = !root.querySelector("#jobs-actions").hidden;
  let rows = new Map();
  let order = [];
  let left = 0;
  let ahead_s = 0; // what the instance's clock is ahead of this one

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
    draw();
  }

  const now = () => Date.now() / 1000 + ahead_s;

  /* rows */

  const VALUES = {
    id: (job) => job.t_submit, state: (job) => stateOf(job)[0], user: (job) => job.user, name: (job) => job.name,
    queue: (job) => job.queue ?? "", ntasks: (job) => job.ntasks, nnodes: (job) => job.nnodes ?? 0, urgency: (job) => job.urgency,
    time: (job) => runtime(job, now()) ?? -1,
  };

  const sortedBy = () => (location.hash.startsWith(SORT) ? location.hash.slice(SORT.length) : "");

  function sorted(jobs) {
    const by = sortedBy();
    const value = VALUES[by.replace("-", "")];
    if (!value) return jobs;
    const sign = by.startsWith("-") ? -1 : 1;
    return jobs.map((job) => [value(job), job]).sort(([one], [other]) => (one < other ? -sign : one > other ? sign : 0)).map(([, job]) => job);
  }

  function draw() {
    const shown = sorted(order.map((jobid) => rows.get(jobid)).filter(Boolean));
    keyed(body, shown, (job) => job.jobid, make, fill);
    tellChosen();
    setText(note, shown.length ? `${count(shown.length, "job")} shown${left ? "; there are more: narrow the filters to see them" : ""}` : "No job passes these filters.");
  }

  function make(job) {
    const cell = (kind, ...children) => element("td", {class: kind}, ...children);
    const box = mayAct && element("input", {type: "checkbox", name: "ids", value: job.jobid, "aria-label": `Choose ${job.jobid}`});
    return element("tr", {}, cell("mono", box, box && " ", element("a", {href: `/jobs/${encodeURIComponent(job.jobid)}`}, job.jobid)), cell("", element("span", {class: "pill"})),
      cell(""), cell("name"), cell("wide"), cell("number wide"), cell("number"), cell("number"), cell("number wide"), cell("reason", element("span", {}), element("span", {class: "eta"})));
  }

  function fill(row, job) {
    if (row.job === job) return;
    row.job = job;
    const [state, kind] = stateOf(job);
    const pill = row.children[1].firstChild;
    setText(pill, state);
    pill.className = `pill ${kind}`;
    const texts = [job.user, job.name, job.queue ?? "", job.ntasks, job.nnodes ?? "", null, job.urgency];
    for (const [at, text] of texts.entries()) if (text !== null) setText(row.children[at + 2], text);
    row.children[3].title = job.name;
    const [where, eta] = row.children[9].children;
    setText(where, job.reason || job.nodelist || "");
    eta.title = exact(estimate(job));
    clock(row);
  }

  /** What passes with time. */
  function clock(row) {
    setText(row.children[7], duration(runtime(row.job, now())));
    const start_s = estimate(row.job);
    setText(row.children[9].lastChild, start_s ? `${row.job.reason ? " · " : ""}${starts(start_s - now(), row.job.promised)}` : "");
  }

  /** What is not promised is a bound: jobs ahead may take longer than that. */
  function starts(delay_s, promised) {
    if (delay_s <= 0) return promised === false ? "may start at any time" : "starts soon";
    return `starts in ${duration(Math.ceil(delay_s))}${promised === false ? " at the earliest" : ""}`;
  }

  setInterval(() => {
    if (document.hidden) return;
    for (const row of body.children) if (row.job && (row.job.state === "RUN" || estimate(row.job))) clock(row);
  }, 1000 * CLOCK_S);

  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row && !event.target.closest("a, input") && String(getSelection()) === "") row.querySelector("a").click();
  });

  /* what is done with several */

  function tellChosen() {
    const size = body.querySelectorAll("input:checked").length;
    setText(chosen, size ? `${count(size, "job")} chosen:` : "Tick jobs to hold, release or cancel them together.");
    for (const button of root.querySelectorAll("#jobs-actions button")) button.hidden = !size;
  }

  body.addEventListener("change", tellChosen);
  root.querySelector("#chosen-jobs").addEventListener("reset", () => setTimeout(tellChosen));
  tellChosen();

  /* filters and order */

  let typed = 0;
  const apply = () => source.filter(Object.fromEntries(new FormData(form)));
  form.addEventListener("submit", (event) => (event.preventDefault(), apply()));
  form.addEventListener("change", () => (clearTimeout(typed), apply()));
  form.addEventListener("input", () => {
    clearTimeout(typed);
    typed = setTimeout(apply, 1000 * TYPED_S);
  });

  const headings = [...root.querySelectorAll("th[data-sort]")];
  for (const heading of headings) {
    const {sort} = heading.dataset;
    const button = element("button", {type: "button", class: "quiet", title: "Sort by this", onclick: () => sortBy(sort)}, heading.textContent);
    heading.replaceChildren(button);
  }
  tellOrder();

  function sortBy(sort) {
    const before = sortedBy();
    const by = before === sort ? `-${sort}` : before === `-${sort}` ? "" : sort;
    history.replaceState(null, "", `${location.pathname}${location.search}${by && SORT}${by}`);
    tellOrder();
    draw();
  }

  function tellOrder() {
    const by = sortedBy();
    for (const heading of headings) {
      if (by.replace("-", "") === heading.dataset.sort) heading.setAttribute("aria-sort", by.startsWith("-") ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
  }
}
