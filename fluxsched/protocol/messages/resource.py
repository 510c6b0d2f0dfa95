"""The resource service besides acquisition: what people and tools ask of it and tell it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fluxsched.protocol.messages.common import IdsetText, JobNumber, Payload, RObject, TargetsText, WallTime


class DrainRequest(Payload, frozen=True):
    """Take targets out of use. `mode`: update, overwrite or force-overwrite; absent, a drained target is an error."""

    targets: TargetsText
    reason: str | None = None
    mode: str | None = None


class UndrainRequest(Payload, frozen=True):
    """Put drained targets back to use; with a `mode`, those that are not drained are passed over."""

    targets: TargetsText
    reason: str | None = None
    mode: str | None = None


class AssignRequest(Payload, frozen=True):
    """Move targets to a group, made if new. `graceful`: drain them now, move each when no job holds it."""

    targets: TargetsText
    group: str
    graceful: bool = False


class IncludeRequest(Payload, frozen=True):
    """Move targets back to the group that the configuration gives them, else `default`."""

    targets: TargetsText
    graceful: bool = False


class MoveResponse(Payload, frozen=True, omit_defaults=False):
    """Outcome of an assign or include: targets that moved, are leaving their group, or drain before they leave.

    `there` are those that were in the group already.

    `ending` are the jobs on targets that are leaving: their scheduler ends them, or shrinks those that are elastic.
    """

    moved: IdsetText
    leaving: IdsetText
    draining: IdsetText = ""
    there: IdsetText = ""
    ending: list[JobNumber] = msgspec.field(default_factory=list)


class TargetsRequest(Payload, frozen=True):
    """Ranks, hosts and named sets (`all`, `property:NAME`, `group:NAME`, `queue:NAME`), as people write them."""

    targets: TargetsText


class TargetsResponse(Payload, frozen=True, omit_defaults=False):
    """The ranks that were named."""

    targets: IdsetText


class GroupInfo(Payload, frozen=True):
    """One group: what it owns, what is on its way out and in, and who has acquired it."""

    name: str
    targets: IdsetText
    leaving: IdsetText
    incoming: IdsetText
    acquired: bool
    dialect: Literal["typed", "plain"] | None = None
    acquirer: str | None = None


class GroupsResponse(Payload, frozen=True):
    """All groups, `default` and `exclude` among them."""

    groups: list[GroupInfo]


class DrainInfo(Payload, frozen=True):
    """Since when, why and by whom targets are drained; `draining` while a job still holds one."""

    timestamp: WallTime
    reason: str
    user: str | None = None
    state: Literal["drained", "draining"] | None = None


class StatusResponse(Payload, frozen=True):
    """The whole state of the resources. The keys up to `torpid` are those of Flux; the others are ours."""

    R: RObject
    drain: dict[IdsetText, DrainInfo]
    online: IdsetText
    offline: IdsetText
    exclude: IdsetText
    torpid: IdsetText
    lost: IdsetText = ""
    groups: dict[str, IdsetText] = msgspec.field(default_factory=dict)
    made_up: IdsetText = ""
    """Targets that are not the machine of the instance, on which all tasks run."""


class SchedStatusResponse(Payload, frozen=True):
    """Resources that schedulers may use, those of them that are down, and those allocated, each as R."""

    all: RObject
    down: RObject
    allocated: RObject
    made_up: IdsetText = ""


class PropertyRequest(Payload, frozen=True):
    """Properties to add to or remove from targets: name to targets."""

    properties: dict[str, TargetsText]


class ExpirationUpdateRequest(Payload, frozen=True):
    """The instance's new expiration; 0 for none."""

    expiration: WallTime


class ReloadRequest(Payload, frozen=True):
    """Replace the inventory by `R`, by the R file at `path`, or from the configuration again if neither is given."""

    path: str | None = None
    R: RObject | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.path is not None and self.R is not None:
            raise ValueError("`path` and `R` are two sources: give one of them")


class ResourceEvent(Payload, frozen=True):
    """One event of the journal (RFC 44)."""

    timestamp: WallTime
    name: str
    context: dict[str, Any] | None = None


class JournalResponse(Payload, frozen=True):
    """Events in order; an empty list marks the step from history to live. `R` comes with a `resource-define` event."""

    events: list[ResourceEvent]
    R: RObject | None = None
