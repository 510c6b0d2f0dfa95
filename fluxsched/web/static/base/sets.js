// Idsets (RFC 22) and hostlists (RFC 29) as the instance writes them. Faults in what a person typed are Errors with words.

const IDS_MAX = 1 << 22; // as the instance has it

/** Call `each(first, last)` for the ranges of an idset. */
export function ranges(text, each) {
  if (!text) return;
  for (const part of String(text).replace(/^\[|\]$/g, "").split(",")) {
    const found = /^\s*(\d+)(?:-(\d+))?\s*$/.exec(part);
    if (!found) throw new Error(`${JSON.stringify(part)} is no range of ranks, such as 0-3`);
    const first = Number(found[1]);
    const last = found[2] === undefined ? first : Number(found[2]);
    if (last < first || last >= IDS_MAX) throw new Error(`${part.trim()} is no range of ranks, such as 0-3`);
    each(first, last);
  }
}

/** How many ids an idset has. */
export function sizeOf(text) {
  let size = 0;
  ranges(text, (first, last) => (size += last - first + 1));
  return size;
}

/** Whether an id is in an idset. */
export function has(text, id) {
  let isThere = false;
  ranges(text, (first, last) => (isThere ||= first <= id && id <= last));
  return isThere;
}

/** All ids of an idset. */
export function ids(text) {
  const found = [];
  ranges(text, (first, last) => {
    for (let id = first; id <= last; id += 1) found.push(id);
  });
  return found;
}

/** Sorted ids as an idset. */
export function idset(sorted) {
  const parts = [];
  for (let at = 0; at < sorted.length; ) {
    let end = at;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) end += 1;
    parts.push(end > at ? `${sorted[at]}-${sorted[end]}` : `${sorted[at]}`);
    at = end + 1;
  }
  return parts.join(",");
}

/** Whether brackets of a hostlist are still to be closed, or a range to be ended: it is not asked for while it is typed. */
export function isUnfinished(text) {
  return text.lastIndexOf("[") > text.lastIndexOf("]") || /[-,]$/.test(text);
}

/** The hosts of a hostlist, in order: `node[0-3,7],login` and several brackets. */
export function hosts(text) {
  return split(text).flatMap(expand);
}

function split(text) {
  const parts = [];
  let depth = 0;
  let part = "";
  for (const char of text) {
    if (char === "," && depth === 0) {
      parts.push(part);
      part = "";
      continue;
    }
    depth += char === "[" ? 1 : char === "]" ? -1 : 0;
    part += char;
  }
  if (depth !== 0) throw new Error(`${JSON.stringify(text)} has a bracket that is not closed`);
  return [...parts, part].map((each) => each.trim()).filter(Boolean);
}

function expand(part) {
  const open = part.indexOf("[");
  if (open < 0) return [part];
  const close = part.indexOf("]", open);
  const [before, inner, after] = [part.slice(0, open), part.slice(open + 1, close), part.slice(close + 1)];
  const rests = after ? expand(after) : [""];
  const found = [];
  for (const range of inner.split(",")) {
    const [first, last = first] = range.split("-");
    const isWhole = /^\d+$/.test(first) && /^\d+$/.test(last);
    if (!isWhole || Number(last) < Number(first) || Number(last) - Number(first) > IDS_MAX) {
      throw new Error(`${JSON.stringify(range)} is no range of hosts, such as node[0-3]`);
    }
    for (let id = Number(first); id <= Number(last); id += 1) {
      const digits = String(id).padStart(first.length, "0");
      for (const rest of rests) found.push(before + digits + rest);
      if (found.length > IDS_MAX) throw new Error(`${JSON.stringify(part)} is more than ${IDS_MAX} hosts`);
    }
  }
  return found;
}
