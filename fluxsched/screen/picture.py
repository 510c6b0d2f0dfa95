"""Picture of the instance: what its follower has sent, figures made of it, and the rate at which it is drawn.

No terminal is known here.

Law: what a guest may not ask is absent, and the figures do without it. Events of the log come from differences: which
targets changed to a state that an admin wants to know, which drains are new, the instance lost and back. Drawing takes
at most DRAWING_SHARE of the time, however large the terminal and busy the instance: what costs more is drawn less
often, down to every DRAWN_LATEST_S. What a person does is drawn at once by who does it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.role import Role, parse_role
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.screen.panes import Amount, InstanceFigures, JobRates
from fluxsched.system.clock import SystemClock
from fluxsched.views.feeds import Body, after
from fluxsched.views.machine import USED, LiveMachine, drain_text, outage_text

Tell = Callable[[str, str], None]
"""Given the style and the text of a line for the log."""

RATE_OVER_S = 3.0
"""Rates are means over about this time: steady enough to be read, new enough to be true (seconds)."""
_RANKS_SHOWN_CHARS = 60


class _Totals(NamedTuple):
    at_s: float
    submitted: int
    started: int
    ended: int


class Picture:
    """See above. `tell` gets the lines for the log."""

    def __init__(self, tell: Tell) -> None:
        self.machine = LiveMachine()
        self.jobs: Mapping[str, Any] = {}
        self.metrics: Body = {}
        self.queues: Sequence[Body] = ()
        self.notices: Sequence[Body] = ()
        """Notices of admins, as `instance.notice-list` has them."""
        self.info: Body = {}
        self.lost: str | None = "no answer yet"
        self.refused: dict[str, str] = {}
        """Reasons for which the instance refuses this user a request, by topic."""
        self._tell = tell
        self._totals: deque[_Totals] = deque()
        self._was_there = False

    @property
    def role(self) -> Role | None:
        """Return the role of this user in the instance; None if the instance does not report it."""
        try:
            return parse_role(str(self.info.get("role")))
        except InvalidValue:
            return None

    # -- what the follower says ---------------------------------------------------------------------------------

    def take_instance(self, body: Body) -> None:
        """Record that the instance is there or lost."""
        if body["instance"] == "there":
            if self.lost is not None and self._was_there:
                self._tell("good", "the instance is back")
            self.info, self.lost, self._was_there = body, None, True
            return
        if self.lost is None:
            self._tell("bad", f"the instance is lost: {body['why']}")
        self.lost = str(body["why"])
        self._totals.clear()

    def take_machine(self, kind: str, body: Body) -> None:
        """Take a snapshot or a delta."""
        if self._is_refused("machine", body):
            return
        if kind == "whole":
            self.machine = LiveMachine()
            self.machine.apply(body)
            return
        before = self.machine.drained
        self.machine.apply(body)
        for state, ranks in (body.get("states") or {}).items():
            if state not in USED:
                self._tell("warn" if state != "lost" else "bad", f"{self.hosts_text(Idset.parse(ranks))}: {state}")
        self._note_drains(before, self.machine.drained)
        for group in body.get("groups") or ():
            if group.get("leaving"):
                self._tell("", f"{self.hosts_text(Idset.parse(group['leaving']))}: leaving group {group['name']}")

    def take_jobs(self, kind: str, body: Body) -> None:
        """Take a snapshot or a delta."""
        if not self._is_refused("jobs", body):
            self.jobs = body if kind == "whole" else after(self.jobs, body)

    def take_figures(self, kind: str, body: Body, now_s: float) -> None:
        """Take the answer of `instance.metrics`, or its changes, received at `now_s` by a steady clock (seconds)."""
        if self._is_refused("figures", body):
            self.metrics = {}
            return
        self.metrics = body if kind == "whole" else after(self.metrics, body)
        jobs = self.metrics.get("jobs") or {}
        if {"submitted", "started", "ended"} <= jobs.keys():
            totals = _Totals(now_s, jobs["submitted"], jobs["started"], sum(jobs["ended"].values()))
            if self._totals and totals.submitted < self._totals[-1].submitted:
                self._totals.clear()  # another instance
            self._totals.append(totals)
            while len(self._totals) > 2 and now_s - self._totals[1].at_s >= RATE_OVER_S:
                self._totals.popleft()

    def take_notices(self, body: Body) -> None:
        """Take the notices; new ones are in the log, too."""
        if self._is_refused("notices", body):
            return
        known = {(each["id"], each["timestamp"]) for each in self.notices}
        self.notices = body["notices"]
        for each in self.notices:
            if (each["id"], each["timestamp"]) not in known:
                self._tell("info", f"notice of {each['user']}: {each['text']}")

    def _is_refused(self, topic: str, body: Body) -> bool:
        if "refused" in body:
            self.refused[topic] = str(body["refused"])
            return True
        self.refused.pop(topic, None)
        return False

    def _note_drains(self, before: Sequence[Body], now: Sequence[Body]) -> None:
        if before is now:
            return
        known: dict[tuple[str, str], set[int]] = {}
        for row in before:
            for reason in _reasons_of(row):
                known.setdefault(reason, set()).update(Idset.parse(row["targets"]))
        for row in now:
            had = [known.get(reason, frozenset[int]()) for reason in _reasons_of(row)]
            new = Idset.of([rank for rank in Idset.parse(row["targets"]) if any(rank not in ranks for ranks in had)])
            if new:
                self._tell("warn", f"{self.hosts_text(new)}: {drain_text(row)}")
        for parts in {row["parts"]: None for row in before}:
            back = _targets_of(before, parts) - _targets_of(now, parts)
            if back:
                self._tell("good", f"{self.hosts_text(back)}: {parts and f'{parts} '}returned to service")

    # -- what the screen shows ----------------------------------------------------------------------------------

    def rows(self) -> list[Body]:
        """Return the jobs in the order in which they were listed."""
        return [{**row, "id": parse_jobid(row["jobid"])} for row in self.jobs.get("jobs") or ()]

    def hosts_text(self, ranks: Idset) -> str:
        """Targets in a few words: host names if they have any, and how many there are more."""
        return self.machine.resources.named(ranks, _RANKS_SHOWN_CHARS)

    def outage_note(self) -> str:
        """Return a few words about planned outages: how many, and the one that is on or comes next."""
        outages = self.machine.outages
        more = f" (and {len(outages) - 1} more)" if len(outages) > 1 else ""
        return f"{outage_text(outages[0])}{more}" if outages else ""

    def figures(self, now_s: float) -> InstanceFigures:
        """Return the lines on top; `now_s`: wall time."""
        machine, jobs = self.machine, self.metrics.get("jobs") or {}
        queues = self.metrics.get("queues")
        amounts = [Amount("Cores", machine.busy.total(), machine.resources.count("core"))]
        if gpus := machine.resources.count("gpu"):
            amounts.append(Amount("GPUs", machine.busy_gpus.total(), gpus))
        started_s = self.info.get("starttime")
        return InstanceFigures(
            name=str(self.info.get("uri") or ""),
            up_s=max(0.0, now_s - started_s) if started_s else None,
            targets=machine.states.counts() if machine.resources.ranks else None,
            amounts=tuple(one for one in amounts if one.total),
            running=None if queues is None else sum(queue["running"] for queue in queues),
            waiting=None if queues is None else sum(queue["pending"] for queue in queues),
            rates=self._rates(),
            wait_median_s=_median_s(jobs.get("wait")),
        )

    def _rates(self) -> JobRates | None:
        if len(self._totals) < 2:
            return None
        first, last = self._totals[0], self._totals[-1]
        took_s = last.at_s - first.at_s
        if took_s <= 0:
            return None
        return JobRates(*((after - before) / took_s for before, after in zip(first[1:], last[1:], strict=True)))


def _reasons_of(row: Body) -> list[tuple[str, str]]:
    """Return each reason of a drain, with the parts that are drained for it."""
    return [(row["parts"], each.get("reason") or "") for each in row.get("reasons") or (row,)]


def _targets_of(rows: Sequence[Body], parts: str) -> Idset:
    """Return the targets of which these parts are drained."""
    found = EMPTY
    for row in rows:
        found |= Idset.parse(row["targets"]) if row["parts"] == parts else EMPTY
    return found


def _median_s(histogram: Any) -> float | None:
    """Return the upper bound of the part that has the median; None without waits, or if it is beyond all bounds."""
    if not histogram or not sum(histogram["counts"]):
        return None
    half, seen = sum(histogram["counts"]) / 2, 0
    for bound_s, count in zip(histogram["bounds"], histogram["counts"], strict=False):
        seen += count
        if seen >= half:
            return float(bound_s)
    return None


# ---- following an instance

DRAWING_SHARE = 0.06
"""Of one core's time, for drawing what arrives."""
DRAWN_EVERY_S, DRAWN_LATEST_S = 0.2, 2.0
"""The least and the most time between two drawings of what arrives (seconds)."""
CLOCK_EVERY_S = 1.0
"""Interval at which run times and the clock are drawn when nothing arrives (seconds)."""

TakeView = Callable[[str, Body], None]


class ViewFollower(Protocol):
    """Methods of `views.follower.Follower` that the screen uses."""

    def subscribe(self, topic: str, params: Mapping[str, Any] | None = None) -> AbstractAsyncContextManager[Any]: ...

    async def ask(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]: ...


class Pacer:
    """Calls `draw` when there is something new, at a rate that follows from what drawing costs."""

    def __init__(self, draw: Callable[[Callable[[], None]], None]) -> None:
        self._draw = draw
        """Draws, and calls its argument once the terminal has it."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_drawing = False
        self._is_stale = False
        self._pause_s = DRAWN_EVERY_S

    def wake(self) -> None:
        """Draw soon, since the picture has changed."""
        self._is_stale = True
        if self._timer is None and not self._is_drawing:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._due)

    def stop(self) -> None:
        """Stop drawing, also what is due."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_drawing = True

    def _due(self) -> None:
        self._timer = None
        self._is_drawing, self._is_stale = True, False
        begun_s = SystemClock.cpu_s()

        def drawn() -> None:
            cost_s = SystemClock.cpu_s() - begun_s
            wanted_s = max(DRAWN_EVERY_S, min(cost_s / DRAWING_SHARE, DRAWN_LATEST_S))
            self._pause_s = (self._pause_s + wanted_s) / 2
            self._is_drawing = False
            if self._is_stale:
                self.wake()

        self._draw(drawn)


class Followed:
    """The subscriptions of the screen, each a task; one may be replaced by another of the same name."""

    def __init__(self, follower: ViewFollower, failed: Callable[[str], None]) -> None:
        self._follower = follower
        self._failed = failed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, name: str, topic: str, params: Mapping[str, Any] | None, take: TakeView) -> None:
        """Follow a topic, in place of what had this name. Raises InvalidValue for wrong parameters."""
        messages = self._follower.subscribe(topic, params)
        self.leave(name)
        self._tasks[name] = asyncio.get_running_loop().create_task(self._run(messages, take))

    def leave(self, name: str) -> None:
        """Stop following the topic of this name."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop following all topics, and wait until they have ended."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, subscription: AbstractAsyncContextManager[Any], take: TakeView) -> None:
        try:
            async with subscription as messages:
                async for kind, body in messages:
                    take(kind, body)
        except FluxschedError as error:
            self._failed(str(error))
