"""The resource module's end of one acquire stream (RFC 28): changes in, responses out, in either dialect.

Law: what happened is told in order. Only online and offline merge, never across a grow or shrink; a target that
flipped and flipped back is not mentioned; grow and shrink are never cancelled or overtaken, and a grow states the
availability of the moment it is sent. Between two of them the order is: grow, offline, online, updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import STREAMING, Message
from fluxsched.protocol.messages.acquire import (
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    Grow,
    Offline,
    Online,
    Shrink,
    Update,
)
from fluxsched.protocol.messages.common import Payload
from fluxsched.protocol.sessions.machine import step

PENDING_CHANGES_MAX = 1024
"""Changes of one stream that wait to be taken. They are taken every turn: this many means that nobody takes them."""


class AcquireState(Enum):
    """Where a stream stands."""

    WAITING = "acquired, first response not given yet"
    STREAMING = "changes follow"
    CLOSED = "cancelled, disconnected or failed"


_CLOSED_ROW = {"close": AcquireState.CLOSED}
TYPED = {
    AcquireState.WAITING: {"first": AcquireState.STREAMING, **_CLOSED_ROW},
    AcquireState.STREAMING: {
        "grow": AcquireState.STREAMING,
        "shrink": AcquireState.STREAMING,
        "availability": AcquireState.STREAMING,
        "update": AcquireState.STREAMING,
        **_CLOSED_ROW,
    },
    AcquireState.CLOSED: _CLOSED_ROW,
}
"""The typed dialect (RFC 28 draft)."""

PLAIN = {
    **TYPED,
    AcquireState.STREAMING: {
        event: after for event, after in TYPED[AcquireState.STREAMING].items() if event != "grow"
    },
}
"""The plain dialect (today's RFC 28): it has no grow after the first response."""


def read_acquire(message: Message, decode: Callable[[bytes | None, Any], Any] = codec.unpack) -> AcquireRequest:
    """The request in a `resource.acquire` message; no payload or `{}` is the plain dialect.

    Raises RemoteProtocolError for a wrong shape, a payload without `group`, or a missing streaming flag (RFC 6).
    """
    if not message.flags & STREAMING:
        raise RemoteProtocolError("resource.acquire without the streaming flag: its responses are a stream, set it")
    keys = decode(message.payload, dict[str, Any])
    if not keys:
        return AcquireRequest()
    request: AcquireRequest = decode(message.payload, AcquireRequest)
    if request.group is None:
        raise RemoteProtocolError(
            f"resource.acquire with {', '.join(sorted(keys)):.80} but without `group`: name the group, "
            "or send no payload for the plain dialect"
        )
    return request


class AcquireServer:
    """One stream. Tell it what happens, `take` what must be sent. Misuse is a bug of ours: LocalProtocolError."""

    def __init__(self, typed: bool, accept_update: bool) -> None:
        self.typed = typed
        self.accept_update = accept_update or not typed
        self.state = AcquireState.WAITING
        self._targets = EMPTY
        self._up = EMPTY  # as of now
        self._said = EMPTY  # as of the last response made; the difference is the next offline and online
        self._made: list[Payload] = []
        self._fresh: dict[str, Any] | None = None  # resources of a grow that is not made yet ...
        self._fresh_targets = EMPTY  # ... and its targets
        self._updates: list[Payload] = []

    @property
    def targets(self) -> Idset:
        """What the stream holds: grown and not shrunk."""
        return self._targets

    @property
    def pending(self) -> bool:
        """Whether `take` has something to send."""
        return bool(self._made or self._updates or self._fresh is not None or self._said != self._up)

    def first(self, resources: dict[str, Any], online: Idset, offline: Idset) -> None:
        """All that the group owns. `online` and `offline` share out the targets of `resources`."""
        self._join("first", resources, online, offline)

    def grow(self, resources: dict[str, Any], online: Idset, offline: Idset) -> None:
        """More targets (typed only); none of them may be held already. Raises LimitExceeded."""
        self._join("grow", resources, online, offline)

    def shrink(self, targets: Idset) -> None:
        """Targets leave; nothing more is said about them. Raises LimitExceeded."""
        self._need_held(targets, "shrink")
        self._step("shrink")
        self._make()
        text = str(targets)
        self._made.append(Shrink(text) if self.typed else AcquireChange(shrink=text, down=text))
        self._targets -= targets
        self._up -= targets
        self._said -= targets

    def availability(self, online: Idset, offline: Idset) -> None:
        """Targets that are usable now, and targets that are not."""
        self._need_held(online | offline, "availability")
        self._need_apart(online, offline)
        self._step("availability")
        self._up = (self._up | online) - offline
        fresh = self._fresh_targets  # what the waiting grow will say by itself is not news
        self._said = (self._said - fresh) | (self._up & fresh)

    def update(
        self,
        expiration: float | None = None,
        property_add: Mapping[str, Idset] | None = None,
        property_remove: Mapping[str, Idset] | None = None,
    ) -> None:
        """R changes. Dropped when the acquirer does not accept updates. Raises LimitExceeded."""
        self._step("update")
        added, removed = _texts(property_add), _texts(property_remove)
        if not self.accept_update or (expiration is None and added is None and removed is None):
            return
        kind = Update if self.typed else AcquireChange
        self._updates.append(kind(expiration=expiration, property_add=added, property_remove=removed))

    def take(self) -> list[Payload]:
        """The responses to send now, in order; they are forgotten here."""
        if self.state is AcquireState.CLOSED:
            return []
        self._make()
        made, self._made = self._made, []
        return made

    def close(self) -> None:
        """The stream is over: nothing more will be sent. May come in every state."""
        self._step("close")
        self._made, self._updates, self._fresh = [], [], None
        self._targets = self._up = self._said = self._fresh_targets = EMPTY

    def _join(self, event: str, resources: dict[str, Any], online: Idset, offline: Idset) -> None:
        self._need_apart(online, offline)
        targets = online | offline
        if not targets.isdisjoint(self._targets):
            raise LocalProtocolError(f"{event} of targets {targets & self._targets}, which the stream holds already")
        self._step(event)
        self._make()
        self._fresh, self._fresh_targets = resources, targets
        self._targets |= targets
        self._up |= online
        self._said |= online

    def _make(self) -> None:
        """Turn what could still merge into responses: behind them comes something that it must not cross."""
        if self._fresh is not None:
            self._made.append(self._grown(self._fresh, self._fresh_targets))
            self._fresh, self._fresh_targets = None, EMPTY
        if self._said != self._up:
            self._made += self._difference(self._up - self._said, self._said - self._up)
            self._said = self._up
        self._made += self._updates
        self._updates = []

    def _grown(self, resources: dict[str, Any], targets: Idset) -> Payload:
        online = self._said & targets
        if self.typed:
            return Grow(resources, str(online), str(targets - online))
        return AcquireFirst(resources, str(online))

    def _difference(self, online: Idset, offline: Idset) -> list[Payload]:
        up, down = str(online), str(offline)
        if not self.typed:
            return [AcquireChange(up=up or None, down=down or None)]
        said: list[Payload] = [Offline(down)] if down else []
        return [*said, Online(up)] if up else said

    def _step(self, event: str) -> None:
        waiting = len(self._made) + len(self._updates)
        if event != "close" and waiting >= PENDING_CHANGES_MAX:
            raise LimitExceeded(
                f"{waiting} changes wait in one acquire stream, limit {PENDING_CHANGES_MAX}: "
                "its peer does not read; end the stream"
            )
        self.state = step(TYPED if self.typed else PLAIN, self.state, event)

    def _need_held(self, targets: Idset, event: str) -> None:
        if not targets <= self._targets:
            raise LocalProtocolError(f"{event} of targets {targets - self._targets}, which the stream does not hold")

    def _need_apart(self, online: Idset, offline: Idset) -> None:
        if not online.isdisjoint(offline):
            raise LocalProtocolError(f"targets {online & offline} are given as online and as offline")


def _texts(properties: Mapping[str, Idset] | None) -> dict[str, str] | None:
    return {name: str(targets) for name, targets in properties.items()} if properties else None
