// Bars in the cells of tables, with marks upon them.

import {element} from "../base/dom.js";

/**
 * A bar of which `part` is filled, and which `marks`, each `[part, class]`, stand upon; of more than all of it the end is shown.
 * Without `words` it repeats what other cells say, and is for the eye alone.
 * @param {number} part
 * @param {{marks?: [number, string][], kind?: string, words?: string}} options
 */
export function bar(part, {marks = [], kind = "", words = ""} = {}) {
  const at = (each) => `${100 * Math.min(1, each)}%`;
  const filled = element("i");
  filled.style.width = at(part);
  const made = marks.map(([each, name]) => {
    const mark = element("b", {class: name || null});
    mark.style.left = `calc(${at(each)} - 1px)`;
    return mark;
  });
  const said = words ? {role: "img", "aria-label": words, title: words} : {"aria-hidden": "true"};
  return element("span", {class: `bar ${kind}`.trim(), ...said}, filled, made);
}
