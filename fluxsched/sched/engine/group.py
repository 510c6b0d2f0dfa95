"""One acquired group as the scheduler sees it: its pool, its lanes of waiting jobs, and what these have been told.

Law: nothing is judged before the first grow (RFC 28 draft); from then on every job of a lane is feasible, and the
others are set aside or have been denied. A verdict is worked out once a request and generation, since it does not
depend on the weather (law 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LimitExceeded, RemoteProtocolError
from fluxsched.sched.decisions import Reason
from fluxsched.sched.effects import Annotated, Denied
from fluxsched.sched.engine.policy_queue import Lane
from fluxsched.sched.engine.set_aside import WAIT, Aside, TimeText, utc_text
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import shortage
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.pending import Waiting

if TYPE_CHECKING:
    from fluxsched.sched.policy import Policy

REQUESTS_MAX = 4096
"""Requests that are remembered with their verdicts; some hundred bytes each."""


class Told:
    """What the owner of a waiting job has heard, and when (wall time, seconds); `owed` if something was kept back."""

    __slots__ = ("at_s", "estimate_s", "owed", "reason")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.reason: str | None = None
        self.estimate_s: float | None = None
        self.owed = False

    def taken_back(self) -> dict[str, None]:
        """The annotations that no longer hold once the job has started."""
        notes = {} if self.reason is None else {"reason_pending": None}
        return notes if self.estimate_s is None else {**notes, "t_estimate": None}


class _Judged:
    """The first of equal requests and its verdict as of a generation of the pool; `asked` is one of the others.

    `have` is how many nodes (or slots) could hold it, `had` the same when it last was feasible.
    """

    __slots__ = ("asked", "generation", "had", "have", "request", "why")

    def __init__(self, request: Request) -> None:
        self.request = self.asked = request
        self.generation = -1
        self.have: int | None = None
        self.had: int | None = None
        self.why: str | None = None


class Group:
    """`leaving` are targets shrunk and not yet released; `changed` tells that a pass may decide something new, `stamp`
    counts events.

    `lanes` are its queues that have a policy of their own, by name, in the order in which they are served, then the one
    for all others, by the empty name. `aside` are the jobs of all of them that are set aside, by id; `short_since_s` is
    when the group last lost something, or became known (wall time, seconds). `tells` if owners are told.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        ledger: Ledger,
        policies: Sequence[tuple[str, Policy]],
        unsatisfiable: str = WAIT,
        tells: bool = True,
        time_text: TimeText = utc_text,
    ) -> None:
        self.name = name
        self.pool = pool
        self.lanes = {queue: Lane(queue, policy) for queue, policy in policies}
        self.running = RunningJobs(pool, ledger)
        self.grown = False
        self.leaving = EMPTY
        self.expiration_s = 0.0
        self.changed = False
        self.stamp = 0
        self.reasons: dict[int, Reason] = {}
        self.told: dict[int, Told] = {}
        self.ledger = ledger
        self.aside: dict[int, Aside] = {}
        for lane in self.lanes.values():
            lane.aside = self.aside
        self.short_since_s = inf
        self._patient = unsatisfiable == WAIT
        self._tells = tells
        self.time_text = time_text
        self._judged: dict[Request, _Judged] = {}
        self._by_id: dict[int, _Judged] = {}

    def stir(self) -> None:
        """Something has happened after which everyone who waits is to be looked at."""
        self.changed = True
        self.stamp += 1
        for lane in self.lanes.values():
            lane.news = None

    # ---- targets

    def grow(self, resources: ResourceSet, online: Idset, now_s: float = 0.0) -> None:
        """Counts targets that join at `now_s`. Raises RemoteProtocolError if some are leaving and were not released."""
        if early := resources.ranks & self.leaving:
            raise RemoteProtocolError(f"grow of group {self.name!r} names ranks {early}, which are not released yet")
        self.pool.add(resources, online)
        self.expiration_s = resources.expiration_s if resources.ranks or not self.grown else self.expiration_s
        if not self.grown:
            self.grown, self.short_since_s = True, now_s
        self.stir()
        self.ledger.count_in(resources.ranks)
        self.running.changed(resources.ranks)

    def shrink(self, targets: Idset, now_s: float = 0.0) -> None:
        """Forgets targets, at `now_s`. Raises RemoteProtocolError, and changes nothing, if some are not ours."""
        if unknown := targets - self.pool.ranks:
            raise RemoteProtocolError(f"shrink of group {self.name!r} names ranks {unknown}, which it does not have")
        self._remember(now_s)
        self.pool.remove(targets)
        self.running.changed(targets)
        self.stir()

    def weather(self, targets: Idset, up: bool) -> None:
        """Targets of this group may be used again, or may not; what is planned moves."""
        touched = targets & self.pool.down if up else (targets & self.pool.ranks) - self.pool.down
        if touched:
            (self.pool.set_up if up else self.pool.set_down)(touched)
            self.running.changed(touched)
            self.stir()

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset], now_s: float = 0.0) -> None:
        """Takes over properties that changed at `now_s`."""
        self._remember(now_s)
        self.pool.describe(add, remove)
        self.running.changed(EMPTY)
        self.stir()

    # ---- jobs that wait

    def lane_of(self, jobid: int) -> Lane | None:
        """Where the job waits."""
        for lane in self.lanes.values():
            if jobid in lane.queue.entries:
                return lane
        return None

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return sum([len(lane.queue) for lane in self.lanes.values()]) + len(self.aside)

    def enter(self, job: Waiting, queue: str | None) -> Lane:
        """A job joins the lane of its queue. Raises LimitExceeded when that is full."""
        lane = self._lane_for(queue)
        lane.enter(job, self.running)
        self.changed = True
        self.stamp += 1
        return lane

    def _lane_for(self, queue: str | None) -> Lane:
        """The lane of a queue: its own, else the one for all others."""
        return self.lanes.get(queue or "") or self.lanes[""]

    def forget(self, jobid: int, lane: Lane) -> bool:
        """Takes a job off a lane; whether it was there."""
        job = lane.queue.remove(jobid)
        self.forget_words(jobid)
        if job is not None:
            lane.left(job, self.running)
        return job is not None

    def forget_words(self, jobid: int) -> Told | None:
        """The job waits no longer: what its owner has heard."""
        self.reasons.pop(jobid, None)
        return self.told.pop(jobid, None)

    def judge(self, request: Request) -> tuple[Request, str | None]:
        """The request, as the same object for equal ones, and why it can never fit here.

        None if it can, or before the first grow.
        """
        known = self._by_id.get(id(request))
        if known is None or known.asked is not request:
            known = self._by_id[id(request)] = self._judged_like(request)
        if known.generation != self.pool.generation and self.grown:
            if known.why is None and known.generation >= 0:
                known.had = known.have
            known.generation = self.pool.generation
            known.have, known.why = shortage(self.pool, known.request)
        return known.request, known.why

    def _judged_like(self, request: Request) -> _Judged:
        """What is known of an equal request. Who asks again with the same object is spared the comparison."""
        if len(self._judged) >= REQUESTS_MAX or len(self._by_id) >= REQUESTS_MAX:
            self._judged.clear()
            self._by_id.clear()
        known = self._judged.get(request)
        if known is None:
            known = self._judged[request] = _Judged(request)
        known.asked = request
        return known

    def _remember(self, now_s: float) -> None:
        """Something may be lost now: what there was of all that is waited for is worked out before it is."""
        self.short_since_s = now_s
        for lane in self.lanes.values() if self._patient and self.grown else ():
            for request, _ in lane.queue.requests():
                self.judge(request)

    def judge_all(self, now_s: float = 0.0, first: bool = False) -> list[Denied | Annotated]:
        """Judges all who wait again at `now_s`, held jobs too, after targets or properties have changed.

        Who was set aside and fits is back; what has become infeasible is set aside, or denied. With the `first` targets
        nobody has been judged before.
        """
        found = self._judge_aside()
        for lane in self.lanes.values():
            if all(self.judge(request)[1] is None for request, _ in lane.queue.requests()):
                continue
            for job in lane.queue.everyone():
                _, why = self.judge(job.request)
                if why is None:
                    continue
                if self._patient and not (first and self.refuses(job.t_submit_s, False)):
                    found += self._set_aside(job, lane, why, now_s, lost=not first)
                else:
                    self.forget(job.jobid, lane)
                    found.append(Denied(job.jobid, why))
        return found

    # ---- jobs that were accepted and do not fit any more

    def refuses(self, t_submit_s: float, asks_to_wait: bool) -> bool:
        """Whether an infeasible job is new, so that it is denied; else it was accepted (see `set_aside`)."""
        return not self._patient or not (asks_to_wait or t_submit_s < self.short_since_s)

    def put_aside(self, job: Waiting, queue: str | None, why: str) -> list[Denied | Annotated]:
        """A job that arrives infeasible, and was accepted before."""
        aside = self.aside[job.jobid] = Aside(job, self._lane_for(queue), why, self.short_since_s, False, None)
        return self._tell_aside(aside)

    def _set_aside(self, job: Waiting, lane: Lane, why: str, now_s: float, lost: bool) -> list[Denied | Annotated]:
        lane.queue.remove(job.jobid)
        lane.left(job, self.running)
        self.reasons.pop(job.jobid, None)
        had = self._by_id[id(job.request)].had
        aside = self.aside[job.jobid] = Aside(job, lane, why, now_s, lost, had)
        return self._tell_aside(aside)

    def _tell_aside(self, aside: Aside) -> list[Denied | Annotated]:
        """What is missing goes to the owner at once: it is no estimate that moves."""
        if not self._tells:
            return []
        told = self.told.setdefault(aside.job.jobid, Told())
        told.reason, told.owed = aside.reason(self.time_text), False
        taken_back = {} if told.estimate_s is None else {"t_estimate": None}
        told.estimate_s = None
        return [Annotated(aside.job.jobid, {"sched": {"reason_pending": told.reason, **taken_back}})]

    def _judge_aside(self) -> list[Denied | Annotated]:
        found: list[Denied | Annotated] = []
        for jobid, aside in list(self.aside.items()):
            _, why = self.judge(aside.job.request)
            if why is not None:
                if why != aside.why:
                    aside.why = why
                    found += self._tell_aside(aside)
                continue
            try:
                aside.lane.enter(aside.job, self.running)
            except LimitExceeded:  # the queue is full meanwhile: it is judged again with the next change
                continue
            del self.aside[jobid]
            told = self.forget_words(jobid)
            if told is not None:
                found.append(Annotated(jobid, {"sched": told.taken_back()}))
        return found

    def why_aside(self, jobid: int) -> str | None:
        """What is missing for a job that is set aside, and since when; None for any other."""
        aside = self.aside.get(jobid)
        return None if aside is None else aside.reason(self.time_text)

    def withdraw(self, jobid: int) -> bool:
        """The job wants nothing any more, wherever it waits; whether it was there."""
        if self.aside.pop(jobid, None) is not None:
            self.forget_words(jobid)
            return True
        lane = self.lane_of(jobid)
        if lane is None or not self.forget(jobid, lane):
            return False
        self.stir()
        return True

    def prioritize(self, jobid: int, priority: int) -> None:
        """A new priority for a job, if it waits here."""
        aside = self.aside.get(jobid)
        if aside is not None:
            aside.job = aside.job._replace(priority=priority)
            return
        for lane in self.lanes.values():
            if lane.queue.prioritize(jobid, priority):
                self.stir()

    # ---- jobs that run

    def freed(self, jobid: int) -> None:
        """The job has given back a part of what it holds, or all."""
        self.running.freed(jobid)
        self.stir()

    def holdings(self) -> Iterator[Holding]:
        """Jobs that hold something that is counted here, in the order in which they began."""
        pool = self.pool
        return (holding for holding in self.ledger if any(rank in pool for rank in holding.parts))
