// All targets in typed arrays: no object a target. Indexes run over the targets in order of rank.

import {has, hosts, ids, ranges, sizeOf} from "../base/sets.js";

export class Cells {
  /** `words`: the states in their order; a state that is not among them gets the next number. */
  constructor(words) {
    this.words = [...words];
    this.drained = [];
    this.inventory({execution: {R_lite: [], nodelist: []}});
    this.outages = [];
    this.groups = [];
    this.sections = {};
    this.madeUp = "";
  }

  /** Replace everything by what `resource.watch` says first. */
  whole(data) {
    this.drained = [];
    this.inventory(data.R);
    this.sections = {};
    this.outages = [];
    this.groups = [];
    this.change(data);
  }

  /** Apply a difference; gives the indexes that changed, null if the sections did. (Of another R there is a whole.) */
  change(data) {
    const changed = [];
    for (const [word, idset] of Object.entries(data.states ?? {})) this.#set(this.state, this.stateNumber(word), idset, changed);
    for (const [cores, idset] of Object.entries(data.busy ?? {})) this.#set(this.busy, Number(cores), idset, changed);
    for (const [gpus, idset] of Object.entries(data.busy_gpus ?? {})) this.#set(this.busyGpus, Number(gpus), idset, changed);
    if (data.drained) this.#drain(data.drained, changed);
    if (data.outages) this.outages = data.outages;
    if (data.groups) this.groups = data.groups;
    if (data.made_up !== undefined) this.madeUp = data.made_up;
    if (data.sections) this.sections = data.sections;
    return data.sections ? null : changed;
  }

  #set(column, value, idset, changed) {
    const {index} = this;
    ranges(idset, (first, last) => {
      for (let rank = first; rank <= last; rank += 1) {
        const at = rank < index.length ? index[rank] : -1;
        if (at < 0 || column[at] === value) continue;
        column[at] = value;
        changed.push(at);
      }
    });
  }

  /** Drained rows, and of parts how many cores of a target these are. */
  #drain(rows, changed) {
    this.drained = rows;
    const before = this.drainedCores;
    this.drainedCores = new Uint16Array(this.count);
    const drained = new Map(); // a core may be drained for several reasons
    for (const row of rows) {
      if (!row.cores) continue;
      for (const at of this.ofRanks(row.targets)) drained.set(at, new Set([...(drained.get(at) ?? []), ...ids(row.cores)]));
    }
    for (const [at, cores] of drained) this.drainedCores[at] = cores.size;
    for (let at = 0; at < this.count; at += 1) if (before[at] !== this.drainedCores[at]) changed.push(at);
  }

  inventory(R) {
    this.R = R;
    const execution = R.execution;
    const parts = execution.R_lite.map((each) => [each.rank, sizeOf(each.children?.core), sizeOf(each.children?.gpu)]);
    let count = 0;
    let top = -1;
    for (const [rank] of parts) ranges(rank, (first, last) => ((count += last - first + 1), (top = Math.max(top, last))));
    this.count = count;
    this.index = new Int32Array(top + 1).fill(-1);
    for (const [rank] of parts) ranges(rank, (first, last) => this.index.fill(0, first, last + 1));
    this.ranks = new Uint32Array(count);
    for (let rank = 0, at = 0; rank <= top; rank += 1) {
      if (this.index[rank] < 0) continue;
      this.ranks[at] = rank;
      this.index[rank] = at;
      at += 1;
    }
    this.cores = new Uint16Array(count);
    this.gpus = new Uint16Array(count);
    for (const [rank, cores, gpus] of parts) {
      ranges(rank, (first, last) => {
        this.cores.fill(cores, this.index[first], this.index[last] + 1);
        this.gpus.fill(gpus, this.index[first], this.index[last] + 1);
      });
    }
    this.state = new Uint8Array(count).fill(this.stateNumber("free"));
    this.busy = new Uint16Array(count);
    this.busyGpus = new Uint16Array(count);
    this.drainedCores = new Uint16Array(count);
    this.hostNames = null;
    this.hostIndex = null;
  }

  stateNumber(word) {
    const at = this.words.indexOf(word);
    return at >= 0 ? at : this.words.push(word) - 1;
  }

  stateOf(at) {
    return this.words[this.state[at]];
  }

  /** The host of an index; the names are written out when the first is asked for. */
  host(at) {
    this.hostNames ??= this.R.execution.nodelist.flatMap(hosts);
    return this.hostNames[at] ?? "";
  }

  /** The indexes of a host: several, if it has several targets. */
  ofHost(name) {
    if (!this.hostIndex) {
      this.hostIndex = new Map();
      for (let at = 0; at < this.count; at += 1) {
        const host = this.host(at);
        const there = this.hostIndex.get(host);
        if (there) there.push(at);
        else this.hostIndex.set(host, [at]);
      }
    }
    return this.hostIndex.get(name) ?? [];
  }

  /** The indexes of an idset's ranks that are here. */
  ofRanks(idset) {
    const found = [];
    ranges(idset, (first, last) => {
      for (let rank = first; rank <= Math.min(last, this.index.length - 1); rank += 1) {
        if (this.index[rank] >= 0) found.push(this.index[rank]);
      }
    });
    return found;
  }

  /** How many targets are in each state, by number. */
  counts() {
    const counts = new Uint32Array(this.words.length);
    for (let at = 0; at < this.count; at += 1) counts[this.state[at]] += 1;
    return counts;
  }

  /** The ranks in a state as an idset, at most `limit` characters of it and how many targets are not in these. */
  idsetOf(number, limit) {
    let text = "";
    let left = 0;
    for (let at = 0; at < this.count; at += 1) {
      if (this.state[at] !== number) continue;
      const first = at;
      while (at + 1 < this.count && this.state[at + 1] === number && this.ranks[at + 1] === this.ranks[at] + 1) at += 1;
      if (text.length < limit) text += `${text && ","}${this.ranks[first]}${at > first ? `-${this.ranks[at]}` : ""}`;
      else left += at - first + 1;
    }
    return [text, left];
  }

  /** The drains of a target and of parts of it: who, why and since when. */
  drainsOf(at) {
    return this.drained.filter((row) => has(row.targets, this.ranks[at]));
  }

  /** The planned outages of a target. */
  outagesOf(at) {
    return this.outages.filter((row) => has(row.targets, this.ranks[at]));
  }

  /** Whether a target is not the machine of the instance, on which all tasks run. */
  isMadeUp(at) {
    return has(this.madeUp, this.ranks[at]);
  }

  groupOf(at) {
    return this.groups.find((group) => has(group.targets, this.ranks[at])) ?? null;
  }

  propertiesOf(at) {
    return Object.entries(this.R.execution.properties ?? {}).flatMap(([name, idset]) => (has(idset, this.ranks[at]) ? [name] : []));
  }
}

