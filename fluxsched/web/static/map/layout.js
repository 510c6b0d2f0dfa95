// Where each cell is: sections as blocks of cells below their titles, in whole units, so that one unit is one pixel of the
// image that the map draws from. The largest cells are taken with which everything fits.

const UNIT_MAX_PX = 64;
export const WALL_UNIT_MAX_PX = 200;
const UNIT_MIN_PX = 0.5;
const TITLE_PX = 22;
const GAP_PX = 14;
const BLOCK_MIN_PX = 96;
const STEPS = 18;
const BAND = 8;
const BANDED_MIN = 1000;

/** `sizes`: how many cells each section has. Gives `{unit, columns, rows, lift, blocks: [{x, y, columns, rows, title, size, band}]}`,
 * in units of `most` pixels at most; `lift` is how much of the first title is empty. */
export function layout(sizes, width, height, most = UNIT_MAX_PX) {
  const stacked = largest(sizes, width, height, most, () => Infinity);
  const beside = sizes.length > 1 ? largest(sizes, width, height, most, (size, unit) => Math.max(Math.ceil(Math.sqrt(size * 1.7)), BLOCK_MIN_PX / unit)) : stacked;
  return beside.unit > 1.05 * stacked.unit ? beside : stacked;
}

function largest(sizes, width, height, most, wish) {
  let low = UNIT_MIN_PX;
  let high = most;
  let best = pack(sizes, width, low, wish);
  for (let step = 0; step < STEPS; step += 1) {
    const unit = step ? (low + high) / 2 : high;
    const tried = pack(sizes, width, unit, wish);
    if ((tried.rows - tried.lift) * unit <= height) [low, best] = [unit, tried];
    else high = unit;
    if (low === most) break;
  }
  return best;
}

function pack(sizes, width, unit, wish) {
  const columnsMax = Math.max(1, Math.floor(width / unit));
  const title = Math.ceil(TITLE_PX / unit);
  const gap = Math.ceil(GAP_PX / unit);
  const below = unit > TITLE_PX ? 0 : gap; // one unit of title is space enough
  const blocks = [];
  let [x, y, shelf, right] = [0, 0, 0, 0];
  for (const size of sizes) {
    const columns = Math.min(columnsMax, Math.max(1, Math.ceil(Math.min(wish(size, unit), size))));
    const spread = Math.max(columns, Math.min(columnsMax, Math.ceil(BLOCK_MIN_PX / unit)));
    const rows = Math.ceil(size / columns);
    if (x && x + spread > columnsMax) [x, y, shelf] = [0, y + shelf + below, 0];
    blocks.push({x, y, columns, rows, title, size, band: size < BANDED_MIN ? 1 : BAND});
    shelf = Math.max(shelf, title + rows);
    right = Math.max(right, x + spread);
    x += spread + gap;
  }
  return {unit, columns: right, rows: y + shelf, blocks, lift: title - Math.min(title, TITLE_PX / unit)};
}

/**
 * The cells of a block go down and then right within bands of `band` rows: in a large machine, neighbours by rank are
 * neighbours on the map, and a job is a patch instead of a line. These two are each other's inverse.
 */
export function placeIn(block, at) {
  const band = Math.floor(at / (block.columns * block.band));
  const rows = Math.min(block.band, block.rows - band * block.band);
  const inside = at - band * block.columns * block.band;
  return [Math.floor(inside / rows), band * block.band + (inside % rows)];
}

/** Which cell of a block is in a column and row; -1 if none is. */
export function cellIn(block, column, row) {
  if (column < 0 || row < 0 || column >= block.columns || row >= block.rows) return -1;
  const band = Math.floor(row / block.band);
  const rows = Math.min(block.band, block.rows - band * block.band);
  const at = band * block.columns * block.band + column * rows + row - band * block.band;
  return at < block.size ? at : -1;
}
