"""The accounts of a scheduler (`sched.accounts`; ours): what each uses, what its share is, and its limits."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from fluxsched.protocol.messages.common import Payload, Seconds, Size

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
