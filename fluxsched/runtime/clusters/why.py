"""What a cluster contributes to `job why`: why nothing begins there, and the state of a lease.

Law: of a silent cluster it says so, since when, and what can be done about it, not that its targets are down.
"""

from __future__ import annotations

from fluxsched.core.why import Why
from fluxsched.leases.lease import Lease
from fluxsched.leases.states import LeaseState, Wish
from fluxsched.runtime.clusters.loop import ClusterLoop
from fluxsched.runtime.system.clock import local_text


def why_unavailable(loop: ClusterLoop) -> str:
    """Why no job, or none of some size, begins in the cluster at present; empty if any may."""
    if loop.settings is None:
        return ""
    if not loop.table.is_known and not loop.offered.targets:
        return ""  # the scheduler says that it has not answered
    if not loop.table.is_known:
        return f"cluster {loop.name} is silent{_since(loop)}: {loop.note}"
    note = loop.offered.note
    return f"cluster {loop.name}: {note}" if note else ""


def lease_status(loop: ClusterLoop, lease: Lease) -> Why | None:
    """What a job with targets of the cluster waits for; None if it runs and the cluster answers."""
    has_begun, silent = lease.state is LeaseState.RUNNING, not loop.table.is_known
    if has_begun and not silent:
        return None
    if silent:
        what = "runs in" if has_begun else "was sent to" if lease.state is LeaseState.SENT else "is to run in"
        kept = f"its jobs are kept until it answers; if nothing of it is left: fluxsched cluster forget {loop.name}"
        return Why(f"it {what} cluster {loop.name}, which is silent{_since(loop)}: {loop.note}", kept)
    reason = f"it was given targets of cluster {loop.name} and waits to be begun there"
    if lease.wish is Wish.RETURN:
        return Why(f"{reason}; it is being taken back, since that took too long")
    late_s = lease.since_s + loop.table.return_after_s
    rule = f"a job not begun there by {local_text(late_s)} is submitted again here, at no cost of attempts"
    return Why(reason, rule)


def _since(loop: ClusterLoop) -> str:
    return "" if loop.since_s is None else f" since {local_text(loop.since_s)}"
