// Numbers, times and durations as people read them.

const NUMBER = new Intl.NumberFormat("en");
const DAY_S = 86400;

/** 131072 -> "131,072". */
export function number(value) {
  return NUMBER.format(value);
}

/** "1 target", "2 targets". */
export function count(value, one, many = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : many}`;
}

/** A command as a shell takes it: ["sh", "-c", "a b"] -> "sh -c 'a b'"; as `shlex.join`. */
export function commandLine(words) {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`)).join(" ");
}

/** Units with the next smaller ones. @type {[number, string, number, string][]} */
const UNITS = [[DAY_S, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]];

/**
 * Seconds in the two largest units, as `span_text` of views/words.py: "12s", "1m 4s", "2h 19m", "3d"; below one second
 * "14ms".
 */
export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds === Infinity) return "infinity";
  for (const [unit_s, unit, part_s, part] of UNITS) {
    if (Math.round(seconds) < unit_s) continue;
    const parts = Math.floor(Math.round(seconds) / part_s), each = unit_s / part_s, rest = parts % each;
    return `${Math.floor(parts / each)}${unit}${rest ? ` ${rest}${part}` : ""}`;
  }
  return seconds > 0 && seconds < 1 ? `${rounded(1000 * seconds)}ms` : `${Math.round(seconds)}s`;
}

function rounded(value) {
  return String(Number(value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)));
}

/** A time (seconds since 1970) as "14:03:07" today, else "Nov 21 14:03", in the reader's zone; `now_s` is the present. */
export function time(seconds, now_s = Date.now() / 1000) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  const clock = date.toLocaleTimeString("en-GB");
  const isToday = date.toDateString() === new Date(now_s * 1000).toDateString();
  const isYear = date.getFullYear() === new Date(now_s * 1000).getFullYear();
  if (isToday) return clock;
  const day = date.toLocaleDateString("en", { month: "short", day: "numeric", ...(isYear ? {} : { year: "numeric" }) });
  return `${day} ${clock.slice(0, 5)}`;
}

/** A time in full, for `title`. */
export function exact(seconds) {
  return seconds ? new Date(seconds * 1000).toString() : "";
}

/** A time with its offset, for files: "2026-11-29T09:08:00+01:00". */
export function iso(seconds) {
  const date = new Date(seconds * 1000), offset = -date.getTimezoneOffset();
  const two = (part) => String(Math.floor(Math.abs(part))).padStart(2, "0");
  const local = new Date(date.getTime() + 60_000 * offset).toISOString().slice(0, 19);
  return `${local}${offset < 0 ? "-" : "+"}${two(offset / 60)}:${two(offset % 60)}`;
}

/** Bytes as "12 MiB". */
export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${left < 10 && at ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
}

/** A context of an event as "key=value key=value". */
export function context(object) {
  return Object.entries(object ?? {})
    .map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(" ");
}

/** Fill the `<time data-time>` elements that the server left to the reader's zone. */
export function fillTimes(root) {
  for (const each of root.querySelectorAll("time[data-time]")) {
    const seconds = Number(each.dataset.time);
    each.textContent = time(seconds);
    each.title = exact(seconds);
  }
}
