"""The resource journal (RFC 44): every event once, a bounded history, and the outbox that all concerns write to.

Law: what is dropped from the history leaves a `truncate` event in its place, first, with the timestamp of the newest
event that was dropped. Events of our own beside RFC 44's: `join`, `lost`, `assign` (asked for), `release` (targets have
left `from` and are in `group`, or in none), `property-add`, `property-remove`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from fluxsched.resource.effects import Journal, JournalEvent, ResourceEffect, Save, Table

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
        """Add any other effect."""
        self._effects.append(effect)

    def take(self) -> list[ResourceEffect]:
        """All effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects

    def _remember(self, event: JournalEvent) -> None:
        if event["name"] == "truncate":  # a stored history that had been cut already
            self._dropped_s = event["timestamp"]
            return
        self._history.append(event)
        if len(self._history) > self._limit_events:
            self._dropped_s = self._history.popleft()["timestamp"]
