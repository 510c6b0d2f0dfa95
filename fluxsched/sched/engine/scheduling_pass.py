"""The passes of one lane: what its policy sees, and how each decision is made real before the next is asked for.

Law: nothing is done that the ledger refuses; whoever waits is told why, and when he is to start, at a bounded rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import heappop, heappush
from math import inf, nextafter
from reprlib import repr as short
from types import MappingProxyType
from typing import Any

from fluxsched.core.duration import format_duration
from fluxsched.core.jobid import format_f58
from fluxsched.sched.decisions import RESERVED, Decision, Deny, Pause, Pending, Reason, Reservation, Reserve, Start
from fluxsched.sched.effects import PAUSED, Annotated, Denied, Effect, Granted
from fluxsched.sched.engine.group import Group, Told
from fluxsched.sched.engine.policy_queue import Lane
from fluxsched.sched.ledger import Holding
from fluxsched.sched.plan.counted import CountedPlan
from fluxsched.sched.plan.placed import PoolPlan
from fluxsched.sched.policy import Running
from fluxsched.sched.pool.place import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, WORST_FIT, Fits, Insufficient, Outcome
from fluxsched.sched.queue.orders import FIFO, key_of
from fluxsched.sched.queue.pending import Skips, Waiting

TELL_EVERY_S = 10.0
"""A job's owner hears of a changed reason or estimate no more often: estimates move with every end of a job.

What is kept back is told when the time is up, as it is by then (`Desk.retell`)."""

ESTIMATE_STEP_S = 1.0
"""A smaller change of an estimate is not worth a message."""


REASON_CHARS_MAX = 1000
"""Of what a policy says to a job's owner: it stands in a column of tables, and is kept for each job that waits."""


class Desk:
    """A lane of a group, pass after pass; `now_s` (wall time, seconds) is that of the last one.

    What has no underscore is the `View` that its policy gets. With `telling`, those who wait are told why.
    """

    __slots__ = (
        "_alone", "_counted", "_counts", "_group", "_lane", "_news", "_owed", "_plan", "_queue", "_stamp", "_telling",
        "now_s", "planned",
    )  # fmt: skip

    def __init__(self, group: Group, lane: Lane, counts: dict[str, int], telling: bool) -> None:
        self.now_s = 0.0
        self.planned: Mapping[int, Reservation] = lane.planned
        self._queue = lane.queue
        self._group = group
        self._lane = lane
        self._alone = len(group.lanes) == 1
        self._counts = counts
        self._telling = telling
        self._plan: CountedPlan | PoolPlan | None = None
        self._counted: CountedPlan | None = None  # used again and again
        self._stamp = group.stamp
        self._news = lane.news
        self._owed: list[tuple[float, int]] = []  # a heap: when what was kept back is due, and whose it is

    def decisions(self, now_s: float) -> Iterator[Decision]:
        """Begins a pass: what the policy decides, when it is asked for the next decision."""
        group, lane = self._group, self._lane
        self.now_s = now_s
        self._stamp = group.stamp
        self._news, lane.news = lane.news, None
        self.planned, lane.planned = lane.planned, {}
        self._plan = None
        if not self._alone and any(other.planned for other in group.lanes.values()):
            self._plan = self._make_plan()
        decisions = lane.policy.schedule(self, now_s)
        if not isinstance(decisions, Iterable):
            raise TypeError(f"schedule returned {decisions!r}: it should be a generator, which yields decisions")
        return decisions

    def end(self, done: bool) -> None:
        """The pass came to its end, or was dropped: then the reservations that it did not come to are kept."""
        lane = self._lane
        if isinstance(self._plan, PoolPlan):
            for each in self._group.lanes.values():
                each.planned = self._plan.as_kept(each.planned)
        if not done:
            left = {jobid: kept for jobid, kept in self.planned.items() if jobid in lane.queue}
            lane.planned = {**left, **lane.planned}
        elif self._alone and self._stamp == self._group.stamp:
            lane.passed(self._plan)

    # ---- what the policy sees

    @property
    def queue(self) -> Iterator[Waiting]:
        return iter(self._queue)

    @property
    def first(self) -> Waiting | None:
        return self._queue.first

    def candidates(self, skips: Skips, order: str = FIFO) -> Iterator[Waiting | None]:
        self._lane.order = order
        return self._queue.walk(skips, order, self.now_s)

    def late(self, order: str = FIFO) -> list[Waiting] | None:
        news = self._news
        if news is None:
            return None
        self._lane.order = order
        plan = self._lane.plan
        if plan is not None:
            if not plan.renew(self.now_s):
                return None
            if isinstance(plan, CountedPlan) and not self._lane.countable(self._group.running):
                return None
        self._plan = plan
        self._lane.planned = dict(self.planned)
        return news if order == FIFO or len(news) < 2 else sorted(news, key=key_of(order, self.now_s))

    @property
    def plan(self) -> CountedPlan | PoolPlan:
        if self._plan is None:
            self._plan = self._make_plan()
        return self._plan

    def place(self, job: Waiting, placement: str = WORST_FIT) -> Outcome:
        outcome = place_now(self._group.pool, job.request, placement)
        if self._plan is None or not isinstance(outcome, Fits):
            return outcome
        return self._plan.place(job, placement) or Insufficient(self._in_the_way(job))

    def find(self, job: Waiting, placement: str = WORST_FIT) -> Fits | None:
        if self._plan is None:
            return find_fit(self._group.pool, job.request, placement)
        return self._plan.place(job, placement)

    def reason(self, job: Waiting) -> Callable[[], str]:
        return partial(self._reason, job)

    @property
    def running(self) -> Iterator[Running]:
        return map(_seen, self._group.holdings())

    @property
    def by_end(self) -> Iterator[Running]:
        return (_seen(holding) for _, holding in self._group.running.by_end())

    # ---- within

    def _reason(self, job: Waiting) -> str:
        outcome = place_now(self._group.pool, job.request, BEST_FIT)
        return self._in_the_way(job) if isinstance(outcome, Fits) else outcome.why

    def _in_the_way(self, job: Waiting) -> str:
        """Why a job does not start though it fits: somebody else has a reservation."""
        lanes = self._group.lanes.values()
        planned = [kept for lane in lanes for kept in lane.planned.values() if kept.jobid != job.jobid]
        kept = [kept for kept in planned if kept.start_s < inf]
        if not kept:
            return "fits now, but jobs ahead of it wait"
        first = min(kept, key=lambda kept: kept.start_s)
        name, in_s = format_f58(first.jobid), max(0.0, first.start_s - self.now_s)
        return f"fits now, but not for as long as it may run: job {name} is to start in {format_duration(in_s)}"

    def _make_plan(self) -> CountedPlan | PoolPlan:
        """A plan that has what other lanes have planned; what of that holds no more is for them to plan again."""
        group = self._group
        running, lanes, last_s = group.running, group.lanes.values(), group.expiration_s or inf
        plan: CountedPlan | PoolPlan
        if not running.uniform or [lane for lane in lanes if not lane.countable(running)]:
            plan = PoolPlan(group.pool, running, self.now_s, last_s)
        elif self._counted is None:
            plan = self._counted = CountedPlan(group.pool, running, self.now_s, last_s)
        else:
            plan = self._counted.anew(self.now_s, last_s)
        others = [] if self._alone else [lane for lane in lanes if lane.planned and lane is not self._lane]
        for lane in others:
            for kept in sorted(lane.planned.values(), key=lambda kept: kept.start_s):
                job = lane.queue.get(kept.jobid)
                if job is not None and kept.start_s < inf:
                    plan.keep(job, kept)
        return plan

    # ---- what becomes of decisions

    def apply(self, decision: Decision) -> Effect | None:
        """Makes one decision real; None when it was refused or changes nothing that anybody hears of."""
        match decision:
            case Start():
                return self._start(decision)
            case Reserve(reservation, reason):
                if reservation.jobid not in self._queue.entries:
                    return None
                self._lane.planned[reservation.jobid] = reservation
                return self._tell(reservation.jobid, reason, reservation.start_s)
            case Pending(jobid, reason):
                return self._tell(jobid, reason, None) if jobid in self._queue.entries else None
            case Deny(jobid, note):
                if not self._group.forget(jobid, self._lane):
                    return None
                self._counts["denied"] += 1
                return Denied(jobid, note[:REASON_CHARS_MAX])
            case Pause():
                return PAUSED
            case _:
                raise TypeError(f"it yielded {short(decision)}: a policy yields Start, Pending, Deny, Reserve or Pause")

    def _start(self, start: Start) -> Granted | None:
        group, lane, now_s = self._group, self._lane, self.now_s
        entry = self._queue.entries.get(start.jobid)
        if entry is None:
            return None
        if not isinstance(start.fit, Fits):
            raise TypeError(f"it started job {start.jobid} with {type(start.fit).__name__}: only a Fits can start")
        job: Waiting = entry[3]
        end_s = group.expiration_s
        if job.duration_s:
            own_s = now_s + job.duration_s
            if own_s <= now_s:
                own_s = nextafter(now_s, inf)  # later than now, however short the job is
            end_s = min(own_s, end_s) if end_s else own_s
        reserved = start.jobid in self.planned or start.jobid in lane.planned
        holding = group.ledger.commit(start, self._queue, group.pool, end_s)
        if holding is None:
            return None
        lane.left(job, group.running)
        group.running.placed(holding)
        if self._plan is not None:
            self._plan.began(job, start.fit)
        self._counts["granted"] += 1
        told = group.forget_words(start.jobid)
        selection = RESERVED if reserved else start.selection
        taken_back = None if told is None else told.taken_back()
        return Granted(start.jobid, start.fit, now_s, end_s, group.pool.source, selection, taken_back)

    def _tell(self, jobid: int, reason: Reason, start_s: float | None) -> Annotated | None:
        group = self._group
        if isinstance(reason, str):
            reason = reason[:REASON_CHARS_MAX]
        group.reasons[jobid] = reason
        if not self._telling:
            return None
        estimate_s = None if start_s is None or start_s == inf else start_s
        told = group.told.get(jobid)
        if told is None:
            told = group.told[jobid] = Told()
        elif self.now_s < told.at_s + TELL_EVERY_S and (estimate_s is not None or told.estimate_s is None):
            if not told.owed:
                told.owed = True
                heappush(self._owed, (told.at_s + TELL_EVERY_S, jobid))
            return None  # but what cannot be promised any more is taken back at once
        told.owed = False
        notes: dict[str, Any] = {}
        text = reason if isinstance(reason, str) else reason()
        if text != told.reason:
            told.reason = notes["reason_pending"] = text
        if not _near(estimate_s, told.estimate_s):
            told.estimate_s = notes["t_estimate"] = estimate_s
        if not notes:
            return None
        told.at_s = self.now_s
        return Annotated(jobid, {"sched": notes})

    @property
    def retell_at_s(self) -> float:
        """When what was kept back is due (wall time, seconds); inf if nothing was."""
        return self._owed[0][0] if self._owed else inf

    def retell(self, now_s: float) -> Iterator[Effect]:
        """Between passes: tells what was kept back and is due, as it is by now; PAUSED where nothing is left to say.

        Who has left, is held or was told since is passed over. He was not looked for in the heap: it forgets everybody
        after TELL_EVERY_S.
        """
        self.now_s = now_s
        while self.retell_at_s <= now_s:
            _, jobid = heappop(self._owed)
            told, job = self._group.told.get(jobid), self._lane.queue.get(jobid)
            if told is not None and told.owed and job is not None and job.priority:
                kept = self._lane.planned.get(jobid)
                start_s = None if kept is None else kept.start_s
                yield self._tell(jobid, self._group.reasons[jobid], start_s) or PAUSED


def _near(one_s: float | None, other_s: float | None) -> bool:
    if one_s is None or other_s is None:
        return one_s is other_s
    return abs(one_s - other_s) < ESTIMATE_STEP_S


def _seen(holding: Holding) -> Running:
    return Running(holding.jobid, holding.expiration_s, MappingProxyType(holding.parts))
