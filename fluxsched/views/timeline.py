"""Topics `timeline` and `past`: bars of jobs that ran, run and will run on targets, or sums where there are too many.

Law: drawing is pure, and bounded: never more than BARS_MAX bars, ROWS_MAX rows of STEPS_MAX steps. A bar is `[jobid,
targets, start, end, kind, cores, user, queue, name]`: end null has no limit, targets "" are not chosen yet. All are
wall times. That of a job that has grown or shrunk ends with its former sizes, from its start on: `[[targets, until,
cores]...]`, without targets where these are not listed. The feed's period moves with time.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.outages import Outage
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.feeds import (
    Asking,
    Body,
    FeedListener,
    Params,
    Period,
    PolledFeed,
    SlowQuestion,
    differences,
    job_body,
    together,
    watch_machine,
)
from fluxsched.views.machine import USED, LiveMachine, TargetParts, outage_title
from fluxsched.views.words import user_name

BARS_MAX = 2000
"""More bars than this a viewer gets as sums."""
ROWS_MAX = 64
STEPS_MAX = 240
"""Sums are of so many parts of the machine, at so many times: about what a screen can show."""
OUTAGE_SPANS_MAX = 200
"""Planned outages that are drawn, the next ones: a window of a week has one that recurs hourly 168 times."""
PLANNED = "planned"
"""State of a span in which targets are not to be used."""
RUNNING, ENDED, RESERVED, FORECAST = "running", "ended", "reserved", "forecast"


class BarSize(NamedTuple):
    """Size of a job before it grew or shrank; without targets if these are not listed."""

    ranks: Idset
    end_s: float
    ncores: int


class JobBar(NamedTuple):
    """One job in time.

    `ranks` is None while its targets are not chosen, `end_s` is None without a limit; `before` are the sizes that it
    had, from its start on.
    """

    jobid: int
    ranks: Idset | None
    start_s: float
    end_s: float | None
    kind: str
    ncores: int
    userid: int
    queue: str
    name: str
    before: tuple[BarSize, ...] = ()

    def body(self) -> list[Any]:
        """Return the bar as viewers get it."""
        ranks = "" if self.ranks is None else str(self.ranks)
        start_s, end_s = round(self.start_s, 3), None if self.end_s is None else round(self.end_s, 3)
        times = [start_s, end_s, self.kind]
        sizes = [[[str(size.ranks), round(size.end_s, 3), size.ncores] for size in self.before]] if self.before else []
        of_job = [user_name(self.userid), self.queue, self.name]
        return [format_f58(self.jobid), ranks, *times, self.ncores, *of_job, *sizes]

    def overlaps(self, begin_s: float, end_s: float) -> bool:
        """Return whether some part of the bar is within these times."""
        return self.start_s < end_s and (self.end_s is None or self.end_s > begin_s)

    @property
    def each_size(self) -> Iterator[tuple[Idset, float, float | None, int]]:
        """Its sizes with known targets: targets, from when to when, and cores."""
        start_s = self.start_s
        for ranks, end_s, ncores in self.before:
            if ranks:
                yield ranks, start_s, end_s, ncores
            start_s = end_s
        if self.ranks:
            yield self.ranks, start_s, self.end_s, self.ncores


class TimeWindow(NamedTuple):
    """The times and targets that are looked at."""

    begin_s: float
    end_s: float
    ranks: Idset


def running_bar(entry: Sequence[Any]) -> JobBar:
    """Of an entry of job-manager.running."""
    jobid, ranks, start_s, end_s, ncores, userid, queue, name, sizes = entry
    held, before = Idset.parse(ranks), _past(sizes)
    return JobBar(jobid, held, start_s, end_s or None, RUNNING, ncores, userid, queue, name, before)


def planned_bar(entry: Sequence[Any], info: Mapping[str, Any]) -> JobBar:
    """Of an entry of sched.plan, and what the job list says of the job."""
    jobid, start_s, end_s, ranks, _, ncores, is_promised = entry
    chosen = None if ranks is None else Idset.parse(ranks)
    kind, userid, queue, name = RESERVED if is_promised else FORECAST, *(info.get(key) for key in _OF_JOB)
    return JobBar(
        jobid, chosen, start_s, end_s or None, kind, ncores, -1 if userid is None else userid, queue or "", name or ""
    )


def ended_bar(info: Mapping[str, Any]) -> JobBar | None:
    """Of a job of the list that has ended; None if it never ran."""
    if not info.get("t_run") or not info.get("ranks"):
        return None
    end_s = info.get("t_cleanup") or info.get("t_inactive")
    ranks, ncores = Idset.parse(info["ranks"]), info.get("ncores") or 0
    return JobBar(
        info["id"], ranks, info["t_run"], end_s, ENDED, ncores, info["userid"], info.get("queue") or "", info["name"],
        _past(info.get("sizes") or ()),
    )  # fmt: skip


def _past(sizes: Iterable[Sequence[Any]]) -> tuple[BarSize, ...]:
    return tuple([BarSize(Idset.parse(ranks), end_s, ncores) for ranks, end_s, ncores in sizes])


_OF_JOB = ("userid", "queue", "name")


def drain_spans(drained: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """`[targets, state, from, to, note]` of what is drained now: it lasts."""
    return [
        [row["targets"], row["state"], row["timestamp"], None, row["reason"]] for row in drained if not row["parts"]
    ]


def outage_spans(outages: Iterable[Mapping[str, Any]], now_s: float, end_s: float) -> list[list[Any]]:
    """Return the spans of planned outages within these times, each time that one recurs; OUTAGE_SPANS_MAX at most."""
    found: list[list[Any]] = []
    for row in outages:
        note = outage_title(row) + (f": {row['reason']}" if row.get("reason") else "")
        for each in Outage.parse(row).occurrences(now_s):
            if each.from_s >= end_s or len(found) == OUTAGE_SPANS_MAX:
                break
            found.append([row["targets"], PLANNED, max(each.from_s, now_s), each.until_s, note])
    return found


def drawn(
    bars: Iterable[JobBar], window: TimeWindow, resources: ResourceSet, bars_max: int = BARS_MAX
) -> dict[str, Any]:
    """`bars` and `rows`: all bars within the window, or, if they are more than `bars_max`, those that are to come and
    sums of the others by rows of targets.
    """
    within = [bar for bar in bars if bar.overlaps(window.begin_s, window.end_s) and _is_on(bar, window.ranks)]
    if len(within) <= bars_max:
        return {"bars": [bar.body() for bar in within], "rows": None}
    planned = [bar for bar in within if bar.kind in (RESERVED, FORECAST)]
    rows = summed([bar for bar in within if bar.kind not in (RESERVED, FORECAST)], window, resources)
    return {"bars": [bar.body() for bar in planned[:bars_max]], "rows": rows}


def _is_on(bar: JobBar, ranks: Idset) -> bool:
    return bar.ranks is None or any(not held.isdisjoint(ranks) for held, *_ in bar.each_size)


def summed(bars: Sequence[JobBar], window: TimeWindow, resources: ResourceSet) -> list[dict[str, Any]]:
    """Cores in use over time, by rows of about equally many targets: `{"ranks", "title", "cores", "steps"}`, steps as
    `[time, mean of cores in use until the next]`, only where that changes.
    """
    blocks = split_evenly(window.ranks, ROWS_MAX)
    starts = [block.min() for block in blocks]
    step_s = max((window.end_s - window.begin_s) / STEPS_MAX, 1e-3)
    # differences of what is in use, so that a long bar costs no more than a short one
    slopes = [[0.0] * (STEPS_MAX + 2) for _ in blocks]
    for held, since_s, until_s, ncores in [size for bar in bars for size in bar.each_size]:
        here = held & window.ranks
        if not here:
            continue
        size = len(held)
        first, last = _place(starts, here.min()), _place(starts, here.max())
        low = _within((since_s - window.begin_s) / step_s)
        high = _within(STEPS_MAX if until_s is None else (until_s - window.begin_s) / step_s)
        for row in range(first, last + 1):
            count = size if here == held and first == last else len(here & blocks[row])
            if count:
                _ramp(slopes[row], low, count * ncores / size)
                _ramp(slopes[row], high, -count * ncores / size)
    return [
        {
            "ranks": str(block),
            "title": _title(resources, block),
            "cores": sum([len(entry.ranks & block) * entry.children.count("core") for entry in resources.entries]),
            "steps": _steps(slope, window.begin_s, step_s),
        }
        for block, slope in zip(blocks, slopes, strict=True)
    ]


def _within(step: float) -> float:
    return min(max(step, 0.0), float(STEPS_MAX))


def _ramp(slope: list[float], at: float, cores: float) -> None:
    """Add so many cores from this point on: the step that it falls into has its part of them."""
    step = int(at)
    part = 1.0 - (at - step)
    slope[step] += cores * part
    slope[step + 1] += cores * (1.0 - part)


def _steps(slope: Sequence[float], begin_s: float, step_s: float) -> list[list[float]]:
    found: list[list[float]] = []
    total = 0.0
    for at, more in enumerate(slope[:STEPS_MAX]):
        total += more
        cores = round(total, 2) + 0.0
        if not found or found[-1][1] != cores:
            found.append([round(begin_s + at * step_s, 3), cores])
    return found


def split_evenly(ranks: Idset, count: int) -> list[Idset]:
    """At most `count` parts of consecutive ranks, all of about the same size."""
    left, found = ranks, []
    size = -(-len(ranks) // count) if ranks else 1
    while left:
        part = left.first(size)
        left -= part
        found.append(part)
    return found


def _place(starts: Sequence[int], rank: int) -> int:
    return bisect_right(starts, rank) - 1


def _title(resources: ResourceSet, block: Idset) -> str:
    if not resources.nodelist.hosts:
        return str(block)
    first, last = resources.host(block.min()), resources.host(block.max())
    return first if first == last else f"{first} .. {last}"


# ---- feed `timeline`

TIMELINE_EVERY_S = 1.0
BEFORE_S, AHEAD_S = 3600.0, 4 * 3600.0
"""Default extent of the timeline: the last hour and the next four (seconds)."""
PLANNED_MAX = 100
"""Planned jobs of each group that are asked for."""
STARTS_MAX = 20
"""Next starts that are listed."""
RUNNING_MAX = 10_000
ENDED_MAX = 1000
"""Jobs that are asked for: what runs, with most core-seconds first, and what has ended lately."""
LATE_S = 2.0
"""A job that ended may be listed so much later."""
SPANS_MAX = 500
SPANS_EVERY_S = 10.0
"""Of drains and outages: how many, and how often they are asked for while no state changes (seconds)."""


class TimelineFeed:
    """One period, of all targets or some."""

    def __init__(self, params: Params) -> None:
        self._period = Period(params, -BEFORE_S, AHEAD_S)
        self._targets = params.text("targets")
        self._bars_max = params.count("bars_max", BARS_MAX, BARS_MAX)
        self._machine = LiveMachine()
        self._is_known = asyncio.Event()
        self._ended: dict[int, JobBar] = {}
        self._ended_until_s = 0.0
        self._spans: list[Any] = []
        self._spans_of: object = None
        self._spans_until_s = 0.0
        self._planned: list[tuple[JobBar, Mapping[str, Any]]] = []
        self._plan = SlowQuestion()
        self._polled = PolledFeed(self._ask, TIMELINE_EVERY_S, bar_differences)

    def current(self) -> Body | None:
        return self._polled.current()

    async def run(self, handle: Asking, listener: FeedListener) -> None:
        self._is_known.clear()
        self._ended, self._ended_until_s, self._spans_until_s = {}, 0.0, 0.0
        self._planned, self._plan = [], SlowQuestion()
        try:
            self._machine = LiveMachine()
            watching = watch_machine(handle, self._machine, self._is_known)
            await together(watching, self._polled.run(handle, listener))
        finally:
            await self._plan.close()

    async def _ask(self, handle: Asking) -> dict[str, Any]:
        now_s = SystemClock.wall_s()
        begin_s, end_s = self._period.bounds_s(now_s)
        named, (running, left_out), ended, spans = await asyncio.gather(
            self._ask_targets(handle),
            self._running(handle),
            self._ask_ended(handle, begin_s, now_s),
            self._of_the_machine(handle, begin_s, now_s),
        )
        machine = self._machine
        ranks = machine.resources.ranks if named is None else named & machine.resources.ranks
        window = TimeWindow(begin_s, end_s, ranks)
        started = {bar.jobid for bar in running}
        planned = [pair for pair in self._planned if pair[0].jobid not in started]  # it may be of some seconds ago
        return {
            "now": now_s,
            "begin": begin_s,
            "end": end_s,
            "expires": machine.resources.expiration_s,
            "ranks": str(ranks),
            "cores_per_target": max([one.children.count("core") for one in machine.resources.entries], default=0),
            "states": machine.states.texts(),
            "spans": [*spans, *outage_spans(machine.outages, now_s, end_s)],
            "left_out": left_out,
            "starts": [start_body(bar, info) for bar, info in planned[:STARTS_MAX]],
            **drawn([*ended, *running, *[bar for bar, _ in planned]], window, machine.resources, self._bars_max),
        }

    async def _of_the_machine(self, handle: Asking, begin_s: float, now_s: float) -> list[Any]:
        """Request, once the machine is known, the plan, and the times at which targets could not be used."""
        await self._is_known.wait()
        await self._plan.ask(lambda: self._ask_plan(handle))
        return await self._ask_spans(handle, begin_s, now_s)

    async def _ask_targets(self, handle: Asking) -> Idset | None:
        if not self._targets:
            return None
        return Idset.parse((await handle.rpc("resource.targets", {"targets": self._targets}))["targets"])

    async def _ask_plan(self, handle: Asking) -> None:
        self._planned = await plans(handle, self._machine)

    async def _running(self, handle: Asking) -> tuple[list[JobBar], int]:
        request: dict[str, Any] = {"max_entries": RUNNING_MAX, **({"targets": self._targets} if self._targets else {})}
        answer = await handle.rpc("job-manager.running", request)
        return [running_bar(entry) for entry in answer["jobs"]], answer["left_out"]

    async def _ask_ended(self, handle: Asking, begin_s: float, now_s: float) -> list[JobBar]:
        """Of those known only what is still within; asked for are those that have ended since."""
        since_s = max(begin_s, self._ended_until_s - LATE_S, 0.0)
        if since_s < now_s:
            request = {"constraint": {"states": ["INACTIVE"]}, "since": since_s, "max_entries": ENDED_MAX}
            found = (await handle.rpc("job-manager.list", request))["jobs"]
            self._ended |= {bar.jobid: bar for bar in map(ended_bar, reversed(found)) if bar is not None}
            self._ended_until_s = now_s
        kept = [bar for bar in self._ended.values() if bar.overlaps(begin_s, now_s)][-ENDED_MAX:]
        self._ended = {bar.jobid: bar for bar in kept}
        return kept

    async def _ask_spans(self, handle: Asking, begin_s: float, now_s: float) -> list[Any]:
        """Request the times at which targets could not be used, from the history; where it is refused, take the present
        drains.
        """
        machine = self._machine
        out_of_use = {word: ranks for word, ranks in machine.states.parts.items() if word not in USED}
        if (machine.drained, out_of_use) != self._spans_of or now_s >= self._spans_until_s:
            self._spans_of, self._spans_until_s = (machine.drained, out_of_use), now_s + SPANS_EVERY_S
            targets = {"targets": self._targets} if self._targets else {}
            period = {"since": max(begin_s, 0.0), "until": now_s, "max_entries": SPANS_MAX}
            try:
                self._spans = (await handle.rpc("history.intervals", {**period, **targets}))["intervals"]
            except RPCError:
                if handle.is_gone:
                    raise
                self._spans = drain_spans(machine.drained)
        return self._spans


async def plans(handle: Asking, machine: LiveMachine) -> list[tuple[JobBar, Mapping[str, Any]]]:
    """Return the plans of each group that a scheduler serves, by start, each with the job list's entry of its job."""
    names = [group["name"] for group in machine.groups if group.get("acquired")]
    entries = [entry for found in await asyncio.gather(*[_plan(handle, name) for name in names]) for entry in found]
    if not entries:
        return []
    ids = [entry[0] for entry in entries]
    answer = await handle.rpc("job-manager.list", {"ids": ids, "max_entries": len(ids)})
    known = {info["id"]: info for info in answer["jobs"]}
    found = [(planned_bar(entry, known[entry[0]]), known[entry[0]]) for entry in entries if entry[0] in known]
    return sorted(found, key=lambda pair: pair[0].start_s)


async def _plan(handle: Asking, group: str) -> list[Any]:
    try:
        found: list[Any] = (await handle.rpc("sched.plan", {"group": group, "max_entries": PLANNED_MAX}))["jobs"]
    except RPCError:
        if handle.is_gone:
            raise
        return []  # another's scheduler may know no plan, and a guest may not see it
    return found


def start_body(bar: JobBar, info: Mapping[str, Any]) -> dict[str, Any]:
    """One of the next starts, for a table."""
    row = job_body(info, bar.start_s)
    return {
        "jobid": row["jobid"],
        "start": bar.start_s,
        "end": bar.end_s,
        "targets": None if bar.ranks is None else str(bar.ranks),
        "ncores": bar.ncores,
        "promised": bar.kind == "reserved",
        "reason": row["reason"],
        "user": row["user"],
        "queue": bar.queue,
        "name": bar.name,
    }


def bar_differences(before: Body, now: Body) -> dict[str, Any]:
    """Return the delta from one timeline to another: of bars those that are new or differ."""
    known = {bar[0]: bar for bar in before["bars"]}
    delta = differences(before, {key: value for key, value in now.items() if key != "bars"})
    if bars := [bar for bar in now["bars"] if known.get(bar[0]) != bar]:
        delta["bars"] = bars
    there = {bar[0] for bar in now["bars"]}
    if gone := [jobid for jobid in known if jobid not in there]:
        delta["gone"] = gone
    return delta


# ---- feed `past`

PAST_EVERY_S = 60.0
SEEN_EVERY_S = 120.0
"""Twice the interval at which an instance notes that it runs (seconds)."""
PAST_JOBS_MAX = 10_000
"""Maximum number of jobs, ended since, that are shown as running at a time in the past."""


class PastQuestion:
    """The machine as it was at one time: by the jobs that ran then, and the states that the history keeps."""

    def __init__(self, params: Params) -> None:
        self._period = Period(params, -BEFORE_S, 0.0, first="at")

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """Return `states` and `busy` as the view of the machine has them, and how many jobs are left out."""
        now_s = SystemClock.wall_s()
        at_s, _ = self._period.bounds_s(now_s)
        ran_then = {"and": [{"states": ["INACTIVE"]}, {"t_run": [f"<={at_s}"]}, {"t_cleanup": [f">{at_s}"]}]}
        ended_request = {"constraint": ran_then, "since": at_s, "order": "active"}  # with the number of all
        running, ended, states = await asyncio.gather(
            handle.rpc("job-manager.running", {"max_entries": RUNNING_MAX}),
            handle.rpc("job-manager.list", {**ended_request, "max_entries": PAST_JOBS_MAX}),
            handle.rpc("history.intervals", {"since": at_s, "until": at_s + 1.0, "max_entries": PAST_JOBS_MAX}),
        )
        bars = [*map(running_bar, running["jobs"]), *filter(None, map(ended_bar, ended["jobs"]))]
        busy = busy_at(bars, at_s)
        out = TargetParts()
        out.move_targets({state: ranks for ranks, state, *_ in states["intervals"]})
        known = union(out.parts.values())
        held = union(busy.values()) - known
        return {
            "at": at_s,
            "states": {**out.texts(), **({"allocated": str(held)} if held else {})},
            "busy": {str(cores): str(ranks) for cores, ranks in busy.items()},
            "observed": bool(states["observed"]) or now_s - at_s < SEEN_EVERY_S,
            "left_out": running["left_out"] + max(0, ended["count"] - len(ended["jobs"])),
        }


def busy_at(bars: Iterable[JobBar], at_s: float) -> dict[int, Idset]:
    """Return targets by how many of their cores were in use at a time, those of a job on all of its targets alike."""
    found: dict[int, float] = defaultdict(float)
    for ranks, since_s, until_s, ncores in [size for bar in bars for size in bar.each_size]:
        if since_s <= at_s and (until_s is None or until_s > at_s):
            for rank in ranks:
                found[rank] += ncores / len(ranks)
    by_cores: dict[int, list[int]] = defaultdict(list)
    for rank, cores in found.items():
        by_cores[math.ceil(cores - 1e-6)].append(rank)
    return {cores: Idset.of(ranks) for cores, ranks in by_cores.items()}


def union(parts: Iterable[Idset]) -> Idset:
    """Return what is in any of these."""
    return reduce(or_, parts, EMPTY)
