// Where a view gets its data: one stream of server-sent events a tab, questions, and actions.

import {ask} from "./dialog.js";

const HIDDEN_S = 5;
const TELL_THEMSELVES = new Set(["timeline", "groups", "shares", "history"]); // what the instance refuses
const AGAIN_S = [1, 2, 4, 8, 15, 30];

/** What a view is given: data of `view` under `params`, live. `page` is told figures, notices, the instance, the connection,
 * and what is refused. */
export function liveSource(view, params, page) {
  const told = {whole: [], change: [], problem: []};
  const csrf = document.querySelector('meta[name="csrf"]').content;
  let current = {...params};
  let stream = null;
  let failures = 0;
  let timer = 0;
  let last = null;
  let candidate = null; // a stream of other parameters, until the instance has accepted them
  let stays = false; // the stream is kept while the tab is hidden

  function tell(kind, value) {
    if (kind === "whole") last = value;
    for (const each of told[kind]) each(value);
  }

  function on(name, deed) {
    const mine = stream;
    stream.addEventListener(name, (event) => {
      if (mine === stream) deed(JSON.parse(event.data));
    });
  }

  function open() {
    close();
    follow(new EventSource(`/events?${query({view, ...current})}`));
  }

  function follow(opened) {
    stream = opened;
    on("whole", whole);
    on("refused", (value) => page.refused(value.error));
    on("change", (value) => tell("change", value));
    on("figures", (value) => page.figures(value));
    on("notices", (value) => page.notices(value.notices));
    on("instance", (value) => page.instance(value));
    stream.addEventListener("open", () => page.connection("open"));
    stream.addEventListener("error", lost);
  }

  function whole(value) {
    failures = 0;
    page.connection("live");
    if (!TELL_THEMSELVES.has(view)) page.refused(value.refused ?? "");
    if (!value.refused || TELL_THEMSELVES.has(view)) tell("whole", value);
  }

  /** The browser tries again by itself unless the server has refused the stream: then it is asked for its words. */
  async function lost(event) {
    if (event.target !== stream) return;
    page.connection("waiting");
    if (stream.readyState !== EventSource.CLOSED) return;
    stream.close();
    const wait_s = AGAIN_S[Math.min(failures, AGAIN_S.length - 1)];
    failures += 1;
    page.connection("off", await refusal(`/events?${query({view, ...current})}`));
    clearTimeout(timer);
    timer = setTimeout(open, 1000 * wait_s);
  }

  function close() {
    clearTimeout(timer);
    stream?.close();
    candidate?.close();
    stream = candidate = null;
  }

  /** The words against parameters that are refused, "" once a stream of them has begun, null if others came between. */
  function tryStream(params) {
    candidate?.close();
    const mine = (candidate = new EventSource(`/events?${query({view, ...params})}`));
    return new Promise((resolve) => {
      const end = (words) => {
        mine.close();
        const isLatest = mine === candidate;
        if (isLatest) candidate = null;
        resolve(isLatest ? words : null);
      };
      mine.addEventListener("whole", (event) => {
        const value = JSON.parse(event.data);
        if (mine !== candidate || value.refused) return end(value.refused);
        candidate = null;
        clearTimeout(timer);
        stream?.close();
        current = params;
        follow(mine);
        address();
        resolve("");
        whole(value);
      }, {once: true});
      mine.addEventListener("error", async () => {
        if (mine.readyState !== EventSource.CLOSED) return;
        end((await refusal(mine.url)) || "the page's server does not answer");
      });
    });
  }

  function address() {
    const shown = query({...current, wall: new URLSearchParams(location.search).get("wall")});
    history.replaceState(null, "", `${location.pathname}${shown && `?${shown}`}${location.hash}`);
  }

  function visibility() {
    clearTimeout(timer);
    if (document.hidden && !stays) timer = setTimeout(close, 1000 * HIDDEN_S);
    else if (!stream) open();
  }

  document.addEventListener("visibilitychange", visibility);
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());

  return {
    get params() {
      return current;
    },
    whole(deed) {
      told.whole.push(deed);
      if (last) deed(last);
    },
    change(deed) {
      told.change.push(deed);
    },
    /** Change parameters: the stream, and the address, stay as they are if the new ones are refused (see `tryStream`). */
    filter(more) {
      return tryStream(kept({...current, ...more}));
    },
    async act(name, fields) {
      const body = new URLSearchParams({...fields, csrf, confirmed: "yes"});
      return (await answerOf(fetch(`/actions/${name}`, {method: "POST", body, headers: {Accept: "application/json"}}))).said ?? "done";
    },
    ask,
    fetch(other, asked = {}) {
      return answerOf(fetch(`/data/${other}?${query(asked)}`, {headers: {Accept: "application/json"}}));
    },
    /** Keep the stream also while the tab is hidden, or do not any more. */
    stay(wanted) {
      stays = wanted;
      visibility();
    },
    open,
    close,
  };
}

function kept(params) {
  return Object.fromEntries(Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined));
}

function query(params) {
  return new URLSearchParams(kept(params)).toString();
}

/** The JSON of an answer; raises an Error with the instance's words. */
async function answerOf(asked) {
  let response;
  try {
    response = await asked;
  } catch {
    throw new Error("the page's server does not answer");
  }
  const text = await response.text();
  let answer = {};
  try {
    answer = JSON.parse(text);
  } catch {
    if (response.ok) throw new Error("the page's server gave no JSON");
  }
  if (!response.ok || answer.error) throw Object.assign(new Error(answer.error ?? `the page's server answered ${response.status}`), {status: response.status});
  return answer;
}

/** Why a stream was refused, or "". */
async function refusal(url) {
  const stop = new AbortController();
  try {
    const response = await fetch(url, {headers: {Accept: "application/json"}, signal: stop.signal});
    if (response.ok) return "";
    const text = await response.text();
    return text.startsWith("{") ? JSON.parse(text).error : text.slice(0, 300);
  } catch {
    return "";
  } finally {
    stop.abort();
  }
}
