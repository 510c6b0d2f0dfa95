"""Requests of stock Flux clients about the instance and its resources at the local socket, which our own do not send.

Recorded from 0.88. Of an instance of ours each target counts as a broker.
"""

from __future__ import annotations

from fluxsched.protocol.messages.common import IdsetText, Payload, Size, WallTime


class ReloadFromRequest(Payload, frozen=True):
    """`resource.reload`: the path of an R file, or with `xml` of a directory of hwloc's XML."""

    path: str
    xml: bool = False
    force: bool = False


class WaitUpRequest(Payload, frozen=True):
    """`resource.monitor-waitup`: answered once so many targets are online."""

    up: Size


class GroupRequest(Payload, frozen=True):
    """`groups.get`: a group of brokers (no group of targets of ours: Flux's `broker.online` and the like)."""

    name: str


class GroupResponse(Payload, frozen=True):
    """The ranks in the group."""

    members: IdsetText


class StateResponse(Payload, frozen=True):
    """`state-machine.get`: the broker's state, and for how long (seconds)."""

    state: str
    duration: WallTime


class AttributesResponse(Payload, frozen=True):
    """`attr.list`: the names that `attr.get` knows."""

    names: list[str]
