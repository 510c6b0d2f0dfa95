"""When and where jobs will start that wait: what policies have promised, else a forecast for those first in line.

Law: reads only, also within a pass: what it has not come to yet stands as it was planned before. In KEPT_S one answer
is made, however often it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from math import inf
from operator import attrgetter
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import Reservation
from fluxsched.sched.engine.forecast import Forecast, forecasts_max
from fluxsched.sched.engine.waiting.group import Group
from fluxsched.sched.engine.waiting.joint import home_of
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.placement import ranks_in
from fluxsched.sched.queue.orders import cores_asked
from fluxsched.sched.queue.pending import Waiting

PLANNED_JOBS_MAX = 1000
"""Jobs in one answer: a conservative plan has every waiting job."""
FORECASTS_MAX = 8
"""Jobs of a queue that are forecast."""
KEPT_S = 1.0
"""How long an answer serves all who ask (seconds)."""
FORECAST_KEPT_S = 5.0
"""The same of an answer with forecasts, so that they take 2 % of a scheduler's time."""


class PlannedStart(NamedTuple):
    """A job is to start at `start_s` and to end by `end_s` (wall time, seconds; `inf`: it has no limit).

    `ranks` are None where they are not chosen yet; `nnodes` is 0 where any number will do.
    """

    jobid: int
    start_s: float
    end_s: float
    ranks: Idset | None
    nnodes: int
    ncores: int
    is_promised: bool


class PlannedStarts:
    """The answers about the groups of one scheduler."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kept: dict[str, tuple[float, float, list[PlannedStart]]] = {}
        """By group: when it was made, for how long, and the answer."""

    def of(self, group: Group, now_s: float) -> list[PlannedStart]:
        """The first of them in order of time; jobs that do not wait any more are left out."""
        made_s, kept_s, found = self._kept.get(group.name, (-inf, 0.0, []))
        if not made_s <= now_s < made_s + kept_s:
            found = nsmallest(PLANNED_JOBS_MAX, _starts(group, self._ledger, now_s), key=attrgetter("start_s"))
            is_forecast = any(not queue.planned and queue.jobs.first is not None for queue in group.queues.values())
            kept_s = FORECAST_KEPT_S if is_forecast else KEPT_S
            self._kept[group.name] = now_s, kept_s, found
        return [one for one in found if group.queue_of(one.jobid) is not None]


def _starts(group: Group, ledger: Ledger, now_s: float) -> Iterator[PlannedStart]:
    if not group.grown or group.quotas is not None:  # allocations in a tree of queues have no end that is known
        return
    forecast: Forecast | None = None
    count = min(FORECASTS_MAX, forecasts_max(ledger))
    for queue in group.queues.values():
        promised = list(_promised(queue))
        yield from promised
        if not promised and queue.jobs.first is not None:
            if forecast is None:
                forecast = Forecast(group, ledger, now_s)
            mine = (job for job in queue.jobs if home_of(group, job.jobid) is group)
            yield from _forecast(forecast, queue, islice(mine, count), group.expiration_s or inf)


def _promised(queue: PolicyQueue) -> Iterator[PlannedStart]:
    for planned in (queue.planned, queue.planned_before):
        for kept in planned.values():
            job = queue.jobs.by_id.get(kept.jobid)
            if job is None or kept.start_s == inf or (planned is not queue.planned and kept.jobid in queue.planned):
                continue
            yield PlannedStart(
                kept.jobid, kept.start_s, kept.end_s, _ranks(kept), _nodes(job), kept.cores, is_promised=True
            )


def _forecast(forecast: Forecast, queue: PolicyQueue, jobs: Iterable[Waiting], last_s: float) -> Iterator[PlannedStart]:
    for job in jobs:
        start_s, _ = forecast.of(queue, job)
        if start_s is not None:
            end_s = min(start_s + (job.duration_s or inf), last_s)
            cores = cores_asked(job.request)
            yield PlannedStart(job.jobid, start_s, end_s, None, _nodes(job), cores, is_promised=False)


def _ranks(kept: Reservation) -> Idset | None:
    return None if kept.fit is None else ranks_in(kept.fit.blocks)


def _nodes(job: Waiting) -> int:
    nodes = job.request.nodes
    return 0 if nodes is None else nodes.min
