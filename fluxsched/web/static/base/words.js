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

/** Seconds as "0.4 s", "12 s", "3:07", "1:02:33", "4d 03:00". */
export function duration(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const whole = Math.floor(seconds);
  const two = (value) => String(value).padStart(2, "0");
  const [days, hours, minutes] = [Math.floor(whole / DAY_S), Math.floor((whole % DAY_S) / 3600), Math.floor((whole % 3600) / 60)];
  if (days) return `${days}d ${two(hours)}:${two(minutes)}`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** Seconds as one says them: "40 s", "12 min", "7 h 53 min", "2 d 3 h". */
export function about(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const [hours, rest] = [Math.floor(minutes / 60), minutes % 60];
  if (hours < 24) return rest ? `${hours} h ${rest} min` : `${hours} h`;
  return hours % 24 ? `${Math.floor(hours / 24)} d ${hours % 24} h` : `${hours / 24} d`;
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
