"""Why a decision to change the size of a running job was refused: for the author of the policy.

Law: this only explains, on the state in which the decision was refused; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from fluxsched.core.jobid import format_f58
from fluxsched.sched.decisions import Grow, Shrink
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.holdings.elastic import SHRINK_PAUSE_S
from fluxsched.sched.holdings.resizing import NOT_ELASTIC, refuses_grow, refuses_shrink

NOT_RUNNING: Final = "it does not run"


def why_refused(group: Group, waiting: Container[int], decision: object, now_s: float) -> str:
    """The job and what was wrong; empty for other decisions. `waiting` are the jobs of the policy's queue."""
    match decision:
        case Grow(jobid):
            return f"job {format_f58(jobid)} cannot grow: {_no_grow(group, decision, now_s)}"
        case Shrink(jobid):
            return f"job {format_f58(jobid)} cannot shrink: {_no_shrink(group, waiting, decision)}"
    return ""


def _no_grow(group: Group, decision: Grow, now_s: float) -> str:
    jobid, fit = decision
    holding = group.ledger.get(jobid)
    if holding is None:
        return NOT_RUNNING
    if holding.elastic is None:
        return NOT_ELASTIC
    if now_s < holding.elastic.paused_until_s:
        return f"it was shrunk, or a grow of it failed, less than {SHRINK_PAUSE_S:g} s ago"
    return refuses_grow(holding, fit, group.pool) or "not all of the fit is free"


def _no_shrink(group: Group, waiting: Container[int], decision: Shrink) -> str:
    jobid, ranks, _, for_jobid = decision
    holding = group.ledger.get(jobid)
    if for_jobid and for_jobid not in waiting:
        return f"job {format_f58(for_jobid)}, for which it was to shrink, does not wait"
    if holding is None:
        return NOT_RUNNING
    if foreign := ranks - group.pool.ranks:
        return f"ranks {foreign} are not in group {group.name}"
    return refuses_shrink(holding, ranks)
