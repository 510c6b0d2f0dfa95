// Elements of SVG from data, as base/dom.js makes those of HTML. Law: data becomes text and attribute values only.

const NAMESPACE = "http://www.w3.org/2000/svg";

/** A new element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}
