"""The `history` service: samples, intervals and reports (rfc/history.md).

Law: what is asked for is read from the store in no turn and put together in pieces, so no other request waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxsched.errors import InvalidValue
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.history import IntervalsRequest, IntervalsResponse, SamplesRequest
from fluxsched.resource.module import ResourceModule
from fluxsched.runtime.history.columns import SampleColumns, step_of
from fluxsched.runtime.history.cores import cores_by_state
from fluxsched.runtime.history.samples import MachineSample, Moment
from fluxsched.runtime.history.sampling import DAY_S, MINUTE_S
from fluxsched.runtime.history.stored import SampleRow, read_samples
from fluxsched.runtime.loop.faults import error_answer, is_expected
from fluxsched.runtime.loop.queries import Queries
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.counts import JobCounts
from fluxsched.runtime.services.metrics import target_states


class HistoryService:
    """Serves `history.*`."""

    def __init__(self, queries: Queries, turns: Turns, router: Router) -> None:
        self._queries = queries
        self._turns = turns
        router.serve(
            {
                "history.samples": self._samples,
                "history.intervals": self._intervals,
            }
        )

    def report(self) -> dict[str, int]:
        """What `history.stats-get` shows."""
        return {"queries": self._queries.waiting}

    def _samples(self, request: RpcRequest) -> None:
        wanted = request.payload(SamplesRequest)
        since_s, until_s = self._times(wanted.since, wanted.until, DAY_S)

        def found(rows: list[SampleRow]) -> None:
            step_s = step_of(since_s, until_s, wanted.points_max, max([step for step, _, _ in rows], default=MINUTE_S))
            first = since_s // step_s * step_s
            inside = ((t, MachineSample.of_row(row)) for _, t, row in rows if t >= first)
            self._turns.spread(self._columns(request, SampleColumns(step_s), inside), self._failure(request))

        self._queries.run(lambda read: read_samples(read, since_s, until_s), found, self._failure(request))

    def _intervals(self, request: RpcRequest) -> None:
        wanted = request.payload(IntervalsRequest)
        self._times(wanted.since, wanted.until, DAY_S)
        request.respond(IntervalsResponse(intervals=[], observed=[], left_out=0))

    def _columns(
        self, request: RpcRequest, columns: SampleColumns, rows: Iterator[tuple[int, MachineSample]]
    ) -> Iterator[None]:
        yield from columns.add(rows)
        request.respond(columns.response())

    def _times(self, since_s: float | None, until_s: float | None, usual_s: float) -> tuple[float, float]:
        """The times that a request means. Raises InvalidValue."""
        until_s = self._turns.wall_s if until_s is None else until_s
        since_s = max(0.0, until_s - usual_s) if since_s is None else since_s
        if since_s > until_s:
            raise InvalidValue(f"since {since_s:.0f} is after until {until_s:.0f}: give an earlier since")
        return since_s, until_s

    def _failure(self, request: RpcRequest) -> Callable[[Exception], None]:
        def failed(exc: Exception) -> None:
            if not is_expected(exc):
                self._turns.report_bug(request.topic, exc)
            request.error(*error_answer(request.topic, exc))

        return failed


def look_at(module: ResourceModule, manager: JobManager, counts: JobCounts) -> Moment:
    """What a sample needs to know."""
    cores = cores_by_state(module.resources, target_states(module)[0], manager.holdings.busy("core"))
    queues = {queue.name or "": (queue.active - queue.running, queue.running) for queue in manager.queues}
    return Moment(cores, queues, counts.for_history())
