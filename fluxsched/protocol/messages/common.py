"""Common parts of all services: the base of all messages, the types of recurring fields, attributes, instance,
streams.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

WALL_TIME_MAX_S = 253_402_300_799.0
"""The end of year 9999: keeps NaN and infinity out of everything that sorts or stores times."""

INT64_MAX = (1 << 63) - 1
"""The store's integers; job ids reach it in the year 2584."""

JobNumber = Annotated[int, Meta(ge=0, le=INT64_MAX, description="job id (RFC 19)")]
Integer = Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)]
Unsigned32 = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
WindowSide = Annotated[int, Meta(ge=1, le=65_535, description="rows or columns of a terminal")]
Size = Annotated[int, Meta(ge=0, le=INT64_MAX)]
WallTime = Annotated[float, Meta(ge=0.0, le=WALL_TIME_MAX_S, description="seconds since the UNIX epoch")]
Seconds = Annotated[float, Meta(ge=0.0, le=WALL_TIME_MAX_S, description="seconds")]
IdsetText = Annotated[str, Meta(description="idset (RFC 22)")]
TargetsText = Annotated[str, Meta(description="ranks (RFC 22), hosts (RFC 29), sets such as property:NAME")]
HostlistText = Annotated[str, Meta(description="hostlist (RFC 29)")]
RObject = Annotated[dict[str, Any], Meta(description="resource set R (RFC 20)")]
JobspecObject = Annotated[dict[str, Any], Meta(description="jobspec (RFC 14, RFC 25)")]
EventObject = Annotated[dict[str, Any], Meta(description="eventlog entry (RFC 18)")]
FreeForm = dict[str, Any]
"""An object whose keys are the service's own business: ping, stats-get, config.get."""


class Payload(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of all messages: frozen, keys at their default left out, unknown keys ignored (RFC practice).

    `gc=False` because messages are trees made by the codec: a cycle cannot arise.
    """


class Empty(Payload, frozen=True):
    """An object without keys, or no payload at all: nothing to say (RFC 3)."""


class CancelRequest(Payload, frozen=True):
    """End the stream that the sender opened under `matchtag`; no response, the stream ends with ENODATA (RFC 6)."""

    matchtag: Unsigned32


class AttrRequest(Payload, frozen=True):
    """Ask for one broker attribute (`attr.get`)."""

    name: str


class AttrResponse(Payload, frozen=True, omit_defaults=False):
    """The attribute's text; stock clients insist on `flags` (1: it does not change)."""

    value: str
    flags: Integer = 1


class ConfigChange(Payload, frozen=True):
    """A key of the configuration, in dotted form, that has changed; without `old` or `new` it was or is not there."""

    key: str
    old: Any = None
    new: Any = None


class ConfigReloadResponse(Payload, frozen=True, omit_defaults=False):
    """Differences of the configuration from the one read before.

    `changed` holds now, `restart` will after a restart; `modules` are those started anew to serve other queues.
    """

    changed: list[ConfigChange]
    restart: list[ConfigChange]
    modules: list[str]


class InstanceInfo(Payload, frozen=True, kw_only=True):
    """The instance as people and tools need to know it: where it is, whose, how far it has come."""

    uri: str
    rundir: str
    pid: Size
    version: str
    size: Annotated[int, Meta(ge=0, le=INT64_MAX, description="number of targets")]
    owner: Unsigned32
    starttime: WallTime
    ready: bool
    state: str
    statedir: str | None = None
    jobs: dict[str, Size] = msgspec.field(default_factory=dict)
    error: str | None = None
    level: Size = 0
    """Number of instances around this one."""
    parent: str | None = None
    """URI of the innermost of these instances."""
    endpoints: tuple[str, ...] = ()
    """All that it listens at: `uri`, the socket for Flux's own clients, and what `--bind` adds."""
    state_notice: str | None = None
    """Notice that the stored state was damaged when the instance started, and what was lost of it."""
    role: Literal["guest", "admin", "owner"] | None = None
    """Role of the asking connection, and the user as which it is known."""
    userid: Unsigned32 | None = None


PastSizeEntry = tuple[IdsetText, WallTime, Size]
"""The targets that a job held before it grew or shrank (empty: not listed), until when, and its cores."""
