"""One acquired group as the scheduler sees it: its pool, its lanes of waiting jobs, and what these have been told.

Law: nothing is judged before the first grow (RFC 28 draft); from then on every waiting job is feasible, or has been
denied. A verdict is worked out once a request and generation, since it does not depend on the weather (law 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.decisions import Reason
from fluxsched.sched.effects import Denied
from fluxsched.sched.lane import Lane
from fluxsched.sched.ledger import Holding, Ledger
from fluxsched.sched.placing import infeasible
from fluxsched.sched.pool import Pool
from fluxsched.sched.queue import Waiting
from fluxsched.sched.running import RunningJobs

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
    """The first of equal requests and its verdict as of a generation of the pool; `asked` is one of the others."""

    __slots__ = ("asked", "generation", "request", "why")

    def __init__(self, request: Request) -> None:
        self.request = self.asked = request
        self.generation = -1
        self.why: str | None = None


class Group:
    """`leaving` are targets shrunk and not yet released; `changed` tells that a pass may decide something new, `stamp`
    counts events.

    `lanes` are its queues that have a policy of their own, by name, in the order in which they are served, then the one
    for all others, by the empty name.
    """

    def __init__(self, name: str, pool: Pool, ledger: Ledger, policies: Sequence[tuple[str, Policy]]) -> None:
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
        self._judged: dict[Request, _Judged] = {}
        self._by_id: dict[int, _Judged] = {}

    def stir(self) -> None:
        """Something has happened after which everyone who waits is to be looked at."""
        self.changed = True
        self.stamp += 1
        for lane in self.lanes.values():
            lane.news = None

    # ---- targets

    def grow(self, resources: ResourceSet, online: Idset) -> None:
        """Counts new targets. Raises RemoteProtocolError if some are leaving and were not released."""
        if early := resources.ranks & self.leaving:
            raise RemoteProtocolError(f"grow of group {self.name!r} names ranks {early}, which are not released yet")
        self.pool.add(resources, online)
        self.expiration_s = resources.expiration_s if resources.ranks or not self.grown else self.expiration_s
        self.grown = True
        self.stir()
        self.ledger.count_in(resources.ranks)
        self.running.changed(resources.ranks)

    def shrink(self, targets: Idset) -> None:
        """Forgets targets. Raises RemoteProtocolError, and changes nothing, if some are not ours."""
        if unknown := targets - self.pool.ranks:
            raise RemoteProtocolError(f"shrink of group {self.name!r} names ranks {unknown}, which it does not have")
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

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Takes over changed properties."""
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
        return sum([len(lane.queue) for lane in self.lanes.values()])

    def enter(self, job: Waiting, queue: str | None) -> Lane:
        """A job joins the lane of its queue. Raises LimitExceeded when that is full."""
        lane = self.lanes.get(queue or "") or self.lanes[""]
        lane.enter(job, self.running)
        self.changed = True
        self.stamp += 1
        return lane

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
            known.generation = self.pool.generation
            known.why = infeasible(self.pool, known.request)
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

    def judge_all(self) -> list[Denied]:
        """Judges all who wait again, held jobs too: what has become infeasible is denied."""
        denied = []
        for lane in self.lanes.values():
            for job in lane.queue.everyone():
                _, why = self.judge(job.request)
                if why is not None:
                    self.forget(job.jobid, lane)
                    denied.append(Denied(job.jobid, why))
        return denied

    # ---- jobs that run

    def freed(self, jobid: int) -> None:
        """The job has given back a part of what it holds, or all."""
        self.running.freed(jobid)
        self.stir()

    def holdings(self) -> Iterator[Holding]:
        """Jobs that hold something that is counted here, in the order in which they began."""
        pool = self.pool
        return (holding for holding in self.ledger if any(rank in pool for rank in holding.parts))
