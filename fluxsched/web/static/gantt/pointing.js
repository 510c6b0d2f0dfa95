// Pointer, wheel and keys of a Gantt chart. A wheel alone scrolls the page, as everywhere; with Ctrl it zooms.

/** Pixels that a pointer may move and still only click. */
const CLICK_PIXELS = 4;

const STEP = 0.15, FACTOR = 0.7;

export function control(gantt) {
  const { canvas } = gantt;
  const pointers = new Map();
  let begun = null, pinched = 0;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = place(event);
    pointers.set(event.pointerId, [x, y]);
    const { overview } = gantt.painter.layout;
    const inOverview = overview && y >= overview.top;
    begun = { x, y, window: gantt.window, moved: false, inOverview, box: event.shiftKey && !inOverview };
    pinched = pointers.size === 2 ? distance(pointers) : 0;
    canvas.setPointerCapture(event.pointerId);
    if (inOverview) moveOverview(gantt, x);
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!pointers.has(event.pointerId)) {
      point(gantt, x, y, event);
      return;
    }
    pointers.set(event.pointerId, [x, y]);
    if (pointers.size === 2 && pinched) {
      const now = distance(pointers);
      gantt.zoom(pinched / Math.max(now, 1));
      pinched = now;
      return;
    }
    if (!begun) return;
    if (Math.hypot(x - begun.x, y - begun.y) > CLICK_PIXELS) begun.moved = true;
    if (!begun.moved) return;
    if (begun.inOverview) moveOverview(gantt, x);
    else if (begun.box) gantt.painter.box = [begun.x, begun.y, x, y];
    else drag(gantt, begun, x, y);
    gantt.draw();
  });

  const ended = (event) => {
    const was = begun;
    pointers.delete(event.pointerId);
    begun = null;
    const box = gantt.painter.box;
    gantt.painter.box = null;
    if (box) zoomToBox(gantt, box);
    else if (was && !was.moved && !was.inOverview && event.type === "pointerup") {
      const at = gantt.at(was.x, was.y);
      gantt.select(at);
      if (at >= 0 && event.pointerType !== "touch") gantt.options.chosen?.(gantt.bars()[at]);
    }
  };
  canvas.addEventListener("pointerup", ended);
  canvas.addEventListener("pointercancel", ended);
  canvas.addEventListener("pointerleave", () => {
    gantt.pointed = -1;
    gantt.options.pointed?.(null);
    gantt.draw();
  });

  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const [x, y] = place(event), { plot } = gantt.painter.layout;
    const turned = event.deltaY || event.deltaX;
    if (event.shiftKey) gantt.pan(Math.sign(turned) * STEP);
    else {
      const factor = Math.exp(Math.sign(turned) * 0.2);
      const rows = event.altKey ? factor : 1;
      gantt.zoom(factor, rows, part(x, plot.left, plot.right), part(y, plot.top, plot.bottom));
    }
  }, { passive: false });

  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys(gantt)[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act(event.shiftKey);
  });
}

function keys(gantt) {
  return {
    ArrowLeft: () => gantt.pan(-STEP),
    ArrowRight: () => gantt.pan(STEP),
    ArrowUp: (shift) => (shift ? gantt.zoom(1, FACTOR) : gantt.pan(0, -STEP)),
    ArrowDown: (shift) => (shift ? gantt.zoom(1, 1 / FACTOR) : gantt.pan(0, STEP)),
    "+": () => gantt.zoom(FACTOR),
    "=": () => gantt.zoom(FACTOR),
    "-": () => gantt.zoom(1 / FACTOR),
    0: () => gantt.reset(),
    ".": () => gantt.step(1),
    ",": () => gantt.step(-1),
    Escape: () => gantt.select(-1),
    Enter: () => {
      const bar = gantt.bars()[gantt.selected];
      if (bar) gantt.options.chosen?.(bar);
    },
  };
}

function part(value, from, to) {
  return Math.min(1, Math.max(0, (value - from) / Math.max(1, to - from)));
}

function distance(pointers) {
  const [[x0, y0], [x1, y1]] = [...pointers.values()];
  return Math.hypot(x1 - x0, y1 - y0);
}

function point(gantt, x, y, event) {
  const at = gantt.at(x, y);
  if (at !== gantt.pointed) {
    gantt.pointed = at;
    gantt.draw();
  }
  gantt.canvas.classList.toggle("at-job", at >= 0);
  gantt.options.pointed?.(at < 0 ? null : gantt.bars()[at], event);
}

function drag(gantt, begun, x, y) {
  const { plot } = gantt.painter.layout, { window } = begun;
  const time = ((begun.x - x) / (plot.right - plot.left)) * (window.end - window.begin);
  const rows = ((begun.y - y) / (plot.bottom - plot.top)) * (window.bottom - window.top);
  gantt.look({
    begin: window.begin + time, end: window.end + time, top: window.top + rows, bottom: window.bottom + rows,
  });
}

function moveOverview(gantt, x) {
  const { plot } = gantt.painter.layout, { data, window } = gantt;
  const middle = data.begin + part(x, plot.left, plot.right) * (data.end - data.begin);
  const half = (window.end - window.begin) / 2;
  gantt.look({ ...window, begin: middle - half, end: middle + half });
}

function zoomToBox(gantt, [x0, y0, x1, y1]) {
  const { plot } = gantt.painter.layout, { begin, end, top, bottom } = gantt.window;
  const time = (x) => begin + part(x, plot.left, plot.right) * (end - begin);
  const row = (y) => top + part(y, plot.top, plot.bottom) * (bottom - top);
  gantt.look({
    begin: time(Math.min(x0, x1)), end: time(Math.max(x0, x1)),
    top: row(Math.min(y0, y1)), bottom: row(Math.max(y0, y1)),
  });
}
