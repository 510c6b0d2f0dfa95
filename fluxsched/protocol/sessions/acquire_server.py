"""The resource module's end of one acquire stream (RFC 28): group changes in, merged for as long as they wait.

Law: changes are reported in order. Only online and offline merge, never across a grow or shrink; a target that changed
and changed back is not mentioned; grow and shrink are never cancelled or overtaken, and a grow states the availability
at the moment it is sent. Between two of them the order is: grow, offline and online, updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxsched.core.group_change import GroupChange, GroupState, difference
from fluxsched.core.idset import EMPTY
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import STREAMING, Message
from fluxsched.protocol.messages.acquire import AcquireRequest
from fluxsched.protocol.sessions.acquire_stream import PLAIN, TYPED, AcquireState, after_change
from fluxsched.protocol.sessions.machine import step

PENDING_CHANGES_MAX = 1024
"""Changes of one stream that wait to be taken. They are taken every turn: at this many, the peer does not read."""


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
    """One stream: `add` what changed, `take` what must be sent. Misuse is a bug of ours: LocalProtocolError."""

    def __init__(self, typed: bool, accept_update: bool) -> None:
        self.typed = typed
        self.state = AcquireState.WAITING
        self.targets = EMPTY
        """Targets in the stream: grown and not shrunk."""
        self._accept_update = accept_update or not typed
        self._online = EMPTY  # as of now
        self._reported = EMPTY  # as of the last change made; the difference is the next offline and online
        self._made: list[GroupChange] = []
        self._grow: ResourceSet | None = None  # not made yet: availability still merges into it
        self._is_incomplete = False  # that grow
        self._updates: list[GroupChange] = []

    @property
    def pending(self) -> bool:
        """Return whether `take` has something to send."""
        return bool(self._made or self._updates or self._grow is not None or self._reported != self._online)

    def add(self, change: GroupChange) -> None:
        """The group changed; the first change is all that it has. Updates are dropped if the peer accepts none.

        Raises LimitExceeded.
        """
        waiting = len(self._made) + len(self._updates)
        if waiting >= PENDING_CHANGES_MAX:
            raise LimitExceeded(
                f"{waiting} changes wait in one acquire stream, limit {PENDING_CHANGES_MAX}: "
                "its peer does not read; end the stream"
            )
        after = after_change(self.typed, self.state, change)
        self._check(change)
        self.state = after
        joined = change.joined
        if change.grow is not None:
            self._make()
            self._grow, self._is_incomplete = change.grow, change.incomplete
            self.targets |= joined
            self._reported |= change.online & joined
            self._online |= change.online & joined
        if change.shrink:
            self._make()
            self._made.append(GroupChange(shrink=change.shrink))
            self.targets -= change.shrink
            self._reported -= change.shrink
            self._online -= change.shrink
        self._online = (self._online | change.online) - change.offline
        if self._grow is not None:  # the waiting grow reports these itself
            fresh = self._grow.ranks
            self._reported = (self._reported - fresh) | (self._online & fresh)
        if change.is_update and self._accept_update:
            update = change.expiration_s, change.property_add, change.property_remove, change.topology
            self._updates.append(GroupChange(None, EMPTY, EMPTY, EMPTY, *update))

    def take(self) -> list[GroupChange]:
        """Remove and return the changes to send now, in order."""
        self._make()
        made, self._made = self._made, []
        return made

    def close(self) -> None:
        """The stream is over: nothing more will be sent. May come in every state."""
        self.state = step(TYPED if self.typed else PLAIN, self.state, "close")
        self._made, self._updates, self._grow = [], [], None
        self.targets = self._online = self._reported = EMPTY

    def _make(self) -> None:
        """Finish what could still merge: behind it comes something that it must not cross."""
        grow, self._grow = self._grow, None
        if grow is not None:
            online = self._reported & grow.ranks
            shares = online, grow.ranks - online
            self._made.append(GroupChange(grow, EMPTY, *shares, incomplete=self._is_incomplete))
        if self._reported != self._online:
            before = GroupState(EMPTY_R, self.targets, self._reported)
            if (change := difference(before, before._replace(online=self._online))) is not None:
                self._made.append(change)
            self._reported = self._online
        self._made += self._updates
        self._updates = []

    def _check(self, change: GroupChange) -> None:
        joined, shrink, reported = change.joined, change.shrink, change.online | change.offline
        if not change.online.isdisjoint(change.offline):
            raise LocalProtocolError(f"targets {change.online & change.offline} are given as online and as offline")
        if not joined <= reported:
            raise LocalProtocolError(f"grow of targets {joined - reported}, which are neither online nor offline")
        if not joined.isdisjoint(self.targets):
            raise LocalProtocolError(f"grow of targets {joined & self.targets}, which the stream holds already")
        unknown = (shrink - self.targets) | (reported - joined - (self.targets - shrink))
        if unknown:
            raise LocalProtocolError(f"change of targets {unknown}, which the stream does not hold")
