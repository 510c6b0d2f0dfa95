// The map on its canvas. Every cell is one pixel of an image in memory, which one drawImage scales: zooming and panning cost
// the same for 16 and for 131,072 targets. Large cells are drawn one by one, those that are seen.

import {WALL_UNIT_MAX_PX, cellIn, layout, placeIn} from "./layout.js";
import {Colours, SHARES, css} from "./colours.js";
import {number} from "../base/words.js";

const LARGE_PX = 12; // cells from this size are drawn one by one
const LINES_PX = 4; // from this size there is space between cells
const RARE_MAX = 2000;
const SIGN_PX = 15;
const NAME_PX = 44;
const CELL_MAX_PX = 96;
const MARGIN_PX = 12;
const LOW_PX = 120;
const PANEL_PX = 460;
const NAME_HIGH_PX = 17; // a name is on what is filled, on what is not, or above the edge between them

export class MapCanvas {
  /** `signs`: a sign for each state's word; `room` is as high as the style sheet says, or less if the cells need less. */
  constructor(canvas, cells, signs, room) {
    this.canvas = canvas;
    this.room = room;
    this.context = canvas.getContext("2d", {alpha: false});
    this.cells = cells;
    this.signs = signs;
    this.kept = null; // Uint8Array: 1 for cells that a filter or a search keeps; null for all
    this.chosen = new Set();
    this.by = "group";
    this.focused = -1;
    this.isDue = false;
    this.frames = 0;
    this.width = this.height = this.ratio = 1;
    this.arrange();
    this.colours = new Colours(cells.words, canvas.parentElement);
    this.resize();
  }

  /** Take cells and sections anew. */
  arrange() {
    const {cells} = this;
    const arranged = cells.sections[this.by] ?? [];
    const sections = arranged.length ? arranged.map(([title, idset]) => [title, cells.ofRanks(idset)]) : [["Machine", null]];
    this.titles = sections.map(([title]) => title);
    this.sizes = sections.map(([, found]) => (found ? found.length : cells.count));
    this.order = new Uint32Array(this.sizes.reduce((sum, size) => sum + size, 0));
    let start = 0;
    for (const [at, [, found]] of sections.entries()) {
      if (found) this.order.set(found, start);
      else for (let each = 0; each < cells.count; each += 1) this.order[each] = each;
      start += this.sizes[at];
    }
  }

  resize() {
    this.room.style.height = "";
    const {clientWidth: width, clientHeight: height} = this.canvas.parentElement;
    const ratio = devicePixelRatio || 1;
    const isFitted = !this.plan || this.scale <= this.fitScale * 1.001;
    [this.width, this.height, this.ratio] = [Math.max(width, 1), Math.max(height, 1), ratio];
    const place = this.plan && !isFitted ? this.scale / this.fitScale : 1;
    this.#place();
    this.fitScale = this.plan.unit;
    this.height = Math.min(this.height, Math.max(this.#high(this.fitScale), this.room.classList.contains("paneled") ? PANEL_PX : LOW_PX));
    this.room.style.height = `${this.height + 2}px`;
    this.scale = this.fitScale * place;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.#clamp();
    this.paint();
  }

  #place() {
    const most = document.body.classList.contains("wall") ? WALL_UNIT_MAX_PX : undefined;
    this.plan = layout(this.sizes, this.width - 2 * MARGIN_PX, this.height - 2 * MARGIN_PX, most);
    this.x = this.y = 0;
    const {plan, order, cells} = this;
    this.column = new Uint32Array(cells.count);
    this.row = new Uint32Array(cells.count);
    this.isPlaced = new Uint8Array(cells.count);
    let start = 0;
    for (const block of plan.blocks) {
      block.start = start;
      for (let at = 0; at < block.size; at += 1) {
        const cell = order[start + at];
        const [column, row] = placeIn(block, at);
        this.column[cell] = block.x + column;
        this.row[cell] = block.y + block.title + row;
        this.isPlaced[cell] = 1;
      }
      start += block.size;
    }
    this.image = new ImageData(Math.max(plan.columns, 1), Math.max(plan.rows, 1));
    this.words = new Uint32Array(this.image.data.buffer);
    this.sheet = new OffscreenCanvas(this.image.width, this.image.height);
    this.sheetContext = this.sheet.getContext("2d");
  }

  /** All pixels anew: after a filter, other colours, another arrangement. */
  paint() {
    this.words.fill(0);
    for (let at = 0; at < this.cells.count; at += 1) this.#pixel(at);
    this.sheetContext.putImageData(this.image, 0, 0);
    this.draw();
  }

  /** The pixels of some cells. */
  repaint(changed) {
    if (this.colours.states.length < this.cells.words.length) this.recolour();
    let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
    for (const at of changed) {
      this.#pixel(at);
      const [column, row] = [this.column[at], this.row[at]];
      if (column < left) left = column;
      if (column > right) right = column;
      if (row < top) top = row;
      if (row > bottom) bottom = row;
    }
    if (right < 0) return;
    this.sheetContext.putImageData(this.image, 0, 0, left, top, right - left + 1, bottom - top + 1);
    this.draw();
  }

  recolour() {
    this.colours = new Colours(this.cells.words, this.canvas.parentElement);
    this.paint();
  }

  #pixel(at) {
    if (!this.isPlaced[at]) return;
    const {cells} = this;
    const share = cells.cores[at] ? Math.ceil((cells.busy[at] / cells.cores[at]) * (SHARES - 1)) : 0;
    const kind = this.kept && !this.kept[at] ? 1 : this.chosen.has(at) ? 2 : 0;
    this.words[this.row[at] * this.image.width + this.column[at]] = this.colours.pixels[(cells.state[at] * SHARES + Math.min(share, SHARES - 1)) * 3 + kind];
  }

  /* what is seen */

  get largest() {
    return Math.max(CELL_MAX_PX, this.fitScale);
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const wanted = Math.min(Math.max(this.scale * factor, this.fitScale), this.largest);
    if (wanted === this.scale) return false;
    const [unitX, unitY] = this.#units(x, y);
    this.scale = wanted;
    this.x = unitX * wanted + MARGIN_PX - x;
    this.y = unitY * wanted + this.above - y;
    this.#clamp();
    this.draw();
    return true;
  }

  pan(byX, byY) {
    this.x -= byX;
    this.y -= byY;
    this.#clamp();
    this.draw();
  }

  fit() {
    this.scale = this.fitScale;
    this.#clamp();
    this.draw();
  }

  #clamp() {
    const right = Math.max(0, this.plan.columns * this.scale + 2 * MARGIN_PX - this.width);
    const bottom = Math.max(0, this.#high(this.scale) - this.height);
    this.x = Math.min(Math.max(this.x, 0), right);
    this.y = Math.min(Math.max(this.y, 0), bottom);
  }

  /** How high everything is at a scale. */
  #high(scale) {
    return (this.plan.rows - this.plan.lift) * scale + 2 * MARGIN_PX;
  }

  /** What is above the first cells, less what of their title is empty. */
  get above() {
    return MARGIN_PX - this.plan.lift * this.scale;
  }

  #units(x, y) {
    return [(x + this.x - MARGIN_PX) / this.scale, (y + this.y - this.above) / this.scale];
  }

  /** The index of the cell at a place, or -1. */
  at(x, y) {
    return this.#cell(...this.#units(x, y).map(Math.floor));
  }

  /** The index of the cell in a column and row of everything, or -1. */
  #cell(column, row) {
    for (const block of this.plan.blocks) {
      const place = cellIn(block, column - block.x, row - block.y - block.title);
      if (place >= 0) return this.order[block.start + place];
    }
    return -1;
  }

  /** The indexes of the cells in a rectangle. */
  within(left, top, right, bottom) {
    const [x0, y0] = this.#units(left, top);
    const [x1, y1] = this.#units(right, bottom);
    const found = [];
    for (let at = 0; at < this.cells.count; at += 1) {
      const [column, row] = [this.column[at], this.row[at]];
      if (this.isPlaced[at] && column + 1 > x0 && column < x1 && row + 1 > y0 && row < y1) found.push(at);
    }
    return found;
  }

  /** Where a cell is: left, top and size in pixels. */
  where(at) {
    return [this.column[at] * this.scale - this.x + MARGIN_PX, this.row[at] * this.scale - this.y + this.above, this.scale];
  }

  /** The cell beside another: `right` and `down` are -1, 0 or 1. Titles and gaps are stepped over. */
  beside(from, right, down) {
    let [column, row] = [this.column[from], this.row[from]];
    while (column >= 0 && row >= 0 && column < this.plan.columns && row < this.plan.rows) {
      [column, row] = [column + right, row + down];
      const there = this.#cell(column, row);
      if (there >= 0) return there;
    }
    return from;
  }

  /** Move what is seen so that a cell is. */
  reveal(at) {
    const [left, top, size] = this.where(at);
    if (left < 0) this.x += left - MARGIN_PX;
    if (top < 0) this.y += top - MARGIN_PX;
    if (left + size > this.width) this.x += left + size - this.width + MARGIN_PX;
    if (top + size > this.height) this.y += top + size - this.height + MARGIN_PX;
    this.#clamp();
    this.draw();
  }

  /* drawing */

  draw() {
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      this.#draw();
      this.frames += 1;
    });
  }

  #draw() {
    const {context, colours, ratio, plan, scale} = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = css(colours.ground);
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio, 0, 0, ratio, (MARGIN_PX - this.x) * ratio, (this.above - this.y) * ratio);
    context.imageSmoothingEnabled = scale * ratio < 1;
    if (scale < LARGE_PX) {
      context.drawImage(this.sheet, 0, 0, plan.columns * scale, plan.rows * scale);
      if (scale >= LINES_PX) this.#lines();
      else this.#rare();
    } else this.#large();
    this.#titles();
    this.#rings();
  }

  /** The columns and rows of a block that are seen. */
  #seen(block) {
    const [left, top] = this.#units(0, 0);
    const [right, bottom] = this.#units(this.width, this.height);
    const clamp = (value, high) => Math.min(Math.max(Math.floor(value), 0), high);
    return [
      clamp(left - block.x, block.columns), clamp(top - block.y - block.title, block.rows),
      clamp(right - block.x + 1, block.columns), clamp(bottom - block.y - block.title + 1, block.rows),
    ];
  }

  /** In a large machine what is out of service would be a speck: it is drawn larger, unless it is much. */
  #rare() {
    const {context, cells, colours, scale, kept} = this;
    const rare = [];
    for (let at = 0; at < cells.count; at += 1) {
      if (colours.isUsed[cells.state[at]] || (kept && !kept[at])) continue;
      if (rare.push(at) > RARE_MAX) return;
    }
    const more = (LINES_PX - scale) / 2;
    for (const at of rare) {
      context.fillStyle = css(colours.states[cells.state[at]]);
      context.fillRect(this.column[at] * scale - more, this.row[at] * scale - more, LINES_PX, LINES_PX);
    }
  }

  #lines() {
    const {context, scale} = this;
    context.fillStyle = css(this.colours.ground);
    for (const block of this.plan.blocks) {
      const [left, top, right, bottom] = this.#seen(block);
      if (right <= left || bottom <= top) continue;
      const [x, y] = [block.x * scale, (block.y + block.title) * scale];
      for (let column = left + 1; column <= right; column += 1) context.fillRect(x + column * scale - 1, y + top * scale, 1, (bottom - top) * scale);
      for (let row = top + 1; row <= bottom; row += 1) context.fillRect(x + left * scale, y + row * scale - 1, (right - left) * scale, 1);
    }
  }

  #large() {
    const {context, cells, colours, scale, order} = this;
    const gap = scale > 24 ? 2 : 1;
    const side = scale - gap;
    const drained = colours.of(cells.stateNumber("drained"), 0); // parts of targets, from the top
    const fillings = cells.words.map((_, state) => colours.filling(state));
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const block of this.plan.blocks) {
      const [left, top, right, bottom] = this.#seen(block);
      for (let row = top; row < bottom; row += 1) {
        for (let column = left; column < right; column += 1) {
          const place = cellIn(block, column, row);
          if (place < 0) continue;
          const at = order[block.start + place];
          const state = cells.state[at];
          const isFaded = this.kept !== null && !this.kept[at];
          const base = colours.of(state, 0);
          const [x, y] = [(block.x + column) * scale, (block.y + block.title + row) * scale];
          context.fillStyle = css(isFaded ? colours.faded(base) : base);
          context.fillRect(x, y, side, side);
          const share = cells.cores[at] ? Math.min(1, cells.busy[at] / cells.cores[at]) : 0;
          if (share) {
            const filled = Math.max(2, side * share);
            context.fillStyle = css(isFaded ? colours.faded(fillings[state]) : fillings[state]);
            context.fillRect(x, y + side - filled, side, filled);
          }
          if (cells.drainedCores[at]) {
            context.fillStyle = css(isFaded ? colours.faded(drained) : drained);
            context.fillRect(x, y, side, Math.max(2, side * Math.min(1, cells.drainedCores[at] / cells.cores[at])));
          }
          if (scale >= SIGN_PX && !isFaded) this.#written(at, x, y, side, share * side, [base, fillings[state]]);
        }
      }
    }
  }

  #written(at, x, top, side, filled, [base, filling]) {
    const {context, cells} = this;
    const state = cells.state[at];
    const isNamed = side >= NAME_PX, isAbove = filled < NAME_HIGH_PX, y = isAbove ? top - filled : top;
    if (!this.colours.isUsed[state]) {
      const height = side * (isNamed ? 0.34 : 0.53);
      context.fillStyle = this.colours.on(filled > side - height ? filling : base);
      context.font = `600 ${Math.min(side * 0.45, 16)}px system-ui, sans-serif`;
      context.fillText(this.signs[cells.words[state]] ?? "?", x + side / 2, top + height);
    }
    context.fillStyle = this.colours.on(isAbove ? base : filling);
    if (!isNamed) return;
    const size = Math.max(11, Math.min(22, side * 0.17));
    context.font = `${size}px system-ui, sans-serif`;
    context.fillText(shortened(cells.host(at), (side * 11) / size), x + side / 2, y + side - size * 0.9, side - 4);
  }

  #titles() {
    const {context, scale} = this;
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    for (const [at, block] of this.plan.blocks.entries()) {
      const [x, y] = [block.x * scale, (block.y + block.title) * scale - 6];
      if (y - this.y < -20 || y - this.y > this.height) continue;
      const width = Math.max(block.columns * scale, 90);
      const size = number(block.size);
      context.fillStyle = css(this.colours.ink);
      const title = shortened(this.titles[at], width - 50);
      context.fillText(title, x, y, width);
      const after = context.measureText(title).width + 8;
      context.fillStyle = css(this.colours.quiet);
      if (after + 30 < width) context.fillText(size, x + after, y);
    }
  }

  #rings() {
    const {context, scale, colours} = this;
    const gap = scale > 24 ? 2 : scale >= LINES_PX ? 1 : 0;
    if (scale >= 6) {
      context.lineWidth = scale > 24 ? 3 : 2;
      context.strokeStyle = css(colours.ink);
      for (const at of this.chosen) {
        if (this.isPlaced[at]) context.strokeRect(this.column[at] * scale, this.row[at] * scale, scale - gap, scale - gap);
      }
    }
    if (this.focused >= 0 && this.isPlaced[this.focused]) {
      const [x, y, side] = [this.column[this.focused] * scale, this.row[this.focused] * scale, Math.max(scale - gap, 5)];
      context.lineWidth = 4;
      context.strokeStyle = css(colours.ground);
      context.strokeRect(x - 2, y - 2, side + 4, side + 4);
      context.lineWidth = 2;
      context.strokeStyle = css(colours.accent);
      context.strokeRect(x - 2, y - 2, side + 4, side + 4);
    }
  }
}

/** A name as long as fits; of host names the end tells them apart. */
function shortened(text, width_px) {
  const most = Math.max(3, Math.floor(width_px / 6.5));
  return text.length <= most ? text : `…${text.slice(-(most - 1))}`;
}
