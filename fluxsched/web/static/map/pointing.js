// The map by mouse, pen, fingers and keys: what is pointed at, dragged, chosen and zoomed.

const MOVED_PX = 5;
const WHEEL = 0.0016;
const KEY_ZOOM = 1.5;
const PAN_PX = 60;

/**
 * `deeds`: `hover(index, x, y)` (-1: nothing), `open(index)`, `choose(indexes, isMore)`, `focus(index)`. `isChoosing()` says
 * whether a drag without Shift chooses, too.
 */
export function pointing(map, deeds, isChoosing) {
  const {canvas} = map;
  const fingers = new Map();
  let start = null;
  let band = null;
  let apart = 0;

  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const at = place(event);
    fingers.set(event.pointerId, at);
    apart = 0;
    start = {at, last: at, isMoved: false, chooses: event.shiftKey || isChoosing()};
    deeds.hover(-1);
  });

  canvas.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (!fingers.has(event.pointerId)) {
      if (event.pointerType !== "touch") deeds.hover(map.at(...at), ...at);
      return;
    }
    fingers.set(event.pointerId, at);
    if (fingers.size === 2) return pinch();
    if (!start) return;
    start.isMoved ||= Math.hypot(at[0] - start.at[0], at[1] - start.at[1]) > MOVED_PX;
    if (!start.isMoved) return;
    if (start.chooses) drawBand(start.at, at);
    else {
      canvas.classList.add("pans");
      map.pan(at[0] - start.last[0], at[1] - start.last[1]);
    }
    start.last = at;
  });

  function pinch() {
    const [[x0, y0], [x1, y1]] = fingers.values();
    const now = Math.hypot(x0 - x1, y0 - y1);
    if (apart) map.zoom(now / apart, (x0 + x1) / 2, (y0 + y1) / 2);
    apart = now;
    start = null;
    drawBand(null);
  }

  function drawBand(from, to) {
    if (!from) {
      band?.remove();
      band = null;
      return;
    }
    if (!band) {
      band = document.createElement("div");
      band.className = "band";
      canvas.after(band);
    }
    const [left, top] = [Math.min(from[0], to[0]), Math.min(from[1], to[1])];
    Object.assign(band.style, {left: `${left}px`, top: `${top}px`, width: `${Math.abs(from[0] - to[0])}px`, height: `${Math.abs(from[1] - to[1])}px`});
  }

  function end(event) {
    fingers.delete(event.pointerId);
    canvas.classList.remove("pans");
    drawBand(null);
    if (fingers.size || !start) return;
    const {at, isMoved, chooses} = start;
    start = null;
    if (event.type === "pointercancel") return;
    const [x, y] = place(event);
    if (isMoved && chooses) deeds.choose(map.within(Math.min(at[0], x), Math.min(at[1], y), Math.max(at[0], x), Math.max(at[1], y)), true);
    if (isMoved) return;
    const cell = map.at(x, y);
    if (cell < 0) return;
    deeds.focus(cell);
    if (chooses) deeds.choose([cell], true);
    else deeds.open(cell);
  }

  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => deeds.hover(-1));
  canvas.addEventListener("wheel", (event) => {
    const steps = event.deltaMode === 1 ? 16 * event.deltaY : event.deltaY;
    if (map.zoom(Math.exp(-steps * WHEEL * (event.ctrlKey ? 6 : 1)), ...place(event)) || map.scale > map.fitScale) event.preventDefault();
    deeds.hover(-1);
  }, {passive: false});
  canvas.addEventListener("dblclick", (event) => map.zoom(2, ...place(event)));

  const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = MOVES[event.key];
    if (move) {
      const next = map.focused < 0 ? map.order[0] ?? -1 : map.beside(map.focused, ...move);
      if (event.shiftKey) deeds.choose([map.focused, next].filter((cell) => cell >= 0), null);
      deeds.focus(next);
    } else if (event.key === "Home") deeds.focus(map.order[0]);
    else if (event.key === "End") deeds.focus(map.order[map.order.length - 1]);
    else if (event.key === "Enter" && map.focused >= 0) deeds.open(map.focused);
    else if (event.key === " " && map.focused >= 0) deeds.choose([map.focused], true);
    else if (event.key === "+" || event.key === "=") zoomTo(KEY_ZOOM);
    else if (event.key === "-") zoomTo(1 / KEY_ZOOM);
    else if (event.key === "0") map.fit();
    else if (event.key === "PageDown" || event.key === "PageUp") map.pan(0, event.key === "PageUp" ? PAN_PX : -PAN_PX);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function zoomTo(factor) {
    if (map.focused < 0) return map.zoom(factor);
    const [left, top, size] = map.where(map.focused);
    return map.zoom(factor, left + size / 2, top + size / 2);
  }
}
