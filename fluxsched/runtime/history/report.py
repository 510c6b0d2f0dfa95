"""Reports: the accounts of some time, put together by user, bank, queue, group or property, with what runs still.

Law: times are answered for as whole hours, of long ago as whole days, so nothing is estimated but quantiles of waits. A
job counts for each property that some of its targets have, so rows by property may be more than all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.sharing import DEFAULT_BANK
from fluxsched.jobs.job.job import Job
from fluxsched.jobs.job.sizes import used
from fluxsched.protocol.messages.history import ReportResponse, ReportRow
from fluxsched.runtime.history.accounting import HOURS_AGE_MAX_S
from fluxsched.runtime.history.job_group import GroupOf, group_name
from fluxsched.runtime.history.samples import CORE_STATES, MachineSample
from fluxsched.runtime.loop.histogram import WAITS_S, quantile
from fluxsched.runtime.storage.jobs import Query
from fluxsched.runtime.storage.usage import DAY, HOUR, RESULT_COLUMNS, SUMS
from fluxsched.runtime.system.clock import local_day, local_hour

COLUMNS: Final = {"user": "userid", "bank": "bank", "queue": "queue", "group": "grp", "property": "properties"}
ROWS_USUAL: Final = 1000
REPORT_ROWS_MAX = 10_000
"""Rows in one answer: 3 MiB."""
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
    """The time that can be answered for, in which the asked one is."""
    by_days_s = now_s - HOURS_AGE_MAX_S + 2 * DAY
    since = local_hour(since_s) if since_s >= by_days_s else local_day(since_s)
    until = local_hour(until_s) if until_s >= by_days_s else local_day(until_s)
    if until < until_s:
        until = until + HOUR if until_s >= by_days_s else local_day(until + 1.5 * DAY)
    return Span(since, until, now_s)


_NamesOf: TypeAlias = Callable[[Job], Collection[str]]


class RunningUse(NamedTuple):
    """What jobs that run still have used in some time: by name how many they are, core-seconds and GPU-seconds."""

    by_name: dict[str, list[float]]
    total: list[float]


def running_use(jobs: Mapping[int, Job], holders: Iterable[int], span: Span, by: str, userid: int | None,
                group_of: GroupOf) -> Iterator[RunningUse | None]:  # fmt: skip
    """Look at the jobs that hold something, of one user if it is said, in steps."""
    names_of: _NamesOf = (lambda job: (group_name(job, group_of),)) if by == "group" else _NAMES[by]
    found = RunningUse({}, [0.0, 0.0, 0.0])
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
        yield None
    yield found


_NAMES: Final[dict[str, _NamesOf]] = {
    "user": lambda job: (str(job.userid),),
    "bank": lambda job: (job.sharing.bank or DEFAULT_BANK,),
    "queue": lambda job: (job.queue.name or "",),
    "property": lambda job: job.properties.split("\n"),
}


class AccountSums(NamedTuple):
    """What is read: sums by name, of all together, and how many rows were left out; seconds of cores by state."""

    rows: list[tuple[str, list[float]]]
    total: list[float]
    left_out: int
    observed_s: float
    cores: tuple[float, ...]

    def until_now(self, unwritten: MachineSample) -> AccountSums:
        """With what was observed since the last sample: use is counted until now, too."""
        cores = tuple([one + other for one, other in zip(self.cores, unwritten.cores, strict=True)])
        return self._replace(observed_s=self.observed_s + unwritten.observed_s, cores=cores)


def read_accounts(read: Query, span: Span, by: str, userid: int | None) -> AccountSums:
    """What the store has of this time, of one user if it is said: for another thread, a year of a large site takes 1 s.
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
    cores = ", ".join(f"total({state})" for state in CORE_STATES)
    observed = f"SELECT total(observed), {cores} FROM sample WHERE step IN (60, 600, 3600) AND t >= ? AND t < ?"
    observed_s, *seconds = next(iter(read(observed, (span.since_s, span.until_s))))
    return AccountSums(rows, total, left_out, observed_s, tuple(seconds))


def _by_property(rows: Iterable[tuple[str, list[float]]]) -> list[tuple[str, list[float]]]:
    """Those of sets of properties by property."""
    found: dict[str, list[float]] = {}
    for names, sums in rows:
        for name in names.split("\n"):
            before = found.get(name)
            found[name] = sums if before is None else [one + other for one, other in zip(before, sums, strict=True)]
    return [*found.items()]


def response(by: str, span: Span, accounts: AccountSums, running: RunningUse, max_entries: int, shows_all: bool
             ) -> ReportResponse:  # fmt: skip
    """The answer; `shows_all` is whether it tells of the machine."""
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


def _capacity(sampled: Iterable[float], used_s: float) -> dict[str, float]:
    """Core-seconds by state, with what jobs used in place of what the samples make of it, two looks a minute apart.

    The difference was free, or not observed: what ran while the instance was away.
    """
    cores = dict(zip(CORE_STATES, sampled, strict=True))
    free_s = max(0.0, cores["free"] + cores["allocated"] - used_s)
    return {**cores, "allocated": used_s, "free": free_s}


def _row(name: str, sums: list[float] | None, running: list[float] | None) -> ReportRow:
    sums = [0.0] * len(SUMS) if sums is None else sums
    still, core_s, gpu_s = running or (0.0, 0.0, 0.0)
    results = dict(zip(RESULT_COLUMNS, map(int, sums), strict=False))
    counts = sums[9:]
    waits = int(sum(counts))
    return ReportRow(
        name=name,
        jobs=sum(results.values()),
        running=int(still),
        results=results,
        core_seconds=sums[4] + core_s,
        gpu_seconds=sums[5] + gpu_s,
        cpu_seconds=sums[6],
        cpu_core_seconds=sums[7],
        waits=waits,
        wait_mean=sums[8] / waits if waits else None,
        wait_p50=quantile(WAITS_S, counts, 0.5),
        wait_p95=quantile(WAITS_S, counts, 0.95),
    )
