"""Our pool for Flux's own schedulers: `flux module load sched-backfill pool-class=fluxsched.adapters.flux.broker.pool`.

Law: a copy costs nothing. It is a sketch on the same pool, a log of what was done there, which is undone before anybody
else looks; Flux's schedulers copy the pool in every pass, to look ahead. A sketch of an older state has no room left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sched.effects import grant, grouped
from fluxsched.sched.pool.place import infeasible, place_now
from fluxsched.sched.pool.placement import (
    WORST_FIT,
    Blocks,
    Fits,
    Infeasible,
    Insufficient,
    blocks_in,
    blocks_of,
    parts_in,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.shape import Shape

Job = tuple[float, Blocks]
"""When it ends (wall time, seconds; 0.0: nobody knows) and what it holds."""


class Errors:
    """What to raise for `not now` and `never`: Flux's exceptions, which only its own files can name."""

    def __init__(self, insufficient: Callable[[str], Exception], infeasible: Callable[[str], Exception]) -> None:
        self.insufficient = insufficient
        self.infeasible = infeasible


class Wanted:
    """A job's request, with the names by which Flux's schedulers ask for its parts."""

    def __init__(self, jobspec: Mapping[str, Any]) -> None:
        parsed = Jobspec.parse(jobspec)
        self.jobspec = jobspec
        self.shape = Shape(parsed.request)
        self.duration = parsed.duration_s


class Allocated:
    """What one job got, as R; the caller sets its times before it is asked for."""

    def __init__(self, fit: Fits, source: ResourceSet) -> None:
        self._fit = fit
        self._source = source
        self._times = (0.0, 0.0)

    def set_starttime(self, starttime_s: float) -> None:
        """Wall time, seconds."""
        self._times = (starttime_s, self._times[1])

    def set_expiration(self, expiration_s: float) -> None:
        """Wall time, seconds; 0.0 for none."""
        self._times = (self._times[0], expiration_s)

    def dumps(self) -> str:
        """`rank0/core[0-1]`."""
        return self._built.summary()

    def to_dict(self) -> dict[str, Any]:
        """The RFC 20 object."""
        return self._built.to_json()

    @property
    def _built(self) -> ResourceSet:
        return grant(self._fit, self._source, *self._times)


class Sketch:
    """A pool as it was, to try things on: alloc and free here leave no trace there."""

    def __init__(self, base: JobPool, jobs: Mapping[int, Job], log: list[tuple[bool, Blocks]]) -> None:
        self.jobs = dict(jobs)
        self.generation = base.generation
        self._base = base
        self._log = log

    def copy(self) -> Sketch:
        """A sketch of the sketch."""
        return Sketch(self._base, self.jobs, list(self._log))

    def job_end_times(self) -> list[tuple[int, float]]:
        """Each job with its end."""
        return [(jobid, end_s) for jobid, (end_s, _) in self.jobs.items()]

    def update_expiration(self, jobid: int, expiration_s: float) -> None:
        """A job ends at another time."""
        if jobid in self.jobs:
            self.jobs[jobid] = (expiration_s, self.jobs[jobid][1])

    def alloc(self, jobid: int, wanted: Wanted) -> Allocated:
        """As in the pool."""
        if self._base.generation != self.generation:
            raise self._base.errors.insufficient("the pool has changed since it was copied")
        self._base.enter(self)
        fit = self._base.fit(wanted)
        self._do(True, fit.blocks)
        self.jobs[jobid] = (self._base.end_s(wanted), fit.blocks)
        return Allocated(fit, self._base.pool.source)

    def free(self, jobid: int, R: object = None, final: bool = False) -> None:  # noqa: N803
        """A job ends."""
        _, blocks = self.jobs.pop(jobid, (0.0, ()))
        if self._base.generation == self.generation:
            self._base.enter(self)
            self._do(False, blocks)

    def _do(self, take: bool, blocks: Blocks) -> None:
        self._log.append((take, blocks))
        _apply(self._base.pool, take, blocks)

    def replay(self) -> None:
        """Do it all on the pool."""
        for take, blocks in self._log:
            _apply(self._base.pool, take, blocks)

    def undo(self) -> None:
        """Leave the pool as it was."""
        for take, blocks in reversed(self._log):
            _apply(self._base.pool, not take, blocks)


class JobPool:
    """What Flux's `ResourcePool` asks of an implementation, on our `Pool`."""

    name = "FluxschedPool"
    version = 1
    known_options = frozenset({"placement"})

    def __init__(self, R: Mapping[str, Any], errors: Errors, now_s: Callable[[], float], placement: str = WORST_FIT):  # noqa: N803
        resources = ResourceSet.parse(R)
        self.errors = errors
        self.pool = Pool()
        self.pool.add(resources, resources.ranks)
        self.jobs: dict[int, Job] = {}
        self.generation = 0
        self._R = resources
        self._expiration_s = resources.expiration_s
        self._now_s = now_s
        self._placement = placement
        self._sketch: Sketch | None = None

    # ---- sketches

    def copy(self) -> Sketch:
        """A copy to look ahead on."""
        return Sketch(self, self.jobs, [])

    def enter(self, sketch: Sketch | None) -> None:
        """From now on the pool is as this sketch has it; None: as it is."""
        if self._sketch is not sketch:
            if self._sketch is not None:
                self._sketch.undo()
            if sketch is not None:
                sketch.replay()
            self._sketch = sketch

    def _changing(self) -> None:
        self.enter(None)
        self.generation += 1

    # ---- targets

    def mark_up(self, ids: str) -> None:
        """Targets may be used."""
        self._changing()
        self.pool.set_up(self.pool.ranks & self._ids(ids))

    def mark_down(self, ids: str) -> None:
        """Targets may not be used."""
        self._changing()
        self.pool.set_down(self.pool.ranks & self._ids(ids))

    def remove_ranks(self, ranks: object) -> None:
        """Targets are gone."""
        self._changing()
        gone = Idset.parse(str(ranks)) & self.pool.ranks
        self.pool.remove(gone)
        self._R = self._R.without(gone)

    def _ids(self, ids: str) -> Idset:
        return self.pool.ranks if ids == "all" else Idset.parse(ids)

    def get_expiration(self) -> float:
        """When the resources end (wall time, seconds; 0.0: never)."""
        return self._expiration_s

    def set_expiration(self, expiration_s: float) -> None:
        """They end at another time."""
        self._expiration_s = expiration_s

    # ---- jobs

    def parse_resource_request(self, jobspec: Mapping[str, Any]) -> Wanted:
        """What `alloc` takes."""
        return Wanted(jobspec)

    def check_feasibility(self, wanted: Wanted) -> None:
        """Raises when it can never fit."""
        self.enter(None)
        why = infeasible(self.pool, wanted.shape.request)
        if why is not None:
            raise self.errors.infeasible(why)

    def fit(self, wanted: Wanted) -> Fits:
        """Where it fits on the pool as it is now. Raises for not now and for never."""
        match place_now(self.pool, wanted.shape, self._placement):
            case Fits() as fit:
                return fit
            case Insufficient(why):
                raise self.errors.insufficient(why)
            case Infeasible(why):
                raise self.errors.infeasible(f"unsatisfiable request: {why}")

    def end_s(self, wanted: Wanted) -> float:
        """When it ends if it starts now."""
        return self._now_s() + wanted.duration if wanted.duration else self._expiration_s

    def alloc(self, jobid: int, wanted: Wanted) -> Allocated:
        """Gives the job what it asks for. Raises for not now and for never."""
        self.enter(None)
        fit = self.fit(wanted)
        self._changing()
        self.pool.claim(fit.blocks)
        before = self.jobs.get(jobid, (0.0, ()))[1]  # not always nothing: see free
        self.jobs[jobid] = (self.end_s(wanted), before + fit.blocks)
        return Allocated(fit, self.pool.source)

    def register_alloc(self, jobid: int, R: Any) -> None:  # noqa: N803
        """A job that runs already. Raises InvalidValue for ranks that are not here."""
        resources = ResourceSet.parse(R.to_dict())
        if unknown := resources.ranks - self.pool.ranks:
            raise InvalidValue(f"ranks {unknown} are not among the resources")
        self._changing()
        blocks = blocks_in(resources)
        self.pool.claim(blocks)
        self.jobs[jobid] = (resources.expiration_s, blocks)

    def free(self, jobid: int, R: Any = None, final: bool = False) -> None:  # noqa: N803
        """A job gives back R, or, without one and when it is final, all that it holds.

        Raises InvalidValue for what it does not hold. sched-backfill grants a job twice when jobs come in a burst; Flux
        knows of the first grant only, so the final free is the one that returns both.
        """
        end_s, blocks = self.jobs.get(jobid, (0.0, ()))
        held = set(parts_in(blocks))
        given = held if R is None else set(parts_in(blocks_in(ResourceSet.parse(R.to_dict()))))
        if wrong := given - held:
            ranks = Idset.of([part.rank for part in wrong])
            raise InvalidValue(f"free of job {jobid}: what it says of ranks {ranks} is not what the job holds")
        freed = held if final else given
        self._changing()
        self.pool.give(blocks_of(freed))
        if left := blocks_of(held - freed):
            self.jobs[jobid] = (end_s, left)
        else:
            self.jobs.pop(jobid, None)

    def update_expiration(self, jobid: int, expiration_s: float) -> None:
        """A job ends at another time."""
        if jobid in self.jobs:
            self.generation += 1
            self.jobs[jobid] = (expiration_s, self.jobs[jobid][1])

    def job_end_times(self) -> list[tuple[int, float]]:
        """Each job with its end."""
        return [(jobid, end_s) for jobid, (end_s, _) in self.jobs.items()]

    # ---- for people

    def to_dict(self) -> dict[str, Any]:
        """All of it, as RFC 20 object."""
        return self._R.to_json()

    def allocated(self) -> dict[str, Any]:
        """What jobs hold, as RFC 20 object."""
        held = EMPTY_R
        for _, blocks in self.jobs.values():
            held |= ResourceSet.build(grouped(blocks), self._R, 0.0, 0.0, None)
        return held.to_json()

    def down(self) -> dict[str, Any]:
        """What may not be used, as RFC 20 object."""
        return self._R.restrict(self.pool.down).to_json()

    def dumps(self) -> str:
        """`rank[0-3]/core[0-7]`."""
        return self._R.summary()


def _apply(pool: Pool, take: bool, blocks: Blocks) -> None:
    (pool.claim if take else pool.give)(blocks)
