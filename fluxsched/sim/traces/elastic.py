"""Makes jobs of a trace elastic: they keep their work, and may have from half to twice their nodes.

Law: which jobs are chosen follows from the seed alone, and all others stay as they are.
"""

from __future__ import annotations

import json

from fluxsched.core.jobfields import checked_max_hops
from fluxsched.errors import InvalidValue
from fluxsched.sim.traces.trace import Ask, Machine, TraceJob
from fluxsched.system.clock import Chance


def made_elastic(
    jobs: list[TraceJob], machine: Machine, chance: Chance, elastic: float, parts: float, max_hops: int | None
) -> list[TraceJob]:
    """The jobs, of which these fractions are elastic, and elastic with a target of its own for a first part.

    At most `max_hops` are within them. Raises InvalidValue for what is no fraction, or together more than all, and for
    a bound that no job may have, or that there is no job for.
    """
    if max_hops is not None:
        checked_max_hops(max_hops, "max-hops")
        if not elastic + parts:
            raise InvalidValue("max-hops bounds elastic jobs alone, and there are none: give elastic or parts, too")
    if min(elastic, parts) < 0 or not elastic + parts <= 1:
        raise InvalidValue(f"elastic {elastic:g} and parts {parts:g} are not fractions of the jobs, at most 1 together")
    found = []
    for job in jobs:
        kind = chance.random()
        if kind < elastic + parts:
            job = _resizable(job, machine, kind < parts, max_hops)
        found.append(job)
    return found


def _resizable(job: TraceJob, machine: Machine, of_parts: bool, max_hops: int | None) -> TraceJob:
    procs = job.ask.nslots * job.ask.cores
    nodes = -(-procs // machine.cores)
    room = machine.targets - of_parts
    least, most = max(1, nodes // 2), min(max(2, 2 * nodes), room)
    if least >= most:
        return job  # nothing to choose on this machine
    count = f"{least}-{most}"
    if of_parts:
        work = {"label": "work", "nodes": count, "cores": machine.cores}
        both = json.dumps([{"label": "lead", "nodes": 1}, work], sort_keys=True)
        ask = Ask(elastic=True, max_hops=max_hops, parts=both)
    else:
        ask = Ask(cores=machine.cores, nodes=count, exclusive=True, elastic=True, max_hops=max_hops)
    limit_s = None if job.limit_s is None else job.limit_s * max(2.0, procs / (least * machine.cores))
    return job._replace(ask=ask, run_s=0.0, work=float(procs * job.run_s), limit_s=limit_s)
