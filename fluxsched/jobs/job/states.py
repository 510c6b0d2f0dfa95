"""RFC 21 states, and the table that says which event is allowed where and where it leads.

Law: the table is the only place that knows; a test walks it over all states and events, diagrams are printed from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from fluxsched.errors import InvalidTransition


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

TRANSITIONS: Final[Mapping[State, Mapping[str, State]]] = {
    NEW: {"submit": NEW, "validate": DEPEND},
    DEPEND: _row(DEPEND, _PENDING_STAYS | {"dependency-add", "dependency-remove"}, depend=PRIORITY),
    PRIORITY: _row(PRIORITY, _PENDING_STAYS, priority=SCHED),
    # after a restart the priority is given anew (as in Flux), so the eventlog shows that the job waits on
    SCHED: _row(SCHED, _PENDING_STAYS | {"priority"}, alloc=RUN, flux_restart=PRIORITY),
    # an elastic job grows, shrinks and has left targets while it runs on
    RUN: _row(RUN, {"start", "resource-update", "grow", "shrink", "release"}, finish=CLEANUP),
    # start and finish of a job that an exception overtook arrive here
    CLEANUP: _row(CLEANUP, {"start", "finish", "release", "free"}, clean=INACTIVE),
    INACTIVE: {},
}
"""State x event -> state. Events that no row names (RFC 21: `debug.*`, ...) change nothing in any state."""

EVENTS: Final = frozenset(name for row in TRANSITIONS.values() for name in row)


def step(state: State, event: str) -> State:
    """The state that `event` leads to from `state`. Raises InvalidTransition if the table does not list it."""
    target = TRANSITIONS[state].get(event)
    if target is not None:
        return target
    if event not in EVENTS:
        return state
    allowed = ", ".join(TRANSITIONS[state]) or "none"
    raise InvalidTransition(f"event {event} in state {state.name}: allowed there: {allowed} (RFC 21)")


def state_mask(names: tuple[str, ...]) -> int:
    """The union of states named, in any case, by RFC 21 names and virtual names; unknown names raise KeyError."""
    mask = 0
    for name in names:
        upper = name.upper()
        mask |= VIRTUAL_STATES[upper] if upper in VIRTUAL_STATES else State[upper]
    return mask
