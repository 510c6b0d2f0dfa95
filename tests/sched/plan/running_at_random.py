"""Jobs that run when a plan is made, of what hypothesis draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fluxsched.core.jobspec import Request
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.place import find_fit
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.pool.pool import Pool


def some_running(
    pool: Pool, request_of: Callable[..., Request], wanted: Iterable[tuple[Mapping[str, Any], float, str]]
) -> tuple[Ledger, RunningJobs]:
    """Those of the wishes, each with its end and placement, that fit one after the other, numbered as given."""
    ledger = Ledger([pool])
    index = RunningJobs(pool, ledger)
    index.follow()
    for jobid, (wish, end_s, placement) in enumerate(wanted):
        fit = find_fit(pool, Shape(request_of(**wish)), placement)
        if fit is not None:
            ledger.adopt(jobid, fit.blocks, end_s)
            index.began(ledger.holdings[jobid])
    return ledger, index
