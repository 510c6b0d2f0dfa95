"""What a waiting ask lacks, as one of a closed set and in words.

Law: quotas come first, since without them no node is looked for, but for what there is in all; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.pool.place import place_now
from fluxsched.sched.pool.placement import BEST_FIT, Fits
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.quotas.bookings import first_exceeded

NODE: Final = "node"
QUEUE: Final = "queue"
LIMIT: Final = "limit"
GATE: Final = "gate"
RESERVED: Final = "reserved"
LACKS: Final = (NODE, QUEUE, LIMIT, GATE, RESERVED)
"""Room on a node; a maximum of a queue; a limit of a user or group; a plugin lets it wait; its node is not free yet."""


class Lacking(NamedTuple):
    """`kind` is one of LACKS; `rank` is the node that is kept, if one is."""

    kind: str
    text: str
    rank: int | None = None


def lacking(group: Group, job: Waiting) -> Lacking | None:
    """What this job of a group lacks; None if nothing but its turn."""
    rank = group.reserved.by_job.get(job.jobid)
    if rank is not None:
        return Lacking(RESERVED, f"a node is kept for it, rank {rank}, where not enough is free yet", rank)
    narrowed = group.pool.narrowed.get(job.shape.number)
    if narrowed is not None and narrowed.later:
        return Lacking(GATE, narrowed.later)
    exceeded = None if job.application is None else first_exceeded(job.application, job.request.amounts)
    if exceeded is None or exceeded.is_of_root:
        outcome = place_now(group.pool, job.shape, BEST_FIT)
        if not isinstance(outcome, Fits):
            return Lacking(NODE, outcome.why)
    if exceeded is not None:
        return Lacking(LIMIT if exceeded.is_limit else QUEUE, exceeded.text)
    said = None if group.hooks is None else group.notices.reasons.get(job.jobid)
    return Lacking(GATE, said) if isinstance(said, str) else None


def lacking_of(groups: Iterable[Group], jobid: int) -> Lacking | None:
    """The same of a job of any of these groups; None also if it does not wait."""
    for group in groups:
        gated = None if group.hooks is None else group.hooks.gates.gated.get(jobid)
        if gated is not None:
            return Lacking(GATE, gated.why)
        queue = group.queue_of(jobid)
        job = None if queue is None else queue.jobs.get(jobid)
        if job is not None:
            return lacking(group, job)
    return None
