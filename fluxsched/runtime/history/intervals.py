"""From when until when targets could not be used, in rows of targets that changed together.

Law: each target that is in such a state is in one open row, which has its state and note; rows change only when states
do. What a kill leaves open is continued if it is still so, else it ended when the instance was seen last: while none
runs no state is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.protocol.messages.history import USABLE
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.storage.usage import DAY

INTERVALS_AGE_MAX_S = 731 * DAY
"""Rows that ended longer ago are removed."""
INTERVALS_MAX = 200_000
"""So are the oldest, if there are more: 20 MiB."""
GATHER_S: Final = 1.0
"""Changes within this time are looked at together (seconds); they count from the first."""

Condition = tuple[str, str]
"""A state and its note."""
Conditions = Mapping[Condition, Idset]


class OpenInterval(NamedTuple):
    """A row that lasts."""

    id: int
    targets: Idset
    began_s: float


class StateIntervals:
    """From `start` on; `look` gives the targets in each condition that is to be kept."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Conditions]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._open: dict[Condition, list[OpenInterval]] = {}
        self._last_id = 0
        self._timer: Timer | None = None
        self._changed_s = 0.0
        self.waits_for_jobs = False
        """Whether the end of a job may be a change: some target is draining."""

    def start(self) -> None:
        """Take up what is open; what is no longer so ended when the last instance was seen."""
        now_s = self._turns.wall_s
        ((self._last_id,),) = self._store.read("SELECT coalesce(max(id), 0) FROM interval")
        ((seen_s,),) = self._store.read("SELECT max(seen) FROM run")
        rows = self._store.read("SELECT id, targets, state, note, began FROM interval WHERE ended IS NULL")
        for number, targets, state, note, began_s in rows:
            self._open.setdefault((state, note), []).append(OpenInterval(number, Idset.parse(targets), began_s))
        self._follow(now_s, min(now_s, seen_s or now_s))

    def note_change(self) -> None:
        """Some target may have come into another state."""
        if self._timer is None or self._timer.call is None:
            self._changed_s = self._turns.wall_s
            self._timer = self._turns.after(GATHER_S, lambda: self._follow(self._changed_s, self._changed_s))

    def age(self, now_s: float) -> None:
        """Remove what is too old, or too much."""
        self._store.remove("interval", (now_s - INTERVALS_AGE_MAX_S, self._last_id - INTERVALS_MAX))

    def _follow(self, now_s: float, ended_s: float) -> None:
        """Have the rows say what is so now: what is new began at `now_s`, what is over ended at `ended_s`."""
        found = {condition: targets for condition, targets in self._look().items() if targets}
        for condition, rows in [*self._open.items()]:
            there = found.get(condition, EMPTY)
            self._open[condition] = [kept for row in rows if (kept := self._keep(condition, row, there, ended_s))]
        for condition, targets in found.items():
            rows = self._open.setdefault(condition, [])
            new = targets
            for row in rows:
                new -= row.targets
            if new:
                self._last_id += 1
                rows.append(OpenInterval(self._last_id, new, now_s))
                self._put(condition, rows[-1], None)
        self._open = {condition: rows for condition, rows in self._open.items() if rows}
        self.waits_for_jobs = any(state == "draining" for state, _ in self._open)

    def _keep(self, condition: Condition, row: OpenInterval, there: Idset, ended_s: float) -> OpenInterval | None:
        """What lasts of an open row; the rest is over."""
        gone = row.targets - there
        if not gone:
            return row
        ended_s = max(row.began_s, ended_s)
        if gone == row.targets:
            self._put(condition, row, ended_s)
            return None
        self._last_id += 1
        self._put(condition, OpenInterval(self._last_id, gone, row.began_s), ended_s)
        kept = row._replace(targets=row.targets - gone)
        self._put(condition, kept, None)
        return kept

    def _put(self, condition: Condition, row: OpenInterval, ended_s: float | None) -> None:
        self._store.add("interval", (row.id, str(row.targets), *condition, row.began_s, ended_s))


def conditions(states: Mapping[str, Idset], drains: Iterable[tuple[Idset, Any]]) -> Conditions:
    """The conditions that are kept: all states but those in which jobs may be put on a target; drains by reason."""
    found = {(state, ""): ranks for state, ranks in states.items() if state not in USABLE}
    for ranks, line in drains:
        condition = (line.state, line.reason)
        there = ranks & states[line.state]
        if line.reason and there:
            found[line.state, ""] -= there
            found[condition] = found.get(condition, EMPTY) | there
    return found

