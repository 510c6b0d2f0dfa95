// Elements from data. Law: data becomes text nodes and attribute values, never markup.

/**
 * A new element: `attributes` as in HTML (`class`, `href`, `aria-...`, `data-...`), `onclick` and the like as listeners; null
 * and false are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} attributes
 * @param {...any} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return made;
}

function asNode(child) {
  return child instanceof Node ? child : printable(String(child));
}

/** Set the text of an element if it differs: no layout and no announcement for what is the same. */
export function setText(target, text) {
  const wanted = printable(String(text));
  if (target.textContent !== wanted) target.textContent = wanted;
}

const UNPRINTABLE = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;

/** Control characters, and those that turn the direction of writing, spelled out, as on a terminal: `\x1b`. */
export function printable(text) {
  return text.replace(UNPRINTABLE, (each) => {
    const code = each.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  });
}

/** Show or hide. */
export function show(target, shown) {
  if (target.hidden === shown) target.hidden = !shown;
}

/**
 * Make the children of `parent` those of `items`, by key: elements that stay are kept (and with them focus and selection),
 * and moved only if their order has changed. `make(item)` gives a new element, `update(element, item)` fills one.
 */
export function keyed(parent, items, key, make, update) {
  const there = new Map();
  for (const child of [...parent.children]) {
    if (child.dataset.key === undefined) child.remove();
    else there.set(child.dataset.key, child);
  }
  let at = parent.firstElementChild;
  const wanted = new Set(items.map((item) => String(key(item))));
  for (const item of items) {
    const name = String(key(item));
    while (at && !wanted.has(at.dataset.key)) {
      const next = at.nextElementSibling;
      at.remove();
      at = next;
    }
    let child = there.get(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
      there.set(name, child);
    }
    update(child, item);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    if (!wanted.has(at.dataset.key)) at.remove();
    at = next;
  }
}

/** Say something to those who listen to the page. */
export function announce(text) {
  setText(document.getElementById("announce"), text);
}
