// What a reader has chosen, in the part of the address after `#`, so that a link says it: the order of a table, its columns,
// colours. What the server must know stands before it (see `source.js`).

/** What is chosen under a name, or "". */
export function chosen(name) {
  return new URLSearchParams(location.hash.slice(1)).get(name) ?? "";
}

/** Choose something; "" ends the choice. */
export function choose(name, value) {
  const all = new URLSearchParams(location.hash.slice(1));
  if (value) all.set(name, value);
  else all.delete(name);
  history.replaceState(null, "", `${location.pathname}${location.search}${all.size ? `#${all}` : ""}`);
}
