// All targets as cells, coloured by the job that they had most of at one time.

import { property } from "../charts/palette.js";

/** The widest that a cell is, in pixels. */
const CELL_MOST = 22, HEIGHT = 110;

/** Draw the machine of a Gantt chart at a time; returns how many targets were in use. */
export function machineAt(canvas, gantt, time, targets) {
  const width = canvas.clientWidth || 300, ratio = Math.min(devicePixelRatio || 1, 2);
  const size = Math.min(CELL_MOST, Math.max(1, Math.sqrt((width * HEIGHT) / targets)));
  const columns = Math.max(1, Math.floor(width / size)), lines = Math.ceil(targets / columns);
  canvas.width = width * ratio;
  canvas.height = Math.ceil(lines * size * ratio);
  canvas.style.height = `${Math.ceil(lines * size)}px`;
  const context = canvas.getContext("2d"), gap = size > 4 ? 1 : 0;
  context.scale(ratio, ratio);
  context.fillStyle = property("--surface-3");
  for (let rank = 0; rank < targets; rank += 1) {
    context.fillRect((rank % columns) * size, Math.floor(rank / columns) * size, size - gap, size - gap);
  }
  const { times, rows, owner, count, bars } = gantt.rectangles, busy = new Set();
  for (let at = 0; at < count; at += 1) {
    if (times[at * 2] > time || time >= times[at * 2 + 1]) continue;
    context.fillStyle = gantt.palette.colour(gantt.keyOf(bars[owner[at]]));
    for (let rank = Math.floor(rows[at * 2]); rank < rows[at * 2 + 1]; rank += 1) {
      const low = Math.max(rows[at * 2], rank) - rank, high = Math.min(rows[at * 2 + 1], rank + 1) - rank;
      const x = (rank % columns) * size, y = Math.floor(rank / columns) * size;
      context.fillRect(x, y + low * (size - gap), size - gap, (high - low) * (size - gap));
      busy.add(rank);
    }
  }
  return busy.size;
}
