// What is typed into the search of the map: ranks, hosts or a job.

import {hosts} from "../base/sets.js";

const RANKS = /^[\d,\s-]+$/;
const JOB = /^ƒ[1-9A-HJ-NP-Za-km-z]+$|^0x[0-9a-f]+$/;
const MAYBE_JOB = /^f[1-9A-HJ-NP-Za-km-z]+$/; // or the beginning of a host's name

/** The indexes of what a text means, and what it is in words: `{found, words}`. Raises an Error if it means nothing here. */
export async function search(text, cells, source) {
  const typed = text.trim();
  if (RANKS.test(typed)) return foundRanks(typed, cells);
  const found = typed.includes("*") ? pattern(typed, cells) : hosts(typed).flatMap((host) => cells.ofHost(host));
  if (found.length) return {found, words: typed};
  if (JOB.test(typed)) return ofJob(typed, cells, source);
  const begun = typed.includes("[") ? [] : pattern(`${typed}*`, cells);
  if (begun.length) return {found: begun, words: `${typed}…`};
  if (MAYBE_JOB.test(typed)) return ofJob(typed, cells, source);
  throw new Error(`no target is called ${typed}: type ranks (0-3,7), hosts (node[0-3], node1*) or a job's id`);
}

function foundRanks(typed, cells) {
  const found = cells.ofRanks(typed.replaceAll(" ", ""));
  if (!found.length) throw new Error(`there is no target of rank ${typed}`);
  return {found, words: typed};
}

function pattern(typed, cells) {
  const body = typed.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  const wanted = new RegExp(`^${body}$`);
  const found = [];
  for (let at = 0; at < cells.count; at += 1) if (wanted.test(cells.host(at))) found.push(at);
  return found;
}

async function ofJob(typed, cells, source) {
  const [job] = (await source.fetch("jobs", {ids: typed})).jobs;
  if (!job) throw new Error(`there is no job ${typed}`);
  const found = job.ranks ? cells.ofRanks(job.ranks) : [];
  if (!found.length) throw new Error(`job ${job.jobid} (${job.word}) has no targets`);
  return {found, words: `job ${job.jobid}`};
}
