"""Effects of the job manager: plain values that the shell performs in the order of the list.

Law: *at once* may be done before the store has committed, *after commit* must wait for the Persist of the same list.
Structs without garbage collection: a job makes a dozen of them, and a named tuple costs four times as much.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from fluxsched.core.idset import Idset

Event = dict[str, Any]
"""An RFC 18 event: timestamp, name, context?."""


class Persist(msgspec.Struct, frozen=True, gc=False):
    """Store one stretch of a job's life as one row; publish its events to watchers after commit.

    `jobspec` comes with the `submit` event only, `R` with `alloc` only. The last event is `clean` when the job ended.
    """

    jobid: int
    events: list[Event]
    jobspec: dict[str, Any] | None = None
    R: dict[str, Any] | None = None


class SchedAlloc(msgspec.Struct, frozen=True, gc=False):
    """Send sched.alloc (RFC 27), at once; the jobspec has no environment."""

    scheduler: Hashable
    jobid: int
    priority: int
    userid: int
    t_submit: float
    jobspec: dict[str, Any]


class SchedFree(msgspec.Struct, frozen=True, gc=False):
    """Send sched.free (RFC 27), at once: the cores are already gone from the job manager's record."""

    scheduler: Hashable
    jobid: int
    R: dict[str, Any]
    final: bool


class SchedCancel(msgspec.Struct, frozen=True, gc=False):
    """Send sched.cancel (RFC 27), at once; the request counts as outstanding until it is answered."""

    scheduler: Hashable
    jobid: int


class SchedPrioritize(msgspec.Struct, frozen=True, gc=False):
    """Send sched.prioritize (RFC 27), at once: pairs of job id and priority."""

    scheduler: Hashable
    jobs: list[tuple[int, int]]


class SchedExpiration(msgspec.Struct, frozen=True, gc=False):
    """Send sched.expiration (RFC 27), at once; the answer goes to `expiration_answered`. 0 means no end."""

    scheduler: Hashable
    jobid: int
    expiration_s: float


class StartShells(msgspec.Struct, frozen=True, gc=False):
    """Start the job's shells, after commit, on this R: by then the job may have grown by more, which is not stored."""

    jobid: int
    R: dict[str, Any]


class GrowShells(msgspec.Struct, frozen=True, gc=False):
    """Start further tasks of a running job, after commit: on the targets of this R, which are new to it."""

    jobid: int
    R: dict[str, Any]


class ShrinkShells(msgspec.Struct, frozen=True, gc=False):
    """End the job's tasks on these targets, after commit and after what started them; the executor escalates on its own
    and reports each target once nothing of the job is left there.
    """

    jobid: int
    ranks: Idset
    why: str


class Kill(msgspec.Struct, frozen=True, gc=False):
    """Signal the job's processes, after commit and after the job's StartShells; the executor escalates on its own.

    `preempted`: with the grace time of preempted jobs.
    """

    jobid: int
    signum: int
    why: str
    preempted: bool = False


class TargetsGranted(msgspec.Struct, frozen=True, gc=False):
    """The job now holds these targets; to be reported to the resource module at once."""

    jobid: int
    ranks: Idset


class TargetsFreed(msgspec.Struct, frozen=True, gc=False):
    """The job no longer holds these targets; to be reported to the resource module after commit."""

    jobid: int
    ranks: Idset


class UpdateDone(msgspec.Struct, frozen=True, gc=False):
    """Answer the job-manager.update request for this job, after commit: `error` is None on success."""

    jobid: int
    error: str | None


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Call `due` at this wall time; an earlier wish for another time stays valid."""

    at_s: float


class SaveQueue(msgspec.Struct, frozen=True, gc=False):
    """Store the state of a queue, to be given to `QueueControl.restore` after a restart."""

    name: str | None
    state: dict[str, Any]


Effect = (
    Persist
    | SchedAlloc
    | SchedFree
    | SchedCancel
    | SchedPrioritize
    | SchedExpiration
    | StartShells
    | GrowShells
    | ShrinkShells
    | Kill
    | TargetsGranted
    | TargetsFreed
    | UpdateDone
    | WakeAt
    | SaveQueue
)
