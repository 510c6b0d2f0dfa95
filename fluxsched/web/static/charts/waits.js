// Waits of several policies side by side: for each class of jobs the median and the 95th percentile, and the part of all
// jobs that waited at most so long. Law: all policies are on one logarithmic scale, on which no wait has a place.

import { element } from "../base/dom.js";
import { durationTicks, elapsed, logarithmic } from "./scale.js";
import { duration } from "../base/words.js";
import { svg } from "./svg.js";

const RIGHT = 20, AXIS = 24, MARK = 11;

/** A drawing that is made anew when its place becomes wider or narrower. */
function drawn(host, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (host.clientWidth === width || host.clientWidth < 80) return;
    width = host.clientWidth;
    host.replaceChildren(draw(width));
  }).observe(host);
}

/** Rows of `{label, note, waits: [{median, p95, jobs} or null, one a policy]}` into `host`. */
export function waitRows(host, rows, policies, label) {
  const longest = Math.max(1, ...rows.flatMap((row) => row.waits.map((wait) => wait?.p95 ?? 0)));
  const place = element("div", { class: "waits" });
  host.append(place);
  drawn(place, (width) => {
    const widest = Math.max(...rows.map((row) => row.label.length));
    const left = Math.min(150, width * 0.3, widest * 7.5 + 12), each = Math.max(26, policies.length * MARK + 12);
    const bottom = rows.length * each + 4;
    const x = logarithmic(longest, left + 8, width - RIGHT);
    const root = svg("svg", { width, height: bottom + AXIS, role: "img", "aria-label": label });
    axis(root, longest, x, bottom);
    rows.forEach((row, at) => {
      const top = at * each + 4;
      root.append(svg("text", { class: "name", x: left - 8, y: top + each / 2, "text-anchor": "end" }, short(row.label, left)));
      if (row.note) root.append(svg("text", { x: left - 8, y: top + each / 2 + 12, "text-anchor": "end" }, row.note));
      if (at) root.append(svg("line", { class: "grid", x1: 0, x2: width, y1: top - 2, y2: top - 2 }));
      row.waits.forEach((wait, policy) => {
        if (!wait) return;
        const y = top + (each - policies.length * MARK) / 2 + policy * MARK + MARK / 2 - 2;
        const hue = `hue-${policy + 1}`;
        root.append(
          svg("line", { class: `reach ${hue}`, x1: x(wait.median), x2: x(wait.p95), y1: y, y2: y }),
          svg("circle", { class: `dot ${hue}`, cx: x(wait.median), cy: y, r: 4 },
            svg("title", {}, `${policies[policy]}: median ${duration(wait.median)}, p95 ${duration(wait.p95)}, ${wait.jobs} jobs`)),
          svg("line", { class: `reach end ${hue}`, x1: x(wait.p95), x2: x(wait.p95), y1: y - 3.5, y2: y + 3.5 }),
        );
      });
    });
    return root;
  });
}

function short(text, left) {
  const most = Math.max(4, Math.floor(left / 7.5));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function axis(root, longest, x, bottom) {
  let before = -Infinity;
  for (const tick of durationTicks(longest)) {
    if (x(tick) - before < 34) continue;
    before = x(tick);
    root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: bottom }));
    root.append(svg("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, elapsed(tick)));
  }
}

/** One curve a policy: `quantiles` are waits at equal parts of the jobs, ascending. */
export function waitCurves(host, curves, label) {
  const longest = Math.max(1, ...curves.map((curve) => curve.quantiles.at(-1) ?? 0));
  const place = element("div", { class: "waits" });
  host.append(place);
  drawn(place, (width) => {
    const left = 44, bottom = 240, top = 8;
    const x = logarithmic(longest, left, width - RIGHT);
    const root = svg("svg", { width, height: bottom + AXIS, role: "img", "aria-label": label });
    axis(root, longest, x, bottom);
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const y = bottom - part * (bottom - top);
      root.append(svg("line", { class: part ? "grid" : "base", x1: left, x2: width - RIGHT, y1: y, y2: y }));
      root.append(svg("text", { x: left - 7, y: y + 4, "text-anchor": "end" }, `${part * 100}%`));
    }
    curves.forEach((curve, policy) => {
      const { quantiles } = curve, steps = Math.max(1, quantiles.length - 1);
      const points = quantiles.map((wait, at) => `${x(wait).toFixed(1)} ${(bottom - (at / steps) * (bottom - top)).toFixed(1)}`);
      if (points.length) root.append(svg("path", { class: `line hue-${policy + 1}`, d: `M${points.join("L")}` }));
    });
    return root;
  });
}
