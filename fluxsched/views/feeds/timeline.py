"""Topic `timeline`: what ran, runs and will run on targets, within a period that moves with time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.errors import RPCError
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.changes import Body, differences
from fluxsched.views.feeds.feed import Asking, Audience, PolledFeed, SlowQuestion, streaming, together
from fluxsched.views.feeds.jobs import job_body
from fluxsched.views.feeds.params import Params, Period
from fluxsched.views.machine import LiveMachine
from fluxsched.views.states import USED
from fluxsched.views.timeline import (
    BARS_MAX,
    JobBar,
    TimeWindow,
    drain_spans,
    drawn,
    ended_bar,
    planned_bar,
    running_bar,
)

TIMELINE_EVERY_S = 1.0
BEFORE_S, AHEAD_S = 3600.0, 4 * 3600.0
"""What is shown unless it is said: the last hour and the next four (seconds)."""
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

    def now(self) -> Body | None:
        """See `Feed`."""
        return self._polled.now()

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`."""
        self._is_known.clear()
        self._ended, self._ended_until_s, self._spans_until_s = {}, 0.0, 0.0
        self._planned, self._plan = [], SlowQuestion()
        try:
            await together(self._watch(handle), self._poll(handle, audience))
        finally:
            await self._plan.close()

    async def _watch(self, handle: Asking) -> None:
        self._machine = LiveMachine()
        with streaming(handle, "resource.watch") as answers:
            async for answer in answers:
                self._machine.apply(answer)
                self._is_known.set()

    async def _poll(self, handle: Asking, audience: Audience) -> None:
        await self._is_known.wait()
        await self._polled.run(handle, audience)

    async def _ask(self, handle: Asking) -> dict[str, Any]:
        now_s, machine = SystemClock.wall_s(), self._machine
        begin_s, end_s = self._period.bounds_s(now_s)
        ranks = machine.resources.ranks
        if self._targets:
            named = await handle.rpc("resource.targets", {"targets": self._targets})
            ranks = Idset.parse(named["targets"]) & ranks
        window = TimeWindow(begin_s, end_s, ranks)
        (running, left_out), _, ended, spans = await asyncio.gather(
            self._running(handle),
            self._plan.ask(lambda: self._ask_plan(handle)),
            self._ask_ended(handle, begin_s, now_s),
            self._ask_spans(handle, begin_s, now_s),
        )
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
            "spans": spans,
            "left_out": left_out,
            "starts": [start_body(bar, info) for bar, info in planned[:STARTS_MAX]],
            **drawn([*ended, *running, *[bar for bar, _ in planned]], window, machine.resources, self._bars_max),
        }

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
        """When targets could not be used, as the history says; where it is refused, what is drained now."""
        machine = self._machine
        out_of_use = {word: ranks for word, ranks in machine.states.parts.items() if word not in USED}
        if (machine.drains, out_of_use) != self._spans_of or now_s >= self._spans_until_s:
            self._spans_of, self._spans_until_s = (machine.drains, out_of_use), now_s + SPANS_EVERY_S
            targets = {"targets": self._targets} if self._targets else {}
            period = {"since": max(begin_s, 0.0), "until": now_s, "max_entries": SPANS_MAX}
            try:
                self._spans = (await handle.rpc("history.intervals", {**period, **targets}))["intervals"]
            except RPCError:
                if handle.is_gone:
                    raise
                self._spans = drain_spans(machine.drains) if isinstance(machine.drains, Mapping) else []
        return self._spans


async def plans(handle: Asking, machine: LiveMachine) -> list[tuple[JobBar, Mapping[str, Any]]]:
    """What is planned in each group that a scheduler serves, by start; and what the job list says of each job."""
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
    """The change from one timeline to another: of bars those that are new or differ."""
    known = {bar[0]: bar for bar in before["bars"]}
    change = differences(before, {key: value for key, value in now.items() if key != "bars"})
    if bars := [bar for bar in now["bars"] if known.get(bar[0]) != bar]:
        change["bars"] = bars
    there = {bar[0] for bar in now["bars"]}
    if gone := [jobid for jobid in known if jobid not in there]:
        change["gone"] = gone
    return change
