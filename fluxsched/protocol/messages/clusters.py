"""Leases: jobs that another instance runs here (`lease.*`), and what this instance has of others (`cluster.*`).

See rfc/clusters.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fluxsched.protocol.messages.common import Empty, JobNumber, JobspecObject, Payload, Size, WallTime
from fluxsched.protocol.messages.jobs import URGENCY_DEFAULT, UsageInfo, WaitStatus

LEASE_NAME_CHARS_MAX = 128
"""A name is the holder's, a slash and a job id; it is kept with every lease."""

LEASE_NAMES_MAX = 10_000
"""Names in one request: a megabyte."""

LeaseName = Annotated[str, Meta(pattern="^[!-~]+/[!-~]+$", max_length=LEASE_NAME_CHARS_MAX, description="HOLDER/JOB")]
HolderName = Annotated[str, Meta(pattern="^[!-~]+$", max_length=LEASE_NAME_CHARS_MAX)]


class LeaseSubmitRequest(Payload, frozen=True):
    """Submit a job once by this name: again it is answered with the job that there is. `session`: that of the watch."""

    name: LeaseName
    session: Size
    jobspec: JobspecObject
    urgency: Annotated[int, Meta(ge=0, le=31)] = URGENCY_DEFAULT


class LeaseSubmitResponse(Payload, frozen=True):
    """Id of the job that was submitted."""

    id: JobNumber


class LeaseWatchRequest(Payload, frozen=True):
    """All jobs of a holder, then what changes of them. From now on submits of earlier sessions are refused."""

    holder: HolderName
    session: Size


class LeaseInfo(Payload, frozen=True, kw_only=True):
    """One job: `began` if its tasks were started, `nodelist` where they run, `status` once it has ended."""

    name: LeaseName
    id: JobNumber
    state: Literal["waiting", "running", "ended"]
    began: bool = False
    nodelist: str | None = None
    status: WaitStatus | None = None
    exception: str | None = None
    note: str = ""
    usage: UsageInfo | None = None


class LeaseWatchResponse(Payload, frozen=True):
    """Jobs that are new or have changed; `whole`: these are all that there are (the first answer)."""

    leases: list[LeaseInfo]
    whole: bool = False


class LeaseWithdrawRequest(Payload, frozen=True):
    """Cancel the job of this name unless it has its resources. ENOENT: there is none; EBUSY: it has them."""

    name: LeaseName
    session: Size


class LeaseSettleRequest(Payload, frozen=True):
    """The ends of these are known, so the names can be forgotten; those of jobs that have not ended are kept."""

    names: Annotated[list[LeaseName], Meta(max_length=LEASE_NAMES_MAX)]


class ClusterInfo(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """One cluster of this instance. `since`: when it was heard or lost; `leases`: how many in which state."""

    name: str
    uri: str
    kind: Literal["fluxsched", "flux"]
    state: Literal["connected", "silent", "unknown"]
    since: WallTime | None = None
    note: str = ""
    targets: Size = 0
    online: Size = 0
    leases: dict[str, Size] = msgspec.field(default_factory=dict)


class ClusterListResponse(Payload, frozen=True):
    """All clusters, those with leases that are no longer configured among them."""

    clusters: list[ClusterInfo]


class ClusterForgetRequest(Payload, frozen=True):
    """Give up the leases of a silent cluster: the caller vouches for it that nothing of them runs there."""

    name: str


class ClusterForgetResponse(Payload, frozen=True, omit_defaults=False):
    """Numbers of leases: of jobs that are submitted anew here, and of jobs that end with an exception."""

    returned: Size
    failed: Size


__all__ = [
    "ClusterForgetRequest",
    "ClusterForgetResponse",
    "ClusterInfo",
    "ClusterListResponse",
    "Empty",
    "LeaseInfo",
    "LeaseSettleRequest",
    "LeaseSubmitRequest",
    "LeaseSubmitResponse",
    "LeaseWatchRequest",
    "LeaseWatchResponse",
    "LeaseWithdrawRequest",
]
