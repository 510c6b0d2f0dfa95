"""The `history` service: samples, intervals and reports (rfc/history.md).

Law: what is asked for is read from the store in no turn and put together in pieces, so no other request waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxsched.errors import InvalidValue
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.history import (
    IntervalsRequest,
    IntervalsResponse,
    ReportRequest,
    SamplesRequest,
)
from fluxsched.resource.module import ResourceModule
from fluxsched.runtime.history.accounting import JobAccounting
from fluxsched.runtime.history.columns import SampleColumns, step_of
from fluxsched.runtime.history.cores import cores_by_state
from fluxsched.runtime.history.intervals import Conditions, conditions
from fluxsched.runtime.history.report import AccountSums, RunningUse, read_accounts, response, running_use, whole
from fluxsched.runtime.history.samples import MachineSample, Moment
from fluxsched.runtime.history.sampling import DAY_S, MINUTE_S, Sampling
from fluxsched.runtime.history.stored import IntervalRow, SampleRow, read_intervals, read_runs, read_samples
from fluxsched.runtime.loop.queries import Queries
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.incremental import in_steps
from fluxsched.runtime.messaging.peers import RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.jobs.counts import JobCounts
from fluxsched.runtime.services.metrics import target_states
from fluxsched.runtime.services.resource import ResourceService
from fluxsched.runtime.storage.jobs import Query

REPORT_S = 30.0 * DAY_S
"""How much a report covers if it is not said (seconds)."""


class HistoryService:
    """Serves `history.*`."""

    def __init__(
        self,
        queries: Queries,
        store: Store,
        accounting: JobAccounting,
        manager: JobManager,
        resource: ResourceService,
        sampling: Sampling,
        turns: Turns,
        router: Router,
    ) -> None:
        self._queries = queries
        self._store = store
        self._accounting = accounting
        self._manager = manager
        self._resource = resource
        self._sampling = sampling
        self._turns = turns
        self._router = router
        router.serve(
            {
                "history.samples": self._samples,
                "history.intervals": self._intervals,
                "history.report": self._report,
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
            self._turns.spread(self._columns(request, SampleColumns(step_s), inside), request.failed)

        self._queries.run(lambda read: read_samples(read, since_s, until_s), found, request.failed)

    def _columns(
        self, request: RpcRequest, columns: SampleColumns, rows: Iterator[tuple[int, MachineSample]]
    ) -> Iterator[None]:
        yield from columns.add(rows)
        request.respond(columns.response())

    def _intervals(self, request: RpcRequest) -> None:
        wanted = request.payload(IntervalsRequest)
        since_s, until_s = self._times(wanted.since, wanted.until, DAY_S)
        targets = None if wanted.targets is None else self._resource.targets(wanted.targets)
        begun_s, now_s = self._sampling.running

        def read(query: Query) -> tuple[tuple[list[IntervalRow], int], list[tuple[float, float]]]:
            rows = read_intervals(query, since_s, until_s, targets, wanted.max_entries)
            return rows, read_runs(query, since_s, until_s)

        def found(answer: tuple[tuple[list[IntervalRow], int], list[tuple[float, float]]]) -> None:
            (rows, left_out), runs = answer
            if runs and runs[-1][0] >= begun_s:
                runs[-1] = runs[-1][0], max(runs[-1][1], min(now_s, until_s))
            request.respond(IntervalsResponse(intervals=rows, observed=runs, left_out=left_out))

        self._queries.run(read, found, request.failed)

    def _report(self, request: RpcRequest) -> None:
        wanted = request.payload(ReportRequest)
        since_s, until_s = self._times(wanted.since, wanted.until, REPORT_S)
        userid = self._router.permissions.sees_only(request)
        span = whole(since_s, until_s, self._turns.wall_s)

        def looked(running: RunningUse) -> None:
            def found(accounts: AccountSums) -> None:
                if span.since_s <= span.now_s < span.until_s:
                    accounts = accounts.until_now(self._sampling.unwritten())
                answer = response(wanted.by, span, accounts, running, wanted.max_entries, shows_all=userid is None)
                request.respond(answer)

            def ask() -> None:
                self._queries.run(lambda read: read_accounts(read, span, wanted.by, userid), found, request.failed)

            self._accounting.write()
            self._store.when_settled(ask, request.failed)

        holders = self._manager.holdings.jobids()
        in_steps(
            self._turns, request,
            running_use(self._manager.jobs.active, holders, span, wanted.by, userid, self._accounting.group_of), looked,
        )  # fmt: skip

    def _times(self, since_s: float | None, until_s: float | None, usual_s: float) -> tuple[float, float]:
        """The times that a request means. Raises InvalidValue."""
        until_s = self._turns.wall_s if until_s is None else until_s
        since_s = max(0.0, until_s - usual_s) if since_s is None else since_s
        if since_s > until_s:
            raise InvalidValue(f"since {since_s:.0f} is after until {until_s:.0f}: give an earlier since")
        return since_s, until_s


def look_at(module: ResourceModule, manager: JobManager, counts: JobCounts) -> Moment:
    """What a sample needs to know."""
    cores = cores_by_state(module.resources, target_states(module)[0], manager.holdings.busy("core"))
    queues = {queue.name or "": (queue.active - queue.running, queue.running) for queue in manager.queues}
    return Moment(cores, queues, counts.for_history())


def kept_conditions(module: ResourceModule) -> Conditions:
    """What intervals need to know."""
    return conditions(module.states(), module.status()["drain"].items())
