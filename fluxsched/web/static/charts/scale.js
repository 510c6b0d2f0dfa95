// Scales and ticks of axes: numbers, times of the day (seconds since the epoch), and durations since the beginning of a
// trace. Law: nothing here knows the document.

import { duration } from "../base/words.js";

const MINUTE = 60, HOUR = 3600, DAY = 86400;

const TIME_STEPS = [
  1, 5, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 56 * DAY, 91 * DAY, 182 * DAY, 364 * DAY,
];

/** A number of the domain as a place in the range, in a straight line. */
export function linear(from, to, first, last) {
  const factor = to === from ? 0 : (last - first) / (to - from);
  return (value) => first + (value - from) * factor;
}

/** The same for the logarithm of 1 + value: no wait has a place, too. */
export function logarithmic(to, first, last) {
  const whole = Math.log1p(Math.max(to, 1));
  return (value) => first + ((last - first) * Math.log1p(Math.max(value, 0))) / whole;
}

/** At most about `count` round numbers from 0 or `from` up to `to`. */
export function numberTicks(to, count, from = 0) {
  const rough = (to - from) / Math.max(1, count);
  if (!(rough > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const ticks = [];
  for (let at = Math.max(Math.ceil(from / step - 1e-9), 0); at * step <= to + step * 1e-9; at += 1) ticks.push(at * step);
  return ticks;
}

/** Waits that people know, up to the longest: seconds, minutes, hours, days. */
export function durationTicks(longest) {
  const ticks = [0, 10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 182 * DAY, 728 * DAY];
  return ticks.filter((tick, at) => at === 0 || tick <= longest * 1.02);
}

/** Ticks of an axis of time: `[[time, label, is a larger unit]...]`. Times of the day are those of the reader. */
export function timeTicks(begin, end, count, ofDay = true) {
  const span = Math.max(end - begin, 1e-6);
  const step = TIME_STEPS.find((each) => span / each <= count) ?? Math.ceil(span / count / (364 * DAY)) * 364 * DAY;
  const offset = ofDay ? new Date(begin * 1000).getTimezoneOffset() * -MINUTE : 0;
  const ticks = [];
  for (let at = Math.ceil((begin + offset) / step); at * step - offset <= end; at += 1) {
    const time = at * step - offset;
    ticks.push(ofDay ? dayTick(time, step) : [time, elapsed(time, step), false]);
  }
  return ticks;
}

function dayTick(time, step) {
  const date = new Date(time * 1000);
  const midnight = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
  if (step >= DAY || midnight) return [time, date.toLocaleDateString("en", { day: "numeric", month: "short" }), midnight];
  /** @type {Intl.DateTimeFormatOptions} */
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (step < MINUTE) parts.second = "2-digit";
  return [time, date.toLocaleTimeString("en-GB", parts), false];
}

/** A round time since the beginning, in the unit that `step` has. */
export function elapsed(time, step = time) {
  if (step >= DAY) return `${Math.round(time / DAY)}d`;
  if (step >= HOUR) return `${Math.round(time / HOUR)}h`;
  if (step >= MINUTE) return `${Math.round(time / MINUTE)}m`;
  return `${Math.round(time)}s`;
}

/** A point in time in words: of the day, or since the beginning. */
export function timeText(time, ofDay = true) {
  if (!ofDay) return duration(time);
  const date = new Date(time * 1000);
  const day = date.toLocaleDateString("en", { month: "short", day: "numeric" });
  return `${day} ${date.toLocaleTimeString("en-GB")}`;
}

/** A number for people: thousands apart, as many digits as matter. */
export function numberText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** The same for an axis up to `highest`, all in one unit: 5k, 10k; 0.5M, 1M. */
export function axisNumber(highest) {
  const [unit, letter] = highest >= 1e6 ? [1e6, "M"] : highest >= 1e4 ? [1e3, "k"] : [1, ""];
  return (value) => (value ? numberText(value / unit) + letter : "0");
}
