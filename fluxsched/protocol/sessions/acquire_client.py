"""A scheduler's end of one acquire stream (RFC 28): responses in, changes out, whatever the dialect.

Law: what comes out is true of what was acquired before it. A first response that is no grow, or a target that the
stream does not hold, is the peer's fault (RemoteProtocolError) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidTransition, InvalidValue, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.acquire import (
    ACCEPT_UPDATE,
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    AcquireResponse,
    Grow,
    Offline,
    Online,
    ReleaseRequest,
    Shrink,
    Update,
)
from fluxsched.protocol.sessions.machine import step


@dataclass(frozen=True, slots=True)
class Grown:
    """Targets were acquired; the first one is all of the group. `online` and `offline` share them out."""

    resources: dict[str, Any]
    online: Idset
    offline: Idset


@dataclass(frozen=True, slots=True)
class Shrunk:
    """Targets leave: allocate nothing more there. Typed: end the jobs there and release each target once free."""

    targets: Idset


@dataclass(frozen=True, slots=True)
class WentOnline:
    """Targets may be used."""

    targets: Idset


@dataclass(frozen=True, slots=True)
class WentOffline:
    """Allocate nothing more there; raise nothing on the jobs."""

    targets: Idset


@dataclass(frozen=True, slots=True)
class Updated:
    """R changed: a new expiration (seconds since the epoch, 0 for none), targets gaining or losing properties."""

    expiration_s: float | None = None
    property_add: Mapping[str, Idset] = field(default_factory=dict)
    property_remove: Mapping[str, Idset] = field(default_factory=dict)


Change = Grown | Shrunk | WentOnline | WentOffline | Updated


class ClientState(Enum):
    """Where a stream stands, seen from the scheduler."""

    IDLE = "not asked yet"
    WAITING = "asked, no response yet"
    STREAMING = "changes follow"
    CLOSED = "ended by an error response or by us"


_CLOSED_ROW = {"close": ClientState.CLOSED}
_ASKED = {
    ClientState.IDLE: {"request": ClientState.WAITING, **_CLOSED_ROW},
    ClientState.CLOSED: _CLOSED_ROW,
}
TYPED = {
    **_ASKED,
    ClientState.WAITING: {"grow": ClientState.STREAMING, **_CLOSED_ROW},
    ClientState.STREAMING: {
        **dict.fromkeys(("grow", "shrink", "online", "offline", "update"), ClientState.STREAMING),
        **_CLOSED_ROW,
    },
}
PLAIN = {
    **_ASKED,
    ClientState.WAITING: {"first": ClientState.STREAMING, **_CLOSED_ROW},
    ClientState.STREAMING: {"change": ClientState.STREAMING, **_CLOSED_ROW},
}


class AcquireClient:
    """One stream. `group` None speaks the plain dialect; `decode` is `codec.from_json` where payloads are JSON."""

    def __init__(
        self, group: str | None, *, decode: Callable[[bytes | None, Any], Any] = codec.unpack
    ) -> None:
        self.group = group
        self.state = ClientState.IDLE
        self.acquired = EMPTY
        self.leaving = EMPTY
        """Shrunk and not released yet (typed)."""
        self._decode = decode

    @property
    def typed(self) -> bool:
        """Whether this is the typed dialect."""
        return self.group is not None

    def request(self) -> AcquireRequest | None:
        """The payload of the `resource.acquire` request; None: send none. To be sent with the streaming flag."""
        self.state = step(self._table, self.state, "request")
        return AcquireRequest(self.group, [ACCEPT_UPDATE]) if self.group is not None else None

    def receive(self, payload: bytes | None) -> list[Change]:
        """What a response says, in the order in which to apply it. Raises RemoteProtocolError."""
        try:
            return self._typed(payload) if self.typed else self._plain(payload)
        except (InvalidTransition, InvalidValue) as exc:
            raise RemoteProtocolError(f"resource.acquire response: {exc}") from exc

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
        self.state = step(self._table, self.state, "close")

    @property
    def _table(self) -> Mapping[ClientState, Mapping[str, ClientState]]:
        return TYPED if self.typed else PLAIN

    def _typed(self, payload: bytes | None) -> list[Change]:
        message = self._decode(payload, AcquireResponse)
        after = step(self._table, self.state, type(message).__name__.lower())
        change: Change
        match message:
            case Grow(resources, online, offline):
                change = self._grown(resources, Idset.parse(online), Idset.parse(offline))
            case Shrink(targets):
                change = self._shrunk(self._held(targets, "shrink"))
                self.leaving |= change.targets
            case Online(targets):
                change = WentOnline(self._held(targets, "online"))
            case Offline(targets):
                change = WentOffline(self._held(targets, "offline"))
            case Update():
                change = _updated(message)
        self.state = after
        return [change]

    def _plain(self, payload: bytes | None) -> list[Change]:
        is_first = self.state is ClientState.WAITING
        after = step(self._table, self.state, "first" if is_first else "change")
        changes = self._first(payload) if is_first else self._change(self._decode(payload, AcquireChange))
        self.state = after
        return changes

    def _first(self, payload: bytes | None) -> list[Change]:
        message = self._decode(payload, AcquireFirst)
        targets, up = _ranks(message.resources), Idset.parse(message.up)
        if not up <= targets:
            raise RemoteProtocolError(f"resource.acquire response: up {up - targets} are not in resources")
        return [self._grown(message.resources, up, targets - up)]

    def _change(self, message: AcquireChange) -> list[Change]:
        up, down = self._held(message.up or "", "up"), self._held(message.down or "", "down")
        shrink = self._held(message.shrink or "", "shrink")
        update = _updated(message)
        changes: list[Change] = []
        if shrink:
            changes.append(self._shrunk(shrink))
        if down - shrink:  # in shrink and down: shrink takes precedence (RFC 28)
            changes.append(WentOffline(down - shrink))
        if up - shrink:
            changes.append(WentOnline(up - shrink))
        if update != Updated():
            changes.append(update)
        return changes

    def _grown(self, resources: dict[str, Any], online: Idset, offline: Idset) -> Grown:
        targets, held = online | offline, self.acquired | self.leaving
        if not online.isdisjoint(offline):
            raise RemoteProtocolError(f"resource.acquire response: {online & offline} are online and offline")
        if not targets.isdisjoint(held):
            raise RemoteProtocolError(
                f"resource.acquire response: grow of {targets & held}, which are acquired or not released yet"
            )
        self.acquired |= targets
        return Grown(resources, online, offline)

    def _shrunk(self, targets: Idset) -> Shrunk:
        self.acquired -= targets
        return Shrunk(targets)

    def _held(self, text: str, what: str) -> Idset:
        targets = Idset.parse(text)
        if not targets <= self.acquired:
            raise RemoteProtocolError(
                f"resource.acquire response: {what} of {targets - self.acquired}, which are not acquired"
            )
        return targets


def _updated(message: Update | AcquireChange) -> Updated:
    return Updated(
        message.expiration,
        {name: Idset.parse(text) for name, text in (message.property_add or {}).items()},
        {name: Idset.parse(text) for name, text in (message.property_remove or {}).items()},
    )


def _ranks(resources: dict[str, Any]) -> Idset:
    """The ranks of an R (RFC 20), R_lite as a list or as the object of 2019; all else is its reader's business."""
    execution = resources.get("execution")
    lite = execution.get("R_lite") if isinstance(execution, dict) else None
    ranks = EMPTY
    for entry in [lite] if isinstance(lite, dict) else lite if isinstance(lite, list) else [None]:
        if not isinstance(entry, dict):
            raise RemoteProtocolError("resource.acquire response: resources.execution.R_lite must be a list of objects")
        ranks |= Idset.parse(entry.get("rank", ""))
    return ranks
