// Rectangles as pixels by how much of each they cover: a hundred thousand jobs stay readable, as what is smaller than a
// pixel mixes with what is beside it instead of covering it. Law: nothing here knows jobs, or the document.

/** Pixels drawn at once: a screen of 4k is drawn at half its resolution. */
export const PIXELS_MAX = 3_000_000;

/** The least that shows: one short job on a large machine. */
const ALPHA_LEAST = 0.18;

export class Raster {
  constructor() {
    this.width = this.height = 0;
    this.sums = new Float32Array(0);
  }

  /** Begin anew with so many pixels. */
  clear(width, height) {
    this.width = Math.max(1, Math.floor(width));
    this.height = Math.max(1, Math.floor(height));
    const size = this.width * this.height * 4;
    if (this.sums.length < size) this.sums = new Float32Array(size);
    else this.sums.fill(0, 0, size);
  }

  /** Add a rectangle in pixels, which need not be whole or inside, of a colour [r, g, b] (0 to 255) and weight. */
  add(x0, y0, x1, y1, colour, weight) {
    const left = Math.max(x0, 0), right = Math.min(x1, this.width);
    const top = Math.max(y0, 0), bottom = Math.min(y1, this.height);
    if (!(left < right && top < bottom)) return;
    const [red, green, blue] = colour, sums = this.sums;
    const firstX = Math.floor(left), lastX = Math.min(Math.ceil(right), this.width) - 1;
    const firstY = Math.floor(top), lastY = Math.min(Math.ceil(bottom), this.height) - 1;
    for (let y = firstY; y <= lastY; y += 1) {
      const covered = weight * (Math.min(y + 1, bottom) - Math.max(y, top));
      let at = (y * this.width + firstX) * 4;
      for (let x = firstX; x <= lastX; x += 1, at += 4) {
        let part = covered;
        if (x === firstX || x === lastX) part *= Math.min(x + 1, right) - Math.max(x, left);
        sums[at] += red * part;
        sums[at + 1] += green * part;
        sums[at + 2] += blue * part;
        sums[at + 3] += part;
      }
    }
  }

  /** What was added, as an image. */
  image() {
    const image = new ImageData(this.width, this.height);
    const { data } = image, { sums } = this;
    for (let at = 0; at < data.length; at += 4) {
      const covered = sums[at + 3];
      if (covered <= 0) continue;
      data[at] = sums[at] / covered;
      data[at + 1] = sums[at + 1] / covered;
      data[at + 2] = sums[at + 2] / covered;
      data[at + 3] = 255 * Math.min(1, Math.max(ALPHA_LEAST, covered));
    }
    return image;
  }
}
