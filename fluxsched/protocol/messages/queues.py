"""Queues of the job manager: enable or disable submission, start or stop allocation (names as Flux has them)."""

from __future__ import annotations

from fluxsched.protocol.messages.common import FreeForm, Payload, Seconds, Size


class QueueListResponse(Payload, frozen=True):
    """The named queues; empty when there is one anonymous queue."""

    queues: list[str]


class QueueStatusRequest(Payload, frozen=True):
    """Ask for one queue; without a name for the anonymous one."""

    name: str | None = None


class QueueStatus(Payload, frozen=True):
    """Status of a queue: whether it takes jobs and has them scheduled, with the reason if not.

    `blocked` is the obstacle besides an administrator. `group` is the group that serves it, and `groups` are all of
    them if there are several; `policy` is the policy by which their scheduler orders it, while there is one. The others
    are its configuration (RFC 33): the constraint on its jobs (RFC 31), and its limits; an absent limit is no limit.
    """

    enable: bool
    start: bool
    name: str | None = None
    enable_reason: str | None = None
    start_reason: str | None = None
    blocked: str | None = None
    group: str = "default"
    groups: list[str] | None = None
    policy: str | None = None
    constraints: FreeForm | None = None
    duration_default: Seconds | None = None
    duration_max: Seconds | None = None
    nnodes_min: Size | None = None
    nnodes_max: Size | None = None
    ncores_max: Size | None = None
    ngpus_max: Size | None = None


class QueueEnableRequest(Payload, frozen=True):
    """Let a queue (or `all`) take jobs, or no longer."""

    enable: bool
    name: str | None = None
    reason: str | None = None
    all: bool = False


class QueueStartRequest(Payload, frozen=True):
    """Let the jobs of a queue (or `all`) be scheduled, or no longer."""

    start: bool
    name: str | None = None
    reason: str | None = None
    all: bool = False
