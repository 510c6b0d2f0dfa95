// The queues, a row each in the order of the instance: targets, jobs, limits, why jobs wait, when the first of them starts.

import {Table, linked, numbers} from "./base/table.js";
import {exact, number, time} from "./base/words.js";

export function show(root, source) {
  let data = {};
  const table = new Table(root.querySelector("#queues-table"), (queue) => queue.name, [
    {value: (queue) => queue.name, show: ({name}) => linked(name || "(unnamed)", `/jobs${name ? `?${new URLSearchParams({queue: name})}` : ""}`)},
    (queue) => queue.groups.join(", "),
    {value: (queue) => queue.policy, show: ({policy, groups, has_accounts: hasAccounts}) => (hasAccounts ? linked(policy, `/shares?${new URLSearchParams({group: groups[0]})}`) : policy)},
    ({targets}) => `${number(targets.free)} free of ${number(targets.total)}${targets.online < targets.total ? `, ${number(targets.online)} online` : ""}`,
    numbers((queue) => queue.running), numbers((queue) => queue.waiting), (queue) => queue.state + (queue.reason ? `: ${queue.reason}` : ""),
    (queue) => queue.limits.join("; "), reasons, {value: (queue) => queue.head && startOf(queue.head), show: (queue) => (queue.head ? first(queue.head) : "")},
  ], {noun: "queue"});
  const take = (news) => {
    data = {...data, ...news};
    table.show(data.queues ?? []);
  };
  source.whole(take);
  source.change(take);
}

/** "no free nodes 12, limit of user 3, of the first 100". */
function reasons({reasons, looked_at, waiting}) {
  const parts = reasons.map(([kind, size]) => `${kind} ${number(size)}`);
  if (parts.length && looked_at < waiting) parts.push(`of the first ${number(looked_at)}`);
  return parts.join(", ");
}

function startOf(job) {
  return job.start ? `${job.promised ? "planned" : "at the earliest"} ${time(job.start)}` : "not known";
}

function first(job) {
  return linked(job.jobid, `/jobs/${encodeURIComponent(job.jobid)}`, startOf(job), job.start ? exact(job.start) : job.reason);
}
