"""Effects of the resource module, and the outbox that collects those of a call and keeps the journal (RFC 44).

Laws: an effect is data, which the shell performs in order. `Save` comes with the change that it makes durable; the
shell stores all of a turn before it answers any request. Nothing here knows how an acquirer is reached or where a row
is kept.

Each event is in the journal once. What is dropped from its history leaves a `truncate` event in its place, first, with
the timestamp of the newest event that was dropped. Events of our own beside RFC 44's: `join`, `lost`, `assign` (asked
for), `release` (targets have left `from` and are in `group`, or in none), `property-add`, `property-remove`,
`outage-add`, `outage-update`, `outage-remove` (planned or called off; that one begins or ends is a drain or undrain),
`drain-lift` (of one reason; the targets stay drained), `parts-drain` and `parts-undrain` (of some cores or GPUs of each
target).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from fluxsched.core.idset import Idset
from fluxsched.core.resources import GroupChange

Table: TypeAlias = Literal["drain", "assign", "group", "leaving", "property", "journal", "outage", "parts"]
"""`drain`, `parts`, `assign`, `leaving` and `property` are keyed by target (`host` or `host,index`), `group` and
`outage` by their names.
"""

StoredRow: TypeAlias = Mapping[str, Any]

JournalEvent: TypeAlias = dict[str, Any]
"""An RFC 18 event in object form: `timestamp` (seconds), `name` and, but for `truncate`, `context`."""


@dataclass(frozen=True, slots=True)
class ToAcquirer:
    """Tell the acquirer of `group` what changed; its first change is all that the group has."""

    acquirer: Hashable
    change: GroupChange
    group: str


@dataclass(frozen=True, slots=True)
class Journal:
    """Publish an event to the readers of the resource journal (RFC 44)."""

    event: JournalEvent


@dataclass(frozen=True, slots=True)
class Save:
    """Store a row, or delete it when `value` is None; on disk before the request that caused it is answered."""

    table: Table
    key: str
    value: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class RaiseJobs:
    """Raise a fatal exception on these jobs, each once: their targets are leaving and the acquirer is lost."""

    targets: Idset
    jobids: tuple[int, ...]
    note: str


@dataclass(frozen=True, slots=True)
class AcquisitionEnded:
    """The stream of this acquisition is over, with the errno and text of its last response."""

    acquirer: Hashable
    errnum: int
    text: str
    group: str


ResourceEffect: TypeAlias = ToAcquirer | Journal | Save | RaiseJobs | AcquisitionEnded


class Saved(NamedTuple):
    """A row as the store hands it back at a restart; `journal` rows come in the order of their events."""

    table: Table
    key: str
    value: Mapping[str, Any]


# ---- the outbox

HISTORY_EVENTS_MAX = 16_384
"""Events kept for those who start reading late: a few MiB, and weeks of a machine that is not on fire."""


class Outbox:
    """Collects the effects of one call and keeps the journal's history."""

    def __init__(self, history: Iterable[Mapping[str, Any]] = (), limit_events: int = HISTORY_EVENTS_MAX) -> None:
        self._effects: list[ResourceEffect] = []
        self._history: deque[JournalEvent] = deque()
        self._limit_events = limit_events
        self._dropped_s: float | None = None
        for event in history:
            self._remember(dict(event))

    @property
    def events(self) -> list[JournalEvent]:
        """The history, oldest first, behind a `truncate` event if something was dropped (RFC 44)."""
        if self._dropped_s is None:
            return list(self._history)
        return [{"timestamp": self._dropped_s, "name": "truncate"}, *self._history]

    def post(self, now_s: float, name: str, context: dict[str, Any]) -> None:
        """Record an event and have it published."""
        event: JournalEvent = {"timestamp": now_s, "name": name, "context": context}
        self._remember(event)
        self._effects.append(Journal(event))

    def save(self, table: Table, key: str, value: dict[str, Any] | None) -> None:
        """Have a row stored, or deleted."""
        self._effects.append(Save(table, key, value))

    def put(self, effect: ResourceEffect) -> None:
        self._effects.append(effect)

    def take_effects(self) -> list[ResourceEffect]:
        """Return all effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def _remember(self, event: JournalEvent) -> None:
        if event["name"] == "truncate":  # a stored history that had been cut already
            self._dropped_s = event["timestamp"]
            return
        self._history.append(event)
        if len(self._history) > self._limit_events:
            self._dropped_s = self._history.popleft()["timestamp"]
