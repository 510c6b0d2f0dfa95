"""What becomes of decisions about running jobs, to preempt, shrink or grow one: they are made real, or refused. Jobs
to which that may happen are noted when they begin.

Law: nothing is done that the ledger refuses; what it accepts reaches the plans and the preemptions.
"""

from __future__ import annotations

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.sched.decisions import Grow, Preempt, Shrink
from fluxsched.sched.effects import PREEMPT, Grown, Raise, Shrunk
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.notices import REASON_CHARS_MAX
from fluxsched.sched.holdings.elastic import SHRINK_PAUSE_S
from fluxsched.sched.ledger import Holding
from fluxsched.sched.pool.placement import Fits, ranks_in


def note_begun(group: Group, holding: Holding, placement: str) -> None:
    """A job has begun that may be preempted or is elastic; an elastic one grows by the `placement` of its start."""
    if holding.elastic is not None:
        holding.elastic.placement = placement
    group.preemptions.began(holding)


def preempt(group: Group, decision: Preempt, now_s: float) -> Raise | None:
    """Ends a job that holds something in the group; None if that is refused."""
    jobid, beneficiary, reason = decision
    if group.preemptions.refuses(jobid, now_s):
        return None
    holding = group.ledger.holdings[jobid]
    if not any(block.word & group.pool.members_at(block.at) for block in holding.blocks):
        return None
    group.preemptions.preempt(holding, beneficiary, now_s)
    group.running.began(holding)
    group.invalidate_pass()  # what is planned may begin sooner
    note = f"preempted so that job {format_f58(beneficiary)} can start: {reason}"
    return Raise(jobid, note[:REASON_CHARS_MAX], PREEMPT, beneficiary)


def shrink(group: Group, decision: Shrink, now_s: float) -> Shrunk | None:
    """Has a job leave targets of the group; None if that is refused."""
    jobid, ranks, reason, beneficiary = decision
    if not isinstance(ranks, Idset):
        raise TypeError(f"it shrank job {jobid} by {type(ranks).__name__}: ranks are an Idset")
    if not ranks <= group.pool.ranks:
        return None
    by_s = now_s + group.preemptions.timeout_s
    holding = group.ledger.shrink(jobid, ranks, by_s, now_s)
    if holding is None or holding.elastic is None:
        return None
    holding.elastic.paused_until_s = now_s + SHRINK_PAUSE_S
    group.preemptions.shrink(holding, ranks, beneficiary)
    group.running.began(holding)
    group.invalidate_pass()  # what is planned may begin sooner
    note = f"left to job {format_f58(beneficiary)}: {reason}" if beneficiary else reason
    return Shrunk(jobid, ranks, note[:REASON_CHARS_MAX], beneficiary)


def grow(group: Group, decision: Grow, now_s: float) -> Grown | None:
    """Gives a job targets of the group; None if that is refused."""
    jobid, fit = decision
    if not isinstance(fit, Fits):
        raise TypeError(f"it grew job {jobid} by {type(fit).__name__}: only a Fits can be added")
    holding = enlarge(group, jobid, fit, now_s)
    return None if holding is None else hand_out(group, holding, fit, now_s)


def enlarge(group: Group, jobid: int, fit: Fits, now_s: float) -> Holding | None:
    """The job holds this, too, which is still to be handed out; None if that is refused."""
    holding = group.ledger.elastic.by_id.get(jobid)
    if holding is None or holding.elastic is None or now_s < holding.elastic.paused_until_s:
        return None
    if group.ledger.grow(jobid, fit, group.pool, now_s) is None:
        return None
    group.preemptions.resized(holding)
    group.running.began(holding)
    return holding


def hand_out(group: Group, holding: Holding, fit: Fits, now_s: float) -> Grown:
    """The job manager is to learn of what a job got."""
    assert holding.elastic is not None
    holding.elastic.asked.append(ranks_in(fit.blocks))
    for queue in group.queues.values():
        queue.arrivals = None  # plans of the last pass do not know of it
    return Grown(holding.jobid, fit, now_s, holding.expiration_s, group.pool)
