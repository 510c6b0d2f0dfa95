"""Container states of pending asks: why each waits, on change, each looked at every LOOK_S at most.

Law: what is looked at in one turn is bounded, so that many asks that wait cost a turn no more than few.
"""

from __future__ import annotations

from math import inf
from typing import Final

from fluxsched.adapters.si.machine.answers.observations import FAILED, RESERVED, SKIPPED
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.tables.entries import AskEntry
from fluxsched.sched.engine import why as lacking
from fluxsched.sched.engine.why import Lacking

LOOK_S: Final = 10.0
"""Interval at which the state of an ask is examined (seconds)."""

LOOKS_MAX = 100
"""Asks looked at in one turn; some microseconds each."""

_STATES: Final = {
    lacking.NODE: FAILED,
    lacking.QUEUE: SKIPPED,
    lacking.LIMIT: SKIPPED,
    lacking.GATE: SKIPPED,
    lacking.RESERVED: RESERVED,
}


class ContainerStates:
    """Goes round the pending asks of a manager, new ones first."""

    __slots__ = ("_bookings", "_round", "_start_s")

    def __init__(self, bookings: Bookings) -> None:
        self._bookings = bookings
        self._round: list[AskEntry] = []
        self._start_s = 0.0

    def look(self, now_s: float) -> None:
        """Tells what has changed, after a pass."""
        bookings = self._bookings
        if not bookings.observed.on:
            return
        if not self._round and now_s >= self._start_s + LOOK_S:
            self._start_s = now_s
            for partition in bookings.partitions.values():
                self._round += [ask for each in partition.applications.values() for ask in each.asks.values()]
            self._round.reverse()
        looked = 0
        for asks in (bookings.fresh, self._round):
            while asks and looked < LOOKS_MAX:
                looked += 1
                self._look_at(asks.pop(), now_s)

    @property
    def next_s(self) -> float:
        """Return the time at which more states are to be examined."""
        bookings = self._bookings
        if not bookings.observed.on:
            return inf
        if self._round or bookings.fresh:
            return 0.0
        waiting = any(partition.asks or partition.absent for partition in bookings.partitions.values())
        return self._start_s + LOOK_S if waiting else inf

    def _look_at(self, ask: AskEntry, now_s: float) -> None:
        application = ask.application
        if application.asks.get(ask.key) is not ask or not ask.queued or (ask.told_s and now_s < ask.told_s + LOOK_S):
            return
        if ask.jobids:
            lacks = application.partition.scheduler.why_waiting(ask.jobids[0])
            found = (0, "") if lacks is None else (_STATES[lacks.kind], self._text(lacks))
        else:
            found = FAILED, f"required node {ask.required_node!r} is not known"
        if found[0] and found != ask.told:
            ask.told, ask.told_s = found, now_s
            self._bookings.observed.state(application.application_id, ask.key, *found)

    def _text(self, lacks: Lacking) -> str:
        """A resource manager knows nodes by their ids."""
        if lacks.rank is None:
            return lacks.text
        return f"node {self._bookings.node_of(lacks.rank)} is kept for it, where not enough is free yet"
