"""Decisions that a policy may yield, and effects that the scheduler asks its shell to perform: two closed sets.

Law: the engine makes each decision real, or refuses it, before it asks for the next. A reason may be a text, or
a function that makes one: it is called only when the owner is notified. Effects are values, so that a test compares
lists; the answers to `sched.alloc` are RFC 27's four (success, annotate, deny, cancel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from fluxsched.core import topology
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import Children, ResourceSet, check_times
from fluxsched.sched.pool.placement import NO_TARGET, WORD_SHIFT, Block, Fits, UsualGrant, mask_of
from fluxsched.sched.pool.pool import Pool

IMMEDIATE: Final = "immediate"
"""The job was the first in order and fitted (annotation `sched.selection_type`)."""

RESERVED: Final = "reserved"
"""The job starts where a reservation had been made for it."""

BACKFILLED: Final = "backfilled"
"""The job overtook waiting jobs without delaying any job with a reservation."""

Reason: TypeAlias = str | Callable[[], str]


class Start(NamedTuple):
    """Grant `fit` to a waiting job, now. Refused if the job no longer waits or the fit no longer holds."""

    jobid: int
    fit: Fits
    selection: str = IMMEDIATE


class Pending(NamedTuple):
    """The job keeps waiting; `reason` is for its owner."""

    jobid: int
    reason: Reason


class Deny(NamedTuple):
    """Decision that the job can never run in this group; `note` says why."""

    jobid: int
    note: str


class Reservation(NamedTuple):
    """Reservation of a job from `start_s` (`inf`: unknown) to `end_s` at the latest; wall time, seconds.

    `fit` is its placement, if that matters; `cores` is the least number of cores that it takes.
    """

    jobid: int
    start_s: float
    end_s: float
    cores: int
    fit: Fits | None


class Reserve(NamedTuple):
    """The job keeps waiting and has a reservation: its owner is sent the estimated start, and no job may delay it."""

    reservation: Reservation
    reason: Reason


class Pause(NamedTuple):
    """No decision: a policy that has looked at many jobs without deciding anything lets other work be served."""


PAUSE: Final = Pause()


class Preempt(NamedTuple):
    """End a running job so that `for_jobid` can start; `reason` is for its owner.

    Refused if it does not hold anything here, was preempted before, or has not allowed it yet (`preemptible-after`).
    """

    jobid: int
    for_jobid: int
    reason: str


class Shrink(NamedTuple):
    """Have a running elastic job leave these targets, so that `for_jobid` can start there; `reason` is for its owner.

    Refused if the job is not elastic, does not hold all of them, is to leave one of them already, or is ending itself;
    or if a part of it would have less than its minimum, or no value of its range.
    """

    jobid: int
    ranks: Idset
    reason: str
    for_jobid: int = 0


class Grow(NamedTuple):
    """Give a running elastic job more targets, now: `fit` is that of the added targets alone.

    Refused if the job is not elastic, holds one of them already, or is ending; if not all of the fit is free, or it is
    not what a part of the job has on each of its targets; or if a part would have no value of its range.
    """

    jobid: int
    fit: Fits


class Wake(NamedTuple):
    """Another pass is needed at `at_s` (wall time, seconds) even if nothing happens until then."""

    at_s: float


class Withhold(NamedTuple):
    """Keep a target of amounts for a waiting job: no other one is placed there until it has started or gone.

    It ends when the target leaves or goes down, too, and after some minutes. Refused if the job does not wait, has a
    target already, or another job has that one; unless it `takes_over`, since others are preempted there for it.
    """

    jobid: int
    rank: int
    takes_over: bool = False


Decision: TypeAlias = Start | Pending | Deny | Reserve | Pause | Preempt | Shrink | Grow | Wake | Withhold


# ---- effects

CHILDREN_CACHED_MAX = 4096
"""Number of sets of cores and GPUs whose children are cached, since few sets recur; about 200 bytes each."""

GRANTS_CACHED_MAX = 1024
"""Number of grants of a pool whose R is cached; about 2 KiB each."""

NODE_FAILURE: Final = "node-failure"
PREEMPT: Final = "preempt"
"""Types of exceptions (RFC 21)."""


class TargetsGiven:
    """Effect that grants `fit` to a job: `R` is its RFC 20 object, made on first use, which the simulator never needs.

    It is made out of hosts and properties of the pool as they then are. Times are wall time in seconds, `expiration_s`
    0.0 for none.
    """

    __slots__ = ("_built", "_pool", "expiration_s", "fit", "jobid", "starttime_s")

    def __init__(self, jobid: int, fit: Fits, starttime_s: float, expiration_s: float, pool: Pool) -> None:
        self.jobid = jobid
        self.fit = fit
        self.starttime_s = starttime_s
        self.expiration_s = expiration_s
        self._pool = pool
        self._built: ResourceSet | None = None

    @property
    def resources(self) -> ResourceSet:
        """Return the resources granted to the job."""
        if self._built is None:
            self._built = grant(self.fit, self._pool.source, self.starttime_s, self.expiration_s)
        return self._built

    @property
    def R(self) -> dict[str, Any]:  # noqa: N802 - RFC 20's name
        """Return the granted resources as an RFC 20 object, which others may share a part of."""
        known = usual_grant(self.fit, self._pool)
        if known is None:
            return self.resources.to_json()
        check_times(self.starttime_s, self.expiration_s)
        times = {"starttime": float(self.starttime_s), "expiration": float(self.expiration_s)}
        return {**known.R, "execution": {**known.R["execution"], **times}}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TargetsGiven) and type(other) is type(self) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self.jobid)

    @property
    def _said(self) -> tuple[Any, ...]:
        return self.jobid, self.fit, self.starttime_s, self.expiration_s

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.jobid}, {self.resources.summary()})"


class Granted(TargetsGiven):
    """Answer success (RFC 27): `R` is what the job now holds. The summary in the annotations is made on first use,
    too.
    """

    __match_args__: ClassVar = ("jobid", "R", "annotations")
    __slots__ = ("_notes", "_taken_back", "selection")

    def __init__(
        self,
        jobid: int,
        fit: Fits,
        starttime_s: float,
        expiration_s: float,
        pool: Pool,
        selection: str,
        taken_back: Mapping[str, None] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self.jobid = jobid  # written out, since a call of the other constructor costs more, once a job
        self.fit = fit
        self.starttime_s = starttime_s
        self.expiration_s = expiration_s
        self._pool = pool
        self._built: ResourceSet | None = None
        self.selection = selection
        self._taken_back = taken_back
        self._notes = notes  # annotations of plugins

    @property
    def annotations(self) -> dict[str, Any]:
        """RFC 27's annotations of the job; null takes one back."""
        known = usual_grant(self.fit, self._pool)
        summary = self.resources.summary() if known is None else known.summary
        notes = {"resource_summary": summary, "selection_type": self.selection}
        return {**(self._notes or {}), "sched": {**notes, **(self._taken_back or {})}}

    @property
    def _said(self) -> tuple[Any, ...]:
        return self.jobid, self.fit, self.starttime_s, self.expiration_s, self.selection, self._taken_back, self._notes


class Grown(TargetsGiven):
    """A running elastic job gets more: `job-manager.sched-grow`. `R` has the added targets alone (RFC 20).

    Until `grow_stored` or `grow_failed` the job holds them here only.
    """

    __match_args__: ClassVar = ("jobid", "R")
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A running elastic job is to leave these targets: `job-manager.sched-shrink`.

    It holds each of them until that is freed, or until `shrink_failed`. They go so that `for_jobid` can start; 0 if
    they go for no job.
    """

    jobid: int
    ranks: Idset
    note: str
    for_jobid: int = 0


@dataclass(frozen=True, slots=True)
class Annotated:
    """Answer annotate (RFC 27): sent only when something changed."""

    jobid: int
    annotations: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Denied:
    """Answer deny (RFC 27): the request can never be granted; the job is off the queue."""

    jobid: int
    note: str


@dataclass(frozen=True, slots=True)
class Canceled:
    """Answer cancel (RFC 27): the job is off the queue and got nothing."""

    jobid: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give shrunk targets that no job of ours holds any more back: `resource.release` (RFC 28 draft)."""

    group: str
    targets: Idset


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise a fatal exception on a running job: `job-manager.raise`, severity 0.

    Of type NODE_FAILURE if it holds a part of shrunk `targets`, of type PREEMPT if its turn is over: `for_jobid` is to
    start.
    """

    jobid: int
    note: str
    type: str = NODE_FAILURE
    for_jobid: int | None = None
    targets: Idset | None = None


@dataclass(frozen=True, slots=True)
class PluginFailed:
    """A plugin has raised or answered what it may not: for the log; the job that it was asked about waits."""

    note: str


@dataclass(frozen=True, slots=True)
class DecisionRefused:
    """A decision of a policy was refused: what was wrong with it, for the log."""

    note: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Effect without a task: the rest of the pass may be continued after other work."""


PAUSED: Final = Paused()

Effect: TypeAlias = (
    Granted | Grown | Shrunk | Annotated | Denied | Canceled | Release | Raise | PluginFailed | DecisionRefused | Paused
)


# ---- from placements to R: once, at the end, out of the blocks of the job


@lru_cache(CHILDREN_CACHED_MAX)
def children(cores: int, gpus: int, amounts: Amounts = ()) -> Children:
    """Return cores and GPUs of one target (bit masks) and amounts as RFC 20 children."""
    return Children(Idset(cores), Idset(gpus), (), amounts)


def grouped(blocks: Iterable[Block]) -> list[tuple[Idset | int, Children]]:
    """Targets with equal children joined, as `ResourceSet.build` takes them."""
    by_ids: dict[tuple[int, int, Amounts], dict[int, int]] = {}
    for at, word, cores, gpus, amounts in blocks:
        if at != NO_TARGET:
            words = by_ids.setdefault((cores, gpus, amounts), {})
            words[at] = words.get(at, 0) | word
    return [(_ranks(words), children(*ids)) for ids, words in by_ids.items()]


def grant(fit: Fits, source: ResourceSet, starttime_s: float, expiration_s: float) -> ResourceSet:
    """Return the R of a grant (RFC 20): times in seconds since the epoch, expiration 0.0 for none."""
    request = fit.shape.request
    made = ResourceSet.build(grouped(fit.blocks), source, starttime_s, expiration_s, fit.nslots, request.shared)
    if request.elastic and source.topology:  # one of just one target may have more later
        made = made.with_topology(source.topology.restrict(made.nodelist.hosts))
    if not fit.by_part:
        return made
    parts = {part.label: ranks for part, ranks in zip(request.parts, fit.by_part, strict=True) if ranks}
    return replace(made, scheduling=topology.put_parts(made.scheduling, parts))


def usual_grant(fit: Fits, pool: Pool) -> UsualGrant | None:
    """Return what grants of the same cores of the same targets have in common: short jobs get these again and again.

    None for a grant that has more than blocks.
    """
    blocks, request = fit.blocks, fit.shape.request
    if len(blocks) != 1 or fit.by_part or request.elastic or request.shared:
        return None
    key, grants = (blocks, fit.nslots), pool.usual_grants
    known = grants.get(key)
    if known is None:
        made = grant(fit, pool.source, 0.0, 0.0)
        if len(grants) >= GRANTS_CACHED_MAX:
            grants.clear()
        known = grants[key] = UsualGrant(made.to_json(), made.summary())
    return known


def _ranks(words: dict[int, int]) -> Idset | int:
    """One rank as an int, which `build` takes at less cost, or the set."""
    if len(words) == 1:
        ((at, word),) = words.items()
        if not word & (word - 1):
            return at << WORD_SHIFT | word.bit_length() - 1
    return Idset(mask_of(words))
