"""Resource service: acquisition by schedulers (RFC 28), and what people and tools ask of it and tell it.

Law: an acquire request with `group` speaks the typed dialect (the draft of RFC 28), one without a payload the plain
dialect (today's RFC 28); a stream never mixes the two.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from fluxsched.protocol.messages.common import (
    IdsetText,
    JobNumber,
    Payload,
    RObject,
    Seconds,
    TargetsText,
    Unsigned32,
    WallTime,
)


class DrainRequest(Payload, frozen=True):
    """Take targets out of use. `mode`: update, overwrite, force-overwrite or add; absent, a drained target is an error.

    With `cores` or `gpus`, only these of each target are drained. `for`: so many seconds.
    """

    targets: TargetsText
    reason: str | None = None
    mode: str | None = None
    cores: IdsetText = ""
    gpus: IdsetText = ""
    for_: Seconds | None = msgspec.field(name="for", default=None)


class UndrainRequest(Payload, frozen=True):
    """Put drained targets back to use, or `cores` and `gpus` of them; with a `mode`, those that are not drained are
    passed over. `only`: lift this reason alone; what has others stays drained.
    """

    targets: TargetsText
    reason: str | None = None
    mode: str | None = None
    cores: IdsetText = ""
    gpus: IdsetText = ""
    only: str | None = None


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
    """Ranks, hosts and named sets (`all`, `property:NAME`, `group:NAME`, `queue:NAME`, `switch:NAME`), as people write
    them.
    """

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


class DrainReason(Payload, frozen=True):
    """One of several reasons for which targets are drained: since when, by whom, and until when."""

    timestamp: WallTime
    reason: str
    user: str | None = None
    until: WallTime | None = None


class DrainInfo(Payload, frozen=True):
    """Since when, why and by whom targets are drained; `draining` while a job still holds one.

    Of several `reasons`, `reason` joins all, time and user are those of the first, and `until` is the end of the last.
    """

    timestamp: WallTime
    reason: str
    user: str | None = None
    state: Literal["drained", "draining"] | None = None
    until: WallTime | None = None
    reasons: tuple[DrainReason, ...] = ()


class PartDrainInfo(Payload, frozen=True, kw_only=True):
    """Cores and GPUs of targets that are drained, since when, why and by whom; `draining` while a job holds some, and
    `withheld` if the configuration keeps them for the system.
    """

    targets: IdsetText
    cores: IdsetText = ""
    gpus: IdsetText = ""
    timestamp: WallTime
    reason: str
    user: str | None = None
    state: Literal["drained", "draining", "withheld"]
    until: WallTime | None = None


class SpareInfo(Payload, frozen=True, kw_only=True):
    """A spare in service: since when, in which group, and the target that it replaces, by its rank, if that is known,
    and by its host (`HOST,1` for the second of a host).
    """

    target: Unsigned32
    replaces: Unsigned32 | None = None
    replaces_host: str
    group: str
    timestamp: WallTime


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
    parts: list[PartDrainInfo] = msgspec.field(default_factory=list)
    """Parts of targets that are drained."""
    withheld: list[PartDrainInfo] = msgspec.field(default_factory=list)
    """Cores of targets that are in no R."""
    spares: IdsetText = ""
    """Spare targets, those in service among them."""
    replaced: list[SpareInfo] = msgspec.field(default_factory=list)
    """Spares that are in service."""


class SchedStatusResponse(Payload, frozen=True):
    """Resources that schedulers may use, those of them that are down, and those allocated, each as R."""

    all: RObject
    down: RObject
    allocated: RObject
    made_up: IdsetText = ""
    spare: RObject | None = None
    """Spares that stand by, if there are spares."""
    withheld: RObject | None = None
    """The system's own cores of these targets, which are not in `all`."""
    replaced: list[SpareInfo] = msgspec.field(default_factory=list)


class PropertyRequest(Payload, frozen=True):
    """Properties to add to or remove from targets: name to targets."""

    properties: dict[str, TargetsText]


class ExpirationUpdateRequest(Payload, frozen=True):
    """The instance's new expiration; 0 for none."""

    expiration: WallTime


class OutageInfo(Payload, frozen=True, kw_only=True):
    """A planned outage (ours): nothing is to run on `targets` from `from` to before `until`, and again `every` s.

    In a `reservation` run the jobs that name it, and these nowhere else.
    """

    name: str
    targets: IdsetText
    from_: WallTime = msgspec.field(name="from")
    until: WallTime
    every: Seconds | None = None
    reason: str = ""
    reservation: bool = False


class OutageAddRequest(Payload, frozen=True, kw_only=True):
    """Plan an outage of targets; `until` or `for`, in seconds, gives its end. Without `name` it is given one.

    `every`: it recurs, so many seconds from begin to begin. `end_jobs`: running jobs that cross it end at its begin.
    `queue`: meanwhile the targets are that queue's. `reservation`: they are for jobs of these users that name it, of
    all users if there are none; with `nodes`, so many of the targets.
    """

    targets: TargetsText
    from_: WallTime = msgspec.field(name="from")
    until: WallTime | None = None
    for_: Seconds | None = msgspec.field(name="for", default=None)
    every: Seconds = 0.0
    name: str | None = None
    reason: str = ""
    end_jobs: bool = False
    queue: str = ""
    reservation: bool = False
    users: tuple[str, ...] = ()
    nodes: Unsigned32 = 0

    def __post_init__(self) -> None:
        if (self.users or self.nodes) and not self.reservation:
            raise ValueError("`users` and `nodes` are for a `reservation`")
        if self.until is not None and self.for_ is not None:
            raise ValueError("`until` and `for` are two ends: give one of them")


class OutageUpdateRequest(Payload, frozen=True, kw_only=True):
    """Change what is given of a planned outage; one whose begin alone is moved lasts as long as before.

    With `reservation`, one of the other kind is refused.
    """

    name: str
    reservation: bool | None = None
    targets: TargetsText | None = None
    from_: WallTime | None = msgspec.field(name="from", default=None)
    until: WallTime | None = None
    for_: Seconds | None = msgspec.field(name="for", default=None)
    every: Seconds | None = None
    reason: str | None = None
    end_jobs: bool | None = None
    users: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.until is not None and self.for_ is not None:
            raise ValueError("`until` and `for` are two ends: give one of them")


class OutageRemoveRequest(Payload, frozen=True):
    """Call a planned outage off; if it is on, its targets are undrained. With `reservation`, as in an update."""

    name: str
    reservation: bool | None = None


class OutageAddResponse(Payload, frozen=True):
    """The name of the outage."""

    name: str


class PlannedOutage(OutageInfo, frozen=True, kw_only=True):
    """An outage, who planned it, whether it is on, is one of the configuration, ends running jobs, and
    the queue that it is dedicated to; the users of a reservation.
    """

    user: str | None = None
    on: bool = False
    configured: bool = False
    end_jobs: bool = False
    queue: str = ""
    users: tuple[int, ...] = ()


class OutagesResponse(Payload, frozen=True, omit_defaults=False):
    """All planned outages, the next one first: of those that recur, the occurrence that is on or comes next."""

    outages: list[PlannedOutage]


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


# ---- acquisition

ACCEPT_UPDATE = "update"
"""In `accept`: the scheduler understands update responses, which the draft does not have."""

ACCEPT_PARTS = "parts"
"""In `accept`: the scheduler understands `parts`, drained cores and GPUs of targets that are in use otherwise."""

PropertyMap = dict[str, IdsetText]
"""Property name to the targets that gain or lose it (RFC 20, properties)."""

SparesMap = dict[IdsetText, Unsigned32]
"""A spare to the rank that it replaces."""


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

    @property
    def accept_parts(self) -> bool:
        """Return whether drained parts may be sent."""
        return ACCEPT_PARTS in self.accept


class Grow(Payload, frozen=True, tag="grow", tag_field="type"):
    """Targets join the group (RFC 28 draft, Grow Response); `online` and `offline` share them out.

    `incomplete` is ours: which targets the group has is not known yet, as of a cluster that has not answered. So is
    `outages`, which is there only if some are planned, and names targets of other groups, too. `parts` is an R_lite of
    what is drained of targets, the same way, for those who accept it. `spares` has the targets of the group that stand
    in for another one, and the rank of that one; one on its way home has its own.
    """

    resources: RObject
    online: IdsetText
    offline: IdsetText
    incomplete: bool = False
    outages: list[OutageInfo] | None = None
    parts: list[Any] | None = None
    spares: SparesMap | None = None


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
    """R has a new expiration, properties or topology, or there are other `outages`, `parts` or `spares`, of which these
    are all; ours, the draft is silent. Only for those who accept it.
    """

    expiration: WallTime | None = None
    property_add: PropertyMap | None = msgspec.field(name="property-add", default=None)
    property_remove: PropertyMap | None = msgspec.field(name="property-remove", default=None)
    topology: list[Any] | None = None
    outages: list[OutageInfo] | None = None
    parts: list[Any] | None = None
    spares: SparesMap | None = None


AcquireResponse = Grow | Shrink | Online | Offline | Update
"""Any response of the typed dialect; `type` tells which."""


class AcquireFirst(Payload, frozen=True):
    """The first plain response: all of the group, and what of it is up (RFC 28, Initial Acquire Response)."""

    resources: RObject
    up: IdsetText
    outages: list[OutageInfo] | None = None


class AcquireChange(Payload, frozen=True):
    """A later plain response: only what changes (RFC 28, Additional Acquire Responses); `shrink` is in `down` too."""

    up: IdsetText | None = None
    down: IdsetText | None = None
    shrink: IdsetText | None = None
    property_add: PropertyMap | None = msgspec.field(name="property-add", default=None)
    property_remove: PropertyMap | None = msgspec.field(name="property-remove", default=None)
    expiration: WallTime | None = None
    topology: list[Any] | None = None
    outages: list[OutageInfo] | None = None


class ReleaseRequest(Payload, frozen=True):
    """Shrunk targets that are free now (RFC 28 draft, Release Request); answered with an empty payload."""

    group: str
    targets: IdsetText
