// What colour a cell has: by state, and where it works by the share of its cores in use; faded when it is filtered away.

export const SHARES = 17; // 0 of 16 to 16 of 16
const USED = ["allocated", "free"];
const SHARE_SEEN_MIN = 0.28; // one core of 64 is seen
const FADED = 0.16;
const CHOSEN = 0.62;

/** Colours as [r, g, b], of what the style sheets say now. */
export class Colours {
  constructor(words, root) {
    const probe = document.createElement("span");
    probe.className = "probe"; // with forced colours, too, it has those of the states
    root.append(probe);
    const read = (name) => {
      probe.style.color = "";
      probe.style.color = `var(${name}, #7f8791)`;
      return rgb(getComputedStyle(probe).color);
    };
    this.ground = read("--surface-2");
    this.ink = read("--ink");
    this.quiet = read("--ink-2");
    this.accent = read("--accent");
    this.states = words.map((word) => read(`--state-${word}`));
    this.free = read("--state-free");
    this.allocated = read("--state-allocated");
    this.isUsed = words.map((word) => USED.includes(word));
    probe.remove();
    this.#table();
  }

  /** Pixels (0xAABBGGRR) by state, share and kind: 0 as it is, 1 faded, 2 chosen. */
  #table() {
    this.pixels = new Uint32Array(this.states.length * SHARES * 3);
    for (let state = 0; state < this.states.length; state += 1) {
      for (let share = 0; share < SHARES; share += 1) {
        const colour = this.of(state, share / (SHARES - 1));
        this.pixels[(state * SHARES + share) * 3] = pixel(colour);
        this.pixels[(state * SHARES + share) * 3 + 1] = pixel(mix(this.ground, colour, FADED));
        this.pixels[(state * SHARES + share) * 3 + 2] = pixel(mix(colour, this.ink, CHOSEN));
      }
    }
  }

  of(state, share) {
    if (!this.isUsed[state]) return this.states[state];
    return share ? mix(this.free, this.allocated, SHARE_SEEN_MIN + (1 - SHARE_SEEN_MIN) * share) : this.free;
  }

  /** What part of a large cell is filled with, for its cores in use. */
  filling(state) {
    return this.isUsed[state] ? this.allocated : mix(this.states[state], this.ink, 0.4);
  }

  /** Ink that is read on a colour. */
  on(colour) {
    const light = (0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]) / 255;
    return light > 0.55 ? "#14181d" : "#ffffff";
  }

  faded(colour) {
    return mix(this.ground, colour, FADED);
  }
}

export function css(colour) {
  return `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;
}

function rgb(text) {
  const found = /rgba?\(([\d.]+)[, ]+([\d.]+)[, ]+([\d.]+)/.exec(text);
  return found ? found.slice(1, 4).map((part) => Math.round(Number(part))) : [127, 135, 145];
}

function mix(one, other, share) {
  return one.map((part, at) => Math.round(part + (other[at] - part) * share));
}

function pixel([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
