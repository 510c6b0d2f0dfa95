"""What a scheduler asks the job manager to do with running jobs, and what becomes of the answers.

Law: an error undoes here what was asked, and is logged; nothing else follows from it.
"""

from __future__ import annotations

import errno
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import parse_entries
from fluxsched.errors import RPCError
from fluxsched.protocol.messages.alloc import GrowRequest, ShrinkRequest
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.runtime.scheduler_process.effects import GROW, RAISE, SHRINK, Call, Log
from fluxsched.sched import effects as sched
from fluxsched.sched.engine.scheduler import Scheduler

RESIZING = (GROW, SHRINK)
"""The topics of requests that change the size of a job."""


def call_for(effect: sched.Grown | sched.Shrunk | sched.Raise) -> Call:
    """The request that it is."""
    match effect:
        case sched.Grown(jobid):
            return Call(GROW, GrowRequest(jobid, effect.R))
        case sched.Shrunk(jobid, ranks, note):
            return Call(SHRINK, ShrinkRequest(jobid, str(ranks), note))
    return Call(RAISE, RaiseRequest(id=effect.jobid, type=effect.type, severity=0, note=effect.note))


def answered(scheduler: Scheduler, call: Call, error: RPCError | None, now_s: float) -> list[sched.Effect | Log]:
    """What follows from an answer: of a grow that was stored, or of an error."""
    wanted = call.message
    if error is None:
        return [*scheduler.grow_stored(wanted.id, now_s)] if call.topic == GROW else []
    is_settled = error.errnum == errno.EOPNOTSUPP
    what = f"{call.topic} of type {wanted.type}" if call.topic == RAISE else call.topic
    found: list[sched.Effect | Log] = [Log(f"{what} on {format_f58(wanted.id)}: {error}", is_error=True)]
    if call.topic == GROW:
        found += scheduler.grow_failed(wanted.id, _ranks(wanted.R), now_s, is_settled)
    elif call.topic == SHRINK:
        scheduler.shrink_failed(wanted.id, Idset.parse(wanted.ranks), now_s, is_settled)
    elif wanted.type == sched.PREEMPT:
        scheduler.preempt_failed(wanted.id)
    return found


def _ranks(R: dict[str, Any]) -> Idset:  # noqa: N803 - RFC 20's name
    return ResourceSet(parse_entries(R["execution"]["R_lite"]).entries).ranks
