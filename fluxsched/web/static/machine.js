// The machine: map, tools, the panel of a target, and the table of states that says the same in words.

import {Cells} from "./map/cells.js";
import {MapCanvas} from "./map/canvas.js";
import {pastSlider} from "./map/past.js";
import {panel as makePanel, change, kindOf, told} from "./map/panel.js";
import {pointing} from "./map/pointing.js";
import {search} from "./map/search.js";
import {choose as remember, chosen} from "./base/address.js";
import {announce, element, keyed, setText, show as shown} from "./base/dom.js";
import {count, number} from "./base/words.js";
import {idset, isUnfinished, sizeOf} from "./base/sets.js";
import {Table, durations, numbers, times} from "./base/table.js";
import {canvasPicture, pictureButton} from "./charts/picture.js";

const TABLE_S = 1;
const LOAD_AGAIN_S = 1;
const TYPED_S = 0.35;
const IDSET_CHARS = 2000;

/** Draw the machine into `root`, with data of `source`. */
export function show(root, source) {
  const states = JSON.parse(document.querySelector('meta[name="states"]')?.content || "[]");
  const usable = new Set(states.filter((each) => each.usable).map((each) => each.word));
  const may = new Set((document.querySelector('meta[name="may"]')?.content ?? "").split(" "));
  const cells = new Cells(states.map((each) => each.word));
  const tools = root.querySelector("#map-tools");
  const room = root.querySelector("#map-room");

  /* the map, made with the first data */

  const canvas = element("canvas", {tabindex: "0", role: "application", "aria-label": "Map of targets. Arrow keys go from target to target, Enter opens one, the table below says the same.", "aria-describedby": "told"});
  const tip = element("div", {class: "tip", hidden: true});
  const frame = element("div", {class: "map"}, canvas, tip, zoomButtons());
  room.append(frame);
  let map = null;
  const panel = makePanel(room, cells, source, may, (hadFocus) => {
    room.classList.remove("paneled");
    remember("target", "");
    map.resize();
    if (hadFocus) canvas.focus();
  });

  function zoomButtons() {
    const button = (label, words, deed) => element("button", {class: "quiet", type: "button", "aria-label": words, title: words, onclick: deed}, label);
    return element("div", {class: "zoom"}, button("−", "zoom out", () => map?.zoom(1 / 1.6)), button("+", "zoom in", () => map?.zoom(1.6)), button("⤢", "show all", () => map?.fit()),
      pictureButton("png", "machine", () => canvasPicture(canvas)));
  }

  function begin() {
    map = new MapCanvas(canvas, cells, Object.fromEntries(states.map((each) => [each.word, each.sign])), room);
    canvas.map = map; // measured by benchmarks
    pointing(map, {hover, open, choose, focus}, () => band.getAttribute("aria-pressed") === "true");
    let width = 0;
    new ResizeObserver(() => {
      if (frame.clientWidth === width) return; // its height follows the cells
      width = frame.clientWidth;
      map.resize();
    }).observe(frame);
    addEventListener("resize", () => map.resize());
    addEventListener("colours", () => map.recolour());
  }

  function hover(at, x, y) {
    shown(tip, at >= 0);
    if (at < 0) return;
    setText(tip, told(seen, at));
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(x + 14, frame.clientWidth - width - 4))}px`;
    tip.style.top = `${y + 18 + height > frame.clientHeight ? Math.max(4, y - height - 10) : y + 18}px`;
  }

  function focus(at) {
    if (at === undefined || at < 0) return;
    map.focused = at;
    map.reveal(at);
    if (document.activeElement !== canvas) return;
    announce(told(seen, at));
    const [left, top, size] = map.where(at);
    hover(at, left + size, top + size);
  }

  function open(at) {
    if (seen !== cells) return; // the panel tells of now
    hover(-1);
    room.classList.add("paneled");
    panel.open(at);
    remember("target", String(cells.ranks[at]));
    map.resize();
    if (matchMedia("(max-width: 760px)").matches || document.activeElement === canvas) panel.focus();
  }

  /* what is chosen, and what is found */

  const chosenSaid = element("span", {});
  const answer = element("p", {class: "answer", role: "status"});
  const drainThem = element("button", {type: "button", onclick: () => changeChosen("drain", drainThem)}, "Drain…");
  const undrainThem = element("button", {type: "button", onclick: () => changeChosen("undrain", undrainThem)}, "Return to service…");
  const chosenBar = element("div", {class: "buttons chosen", role: "group", "aria-label": "Selected targets", hidden: true}, chosenSaid,
    may.has("drain") && [drainThem, undrainThem], element("button", {class: "quiet", type: "button", onclick: () => clear()}, "Clear"));
  const band = element("button", {type: "button", "aria-pressed": "false", title: "Dragging selects targets (as with Shift)", onclick: () => band.setAttribute("aria-pressed", String(band.getAttribute("aria-pressed") !== "true"))}, "Select");

  function choose(indexes, isMore) {
    const isToggle = indexes.length === 1 && isMore && map.chosen.has(indexes[0]);
    for (const at of indexes) if (isToggle) map.chosen.delete(at); else map.chosen.add(at);
    setText(answer, "");
    tellChosen();
    map.paint();
  }

  function clear() {
    map.chosen.clear();
    tellChosen();
    map.paint();
  }

  function chosenRanks() {
    return [...map.chosen].map((at) => cells.ranks[at]).sort((one, other) => one - other);
  }

  function tellChosen() {
    const ranks = chosenRanks();
    const set = idset(ranks);
    shown(chosenBar, ranks.length > 0);
    setText(chosenSaid, `${count(ranks.length, "target")} selected: ${set.length > 40 ? `${set.slice(0, 40)}…` : set}`);
  }

  async function changeChosen(name, button) {
    if (await change(name, chosenRanks(), cells, source, button, answer)) clear();
  }

  const input = element("input", {name: "search", type: "search", "data-search": true, "aria-label": "Search targets", placeholder: "ranks, hosts or a job: 0-3, node[0-3], ƒ2JL", autocomplete: "off", spellcheck: "false"});
  const found = element("span", {class: "found", role: "status"});
  const select = element("button", {type: "button", hidden: true, onclick: () => choose(keptIndexes(), null)}, "Select these");
  const form = element("form", {class: "fields search", role: "search", onsubmit: (event) => (event.preventDefault(), seek())}, input, found, select);
  let typed = 0;
  let sought = 0;
  input.addEventListener("input", () => {
    clearTimeout(typed);
    setText(found, "");
    if (!isUnfinished(input.value)) typed = setTimeout(seek, input.value ? 1000 * TYPED_S : 0);
  });

  function keptIndexes() {
    const indexes = [];
    for (let at = 0; at < cells.count; at += 1) if (map.kept?.[at]) indexes.push(at);
    return indexes;
  }

  async function seek() {
    clearTimeout(typed);
    filterBy(null);
    const mine = sought;
    found.classList.remove("failed");
    remember("find", input.value.trim());
    if (!input.value.trim()) return keep(null, "");
    try {
      const said = await search(input.value, cells, source);
      if (mine !== sought) return;
      const kept = new Uint8Array(cells.count);
      for (const at of said.found) kept[at] = 1;
      keep(kept, `${count(said.found.length, "target")} of ${said.words}`);
      map.focused = said.found[0];
      map.reveal(said.found[0]);
    } catch (error) {
      if (mine !== sought) return;
      keep(null, error.message);
      found.classList.add("failed");
    }
  }

  function keep(kept, words) {
    map.kept = kept;
    map.paint();
    setText(found, words);
    shown(select, kept !== null && may.has("drain"));
  }

  /* legend and arrangement */

  const legend = element("div", {class: "legend", role: "group", "aria-label": "States: show only one"});
  const arrangement = element("select", {"aria-label": "Arrange by", onchange: () => arrangeBy(arrangement.value)});
  const arranged = element("label", {hidden: true}, "by", arrangement);
  const slider = pastSlider(source, lookBack);
  tools.append(form, arranged, band, slider.box, legend, chosenBar, answer);
  const madeUpSaid = element("p", {class: "note", hidden: true});
  room.after(madeUpSaid);
  let only = null;
  let seen = cells; // what the map shows: these, or those of a time in the past

  function filterBy(word) {
    sought += 1; // what is being searched is no longer wanted
    only = word === only ? null : word;
    remember("state", only);
    for (const each of legend.querySelectorAll("button")) each.setAttribute("aria-pressed", String(each.dataset.key === only));
  }

  function keepOnly() {
    if (only === null) return keep(null, "");
    const number_ = cells.stateNumber(only);
    return keep(Uint8Array.from(seen.state, (state) => (state === number_ ? 1 : 0)), "");
  }

  /** Show the map as it was, or (null) as it is. */
  function lookBack(picture) {
    const before = seen;
    seen = cells;
    if (picture) {
      seen = new Cells(cells.words);
      seen.whole({R: cells.R, groups: cells.groups, sections: cells.sections, ...picture});
    }
    if (!map || (before === cells && seen === cells)) return;
    map.cells = seen;
    root.classList.toggle("looks-back", seen !== cells);
    if (seen !== cells) panel.hide(); // it tells of now
    if (only !== null) keepOnly();
    tables();
    map.recolour();
  }

  function press(word) {
    input.value = "";
    remember("find", "");
    filterBy(word);
    keepOnly();
    if (only !== null) setText(found, `only ${only}`);
  }

  function tellLegend() {
    const counts = seen.counts();
    const there = seen.words.map((word, at) => [word, counts[at]]).filter(([word, size]) => size || word === only);
    keyed(legend, there, ([word]) => word,
      ([word]) => element("button", {type: "button", "aria-pressed": "false", class: `state-${word}`, title: states.find((each) => each.word === word)?.meaning, onclick: () => press(word)},
        element("span", {class: "swatch", "aria-hidden": "true"}), word, element("span", {class: "value"})),
      (button, [word, size]) => (setText(button.lastChild, number(size)), button.setAttribute("aria-pressed", String(word === only))));
    return there;
  }

  /* the tables, and what is said aloud */

  let before = "";
  const ranksOf = (word, chars) => seen.idsetOf(seen.stateNumber(word), chars);
  const targets = [{value: hostsOf, show: (row) => (cell) => onMap(cell, row)}, numbers((row) => sizeOf(row.targets))];
  const byState = new Table(root.querySelector("#states-table"), ([word]) => word, [
    {value: ([word]) => word, show: ([word]) => [element("span", {class: `state-${word}`}, element("span", {class: "swatch", "aria-hidden": "true"}), word)]},
    numbers(([, size]) => size), {value: ([word]) => ranksOf(word, Infinity)[0], show: ([word]) => shortened(...ranksOf(word, IDSET_CHARS))},
  ]);
  const drains = new Table(root.querySelector("#drains-table"), (row) => `${row.targets} ${row.parts} ${row.timestamp}`, [
    ...targets, (row) => row.parts || "all", (row) => row.state, times((row) => row.timestamp), times((row) => row.until), (row) => row.user, (row) => row.reason,
  ]);
  const outages = new Table(root.querySelector("#outages-table"), (row) => row.name, [
    ...targets, kindOf, (row) => row.name, (row) => (row.on ? "on" : "planned"), times((row) => row.from), times((row) => row.until),
    durations((row) => row.every || null), (row) => row.for, (row) => (row.configured ? "configuration" : row.user), (row) => row.reason,
  ]);

  function shortened(ranks, left) {
    return left ? `${ranks}, and ${count(left, "more", "more")}` : ranks;
  }

  function hostsOf(row) {
    return row.hosts || row.targets;
  }

  /** Hosts of a row; pressed, the map shows only these. */
  function onMap(cell, row) {
    const button = cell.firstElementChild ?? cell.appendChild(element("button", {type: "button", class: "quiet", title: "Show these on the map"}));
    setText(button, hostsOf(row));
    button.onclick = () => showOnly(row.targets, hostsOf(row));
  }

  function showOnly(targets, words) {
    filterBy(null);
    const kept = new Uint8Array(cells.count);
    for (const each of cells.ofRanks(targets)) kept[each] = 1;
    keep(kept, `only ${words}`);
    remember("find", targets);
    room.scrollIntoView({block: "nearest"});
  }

  function tables() {
    const there = tellLegend();
    byState.show(there);
    drains.show(cells.drained);
    outages.show(cells.outages);
    const madeUp = sizeOf(cells.madeUp);
    shown(madeUpSaid, madeUp > 0);
    setText(madeUpSaid, `${madeUp === cells.count ? "All targets are" : `${count(madeUp, "target")} ${madeUp === 1 ? "is" : "are"}`} made-up: jobs are scheduled as they would be there, but run on the instance's machine.`);
    const aloud = there.filter(([word]) => !usable.has(word)).map(([word, size]) => `${number(size)} ${word}`).join(", ");
    if (before && aloud !== before && seen === cells) announce(`Targets: ${aloud || "all in service"}.`);
    if (seen === cells) before = aloud || "all";
  }

  const tablesSoon = atMostEvery(TABLE_S, tables);
  const panelSoon = atMostEvery(LOAD_AGAIN_S, () => panel.shown >= 0 && panel.load());

  /* data */

  source.whole((data) => {
    const shownRank = panel.shown >= 0 ? cells.ranks[panel.shown] : -1;
    cells.whole(data);
    tellArrangements();
    renew();
    if (shownRank >= 0 && !(cells.index[shownRank] >= 0)) panel.hide();
    tables();
  });

  source.change((data) => {
    const changed = cells.change(data);
    tellArrangements();
    if (changed === null) renew();
    else if (only !== null) keepOnly();
    else if (seen === cells) map.repaint(changed);
    panel.fill();
    if (changed?.includes(panel.shown)) panelSoon();
    tablesSoon();
  });

  function renew() {
    if (!map) return (begin(), restore());
    slider.now();
    map.kept = null;
    map.chosen.clear();
    map.focused = -1;
    tellChosen();
    map.arrange();
    map.resize();
    if (only !== null) keepOnly();
    else if (input.value) seek();
  }

  /** Show what the address has been made to name. */
  function restore() {
    const [by, word, text, rank] = ["by", "state", "find", "target"].map(chosen);
    if (Object.hasOwn(cells.sections, by)) {
      arrangement.value = by;
      arrangeBy(by);
    }
    if (word) press(word);
    else if (text) {
      input.value = text;
      seek();
    }
    slider.restore();
    if (rank && cells.index[rank] >= 0) open(cells.index[rank]);
  }

  /** An arrangement that puts everything into one section says nothing, unless it is the first. */
  function tellArrangements() {
    const names = Object.keys(cells.sections).filter((by, at) => at === 0 || cells.sections[by].length > 1);
    shown(arranged, names.length > 1);
    keyed(arrangement, names, (by) => by, (by) => element("option", {value: by}, by === "host" ? "host name" : by), () => {});
  }

  function arrangeBy(by) {
    remember("by", by === Object.keys(cells.sections)[0] ? "" : by);
    map.by = by;
    map.arrange();
    map.resize();
  }
}

/** Do it now, or as soon as `seconds` have passed since the last time. */
function atMostEvery(seconds, deed) {
  let last = -Infinity;
  let timer = 0;
  return () => {
    if (timer) return;
    const wait_ms = Math.max(0, last + 1000 * seconds - performance.now());
    timer = setTimeout(() => {
      timer = 0;
      last = performance.now();
      deed();
    }, wait_ms);
  };
}
