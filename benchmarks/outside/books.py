"""What an instance has acknowledged, written down by those whom it answered, and compared with what it says later.

Law: nothing of fluxsched is used here. An operation under way when the instance was killed may have happened or not;
one that was answered has happened, for good. What ran is known from a file to which each real task appends its job.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outside.wire import Wire

F58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
LOOKUPS = 256
"""Records that are asked for at a time."""
LISTED = 4000
"""The newest jobs that are looked at for those whose submit was not answered."""
ROUNDING_S = 1e-6
ALL = -1
SHOWN = 20
"""Violations that are printed; all are counted."""


def idset(text: str) -> Iterator[int]:
    """The members of an RFC 22 idset."""
    for part in filter(None, text.strip("[]").split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def number(f58: str) -> int:
    """A job id from the text that tasks see."""
    found = 0
    for letter in f58.removeprefix("ƒ"):
        found = found * 58 + F58.index(letter)
    return found


def cores(R: dict[str, Any]) -> Iterator[tuple[int, int]]:  # noqa: N803 - RFC 20's name
    """Rank and core, for all that a job has."""
    for entry in R["execution"]["R_lite"]:
        for rank in idset(str(entry["rank"])):
            for core in idset(str(entry["children"]["core"])):
                yield rank, core


def _released(events: list[dict[str, Any]]) -> dict[int, float]:
    """When each rank was released; of all others under ALL."""
    found = {ALL: events[-1]["timestamp"]}
    for event in events:
        if event["name"] == "release":
            ranks = event["context"]["ranks"]
            found |= dict.fromkeys([ALL] if ranks == "all" else idset(ranks), event["timestamp"])
    return found


@dataclass
class Job:
    """One job: whether its submit and its cancel were acknowledged, and which of its events were told."""

    is_real: bool | None = None
    """Whether it has tasks; None: its submit was not answered."""
    is_canceled: bool = False
    cancel_sent: bool = False
    told: set[str] = field(default_factory=set)


@dataclass
class Books:
    """All that is known; `faults` are violations, in words."""

    ran: Path
    """The file of the tasks."""
    faults: list[str] = field(default_factory=list)
    open: dict[int, Job] = field(default_factory=dict)
    """Jobs that were not seen inactive yet."""
    counts: Counter[str] = field(default_factory=Counter)
    drained: dict[int, set[bool]] = field(default_factory=lambda: defaultdict(lambda: {False}))
    """What may be true of each target; several while an operation is under way or its answer was lost."""
    group: dict[int, set[str]] = field(default_factory=lambda: defaultdict(lambda: {"default"}))
    results: dict[int, str] = field(default_factory=dict)
    """Of inactive jobs."""
    keeper_kills_s: list[float] = field(default_factory=list)
    """When the keepers of tasks were killed: jobs of that time may have ended with them."""
    _real: set[int] = field(default_factory=set)
    _held: dict[tuple[int, int], list[tuple[float, float, int]]] = field(default_factory=lambda: defaultdict(list))

    def fault(self, text: str) -> None:
        self.faults.append(text)
        if len(self.faults) <= SHOWN:
            print(f"VIOLATION: {text}", flush=True)

    # ---- what is compared

    async def judge(self, wire: Wire) -> None:
        """Compare all that may have changed since the last time with what the instance says."""
        await self._judge_targets(wire)
        await self._judge_jobs(wire)

    async def _judge_targets(self, wire: Wire) -> None:
        status, groups = await asyncio.gather(wire.call("resource.status"), wire.call("resource.groups"))
        drained = {rank for text in status["drain"] for rank in idset(text)}
        home: dict[int, str] = {}
        for one in groups["groups"]:
            leaving = set(idset(one["leaving"]))
            home |= {rank: one["name"] for rank in idset(one["targets"]) if rank not in leaving}
            home |= dict.fromkeys(idset(one["incoming"]), one["name"])
        for rank, may in self.drained.items():
            if (rank in drained) not in may:
                self.fault(f"target {rank} {'is' if rank in drained else 'is not'} drained: that was not acknowledged")
            self.drained[rank] = {rank in drained}
        for rank, names in self.group.items():
            if home.get(rank) not in names:
                self.fault(f"target {rank} is in group {home.get(rank)}, not in {' or '.join(sorted(names))}")
            self.group[rank] = {str(home.get(rank))}

    async def _judge_jobs(self, wire: Wire) -> None:
        asked = [
            wire.call("job-manager.list", {"ids": list(self.open), "max_entries": 0}),
            wire.call("job-manager.list", {"max_entries": LISTED}),
            wire.call("job-manager.list", {"states": ["active"], "max_entries": 0}),
        ]
        found = {job["id"]: job for answer in await asyncio.gather(*asked) for job in answer["jobs"]}
        for jobid in found.keys() - self.open.keys() - self.results.keys():
            self.open[jobid] = Job()
        ended = []
        for jobid in list(self.open):
            info = found.get(jobid)
            if info is None:
                self.fault(f"job {jobid}, whose submit was acknowledged, is not there")
                del self.open[jobid]
            elif info["state"] == "INACTIVE":
                ended.append(jobid)
                self.results[jobid] = info["result"]
        for at in range(0, len(ended), LOOKUPS):
            some = ended[at : at + LOOKUPS]
            asked = [wire.call("job-manager.lookup", {"id": one, "keys": ["R", "eventlog"]}) for one in some]
            records = await asyncio.gather(*asked)
            for jobid, record in zip(some, records, strict=True):
                self._judge_ended(jobid, self.open.pop(jobid), record)

    def _judge_ended(self, jobid: int, job: Job, record: dict[str, Any]) -> None:
        events, resources = record["eventlog"], record.get("R")
        names = Counter(event["name"] for event in events)
        self.counts[self.results[jobid]] += 1
        for name in ("submit", "alloc", "start", "finish", "free", "clean"):
            if names[name] > 1:
                self.fault(f"job {jobid} has {names[name]} events {name}")
        if events[-1]["name"] != "clean":
            self.fault(f"job {jobid} is inactive without the event clean")
        canceled = any(event["name"] == "exception" and event["context"]["type"] == "cancel" for event in events)
        if job.is_canceled and not canceled:
            self.fault(f"job {jobid} has no exception, though its cancel was acknowledged")
        if any("the instance was restarted" in event["context"].get("note", "") for event in events
               if event["name"] == "exception"):  # fmt: skip
            self.counts["ended by a restart"] += 1
            first_s, last_s = events[0]["timestamp"], events[-1]["timestamp"]
            if not any(first_s <= kill_s <= last_s for kill_s in self.keeper_kills_s):
                self.fault(f"job {jobid} ran, and was ended by a restart: {events}")
        if missing := job.told - names.keys():
            self.fault(f"job {jobid} has lost events that a watcher was told of: {', '.join(sorted(missing))}")
        if job.is_real:
            self._real.add(jobid)
        if resources and names["grow"] + names["shrink"]:
            self.counts["resized"] += 1
            self._judge_sizes(jobid, events, resources)
        elif resources and names["alloc"]:
            begin_s = next(event["timestamp"] for event in events if event["name"] == "alloc")
            ends = _released(events)
            for rank, core in cores(resources):
                self._held[rank, core].append((begin_s, ends.get(rank, ends[ALL]), jobid))

    def _judge_sizes(self, jobid: int, events: list[dict[str, Any]], resources: dict[str, Any]) -> None:
        """The same of a job that had other targets at other times; R is what it had at last."""
        ids = sorted({core for _, core in cores(resources)})
        sizes = [event for event in events if event["name"] in ("alloc", "grow", "release")]
        last, now = sizes.pop(), {rank for rank, _ in cores(resources)}
        for event in reversed(sizes):  # what it had before
            if event["name"] == "release":
                now |= set(idset(event["context"]["ranks"]))
            elif event["name"] == "grow":
                now -= {rank for rank, _ in cores(event["context"]["R"])}
        since = dict.fromkeys(now, sizes[0]["timestamp"])
        for event in [*sizes[1:], last]:
            if event["name"] == "grow":
                since |= {rank: event["timestamp"] for rank, _ in cores(event["context"]["R"])}
                continue
            gone = event["context"]["ranks"]
            for rank in list(since) if gone == "all" else idset(gone):
                for core in ids:
                    self._held[rank, core].append((since[rank], event["timestamp"], jobid))
                del since[rank]
        if since:
            self.fault(f"job {jobid} never released targets {sorted(since)}")

    # ---- what is judged at the end

    def task_lines(self) -> dict[int, dict[str, list[float]]]:
        """Of each job when its tasks began (b) and ended (e), by the tasks themselves."""
        found: dict[int, dict[str, list[float]]] = defaultdict(lambda: {"b": [], "e": []})
        if self.ran.exists():
            for line in self.ran.read_text().splitlines():
                what, f58, at_s = line.split()
                if what != "t":
                    found[number(f58)][what].append(float(at_s))
        return found

    def judge_tasks(self) -> None:
        """Each task ran once or never, and to its end where its job is said to be completed."""
        lines = self.task_lines()
        for jobid, found in lines.items():
            if len(found["b"]) > 1:
                self.fault(f"job {jobid} ran {len(found['b'])} times")
        for jobid in self._real:
            if self.results[jobid] == "COMPLETED" and [*map(len, lines[jobid].values())] != [1, 1]:
                self.fault(f"job {jobid} is completed, but its task wrote {lines[jobid]}")
        self.counts["real tasks"] = len(lines)
        some = self.ran.read_text().splitlines() if self.ran.exists() else []
        elastic = Counter(line.split()[1] for line in some if line.startswith("t "))
        for task, times in elastic.items():
            if times > 1:
                self.fault(f"task {task} of an elastic job ran {times} times")
        self.counts["elastic tasks"] = len(elastic)

    def judge_holdings(self) -> None:
        """No core was held by two jobs at a time, by what the instance says and by what their tasks say."""
        ran = {jobid: (found["b"][0], found["e"][0]) for jobid, found in self.task_lines().items() if found["e"]}
        for place, held in self._held.items():
            self._judge_core(place, "was given to", held)
            self._judge_core(place, "ran", [(*ran[jobid], jobid) for _, _, jobid in held if jobid in ran])
        self.counts["holdings"] = sum(map(len, self._held.values()))

    def _judge_core(self, place: tuple[int, int], what: str, held: list[tuple[float, float, int]]) -> None:
        until_s, holder = 0.0, 0
        for begin_s, end_s, jobid in sorted(held):
            if begin_s < until_s - ROUNDING_S:
                self.fault(f"core {place[1]} of target {place[0]} {what} {jobid} while {holder} had it")
            if end_s > until_s:
                until_s, holder = end_s, jobid
