"""What a policy may yield: a closed set.

Law: the engine makes each decision real, or refuses it, before it asks for the next (law 2). A reason may be a text, or
a function that makes one: it is called only when the owner is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.sched.pool.placement import Fits

IMMEDIATE: Final = "immediate"
"""It was first in order, and it fitted (annotation `sched.selection_type`)."""

RESERVED: Final = "reserved"
"""It starts where a reservation had been made for it."""

BACKFILLED: Final = "backfilled"
"""It overtook waiting jobs without delaying those with a reservation."""

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
    """The job can never run here; `note` says why."""

    jobid: int
    note: str


class Reservation(NamedTuple):
    """A job is to start at `start_s` (`inf`: it is not known when) and to end by `end_s`; wall time, seconds.

    `fit` says where, if it matters where; `cores` how many it takes at least.
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
