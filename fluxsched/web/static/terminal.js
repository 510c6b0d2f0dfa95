// Output as a terminal shows it: colours and weights (SGR), a carriage return that begins the line anew, and the task that
// wrote a line. Law: text becomes text nodes; of what controls a terminal the server sends nothing else (views/feeds.py).

import {element} from "./base/dom.js";

const PARTS = /(\n|\r|\x1b\[[\d;:]*m)/;
const CHARS_MAX = 200_000;
const LINE_CHARS_MAX = 20_000; // a longer line goes on in the next one, for a line is drawn anew with each piece
const CONTROLS = /[\0-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Writes pieces [stream, text] into `output`, of each stream (`stdout`, `stderr 3`) its own line. */
export class Terminal {
  constructor(output) {
    this.output = output;
    this.clear();
  }

  clear() {
    this.output.replaceChildren();
    this.writers = new Map();
    this.chars = 0;
  }

  write(stream, text) {
    const writer = this.writers.get(stream) ?? new Writer(this, stream);
    this.writers.set(stream, writer);
    for (const part of text.split(PARTS)) writer.take(part);
    writer.draw();
    while (this.chars > CHARS_MAX && this.output.childElementCount > 1) {
      this.chars -= this.output.firstChild.textContent.length;
      this.output.firstChild.remove();
    }
  }
}

/** One stream of one task: the line that it is writing, as [character, classes] each, and how it writes now. */
class Writer {
  constructor(terminal, stream) {
    this.terminal = terminal;
    const [name, task] = stream.split(" ");
    this.name = name;
    this.task = task;
    this.style = "";
    this.begin();
  }

  begin() {
    this.line = null;
    this.cells = [];
    this.column = 0;
  }

  take(part) {
    if (part === "\n") {
      this.draw(true);
      this.begin();
    } else if (part === "\r") this.column = 0;
    else if (part.startsWith("\x1b")) this.style = styled(this.style, part.slice(2, -1));
    else for (const character of part.replace(CONTROLS, "\ufffd")) {
      if (this.column === LINE_CHARS_MAX) this.take("\n");
      this.cells[this.column++] = [character, this.style];
    }
  }

  draw(isEnded = false) {
    if (!this.cells.length && !this.line && !isEnded) return;
    if (!this.line?.isConnected) { // not begun yet, or dropped as too old
      this.line = this.terminal.output.appendChild(element("span", {class: `line ${this.name}`, "data-task": this.task}));
    }
    this.terminal.chars -= this.line.textContent.length;
    const runs = [];
    for (const [character, style] of this.cells) {
      if (runs.at(-1)?.[1] === style) runs.at(-1)[0] += character;
      else runs.push([character, style]);
    }
    this.line.replaceChildren(...runs.map(([text, style]) => (style ? element("span", {class: style}, text) : text)), "\n");
    this.terminal.chars += this.line.textContent.length;
  }
}

/** Codes of eight colours: the first one, what is coloured, and the number of the first colour.
 * @type {[number, string, number][]} */
const EIGHTS = [[30, "c", 0], [40, "g", 0], [90, "c", 8], [100, "g", 8]];

/** The classes after a sequence: of `c1` to `c15` (ink), `g1` (ground), `bold`, `faint`, `italic`, `under`. */
function styled(before, codes) {
  const on = new Set(before.split(" ").filter(Boolean));
  const drop = (pattern) => on.forEach((each) => pattern.test(each) && on.delete(each));
  const numbers = codes.split(/[;:]/).map(Number);
  for (let at = 0; at < numbers.length; at += 1) {
    const code = numbers[at];
    if (code === 0) on.clear();
    else if (code === 1) on.add("bold");
    else if (code === 2) on.add("faint");
    else if (code === 3) on.add("italic");
    else if (code === 4) on.add("under");
    else if (code === 22) drop(/^(bold|faint)$/);
    else if (code === 23) on.delete("italic");
    else if (code === 24) on.delete("under");
    else if (code === 38 || code === 48) {
      const isIndex = numbers[at + 1] === 5, index = numbers[at + 2], kind = code === 38 ? "c" : "g";
      drop(new RegExp(`^${kind}\\d`));
      if (isIndex && index < 16) on.add(kind + index); // of 256 colours and of all others those that have a name
      at += isIndex ? 2 : 4;
    } else for (const [first, kind, add] of EIGHTS) {
      if (code === first + 9 && add === 0) drop(new RegExp(`^${kind}\\d`));
      if (code < first || code > first + 7) continue;
      drop(new RegExp(`^${kind}\\d`));
      on.add(kind + (code - first + add));
    }
  }
  return [...on].join(" ");
}
