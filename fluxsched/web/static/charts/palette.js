// Colours of what is drawn: the page's own properties, so that light and dark are said once, in the style sheet.
// Law: a key keeps its colour as long as it is among the largest; all smaller ones are others, and grey.

/** Keys that get a colour of their own: more hues are not told apart. */
export const HUES = 8;

/** A colour that is a custom property, as `rgb(...)`: what light and dark make of it here and now. */
export function property(name) {
  const probe = document.createElement("i");
  probe.className = "probe"; // with forced colours, too, it has its own
  probe.style.color = `var(${name}, #888)`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** A colour as [r, g, b]. */
export function channels(colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

export class Palette {
  constructor() {
    this.names = new Map();
    this.more = false;
    this.refresh();
  }

  /** Read the style sheet again: light has become dark. */
  refresh() {
    this.known = new Map();
  }

  /** The largest of `[[key, weight]...]` get hues, and are returned; keys that had one keep it. */
  rank(weights) {
    if (this.ordered) return this.ordered.filter((key) => weights.has(key));
    const largest = [...weights].sort((one, other) => other[1] - one[1]).slice(0, HUES).map(([key]) => key);
    const kept = new Map([...this.names].filter(([key]) => largest.includes(key)));
    const used = new Set(kept.values());
    const free = Array.from({ length: HUES }, (_, at) => `--hue-${at + 1}`).filter((name) => !used.has(name));
    for (const key of largest) if (!kept.has(key)) kept.set(key, free.shift());
    this.names = kept;
    this.more = weights.size > largest.length;
    return largest;
  }

  /** Forget which key has which colour. With `keys` these are from now on the only ones, pale to strong in this order. */
  reset(keys = null) {
    this.ordered = keys;
    this.more = false;
    this.names = new Map((keys ?? []).map((key, at) => [key, `--step-${at + 1}`]));
  }

  colour(key) {
    return this.entry(key)[0];
  }

  channels(key) {
    return this.entry(key)[1];
  }

  entry(key) {
    return this.named(this.names.get(key) ?? "--hue-others");
  }

  /** A custom property as a colour and its channels. */
  named(name) {
    if (!this.known.has(name)) {
      const colour = property(name);
      this.known.set(name, [colour, channels(colour)]);
    }
    return this.known.get(name);
  }
}

/** Call back when the page turns light or dark. */
export function onTheme(callback) {
  addEventListener("colours", callback);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
}

/** Black or white, whichever is read better on this. */
export function inkOn([red, green, blue]) {
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111" : "#fff";
}
