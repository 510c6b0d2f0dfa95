"""Common part of both ends of an acquire stream (RFC 28): state tables, and group changes as messages of a dialect.

Law: the typed dialect has one message a part of a change; the plain one has no grow after the first response.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from fluxsched.core.group_change import GroupChange, Properties
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.protocol.messages.acquire import (
    AcquireChange,
    AcquireFirst,
    AcquireResponse,
    Grow,
    Offline,
    Online,
    PropertyMap,
    Shrink,
    Update,
)
from fluxsched.protocol.messages.common import Payload
from fluxsched.protocol.sessions.machine import step


class AcquireState(Enum):
    """The state of a stream."""

    IDLE = "not requested yet"
    WAITING = "requested, no response yet"
    STREAMING = "changes follow"
    CLOSED = "cancelled, disconnected or failed"


_CLOSED_ROW = {"close": AcquireState.CLOSED}
TYPED = {
    AcquireState.IDLE: {"request": AcquireState.WAITING, **_CLOSED_ROW},
    AcquireState.WAITING: {"grow": AcquireState.STREAMING, **_CLOSED_ROW},
    AcquireState.STREAMING: {
        **dict.fromkeys(("grow", "shrink", "availability", "update"), AcquireState.STREAMING),
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


def after_change(typed: bool, state: AcquireState, change: GroupChange) -> AcquireState:
    """The state behind a change. Raises InvalidTransition if one of its parts may not come."""
    table = TYPED if typed else PLAIN
    after = state
    for event in _events(change):
        after = step(table, after, event)
    return after


def _events(change: GroupChange) -> list[str]:
    parts = (
        ("grow", change.grow is not None),
        ("shrink", bool(change.shrink)),
        ("update", change.is_update),
    )
    return [event for event, there in parts if there] or ["availability"]


def to_messages(change: GroupChange, typed: bool, to_json: Callable[[ResourceSet], dict[str, Any]]) -> list[Payload]:
    """The responses that carry a change, in order."""
    joined = change.joined
    online, offline = change.online - joined, change.offline - joined
    made: list[Payload] = []
    if not typed:
        if change.grow is not None:
            made.append(AcquireFirst(to_json(change.grow), str(change.online & joined)))
        down = str(offline | change.shrink) or None
        added, removed, expiration_s = _update(change)
        message = AcquireChange(
            str(online) or None, down, str(change.shrink) or None, added, removed, expiration_s, _switches(change)
        )
        return [*made, message] if message != AcquireChange() else made
    if change.grow is not None:
        shares = str(change.online & joined), str(change.offline & joined)
        made.append(Grow(to_json(change.grow), *shares, change.incomplete))
    if change.shrink:
        made.append(Shrink(str(change.shrink)))
    if offline:
        made.append(Offline(str(offline)))
    if online:
        made.append(Online(str(online)))
    if change.is_update:
        added, removed, expiration_s = _update(change)
        made.append(Update(expiration_s, added, removed, _switches(change)))
    return made


def from_typed(message: AcquireResponse) -> GroupChange:
    """The change in a typed response. Raises InvalidValue."""
    match message:
        case Grow(resources, online, offline, incomplete):
            grown, shares = ResourceSet.parse(resources), (Idset.parse(online), Idset.parse(offline))
            return GroupChange(grown, EMPTY, *shares, incomplete=incomplete)
        case Shrink(targets):
            return GroupChange(shrink=Idset.parse(targets))
        case Online(targets):
            return GroupChange(online=Idset.parse(targets))
        case Offline(targets):
            return GroupChange(offline=Idset.parse(targets))
    return _updated(message)


def from_first(message: AcquireFirst) -> GroupChange:
    """The change in the first plain response. Raises InvalidValue."""
    grown, online = ResourceSet.parse(message.resources), Idset.parse(message.up)
    return GroupChange(grown, online=online, offline=grown.ranks - online)


def from_plain(message: AcquireChange) -> GroupChange:
    """The change in a later plain response; shrink takes precedence over up and down (RFC 28). Raises InvalidValue."""
    online, offline, shrink = (Idset.parse(text or "") for text in (message.up, message.down, message.shrink))
    update = _updated(message)
    return GroupChange(
        None, shrink, online - shrink, offline - shrink,
        update.expiration_s, update.property_add, update.property_remove, update.topology,
    )  # fmt: skip


def _update(change: GroupChange) -> tuple[PropertyMap | None, PropertyMap | None, float | None]:
    return _texts(change.property_add), _texts(change.property_remove), change.expiration_s


def _switches(change: GroupChange) -> list[Any] | None:
    return None if change.topology is None else change.topology.to_json()


def _updated(message: Update | AcquireChange) -> GroupChange:
    return GroupChange(
        expiration_s=message.expiration,
        property_add={name: Idset.parse(text) for name, text in (message.property_add or {}).items()},
        property_remove={name: Idset.parse(text) for name, text in (message.property_remove or {}).items()},
        topology=None if message.topology is None else Topology.parse(message.topology),
    )


def _texts(properties: Properties) -> dict[str, str] | None:
    return {name: str(targets) for name, targets in properties.items()} if properties else None
