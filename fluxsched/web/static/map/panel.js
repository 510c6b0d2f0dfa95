// The panel of one target, and what one may do to targets.

import {element, keyed, setText} from "../base/dom.js";
import {acted, ask} from "../base/dialog.js";
import {context, count, duration, exact, number, time} from "../base/words.js";
import {idset} from "../base/sets.js";

const IDS_SHOWN = 60;

/** What is said of a target in one line each; also read aloud. */
export function told(cells, at) {
  const [busy, cores] = [cells.busy[at], cells.cores[at]];
  const gpus = cells.gpus[at] ? `, ${cells.busyGpus[at]} of ${count(cells.gpus[at], "GPU")}` : "";
  return [`${cells.host(at)} · rank ${cells.ranks[at]}`, `${cells.stateOf(at)} · ${busy} of ${count(cores, "core")}${gpus} in use`, ...limitsOf(cells, at).map(([name, text]) => `${name}: ${text}`)].join("\n");
}

/** What keeps a target, or parts of it, out of use now or later: [name, text, title] of each drain and planned outage. */
function limitsOf(cells, at) {
  const drains = cells.drainsOf(at).map((row) => [
    row.parts ? `${row.parts} ${row.state}` : row.state,
    [row.reason || "no reason given", row.user && `by ${row.user}`, `since ${time(row.timestamp)}`, row.until && `until ${time(row.until)}`].filter(Boolean).join(" · "),
    exact(row.timestamp)]);
  const outages = cells.outagesOf(at).map((row) => [`${kindOf(row)} ${row.name}`, [span(row), row.for && `for ${row.for}`, row.reason].filter(Boolean).join(" · "), exact(row.from)]);
  return [...drains, ...outages];
}

/** Reservations are outages for all jobs but those that name them. */
export function kindOf(row) {
  return row.reservation ? "reservation" : "outage";
}

/** When a planned outage is. */
export function span(row) {
  return `${time(row.from)} to ${time(row.until)}${row.every ? `, every ${duration(row.every)}` : ""}`;
}

/** Drain targets or return them to service: asks first. Gives whether it was done. */
export async function change(name, ranks, cells, source, button, answer) {
  const isDrain = name === "drain";
  const set = idset(ranks);
  const which = ranks.length === 1 ? cells.host(cells.index[ranks[0]]) : count(ranks.length, "target");
  const fields = await ask({
    title: isDrain ? `Drain ${which}?` : `Return ${which} to service?`,
    text: `Ranks ${set.length > IDS_SHOWN ? `${set.slice(0, IDS_SHOWN)}…` : set}. ${isDrain ? "Nothing new starts there; what runs goes on to its end." : "New jobs may start there."}`,
    fields: [{name: "reason", label: isDrain ? "Reason" : "Note (may be empty)", required: isDrain}],
    confirm: isDrain ? "Drain" : "Return to service",
  });
  if (!fields) return false;
  const asked = {targets: set, ...(fields.reason ? {reason: fields.reason} : {}), ...(ranks.length > 1 ? {mode: "update"} : {})};
  return acted(source, name, asked, button, answer);
}

/** The panel beside the map; `open(index)` shows a target, `change()` tells it that something is new. */
export function panel(root, cells, source, may, closed) {
  let shown = -1;
  let asked = 0;
  const heading = element("h2", {id: "panel-heading", tabindex: "-1"});
  const state = element("p", {});
  const facts = element("dl", {class: "record"});
  const answer = element("p", {class: "answer", role: "status"});
  const drain = element("button", {type: "button", onclick: () => act("drain", drain)}, "Drain…");
  const undrain = element("button", {type: "button", onclick: () => act("undrain", undrain)}, "Return to service…");
  const jobs = element("ul", {class: "plain"});
  const ended = element("a", {}, "Jobs that have ended here");
  const events = element("ol", {class: "events"});
  const close = element("button", {class: "quiet close", type: "button", "aria-label": "Close", onclick: () => hide()}, "✕");
  const box = element("section", {class: "card panel", "aria-labelledby": "panel-heading", hidden: true},
    close, heading, state, facts, may.has("drain") && element("p", {class: "buttons"}, drain, undrain), answer,
    element("h3", {}, "Jobs here"), jobs, ended, element("h3", {}, "Events"), events);
  root.append(box);
  box.addEventListener("keydown", (event) => event.key === "Escape" && hide());

  async function act(name, button) {
    if (await change(name, [cells.ranks[shown]], cells, source, button, answer)) load();
  }

  function hide() {
    if (box.hidden) return;
    const hadFocus = box.contains(document.activeElement);
    box.hidden = true;
    shown = -1;
    closed(hadFocus);
  }

  function fill() {
    if (shown < 0) return;
    const word = cells.stateOf(shown);
    const isDrained = cells.drainsOf(shown).some((row) => !row.parts);
    const group = cells.groupOf(shown);
    setText(heading, cells.host(shown) || `rank ${cells.ranks[shown]}`);
    state.replaceChildren(element("span", {class: `state-${word}`}, element("span", {class: "swatch"})), word);
    const rows = [
      ["rank", number(cells.ranks[shown])],
      ["cores", `${cells.busy[shown]} of ${cells.cores[shown]} in use`],
      cells.gpus[shown] && ["GPUs", `${cells.busyGpus[shown]} of ${cells.gpus[shown]} in use`],
      group && ["group", group.name],
      cells.isMadeUp(shown) && ["where", "made-up: its tasks run on the instance's machine"],
      ["properties", cells.propertiesOf(shown).join(", ")],
      ...limitsOf(cells, shown),
    ].filter((row) => row && row[1] !== "");
    keyed(facts, rows, (row) => row[0], ([name]) => element("div", {}, element("dt", {}, name), element("dd", {})), (row, [, value, title]) => {
      setText(row.lastChild, value);
      row.lastChild.title = title ?? "";
    });
    ended.href = `/jobs?states=inactive&targets=${cells.ranks[shown]}`;
    drain.hidden = isDrained;
    undrain.hidden = !isDrained;
  }

  /** To guests they are refused. */
  function withoutEvents(error) {
    return {events: [], fault: error.status === 403 ? null : error.message};
  }

  async function load() {
    const [mine, rank] = [(asked += 1), cells.ranks[shown]];
    try {
      const [running, said] = await Promise.all([source.fetch("jobs", {targets: rank, states: "running"}), source.fetch("target", {rank}).catch(withoutEvents)]);
      if (mine !== asked) return;
      const now_s = running.now;
      jobs.replaceChildren(...(running.jobs.length ? running.jobs.map((job) => element("li", {},
        element("a", {href: `/jobs/${encodeURIComponent(job.jobid)}`, class: "mono"}, job.jobid), ` ${job.name} `,
        element("span", {class: "unit"}, `${job.user ?? ""} ${job.t_run ? duration(now_s - job.t_run) : ""}`))) : [element("li", {class: "unit"}, "none")]));
      events.replaceChildren(...(said.events.length ? [...said.events].reverse().map((event) => element("li", {},
        element("time", {title: exact(event.timestamp)}, time(event.timestamp)), element("span", {class: "event"}, event.name),
        element("span", {class: "context"}, context(event.context)))) : [element("li", {class: said.fault ? "failed" : "unit"}, said.fault ?? "none")]));
    } catch (error) {
      if (mine === asked) jobs.replaceChildren(element("li", {class: "failed"}, error.message));
    }
  }

  return {
    open(at) {
      const isNew = at !== shown;
      shown = at;
      box.hidden = false;
      setText(answer, "");
      if (isNew) {
        jobs.replaceChildren();
        events.replaceChildren();
      }
      fill();
      load();
    },
    focus: () => heading.focus(),
    get shown() {
      return shown;
    },
    fill,
    load,
    hide,
  };
}
