"""Our pool for Flux's own schedulers: `flux module load sched-backfill pool-class=fluxsched.flux.broker.pool`.

Law: who holds what is in a `Ledger`. Flux's schedulers copy the pool in every pass, to look ahead, so a copy costs next
to nothing: it is a log of changes, tried on the pool itself as a what-if, which is undone before the pool is used. A
copy of an older state has nothing free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import InvalidValue, RemoteProtocolError
from fluxsched.sched.decisions import grant, grouped
from fluxsched.sched.ledger import JobAllocation, Ledger
from fluxsched.sched.pool.find_fit import WhatIf, infeasible, place_now
from fluxsched.sched.pool.placement import WORST_FIT, Blocks, Fits, Infeasible, Insufficient, Shape, Shapes, blocks_in
from fluxsched.sched.pool.pool import Pool


class PoolErrors:
    """Exceptions to raise for `not now` and `never`: Flux's own, which only its own files can name."""

    def __init__(self, insufficient: Callable[[str], Exception], infeasible: Callable[[str], Exception]) -> None:
        self.insufficient = insufficient
        self.infeasible = infeasible


class JobRequest:
    """Request of a job, with the names by which Flux's schedulers use its parts."""

    def __init__(self, jobspec: Mapping[str, Any], shapes: Shapes) -> None:
        parsed = Jobspec.for_scheduler(jobspec)
        self.jobspec = jobspec
        self.shape: Shape = shapes.of(parsed.request)
        self.duration = parsed.duration_s


class AllocatedR:
    """Resources that one job got, as R; the caller sets its times before R is read."""

    def __init__(self, fit: Fits, source: ResourceSet) -> None:
        self._fit = fit
        self._source = source
        self._times = (0.0, 0.0)

    def set_starttime(self, starttime_s: float) -> None:
        """Set the start (wall time, seconds)."""
        self._times = (starttime_s, self._times[1])

    def set_expiration(self, expiration_s: float) -> None:
        """Wall time, seconds; 0.0 for none."""
        self._times = (self._times[0], expiration_s)

    def dumps(self) -> str:
        """Return a summary such as `rank0/core[0-1]`."""
        return self._built.summary()

    def to_dict(self) -> dict[str, Any]:
        """Return R as RFC 20 object."""
        return self._built.to_json()

    @property
    def _built(self) -> ResourceSet:
        return grant(self._fit, self._source, *self._times)


class PoolCopy:
    """A pool as it was, to look ahead on: alloc and free here change nothing there."""

    def __init__(self, base: JobPool, jobs: dict[int, JobAllocation], log: list[tuple[bool, Blocks]]) -> None:
        self.generation = base.generation
        self.log = log
        """Allocations (True) and releases since the copy was made, in order."""
        self._base = base
        self._jobs = jobs

    def copy(self) -> PoolCopy:
        """Return a copy of the copy."""
        return PoolCopy(self._base, dict(self._jobs), list(self.log))

    def job_end_times(self) -> list[tuple[int, float]]:
        """Each job with its end (wall time, seconds)."""
        return [(job.jobid, job.expiration_s) for job in self._jobs.values()]

    def update_expiration(self, jobid: int, expiration_s: float) -> None:
        """Record that a job ends at another time."""
        job = self._jobs.get(jobid)
        if job is not None:
            self._jobs[jobid] = JobAllocation(jobid, job.blocks, expiration_s)

    def alloc(self, jobid: int, request: JobRequest) -> AllocatedR:
        """Allocate as the pool does, in the copy."""
        if self._base.generation != self.generation:
            raise self._base.errors.insufficient("the pool has changed since it was copied")
        what_if = self._base.open(self)
        fit = self._base.fit(request)
        what_if.take(fit.blocks)
        self.log.append((True, fit.blocks))
        self._jobs[jobid] = JobAllocation(jobid, fit.blocks, self._base.end_s(request))
        return AllocatedR(fit, self._base.pool.source)

    def free(self, jobid: int, R: object = None, final: bool = False) -> None:  # noqa: N803
        """Free the resources of a job that ends."""
        job = self._jobs.pop(jobid, None)
        if job is not None and self._base.generation == self.generation:
            self._base.open(self).give(job.blocks)
            self.log.append((False, job.blocks))


class JobPool:
    """Implementation for Flux's `ResourcePool`, on our `Pool` and `Ledger`."""

    name = "FluxschedPool"
    version = 1
    known_options = frozenset({"placement"})

    def __init__(
        self,
        R: Mapping[str, Any],  # noqa: N803
        errors: PoolErrors,
        now_s: Callable[[], float],
        placement: str = WORST_FIT,
    ) -> None:
        resources = ResourceSet.parse(R)
        self.errors = errors
        self.pool = Pool()
        self.pool.add(resources, resources.ranks)
        self.ledger = Ledger([self.pool])
        self.generation = 0
        self._R = resources
        self._expiration_s = resources.expiration_s
        self._now_s = now_s
        self._placement = placement
        self._shapes = Shapes()
        self._open: tuple[PoolCopy, WhatIf] | None = None
        self._undo = ExitStack()

    # ---- copies

    def copy(self) -> PoolCopy:
        """Return a copy to look ahead on."""
        return PoolCopy(self, dict(self.ledger.allocations), [])

    def open(self, copy: PoolCopy) -> WhatIf:
        """Have the pool be as in a copy, until another one is opened or `close`."""
        if self._open is not None and self._open[0] is copy:
            return self._open[1]
        self.close()
        what_if = self._undo.enter_context(WhatIf(self.pool))
        for took, blocks in copy.log:
            (what_if.take if took else what_if.give)(blocks)
        self._open = copy, what_if
        return what_if

    def close(self) -> None:
        """Have the pool be as it is."""
        self._undo.close()
        self._open = None

    def _changing(self) -> None:
        self.close()
        self.generation += 1

    # ---- targets

    def mark_up(self, ids: str) -> None:
        """Mark targets that may be used."""
        self._changing()
        self.pool.set_up(self._ids(ids))

    def mark_down(self, ids: str) -> None:
        """Targets may not be used."""
        self._changing()
        self.pool.set_down(self._ids(ids))

    def remove_ranks(self, ranks: object) -> None:
        """Targets are gone; what jobs hold there is still freed by them."""
        self._changing()
        gone = self._ids(str(ranks))
        self.pool.remove(gone)
        self.ledger.count_out(gone)
        self._R = self._R.without(gone)

    def _ids(self, ids: str) -> Idset:
        return self.pool.ranks if ids == "all" else self.pool.ranks & Idset.parse(ids)

    def get_expiration(self) -> float:
        """Return the end of the resources (wall time, seconds; 0.0: never)."""
        return self._expiration_s

    def set_expiration(self, expiration_s: float) -> None:
        """Set another end of the resources."""
        self._expiration_s = expiration_s

    # ---- jobs

    def parse_resource_request(self, jobspec: Mapping[str, Any]) -> JobRequest:
        """Return the request as `alloc` takes it."""
        return JobRequest(jobspec, self._shapes)

    def check_feasibility(self, request: JobRequest) -> None:
        """Raise when it can never fit."""
        self.close()
        why = infeasible(self.pool, request.shape.request)
        if why is not None:
            raise self.errors.infeasible(why)

    def fit(self, request: JobRequest) -> Fits:
        """Return the placement of the request on the pool as it is, or as in the copy that is open.

        Raises for not now and for never.
        """
        match place_now(self.pool, request.shape, self._placement):
            case Fits() as fit:
                return fit
            case Insufficient(why):
                raise self.errors.insufficient(why)
            case Infeasible(why):
                raise self.errors.infeasible(f"unsatisfiable request: {why}")

    def end_s(self, request: JobRequest) -> float:
        """Return the end of the job if it starts now."""
        return self._now_s() + request.duration if request.duration else self._expiration_s

    def alloc(self, jobid: int, request: JobRequest) -> AllocatedR:
        """Give the job what it asks for. Raises for not now and for never.

        sched-backfill grants a job twice when jobs come in a burst: it then holds both, until it is freed.
        """
        self.close()
        fit, end_s = self.fit(request), self.end_s(request)
        self._changing()
        before = self.ledger.get(jobid)
        if before is None:
            self.ledger.take(jobid, fit.blocks, self.pool, end_s)
        else:
            self.ledger.release_all(jobid)
            self.ledger.adopt(jobid, before.blocks + fit.blocks, end_s)
        return AllocatedR(fit, self.pool.source)

    def register_alloc(self, jobid: int, R: Any) -> None:  # noqa: N803
        """Enter a job that runs already. Raise InvalidValue for ranks that are not here, and for what is held
        already.
        """
        resources = ResourceSet.parse(R.to_dict())
        if unknown := resources.ranks - self.pool.ranks:
            raise InvalidValue(f"ranks {unknown} are not among the resources")
        self._changing()
        try:
            self.ledger.adopt(jobid, blocks_in(resources), resources.expiration_s)
        except RemoteProtocolError as fault:
            raise InvalidValue(str(fault)) from fault

    def free(self, jobid: int, R: Any = None, final: bool = False) -> None:  # noqa: N803
        """Free R of a job, or, without one and when it is final, all that it holds.

        Raises InvalidValue for what it does not hold. Of a job that was granted twice Flux knows the first grant only,
        so the final free is the one that returns both.
        """
        self.close()
        if R is not None:
            try:
                self.ledger.release(jobid, blocks_in(ResourceSet.parse(R.to_dict())), final=False)
            except RemoteProtocolError as fault:
                raise InvalidValue(str(fault)) from fault
        if (R is None or final) and jobid in self.ledger:
            self.ledger.release_all(jobid)
        self.generation += 1

    def update_expiration(self, jobid: int, expiration_s: float) -> None:
        """Record that a job ends at another time."""
        job = self.ledger.get(jobid)
        if job is not None:
            self.generation += 1
            job.expiration_s = expiration_s

    def job_end_times(self) -> list[tuple[int, float]]:
        """Each job with its end (wall time, seconds)."""
        return [(job.jobid, job.expiration_s) for job in self.ledger]

    # ---- for people

    def to_dict(self) -> dict[str, Any]:
        """All of it, as RFC 20 object."""
        return self._R.to_json()

    def allocated(self) -> dict[str, Any]:
        """Return the resources that jobs hold, as RFC 20 object."""
        held = EMPTY_R
        for job in self.ledger:
            held |= ResourceSet.build(grouped(job.blocks), self._R, 0.0, 0.0, None)
        return held.to_json()

    def down(self) -> dict[str, Any]:
        """Return the resources that may not be used, as RFC 20 object."""
        return self._R.restrict(self.pool.down).to_json()

    def dumps(self) -> str:
        """Return a summary such as `rank[0-3]/core[0-7]`."""
        return self._R.summary()
