"""Effects of the job manager: plain values that the shell performs in the order of the list.

Law: *at once* may be done before the store has committed, *after commit* must wait for the Persist of the same list.
Structs without garbage collection: a job makes a dozen of them, and a named tuple costs four times as much.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.protocol.messages.sched import (
    AllocRequest,
    ExpirationRequest,
    FreeRequest,
    PrioritizeRequest,
    SchedCancelRequest,
)

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


class ToScheduler(msgspec.Struct, frozen=True, gc=False):
    """Send a request (RFC 27) to a scheduler, at once.

    The resources of a free are already gone from the job manager's record; an alloc request counts as outstanding until
    it is answered, also when it is canceled; the answer about an expiration goes to `expiration_answered`.
    """

    scheduler: Hashable
    message: AllocRequest | FreeRequest | SchedCancelRequest | PrioritizeRequest | ExpirationRequest


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
    | ToScheduler
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
