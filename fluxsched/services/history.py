"""The `history` service: samples, intervals and reports (rfc/history.md).

Law: what is asked for is read from the store in no turn and put together in pieces, so no other request waits for it.
Samples of all lengths are put into steps of one, as columns. Reports are the accounts of some time by user, bank,
queue, group or property, with what still runs: for whole hours, of long ago for whole days, so nothing is estimated but
quantiles of waits. A job counts for each property that some of its targets have, so rows by property may be more than
all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.history import (
    CORE_STATES,
    DAY_S,
    HOURS_AGE_MAX_S,
    MINUTE_S,
    RESULTS,
    Conditions,
    GroupOf,
    IntervalRow,
    JobAccounting,
    MachineSample,
    Moment,
    SampleRow,
    Sampling,
    conditions,
    damaged_history,
    group_name,
    read_intervals,
    read_runs,
    read_samples,
)
from fluxsched.jobs.job import Job
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.table import used
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Router, in_steps
from fluxsched.protocol.messages.instance import (
    IntervalsRequest,
    IntervalsResponse,
    ReportRequest,
    ReportResponse,
    ReportRow,
    SamplesRequest,
    SamplesResponse,
)
from fluxsched.resource.module import ResourceModule
from fluxsched.services.instance import target_states
from fluxsched.services.job_effects import JobCounts
from fluxsched.services.resource import ResourceService
from fluxsched.store.integrity import SELECTED, intact
from fluxsched.store.jobs import Query
from fluxsched.store.schema import DAY, HOUR, RESULT_COLUMNS, SUMS, WAITS
from fluxsched.store.store import Queries, Store
from fluxsched.system.clock import local_day, local_hour
from fluxsched.system.log import logger
from fluxsched.system.loop import WAITS_S, Turns, quantile

log = logger("history")

STEPS_S: Final = (60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800)
"""Lengths of steps that an answer may have: a multiple of each kept length is among them."""
POINTS_USUAL: Final = 1000
POINTS_MAX = 10_000
"""Steps in one answer: a MiB."""
PIECE: Final = 64
"""Rows that are added in one go."""


def step_of(since_s: float, until_s: float, points_max: int, kept_s: int) -> int:
    """Return the length of steps: the shortest multiple of the samples' length with no more than so many steps."""
    wanted = min(points_max or POINTS_USUAL, POINTS_MAX)
    fitting = [step for step in STEPS_S if step % kept_s == 0 and (until_s - since_s) / step <= wanted]
    longest = STEPS_S[-1]
    return fitting[0] if fitting else longest * -int(-(until_s - since_s) // (longest * wanted))


class SampleColumns:
    """Samples merged into steps, as columns."""

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self._steps: dict[int, MachineSample] = {}

    def add(self, rows: Iterable[tuple[int, MachineSample]]) -> Iterator[None]:
        """Take samples with their beginnings, as long work."""
        for count, (t, sample) in enumerate(rows, 1):
            self._steps.setdefault(t // self._step_s * self._step_s, MachineSample()).add(sample)
            if count % PIECE == 0:
                yield

    def response(self) -> SamplesResponse:
        """Return the samples of all steps in order."""
        times = sorted(self._steps)
        samples = [self._steps[t] for t in times]
        seen = [max(sample.observed_s, 1e-9) for sample in samples]
        both = [*zip(samples, seen, strict=True)]
        names = sorted({name for sample in samples for name in sample.queues})

        def of_queue(name: str, at: int) -> list[float]:
            return [sample.queues[name][at] / s if name in sample.queues else 0.0 for sample, s in both]

        return SamplesResponse(
            step=self._step_s,
            t=[float(t) for t in times],
            observed=[round(sample.observed_s, 3) for sample in samples],
            cores={state: [sample.cores[at] / s for sample, s in both] for at, state in enumerate(CORE_STATES)},
            pending={name: of_queue(name, 0) for name in names},
            running={name: of_queue(name, 1) for name in names},
            submitted=[sample.submitted for sample in samples],
            started=[sample.started for sample in samples],
            ended={name: [sample.ended[at] for sample in samples] for at, name in enumerate(RESULTS)},
            wait_p50=[quantile(WAITS_S, sample.wait_counts(), 0.5) for sample in samples],
            wait_p95=[quantile(WAITS_S, sample.wait_counts(), 0.95) for sample in samples],
        )


# ---- cores by state

_OF_TARGETS: Final = {
    "drained": ("draining", "drained"),
    "down": ("offline", "torpid", "lost"),
    "excluded": ("excluded", "spare"),
}


def cores_by_state(resources: ResourceSet, states: Mapping[str, Idset], busy: Mapping[int, int]) -> dict[str, int]:
    """Return the number of cores that jobs hold, and of all others those of targets in each state.

    `busy` has a mask a target.
    """
    allocated = sum([mask.bit_count() for mask in busy.values()])
    found, total = {"allocated": allocated}, 0
    ranks = {name: _union(states, names) for name, names in _OF_TARGETS.items()}
    totals = dict.fromkeys(ranks, 0)
    for entry in resources.entries:
        count = entry.children.count("core")
        total += len(entry.ranks) * count
        for name, some in ranks.items():
            totals[name] += len(entry.ranks & some) * count
    for name, some in ranks.items():
        found[name] = totals[name] - sum([busy.get(rank, 0).bit_count() for rank in some])
    found["free"] = max(0, total - sum(found.values()))
    return found


def _union(states: Mapping[str, Idset], names: tuple[str, ...]) -> Idset:
    union = EMPTY
    for name in names:
        union |= states.get(name, EMPTY)
    return union


# ---- reports

COLUMNS: Final = {"user": "userid", "bank": "bank", "queue": "queue", "group": "grp", "property": "properties"}
ROWS_USUAL: Final = 1000
REPORT_ROWS_MAX = 10_000
"""Rows in one answer: 3 MiB."""
DAYS_MAX: Final = 400
DAY_ROWS_MAX: Final = 100
"""Days of a report by days, and its rows: 1 MiB in all."""
STEP_JOBS: Final = 256
"""Running jobs looked at in one step: half a millisecond."""

_SUMMED: Final = ", ".join(f"sum({name})" for name in SUMS)
_CHOSEN: Final = f"usage WHERE step IN ({HOUR}, {DAY}) AND t >= ?1 AND t < ?2"


class Span(NamedTuple):
    """Whole hours or days (seconds since the epoch), and when it is now."""

    since_s: int
    until_s: int
    now_s: float


def whole(since_s: float, until_s: float, now_s: float) -> Span:
    """Return the span of whole steps that contains the requested times."""
    by_days_s = now_s - HOURS_AGE_MAX_S + 2 * DAY
    since = local_hour(since_s) if since_s >= by_days_s else local_day(since_s)
    until = local_hour(until_s) if until_s >= by_days_s else local_day(until_s)
    if until < until_s:
        until = until + HOUR if until_s >= by_days_s else local_day(until + 1.5 * DAY)
    return Span(since, until, now_s)


def days_of(span: Span) -> list[int]:
    """Return the beginnings of the days of a span, by the instance's clock. Raises LimitExceeded for too many."""
    days = [local_day(span.since_s)]
    while (after := local_day(days[-1] + 1.5 * DAY)) < span.until_s and len(days) <= DAYS_MAX:
        days.append(after)
    if len(days) > DAYS_MAX:
        raise LimitExceeded(f"more than {DAYS_MAX} days, the limit of a report by days: give a later since")
    return days


_NamesOf: TypeAlias = Callable[[Job], Collection[str]]


class RunningUse(NamedTuple):
    """Usage of jobs that still run in a period: by name their number, core-seconds and GPU-seconds, and the
    core-seconds of each day.
    """

    by_name: dict[str, list[float]]
    total: list[float]
    by_day: dict[str, list[float]]


def running_use(jobs: Mapping[int, Job], holders: Iterable[int], span: Span, by: str, userid: int | None,
                group_of: GroupOf, days: Sequence[int] = ()) -> Iterator[RunningUse | None]:  # fmt: skip
    """Sum the use of jobs that hold resources, of one user if given, in steps."""
    names_of: _NamesOf = (lambda job: (group_name(job, group_of),)) if by == "group" else _NAMES[by]
    found = RunningUse({}, [0.0, 0.0, 0.0], defaultdict(lambda: [0.0] * len(days)))
    left = iter(holders)
    while some := list(islice(left, STEP_JOBS)):
        for job in map(jobs.get, some):
            if job is None or (userid is not None and job.userid != userid):
                continue
            begin_s, end_s = max(job.t_run, span.since_s), min(span.until_s, span.now_s)
            if end_s > begin_s:
                core_s, gpu_s = used(job, begin_s, end_s)
                for sums in (found.total, *(found.by_name.setdefault(name, [0.0] * 3) for name in names_of(job))):
                    sums[0] += 1
                    sums[1] += core_s
                    sums[2] += gpu_s
                for at, day_s in _use_of_days(job, begin_s, end_s, days):
                    for name in names_of(job):
                        found.by_day[name][at] += day_s
        yield None
    yield found


def _use_of_days(job: Job, begin_s: float, end_s: float, days: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Core-seconds of a job from `begin_s` until `end_s`, by the number of the day."""
    for at in range(max(0, bisect_right(days, begin_s) - 1), len(days)):
        if days[at] >= end_s:
            return
        until_s = days[at + 1] if at + 1 < len(days) else end_s
        yield at, used(job, max(begin_s, days[at]), min(end_s, until_s))[0]


_NAMES: Final[dict[str, _NamesOf]] = {
    "user": lambda job: (str(job.userid),),
    "bank": lambda job: (job.sharing.bank or DEFAULT_BANK,),
    "queue": lambda job: (job.queue.name or "",),
    "property": lambda job: job.properties.split("\n"),
}


class AccountSums(NamedTuple):
    """Sums read from the store: by name, of all together, and the number of rows left out; seconds of cores by
    state.
    """

    rows: list[tuple[str, list[float]]]
    total: list[float]
    left_out: int
    observed_s: float
    cores: tuple[float, ...]

    def until_now(self, unwritten: MachineSample) -> AccountSums:
        """Return the sums with the period since the last sample: use is counted until now, too."""
        cores = tuple([one + other for one, other in zip(self.cores, unwritten.cores, strict=True)])
        return self._replace(observed_s=self.observed_s + unwritten.observed_s, cores=cores)


def read_accounts(read: Query, span: Span, by: str, userid: int | None) -> AccountSums:
    """Return the sums stored for this period, of one user if given: for another thread, since a year of a large site
    takes 1 s.
    """
    values: tuple[int, ...] = (span.since_s, span.until_s)
    chosen = _CHOSEN
    if userid is not None:
        values, chosen = (*values, userid), f"{_CHOSEN} AND userid = ?3"
    name = COLUMNS[by]
    sql = f"SELECT {name}, count(*) OVER (), {_SUMMED} FROM {chosen} GROUP BY {name} "
    found = list(read(f"{sql} ORDER BY sum(core_s) DESC, {name} LIMIT {REPORT_ROWS_MAX}", values))
    rows = [(str(key), list(sums)) for key, _, *sums in found]
    left_out = found[0][1] - len(found) if found else 0
    if left_out:
        total = [value or 0.0 for value in next(iter(read(f"SELECT {_SUMMED} FROM {chosen}", values)))]
    else:
        total = [sum(column) for column in zip(*(sums for _, sums in rows), strict=True)] or [0.0] * len(SUMS)
    if by == "property":
        rows = _by_property(rows)
    observed = f"SELECT {SELECTED['sample']} FROM sample WHERE step IN (60, 600, 3600) AND t >= ? AND t < ?"
    samples = [row[2:-1] for row in intact(read(observed, (span.since_s, span.until_s)))]
    observed_s, *seconds = map(sum, zip(*samples, strict=True)) if samples else [0.0] * (1 + len(CORE_STATES))
    return AccountSums(rows, total, left_out, observed_s, tuple(seconds))


def read_days(read: Query, span: Span, by: str, userid: int | None, days: Sequence[int]) -> dict[str, list[float]]:
    """Return the stored core-seconds of each day by name: for another thread, as `read_accounts`."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(days))
    name, mine, values = COLUMNS[by], "" if userid is None else "AND userid = ?3", [span.since_s, span.until_s]
    sql = f"SELECT {name}, t, sum(core_s) FROM {_CHOSEN} {mine} GROUP BY {name}, t"
    for key, t, core_s in read(sql, tuple(values if userid is None else [*values, userid])) if days else ():
        for each in str(key).split("\n") if by == "property" else (str(key),):
            found[each][max(0, bisect_right(days, t) - 1)] += core_s
    return found


def _by_property(rows: Iterable[tuple[str, list[float]]]) -> list[tuple[str, list[float]]]:
    """Return the sums by property, from sums by sets of properties."""
    found: dict[str, list[float]] = {}
    for names, sums in rows:
        for name in names.split("\n"):
            before = found.get(name)
            found[name] = sums if before is None else [one + other for one, other in zip(before, sums, strict=True)]
    return [*found.items()]


def response(by: str, span: Span, accounts: AccountSums, running: RunningUse, max_entries: int, shows_all: bool
             ) -> ReportResponse:  # fmt: skip
    """Return the response; `shows_all` is whether it includes figures of the machine."""
    rows = dict(accounts.rows)
    both = {name: _row(name, rows.get(name), running.by_name.get(name)) for name in rows.keys() | running.by_name}
    order = sorted(both.values(), key=lambda row: (-row.core_seconds, row.name))
    shown = order[: min(max_entries or ROWS_USUAL, REPORT_ROWS_MAX)]
    total = _row("", accounts.total, running.total)
    return ReportResponse(
        by=by,
        since=float(span.since_s),
        until=max(float(span.since_s), min(float(span.until_s), span.now_s)),
        rows=shown,
        left_out=accounts.left_out + len(order) - len(shown),
        total=total,
        observed=accounts.observed_s,
        capacity=_capacity(accounts.cores, total.core_seconds) if shows_all else None,
    )


def by_days(
    answer: ReportResponse, days: Sequence[int], stored: Mapping[str, list[float]], running: RunningUse,
    cores: Mapping[str, int],
) -> ReportResponse:  # fmt: skip
    """Return a report whose rows have the core-seconds of each day, and the cores that they are a part of now."""
    nothing = [0.0] * len(days)

    def row(one: ReportRow) -> ReportRow:
        both = zip(stored.get(one.name, nothing), running.by_day.get(one.name, nothing), strict=True)
        return replace(one, days=[mine + yours for mine, yours in both], cores=cores.get(one.name))

    rows = [row(one) for one in answer.rows[:DAY_ROWS_MAX]]
    left_out = answer.left_out + len(answer.rows) - len(rows)
    return replace(answer, rows=rows, left_out=left_out, days=[float(day) for day in days])


def _capacity(sampled: Iterable[float], used_s: float) -> dict[str, float]:
    """Return core-seconds by state, with the jobs' usage in place of that of the samples, observed once a minute.

    The difference was free, or not observed: jobs that ran while the instance was not.
    """
    cores = dict(zip(CORE_STATES, sampled, strict=True))
    free_s = max(0.0, cores["free"] + cores["allocated"] - used_s)
    return {**cores, "allocated": used_s, "free": free_s}


def _row(name: str, sums: list[float] | None, running: list[float] | None) -> ReportRow:
    sums = [0.0] * len(SUMS) if sums is None else sums
    still, core_s, gpu_s = running or (0.0, 0.0, 0.0)
    ended = dict(zip(SUMS, sums, strict=True))
    results = {name: int(ended[name]) for name in RESULT_COLUMNS}
    counts = [ended[f"w{at}"] for at in range(WAITS)]
    waits = int(sum(counts))
    return ReportRow(
        name=name,
        jobs=sum(results.values()),
        running=int(still),
        results=results,
        core_seconds=ended["core_s"] + core_s,
        gpu_seconds=ended["gpu_s"] + gpu_s,
        cpu_seconds=ended["cpu_s"],
        cpu_core_seconds=ended["cpu_core_s"],
        gpu_busy_seconds=ended["gpu_busy_s"],
        gpu_sampled_seconds=ended["gpu_sampled_s"],
        waits=waits,
        wait_mean=ended["wait_s"] / waits if waits else None,
        wait_p50=quantile(WAITS_S, counts, 0.5),
        wait_p95=quantile(WAITS_S, counts, 0.95),
    )


# ---- the service

REPORT_S = 30.0 * DAY_S
"""Default period of a report (seconds)."""


class HistoryService:
    """Service of the `history.*` topics."""

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

    def name_damaged(self, left_out: Callable[[list[str]], None]) -> None:
        """Have `left_out` called with the names of rows that are damaged, and left out of answers."""
        self._queries.run(damaged_history, left_out, lambda fault: log.error("%s", fault))

    def report(self) -> dict[str, int]:
        """Return the statistics shown by `history.stats-get`."""
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
        days = days_of(span) if wanted.days else []

        def read(query: Query) -> tuple[AccountSums, dict[str, list[float]]]:
            return read_accounts(query, span, wanted.by, userid), read_days(query, span, wanted.by, userid, days)

        def looked(running: RunningUse) -> None:
            def found(both: tuple[AccountSums, dict[str, list[float]]]) -> None:
                accounts, stored = both
                if span.since_s <= span.now_s < span.until_s:
                    accounts = accounts.until_now(self._sampling.unwritten())
                answer = response(wanted.by, span, accounts, running, wanted.max_entries, shows_all=userid is None)
                request.respond(by_days(answer, days, stored, running, self._cores(wanted.by)) if days else answer)

            def ask() -> None:
                self._queries.run(read, found, request.failed)

            self._accounting.write()
            self._store.when_idle(ask, request.failed)

        active, holders, group_of = self._manager.jobs.active, self._manager.grants.jobids(), self._accounting.group_of
        in_steps(
            self._turns, request, running_use(active, holders, span, wanted.by, userid, group_of, days), looked
        )  # fmt: skip

    def _cores(self, by: str) -> dict[str, int]:
        """Return the cores that each property or queue has now; users and banks have none of their own."""
        module, parts = self._resource.module, dict[str, Idset]()
        if by == "property":
            parts = dict(module.resources.properties)
        elif by == "queue":
            members = {group.name: group.targets for group in module.report.groups()}
            parts = {queue.name or "": _union(members, queue.config.groups) for queue in self._manager.queues}
        entries = module.resources.entries
        return {name: sum([len(entry.ranks & ranks) * entry.children.count("core") for entry in entries])
                for name, ranks in parts.items()}  # fmt: skip

    def _times(self, since_s: float | None, until_s: float | None, usual_s: float) -> tuple[float, float]:
        """Return the times that a request means. Raises InvalidValue."""
        until_s = self._turns.wall_s if until_s is None else until_s
        since_s = max(0.0, until_s - usual_s) if since_s is None else since_s
        if since_s > until_s:
            raise InvalidValue(f"since {since_s:.0f} is after until {until_s:.0f}: give an earlier since")
        return since_s, until_s


def look_at(module: ResourceModule, manager: JobManager, counts: JobCounts, arriving: Idset) -> Moment:
    """Return the state of the instance that samples need; hosts that are checked before they go online (`arriving`)
    have not failed.
    """
    states = target_states(module)[0]
    arriving &= states["offline"]
    states["offline"] -= arriving
    states["drained"] |= arriving & module.drained
    states["spare"] |= arriving & module.spares.all - module.drained
    cores = cores_by_state(module.resources, states, manager.grants.busy("core"))
    queues = {queue.name or "": (queue.active - queue.running, queue.running) for queue in manager.queues}
    return Moment(cores, queues, counts.for_history())


def kept_conditions(module: ResourceModule) -> Conditions:
    """Return the conditions that intervals record."""
    return conditions(module.report.states(), module.report.status()["drain"].items())
