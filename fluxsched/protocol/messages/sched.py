"""Allocation (RFC 27) between the job manager and a scheduler, and a scheduler's accounts (`sched.accounts`; ours).

The accounts list what each uses, what its share is, and its limits.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from fluxsched.protocol.messages.common import (
    IdsetText,
    JobNumber,
    JobspecObject,
    Payload,
    RObject,
    Seconds,
    Size,
    Unsigned32,
    WallTime,
)

SUCCESS: Final = 0
ANNOTATE: Final = 1
DENY: Final = 2
CANCEL: Final = 3

Priority = Annotated[int, Meta(ge=0, le=0xFFFFFFFF, description="0 holds the job, 4294967295 expedites it")]


class HelloRequest(Payload, frozen=True):
    """A scheduler's first words (RFC 27, Hello). `groups` is ours: whose queues it serves, absent for `default`."""

    partial_ok: bool = msgspec.field(name="partial-ok", default=False)
    groups: list[str] | None = None


class HelloResponse(Payload, frozen=True, omit_defaults=False):
    """One job that holds resources (RFC 27, Hello). `R` and `jobspec` are ours: in Flux they are in the KVS.

    The environment is left out of `jobspec`. `preempted`, ours too: since when it is going for the sake of another job;
    `going`: which targets of its R it was shrunk by and has not released yet; `grown`: which of them it has grown by;
    `shrunk`: when it was last shrunk.
    """

    id: JobNumber
    priority: Priority
    userid: Unsigned32
    t_submit: WallTime
    free: IdsetText | None = None
    R: RObject | None = None
    jobspec: JobspecObject | None = None
    preempted: WallTime | None = None
    going: IdsetText | None = None
    grown: IdsetText | None = None
    shrunk: WallTime | None = None


class ReadyRequest(Payload, frozen=True):
    """Number of alloc requests that the scheduler takes at once (RFC 27, Ready); `limit` in limited mode only."""

    mode: Literal["limited", "unlimited"]
    limit: Annotated[int, Meta(ge=1, le=2147483647)] | None = None

    def __post_init__(self) -> None:
        if (self.mode == "limited") != (self.limit is not None):
            raise ValueError("`limit` belongs to mode `limited`, and only to it")


class ReadyResponse(Payload, frozen=True):
    """The queue depth (RFC 27, Ready). `state` is ours: what a scheduler of these groups saved last."""

    count: Size
    state: Any = None


class SaveRequest(Payload, frozen=True):
    """Keep this until a scheduler of the same groups is ready (`job-manager.sched-save`; ours).

    `set-aside`: what was kept before was of no use; it is kept under another name, until the next time.
    """

    state: Any
    set_aside: bool = msgspec.field(name="set-aside", default=False)


class AllocRequest(Payload, frozen=True):
    """A job wants resources (RFC 27, Alloc). The environment is left out of `jobspec`; `t_submit` is today's usage."""

    id: JobNumber
    priority: Priority
    userid: Unsigned32
    jobspec: JobspecObject
    t_submit: WallTime | None = None


class AllocResponse(Payload, frozen=True):
    """SUCCESS, ANNOTATE, DENY or CANCEL, by job id (RFC 27, Alloc). `R` comes with SUCCESS, `note` with DENY."""

    id: JobNumber
    type: Literal[0, 1, 2, 3]
    R: RObject | None = None
    annotations: dict[str, Any] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.type == ANNOTATE and self.annotations is None:
            raise ValueError("type 1 (annotate) needs `annotations`")


class FreeRequest(Payload, frozen=True):
    """These resources of the job are free again; `final` marks its last free (RFC 27, Free). No response."""

    id: JobNumber
    R: RObject
    final: bool = False


class LiteEntry(TypedDict):
    """Entry of R_lite: ranks with the same children and amounts.

    It is a plain dictionary, as parsers of R_lite expect it.
    """

    rank: str
    children: dict[str, str]
    amounts: NotRequired[dict[str, int]]


class LiteExecution(msgspec.Struct, frozen=True, gc=False):
    """The part of `execution` that names resources; one entry alone is how it was written in 2019."""

    R_lite: list[LiteEntry] | LiteEntry


class LiteR(msgspec.Struct, frozen=True, gc=False):
    """R of a free request without hosts, properties and times, which do not matter for what is freed.

    Every part is typed, so nothing is walked again behind the decoder: a free is read in a quarter of the time that its
    whole R takes, and most messages to a scheduler are frees.
    """

    execution: LiteExecution


class GrowRequest(Payload, frozen=True):
    """A running elastic job gets these targets too (`job-manager.sched-grow`; ours). Empty response once stored."""

    id: JobNumber
    R: RObject


class ShrinkRequest(Payload, frozen=True):
    """A running elastic job is to leave these targets (`job-manager.sched-shrink`; ours).

    Empty response once stored; each target comes back with a `sched.free` when nothing of the job runs there any more.
    """

    id: JobNumber
    ranks: IdsetText
    note: str = ""


class SchedCancelRequest(Payload, frozen=True):
    """Forget a waiting alloc request (RFC 27, Cancel); answered by a CANCEL to the alloc request."""

    id: JobNumber


class PrioritizeRequest(Payload, frozen=True):
    """New priorities of waiting jobs, `[id, priority]` each (RFC 27, Prioritize). No response."""

    jobs: list[tuple[JobNumber, Priority]]


class ExpirationRequest(Payload, frozen=True):
    """A running job's proposed end (RFC 27, Expiration); an integer in the RFC, a real in Flux: both are taken."""

    id: JobNumber
    expiration: WallTime


class FeasibilityRequest(Payload, frozen=True):
    """Could this jobspec ever run (`feasibility.check`)? Empty, or EOVERFLOW with a text that says why not.

    `userid` is whose job it would be, for plugins; an instance puts the sender there.
    """

    jobspec: JobspecObject
    userid: Unsigned32 | None = None


class SchedWhyRequest(Payload, frozen=True):
    """Why does this job wait (`sched.why`; ours)?"""

    id: JobNumber


class PermitRequest(Payload, frozen=True):
    """May this job start, for which a plugin waits (`sched.permit`; ours)? `allow` false queues it again."""

    id: JobNumber
    plugin: str
    allow: bool
    reason: str = ""


class SchedWhyResponse(Payload, frozen=True):
    """The scheduler's answer in a user's words: the reason, the rule, the earliest start and what that rests on."""

    id: JobNumber
    reason: str
    earliest: WallTime | None = None
    rule: str | None = None
    when: str | None = None


# ---- accounts

WeightedUsage = Annotated[float, Meta(ge=0.0, description="in units of weight")]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0, description="of everything")]
ResourceMinutes = Annotated[float, Meta(description="resource minutes: units of weight times minutes")]


class AccountsRequest(Payload, frozen=True):
    """All accounts of the scheduler of a group, in parts: `start` is the `next` of the answer before."""

    group: str = "default"
    start: Size = 0


class AccountInfo(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """One account, with all that is below it. A user is an account, too, and is in a bank.

    `fair_usage` is its share of the capacity, and `signal` its remembered usage; `firm_...` is of jobs that cannot be
    preempted, `cap` the most that these may use, and `budget_left` what a user's preemptible jobs may still be charged
    (null: no limit). `held` are amounts by resource. Jobs that wait are those not on hold; `preempted` counts since the
    scheduler started.
    """

    path: list[str]
    user: bool
    active: bool
    weight: float
    share: Fraction
    fair_usage: WeightedUsage
    usage: WeightedUsage
    signal: WeightedUsage
    firm_usage: WeightedUsage
    firm_signal: WeightedUsage
    cap: WeightedUsage | None
    budget_left: ResourceMinutes | None
    held: dict[str, Size]
    waiting: Size
    running: Size
    preempted: Size


class AccountsResponse(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """Some accounts, each after those above it, and the settings in force; `next` is null in the last part."""

    signal: str
    half_life: Seconds
    weights: dict[str, float]
    shares: Literal["active", "all"]
    capacity: WeightedUsage
    budget: ResourceMinutes | None
    rate: Size
    accounts: list[AccountInfo]
    next: Size | None
