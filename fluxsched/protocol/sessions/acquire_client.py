"""A scheduler's end of one acquire stream (RFC 28): responses in, group changes out, in either dialect.

Law: a change is true of what was acquired before it. A first response that is no grow, or a target that the stream does
not hold, is the peer's fault (RemoteProtocolError) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluxsched.core.group_change import GroupChange
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidTransition, InvalidValue, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.acquire import (
    ACCEPT_UPDATE,
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    AcquireResponse,
    ReleaseRequest,
)
from fluxsched.protocol.sessions.acquire_stream import (
    PLAIN,
    TYPED,
    AcquireState,
    after_change,
    from_first,
    from_plain,
    from_typed,
)
from fluxsched.protocol.sessions.machine import step


class AcquireClient:
    """One stream. `group` None speaks the plain dialect; `decode` is `codec.from_json` where payloads are JSON."""

    def __init__(
        self, group: str | None, *, decode: Callable[[bytes | None, Any], Any] = codec.unpack
    ) -> None:
        self.group = group
        self.typed = group is not None
        self.state = AcquireState.IDLE
        self.acquired = EMPTY
        self.leaving = EMPTY
        """Shrunk and not released yet (typed)."""
        self._decode = decode

    def request(self) -> AcquireRequest | None:
        """The payload of the `resource.acquire` request; None: send none. To be sent with the streaming flag."""
        self._step("request")
        return AcquireRequest(self.group, [ACCEPT_UPDATE]) if self.group is not None else None

    def receive(self, payload: bytes | None) -> GroupChange:
        """The change in a response. Raises RemoteProtocolError."""
        try:
            change = self._read(payload)
            self.accept(change)
        except (InvalidTransition, InvalidValue) as exc:
            raise RemoteProtocolError(f"resource.acquire response: {exc}") from exc
        return change

    def accept(self, change: GroupChange) -> None:
        """Take over a change. Raises InvalidTransition, RemoteProtocolError."""
        after = after_change(self.typed, self.state, change)
        self._check(change)
        self.state = after
        self.acquired = (self.acquired | change.joined) - change.shrink
        if self.typed:
            self.leaving |= change.shrink

    def release(self, targets: Idset) -> ReleaseRequest:
        """The request that gives shrunk targets back, now that they are free (typed only)."""
        if self.group is None:
            raise LocalProtocolError("release: the plain dialect has none")
        if not targets or not targets <= self.leaving:
            raise LocalProtocolError(f"release of targets {targets}, but only {self.leaving or 'none'} are leaving")
        self.leaving -= targets
        return ReleaseRequest(self.group, str(targets))

    def close(self) -> None:
        """The stream has ended, by an error response or because we leave."""
        self._step("close")

    def _step(self, event: str) -> None:
        self.state = step(TYPED if self.typed else PLAIN, self.state, event)

    def _read(self, payload: bytes | None) -> GroupChange:
        if self.typed:
            return from_typed(self._decode(payload, AcquireResponse))
        if self.state is AcquireState.WAITING:
            return from_first(self._decode(payload, AcquireFirst))
        return from_plain(self._decode(payload, AcquireChange))

    def _check(self, change: GroupChange) -> None:
        joined, reported = change.joined, change.online | change.offline
        if not change.online.isdisjoint(change.offline):
            _refuse(change.online & change.offline, "are online and offline")
        if change.grow is not None and joined != reported:
            _refuse((joined - reported) | (reported - joined), "are not in both resources and online or offline")
        if again := joined & (self.acquired | self.leaving):
            _refuse(again, "grow, and are acquired or not released yet")
        if unknown := (change.shrink | (reported - joined)) - self.acquired:
            _refuse(unknown, "are not acquired")


def _refuse(targets: Idset, why: str) -> None:
    raise RemoteProtocolError(f"resource.acquire response: targets {targets} {why}")
