"""Acquisition (RFC 28): the typed dialect of the draft, with groups, and the plain one of today's RFC.

Law: a request with `group` is typed, one without payload is plain; a stream never mixes the two.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fluxsched.protocol.messages.common import IdsetText, Payload, RObject, WallTime

ACCEPT_UPDATE = "update"
"""In `accept`: the scheduler understands update responses, which the draft does not have."""

PropertyMap = dict[str, IdsetText]
"""Property name to the targets that gain or lose it (RFC 20, properties)."""


class AcquireRequest(Payload, frozen=True):
    """Acquire a group (RFC 28 draft, Acquire Request). No group: the plain dialect, which has no payload."""

    group: str | None = None
    accept: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.group is None and self.accept:
            raise ValueError("`accept` without `group`: name the group, or send no payload for the plain dialect")

    @property
    def typed(self) -> bool:
        """Return whether the request is for the typed dialect."""
        return self.group is not None

    @property
    def accept_update(self) -> bool:
        """Return whether update responses may be sent."""
        return ACCEPT_UPDATE in self.accept


class Grow(Payload, frozen=True, tag="grow", tag_field="type"):
    """Targets join the group (RFC 28 draft, Grow Response); `online` and `offline` share them out.

    `incomplete` is ours: which targets the group has is not known yet, as of a cluster that has not answered.
    """

    resources: RObject
    online: IdsetText
    offline: IdsetText
    incomplete: bool = False


class Shrink(Payload, frozen=True, tag="shrink", tag_field="type"):
    """Targets leave the group; each is to be released once free (RFC 28 draft, Shrink Response)."""

    targets: IdsetText


class Online(Payload, frozen=True, tag="online", tag_field="type"):
    """Targets that may be used again (RFC 28 draft, Online Response)."""

    targets: IdsetText


class Offline(Payload, frozen=True, tag="offline", tag_field="type"):
    """Targets that were usable and no longer are, crashed or drained (RFC 28 draft, Offline Response)."""

    targets: IdsetText


class Update(Payload, frozen=True, tag="update", tag_field="type"):
    """R has a new expiration, properties or topology; ours, the draft is silent. Only for those who accept it."""

    expiration: WallTime | None = None
    property_add: PropertyMap | None = msgspec.field(name="property-add", default=None)
    property_remove: PropertyMap | None = msgspec.field(name="property-remove", default=None)
    topology: list[Any] | None = None


AcquireResponse = Grow | Shrink | Online | Offline | Update
"""Any response of the typed dialect; `type` tells which."""


class AcquireFirst(Payload, frozen=True):
    """The first plain response: all of the group, and what of it is up (RFC 28, Initial Acquire Response)."""

    resources: RObject
    up: IdsetText


class AcquireChange(Payload, frozen=True):
    """A later plain response: only what changes (RFC 28, Additional Acquire Responses); `shrink` is in `down` too."""

    up: IdsetText | None = None
    down: IdsetText | None = None
    shrink: IdsetText | None = None
    property_add: PropertyMap | None = msgspec.field(name="property-add", default=None)
    property_remove: PropertyMap | None = msgspec.field(name="property-remove", default=None)
    expiration: WallTime | None = None
    topology: list[Any] | None = None


class ReleaseRequest(Payload, frozen=True):
    """Shrunk targets that are free now (RFC 28 draft, Release Request); answered with an empty payload."""

    group: str
    targets: IdsetText
