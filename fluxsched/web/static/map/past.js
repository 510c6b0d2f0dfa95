// A slider over the last day: the map as it was, made by the server from jobs and from states that the history keeps.

import {choose, chosen} from "../base/address.js";
import {element, setText} from "../base/dom.js";
import {count, time} from "../base/words.js";

const DAY_S = 86_400;
const STEP_S = 300;
const STILL_MS = 150;

/** The control; `show(picture)` gets what the map was like, or null for now. */
export function pastSlider(source, show) {
  const input = element("input", {type: "range", min: -DAY_S, max: 0, step: STEP_S, value: 0, "aria-label": "Time of the map, back from now", oninput: () => move(Number(input.value))});
  const said = element("output", {}, "now");
  const box = element("label", {class: "past"}, "As of", input, said);
  let asked = 0;
  let timer = 0;

  function move(back_s) {
    clearTimeout(timer);
    asked += 1;
    if (!back_s) return now();
    const at = Math.floor(Date.now() / 1000 / STEP_S) * STEP_S + back_s;
    setText(said, time(at));
    timer = setTimeout(ask, STILL_MS, at);
  }

  async function ask(at) {
    const mine = (asked += 1);
    choose("at", String(at));
    try {
      const picture = await source.fetch("past", {at});
      if (mine !== asked) return;
      const less = picture.observed ? picture.left_out && `without ${count(picture.left_out, "job")}` : "no instance ran";
      setText(said, [time(at), less].filter(Boolean).join(", "));
      show(picture);
    } catch (error) {
      if (mine === asked) setText(said, error.message);
    }
  }

  function now() {
    choose("at", "");
    input.value = "0";
    setText(said, "now");
    show(null);
  }

  /** Show the time that the address names. */
  function restore() {
    const at = Number(chosen("at"));
    if (!at) return;
    input.value = String(at - Date.now() / 1000);
    setText(said, time(at));
    ask(at);
  }

  return {box, now, restore};
}
