"""States of jobs (RFC 21), and the table of events: where each is allowed and where it leads; attempts, annotations.

Laws: the table is the only place that knows; a test walks it over all states and events, diagrams are printed from it.
Each attempt of a job that is submitted again is a job of its own, since RFC 21 leads from
CLEANUP only to INACTIVE. Both logs name the other: the `clean` event of the job that ended the next attempt, the
`submit` event of that one the job that it continues; so every chain can be followed after a restart, in both
directions. A dictionary of annotations (RFC 27, Alloc Annotate) once handed out never changes; an update makes a new
one along the changed path, so the `alloc` event may carry the job's dictionary without a copy.

Effects of the job manager: plain values that the shell performs in the order of the list.

Law: *at once* may be done before the store has committed, *after commit* must wait for the Persist of the same list.
Structs without garbage collection: a job makes a dozen of them, and a named tuple costs four times as much.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.idset import Idset
from fluxsched.errors import InvalidTransition, InvalidValue, LimitExceeded
from fluxsched.protocol.messages.jobs import (
    AllocRequest,
    ExpirationRequest,
    FreeRequest,
    PrioritizeRequest,
    SchedCancelRequest,
)


class State(IntEnum):
    """A job's state (RFC 21). The values are single bits, as Flux has them, so that sets of states are plain ints."""

    NEW = 1
    DEPEND = 2
    PRIORITY = 4
    SCHED = 8
    RUN = 16
    CLEANUP = 32
    INACTIVE = 64


# Bound once: attribute access on an enum class costs more than the whole table look-up.
NEW, DEPEND, PRIORITY, SCHED, RUN, CLEANUP, INACTIVE = State

PENDING: Final = DEPEND | PRIORITY | SCHED
RUNNING: Final = RUN | CLEANUP
ACTIVE: Final = PENDING | RUNNING
VIRTUAL_STATES: Final[Mapping[str, int]] = {"PENDING": PENDING, "RUNNING": RUNNING, "ACTIVE": ACTIVE}
"""RFC 21's names for unions of states."""

FATAL: Final = "exception(0)"
"""The table's name for an `exception` event of severity 0: it moves the job, the others do not."""

_ALWAYS = {"exception", "flux-restart", "memo"}


def _row(state: State, stays: set[str], **leads: State) -> dict[str, State]:
    """One row: events that leave the job where it is, and (with `_` for `-`) those that move it."""
    row = dict.fromkeys(sorted(stays | _ALWAYS), state)
    return row | {FATAL: CLEANUP} | {name.replace("_", "-"): target for name, target in leads.items()}


_PENDING_STAYS = {"urgency", "jobspec-update"}

PROLOG_START: Final = "prolog-start"
PROLOG_FINISH: Final = "prolog-finish"
EPILOG_START: Final = "epilog-start"
EPILOG_FINISH: Final = "epilog-finish"
"""Events about the programs that run before a job's tasks, and after them (RFC 21)."""

_PROLOG, _EPILOG = {PROLOG_START, PROLOG_FINISH}, {EPILOG_START, EPILOG_FINISH}

TRANSITIONS: Final[Mapping[State, Mapping[str, State]]] = {
    NEW: {"submit": NEW, "validate": DEPEND},
    DEPEND: _row(DEPEND, _PENDING_STAYS | {"dependency-add", "dependency-remove"}, depend=PRIORITY),
    PRIORITY: _row(PRIORITY, _PENDING_STAYS, priority=SCHED),
    # after a restart the priority is given anew (as in Flux), so the eventlog shows that the job waits on
    SCHED: _row(SCHED, _PENDING_STAYS | {"priority"}, alloc=RUN, flux_restart=PRIORITY),
    # an elastic job grows, shrinks and has left targets while it runs on
    RUN: _row(RUN, {"start", "resource-update", "grow", "shrink", "release"} | _PROLOG, finish=CLEANUP),
    # start and finish of a job that an exception overtook arrive here, and the end of its prolog
    CLEANUP: _row(CLEANUP, {"start", "finish", "release", "free"} | _PROLOG | _EPILOG, clean=INACTIVE),
    INACTIVE: {},
}
"""State x event -> state. Events that no row names (RFC 21: `debug.*`, ...) change nothing in any state."""

EVENTS: Final = frozenset(name for row in TRANSITIONS.values() for name in row)


def step(state: State, event: str) -> State:
    """Return the state that `event` leads to from `state`. Raises InvalidTransition if the table does not list it."""
    target = TRANSITIONS[state].get(event)
    if target is not None:
        return target
    if event not in EVENTS:
        return state
    allowed = ", ".join(TRANSITIONS[state]) or "none"
    raise InvalidTransition(f"event {event} in state {state.name}: allowed there: {allowed} (RFC 21)")


def state_mask(names: tuple[str, ...]) -> int:
    """Return the union of states named, in any case, by RFC 21 names and virtual names; unknown names raise
    KeyError.
    """
    mask = 0
    for name in names:
        upper = name.upper()
        mask |= VIRTUAL_STATES[upper] if upper in VIRTUAL_STATES else State[upper]
    return mask


# ---- attempts of a job

PREEMPT: Final = "preempt"
"""The type of the exception by which a scheduler ends a running job for the sake of another."""

CANCEL: Final = "cancel"
"""The type of the exception by which its user ends a job: then it is not submitted again."""

RETURN: Final = "return"
"""The type of the exception of a job that was not begun where it was to run: it is submitted again, at no cost."""

PROLOG: Final = "prolog"
"""The type of the exception of a job before whose tasks a program of the site has failed: it is submitted again, at no
cost, `PROLOG_RETRIES` times at most.
"""

PROLOG_RETRIES: Final = 2
"""A second host may be as faulty as the first one; a third says that it is the job, or the program."""

NODE_FAILURE: Final = "node-failure"
"""The type of the exception of a job that has lost targets, as Flux calls it: a host, or all that left its group."""

EXEC: Final = "exec"
"""The type of the exception of a job that could not run, or ran other than it should."""

REQUEUE: Final = "requeue"
"""The type of the exception by which its user has a running job wait again, at no cost; and the key of other attempts
in the context of `submit` and `clean`.
"""


class Attempt(NamedTuple):
    """Number of a further attempt of a job, with the attempt before it.

    It is the attempt after the job `of`, the `number`th after the first, which was submitted at `t_first` (seconds
    since the epoch).
    """

    of: int
    number: int
    t_first: float
    prologs: int = 0
    """Number of attempts before it whose prolog failed."""


def submit_context(attempt: Attempt) -> dict[str, Any]:
    """Return the part of a `submit` event's context that only a further attempt has."""
    found: dict[str, Any] = {"of": attempt.of, "attempt": attempt.number, "t_first": attempt.t_first}
    return {REQUEUE: found | {"prologs": attempt.prologs} if attempt.prologs else found}


def clean_context(next_id: int) -> dict[str, Any]:
    """Return the context of the `clean` event of a job that is submitted again."""
    return {REQUEUE: {"as": next_id}}


def read_attempt(context: Mapping[str, Any]) -> Attempt:
    """Read the attempt in the context of a `submit` event that has one. Raise KeyError, TypeError or ValueError."""
    found = context[REQUEUE]
    return Attempt(int(found["of"]), int(found["attempt"]), float(found["t_first"]), int(found.get("prologs", 0)))


def read_next(event: Mapping[str, Any]) -> int:
    """Return the id of the next attempt that a `clean` event names, 0 if none. Raises KeyError, TypeError or
    ValueError.
    """
    found = (event.get("context") or {}).get(REQUEUE)
    return 0 if found is None else int(found["as"])


# ---- annotations

USER: Final = "user"
"""Users' memos are below this key; schedulers use `sched`."""

DEPTH_MAX = 8
"""Levels of dictionaries: `sched.*` and `user.*` need two; the merge recurses, so it is bounded."""

KEYS_MAX = 64
"""Keys a level: a listing shows a handful, and every pending job may carry them in memory."""

MEMO_CHARS_MAX = 4096
"""A memo as JSON: it is stored and listed with its job; an instance's addresses take some 200."""


def with_memo(annotations: dict[str, Any] | None, memo: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations with a memo, below `user`. Raises LimitExceeded, InvalidValue for an empty one."""
    size = len(json.dumps(memo))
    if size > MEMO_CHARS_MAX:
        raise LimitExceeded(f"a memo of {size} characters is above the limit of {MEMO_CHARS_MAX}: shorten it")
    if not memo:
        raise InvalidValue("an empty memo: give KEY=VALUE")
    return merge(annotations or {}, {USER: dict(memo)})


def said_by_users(annotations: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the memos among annotations: what remains of them when the job's scheduler is lost."""
    memos = (annotations or {}).get(USER)
    return None if memos is None else {USER: memos}


def merge(old: dict[str, Any], update: dict[str, Any], depth: int = 1) -> dict[str, Any]:
    """`old` after `update`: null removes a key, dictionaries merge, everything else replaces.

    A dictionary that is new is merged into an empty one, so its nulls are gone too; without nulls it is used as it is,
    since jobs may share it. Raises LimitExceeded.
    """
    if depth > DEPTH_MAX:
        raise LimitExceeded(f"annotations nest deeper than {DEPTH_MAX} levels: flatten them")
    merged = dict(old)
    is_new = not old
    for key, value in update.items():
        if value is None:
            merged.pop(key, None)
            is_new = False
        elif isinstance(value, dict):  # which is what messages have; asking for any Mapping takes ten times as long
            before = merged.get(key)
            merged[key] = below = merge(before if isinstance(before, dict) else {}, value, depth + 1)
            is_new = is_new and below is value
        else:
            merged[key] = value
    if len(merged) > KEYS_MAX:
        raise LimitExceeded(f"annotations would have {len(merged)} keys on one level, limit {KEYS_MAX}: remove some")
    return update if is_new else merged


# ---- effects

Event = dict[str, Any]
"""An RFC 18 event: timestamp, name, context?."""


class Persist(msgspec.Struct, gc=False):
    """Store one stretch of a job's life as one row; publish its events to watchers after commit.

    The list of events never changes, for jobs that log the same now share it. `jobspec` comes with the `submit` event
    only, `R` with `alloc` only. The last event is `clean` when the job ended.
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
