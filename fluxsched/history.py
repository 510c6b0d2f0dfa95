"""Accounts of what jobs used, by hour, user, bank, queue, group and properties: sums that are added to the store.

Law: a job is counted once. The sums in the store have the jobs whose ends are in rows up to a number that is written
with them; after a kill the others are counted again from their records. A job counts with its wait and result in the
hour in which it ended, and its use in the hours in which it was. An end costs a few additions here.

Samples of the machine and its queues, and intervals in which targets could not be used.

Law: samples are sums over the seconds that were observed: two together are a sample of the longer time, whatever their
order, so what is kept is made coarser by addition and the means stay right. A time that was not observed has no sample:
a gap is not zero. A look each minute costs what targets and queues cost, whatever jobs do. Each target that cannot be
used is in one open row of targets that changed together; what a kill leaves open is continued if it is still so, else
it ended when the instance was seen last. A row that is not as it was written is left out; `damaged_history` names such
rows, and an instance asks it once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.json import decode

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError
from fluxsched.jobs import manager
from fluxsched.jobs.job import JobSummary
from fluxsched.jobs.queues import JobQueue
from fluxsched.jobs.table import result_name, used
from fluxsched.protocol.messages.instance import USABLE
from fluxsched.store.integrity import SELECTED, intact, is_intact
from fluxsched.store.jobs import DamagedJob, JobRecord, Query, read_ended
from fluxsched.store.schema import DAY, HOUR, RESULT_COLUMNS, SUMS
from fluxsched.store.store import Store
from fluxsched.system.clock import local_day, local_hour
from fluxsched.system.log import logger
from fluxsched.system.loop import WAITS_S, Timer, Turns

log = logger("history")

HOURS_AGE_MAX_S = 35 * DAY
"""Hours become parts of days when they are older."""
DAYS_AGE_MAX_S = 731 * DAY
"""Maximum age of days; older ones are removed."""
UNWRITTEN_MAX = 20_000
"""Ends after which sums are written before the minute is over: a restart counts again what was not written."""
KEYS_MAX = 2000
"""Sums after which they are written before the minute is over: 2 MiB."""
KEYS_HOUR_MAX = 10_000
"""Rows of one hour. The banks of jobs are texts of users: what is beyond counts for bank OTHER."""
OTHER: Final = "(other)"
PIECE_JOBS: Final = 8
"""Jobs that are counted again in one go, each in 100 us."""

_RESULT: Final = {name.upper(): at for at, name in enumerate(RESULT_COLUMNS)}
_CORE, _GPU, _CPU, _CPU_CORE, _WAIT, _WAITS = range(4, 10)
_GPU_BUSY, _GPU_SAMPLED = len(SUMS) - 2, len(SUMS) - 1

_Key = tuple[int, str | None, JobQueue, str, str]


class JobAccounting:
    """Counts jobs that end; what it counts is written from the end of `restore` on."""

    def __init__(self, turns: Turns, store: Store, queue_of: QueueOf, group_of: GroupOf) -> None:
        self._turns = turns
        self._store = store
        self._queue_of = queue_of
        self.group_of = group_of
        self._hour = 0
        """The beginning of the hour to which `_sums` belong."""
        self._sums: dict[_Key, list[float]] = {}
        self._earlier: dict[tuple[int, _Key], list[float]] = {}
        self._keys_hour: set[tuple[int, str, str, str, str]] = set()
        self._unwritten = 0
        self._is_complete = False
        """True if all jobs are counted that had ended before accounting began."""

    def ended(self, job: JobSummary, result: str) -> None:
        """Count a job that is inactive; `result` is the name of its result."""
        if not self._hour <= job.t_inactive < self._hour + HOUR:
            self._begin_hour(job.t_inactive)
        key = (job.userid, job.sharing.bank, job.queue, group_name(job, self.group_of), job.properties)
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = [0.0] * len(SUMS)
        sums[_RESULT[result]] += 1.0
        begin_s = job.t_run
        if begin_s:
            wait_s = max(0.0, begin_s - job.t_submit)
            sums[_WAIT] += wait_s
            sums[_WAITS + bisect_left(WAITS_S, wait_s)] += 1.0
            if begin_s < self._hour:
                self._use_before(job, key)
                begin_s = float(self._hour)
            _use(sums, job, begin_s, max(begin_s, job.t_inactive))
        self._unwritten += 1
        if self._unwritten >= UNWRITTEN_MAX or len(self._sums) >= KEYS_MAX:
            self.write()

    def write(self) -> None:
        """Have the sums added to the store, with the number up to which they are complete."""
        if not self._is_complete or not self._unwritten:
            return
        for (hour, key), sums in self._earlier.items():
            self._put(hour, key, sums)
        for key, sums in self._sums.items():
            self._put(self._hour, key, sums)
        self._store.change("all is counted")
        self._sums, self._earlier, self._unwritten = {}, {}, 0

    def age(self, now_s: float) -> None:
        """Have the oldest hour become a part of its day if it is old enough, and old days removed."""
        oldest = self._store.read(
            "SELECT min(t) FROM usage WHERE step = ? AND t < ?", (HOUR, local_day(now_s - HOURS_AGE_MAX_S))
        )[0][0]
        if oldest is not None:
            self._store.change("add usage up", (local_day(oldest), oldest))
            self._store.remove("usage", (HOUR, oldest, oldest + 1))
        self._store.remove("usage", (DAY, 0, int(now_s - DAYS_AGE_MAX_S)))

    def restore(self, counted: int, done: Callable[[], None]) -> None:
        """Count jobs that ended after the last row that is counted, as long work; then call `done`."""
        jobids = uncounted(self._store.read, counted)
        if jobids:
            log.info("%d jobs that ended are counted again", len(jobids))
        self._turns.spread(self._recount(jobids, done))

    def _recount(self, jobids: list[int], done: Callable[[], None]) -> Iterator[None]:
        for at in range(0, len(jobids), PIECE_JOBS):
            for record in read_ended(self._store.read, jobids[at : at + PIECE_JOBS], _not_counted):
                job = ended_job(record, self._queue_of)
                result = None if job is None else result_name(job)
                if job is not None and result is not None:
                    self.ended(job, result)
            yield
        self._is_complete = True
        self._unwritten += 1  # the number is written, too, where there was no job
        self.write()
        done()

    def _begin_hour(self, time_s: float) -> None:
        """Begin the sums of another hour."""
        for key, sums in self._sums.items():
            before = self._earlier_sums(self._hour, key)
            for at, value in enumerate(sums):
                before[at] += value
        self._sums = {}
        self._hour = local_hour(time_s)
        self._keys_hour.clear()

    def _earlier_sums(self, hour: int, key: _Key) -> list[float]:
        return self._earlier.setdefault((hour, key), [0.0] * len(SUMS))

    def _use_before(self, job: JobSummary, key: _Key) -> None:
        """Count the job's usage before the hour in which it ended; distant hours by the day."""
        by_hours = local_day(job.t_inactive - HOURS_AGE_MAX_S)
        begin = local_hour(job.t_run) if job.t_run >= by_hours else local_day(job.t_run)
        while begin < self._hour:
            end = begin + HOUR if begin >= by_hours else local_day(begin + 1.5 * DAY)
            _use(self._earlier_sums(begin, key), job, max(job.t_run, float(begin)), float(min(end, self._hour)))
            begin = end

    def _put(self, hour: int, key: _Key, sums: list[float]) -> None:
        userid, bank, queue, group, properties = key
        row = (userid, bank or DEFAULT_BANK, queue.name or "", group, properties)
        if row not in self._keys_hour:
            if len(self._keys_hour) >= KEYS_HOUR_MAX:
                row = (userid, OTHER, queue.name or "", group, "")
            self._keys_hour.add(row)
        self._store.add("usage", (HOUR, hour, *row, *sums))


def _not_counted(fault: DamagedJob) -> None:
    log.error("not counted: %s", fault)


def _use(sums: list[float], job: JobSummary, since_s: float, until_s: float) -> None:
    """Add the usage of a job in a part of its time."""
    core_s, gpu_s = used(job, since_s, until_s)
    sums[_CORE] += core_s
    if gpu_s:
        sums[_GPU] += gpu_s
    usage = job.usage
    if usage is not None:
        total_s = job.t_inactive - job.t_run
        part = (until_s - since_s) / total_s if total_s > 0.0 else 1.0
        sums[_CPU] += (usage.user_s + usage.system_s) * part
        sums[_CPU_CORE] += core_s
        if usage.gpus is not None:
            sums[_GPU_BUSY] += usage.gpus.busy_s * part
            sums[_GPU_SAMPLED] += usage.gpus.held_s * part


# ---- recounting from stored jobs

QueueOf = Callable[[str | None], JobQueue]
"""The queue of a name that a stored job has."""


def uncounted(read: Query, counted: int) -> list[int]:
    """Return the jobs whose ends are in rows after that one."""
    return [jobid for (jobid,) in read("SELECT jobid FROM job_log WHERE seq > ? AND ended ORDER BY seq", (counted,))]


def ended_job(record: JobRecord, queue_of: QueueOf) -> JobSummary | None:
    """Return the job as it ended; None, logged, if its record cannot be read."""
    try:
        jobspec = None if record.jobspec is None else Jobspec.parse(decode(record.jobspec))
        queue = queue_of(None if jobspec is None else jobspec.queue)
        return manager.read((record.jobid, record.events, jobspec, record.R), queue)[0]
    except (FluxschedError, ValueError) as fault:
        log.error("not counted: job %s: %s", format_f58(record.jobid), fault)
        return None


# ---- the group of a job

GroupOf: TypeAlias = Callable[[int], str | None]
"""Function from a target to the name of its group."""


def group_name(job: JobSummary, group_of: GroupOf) -> str:
    """Return the group of the lowest of the job's targets, as they are now; all groups of its queue if it had none, or
    those are elsewhere.
    """
    config = job.queue.config
    if not config.others:
        return config.group
    found = group_of(job.ranks.min()) if job.ranks else None
    return found if found is not None and found in config.groups else job.queue.groups_text


# ---- samples

CORE_STATES: Final = ("allocated", "free", "drained", "down", "excluded")
"""Each core is in one; those that no job holds are in that of their target."""
RESULTS: Final = ("completed", "failed", "canceled", "timeout")


class JobFlow(NamedTuple):
    """Jobs submitted, started, ended by result, and waits of those that started by `WAITS_S`, since some time."""

    submitted: int
    started: int
    ended: dict[str, int]
    waits: tuple[int, ...]


class Moment(NamedTuple):
    """State of the instance at one time."""

    cores: Mapping[str, int]
    queues: Mapping[str, tuple[int, int]]
    """Pending and running jobs by queue."""
    flow: JobFlow


@dataclass(slots=True)
class MachineSample:
    """Sums over `observed_s` seconds: core-seconds by state, job-seconds by queue, and counts of jobs."""

    observed_s: float = 0.0
    cores: list[float] = field(default_factory=lambda: [0.0] * len(CORE_STATES))
    queues: dict[str, list[float]] = field(default_factory=dict)
    submitted: int = 0
    started: int = 0
    ended: list[int] = field(default_factory=lambda: [0] * len(RESULTS))
    waits: dict[int, int] = field(default_factory=dict)

    @classmethod
    def between(cls, begin: Moment, end: Moment, observed_s: float) -> MachineSample:
        """Return the sample of the period between two observations; values that changed count as changed evenly."""
        half_s = observed_s / 2
        queues: dict[str, list[float]] = {}
        for moment in (begin, end):
            for name, (pending, running) in moment.queues.items():
                sums = queues.setdefault(name, [0.0, 0.0])
                sums[0] += pending * half_s
                sums[1] += running * half_s
        return cls(
            observed_s=observed_s,
            cores=[(begin.cores[state] + end.cores[state]) * half_s for state in CORE_STATES],
            queues=queues,
            submitted=end.flow.submitted - begin.flow.submitted,
            started=end.flow.started - begin.flow.started,
            ended=[end.flow.ended[name] - begin.flow.ended[name] for name in RESULTS],
            waits={
                at: now - before
                for at, (before, now) in enumerate(zip(begin.flow.waits, end.flow.waits, strict=True))
                if now > before
            },
        )

    def add(self, other: MachineSample) -> None:
        """Be the sample of both times."""
        self.observed_s += other.observed_s
        self.cores = _sums(self.cores, other.cores)
        for name, sums in other.queues.items():
            self.queues[name] = _sums(self.queues.get(name, (0.0, 0.0)), sums)
        self.submitted += other.submitted
        self.started += other.started
        self.ended = [mine + yours for mine, yours in zip(self.ended, other.ended, strict=True)]
        for at, count in other.waits.items():
            self.waits[at] = self.waits.get(at, 0) + count

    def row(self) -> tuple[Any, ...]:
        """Return the sample as columns of the store."""
        rest = (self.queues, self.submitted, self.started, self.ended, self.waits)
        return (self.observed_s, *self.cores, msgspec.msgpack.encode(rest))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> MachineSample:
        """Return the sample of a row. Raises ValueError (msgspec's among them) for an invalid one."""
        observed_s, *cores, rest = row
        return cls(observed_s, cores, *_REST.decode(rest))

    def wait_counts(self) -> list[int]:
        """Return the sample's waits by the ranges of `WAITS_S`."""
        return [self.waits.get(at, 0) for at in range(len(WAITS_S) + 1)]


_REST = msgspec.msgpack.Decoder(tuple[dict[str, list[float]], int, int, list[int], dict[int, int]])


def _sums(mine: Sequence[float], yours: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(mine, yours, strict=True)]


# ---- taking samples


MINUTE_S: Final = 60
DAY_S: Final = 86_400
MINUTES_AGE_MAX_S = 2 * DAY_S
"""Samples of minutes become ones of ten when they are older."""
TENS_AGE_MAX_S = 14 * DAY_S
"""Maximum age of samples of ten minutes; older ones are merged into samples of hours."""
SAMPLE_HOURS_AGE_MAX_S = 731 * DAY_S
"""Maximum age of samples of hours; older ones are removed: there are some 23,000 rows in all then, of some 150 bytes
each.
"""
COARSER: Final = ((60, 600), (600, 3600))
MERGED_ROWS_MAX = 512
"""Rows that are made coarser in one go, 3 ms; after a long pause the rest follows a minute later."""
SET_S: Final = 2.0
"""Difference between wall time and the monotonic clock above which the clock was set (seconds)."""


class Sampling:
    """Sampling of the instance, from `start` to `stop`."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Moment]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._before: Moment | None = None
        self._before_s = 0.0
        """Time of the last observation, by the monotonic clock."""
        self._run_s = 0.0
        """Start of the run that is observed."""
        self._seen_s = 0.0
        """End of the observed part of the run, by wall time."""
        self._timer: Timer | None = None
        self.on_minute: list[Callable[[float], None]] = []
        """Functions called each minute with the wall time, and at the end."""

    def start(self) -> None:
        """Begin to observe the instance."""
        self._before, self._before_s = self._look(), self._turns.clock.monotonic_s()
        self._begin_run(self._turns.wall_s)
        self._wait()

    def stop(self) -> None:
        """Write the sample of the period since the last one."""
        if self._timer is not None:
            self._timer.cancel()
            self._observe(self._turns.clock.wall_s())

    @property
    def running(self) -> tuple[float, float]:
        """Return the beginning and the end so far of the present run."""
        return self._run_s, max(self._run_s, self._turns.wall_s)

    def unwritten(self) -> MachineSample:
        """Return the sample of the period since the last stored one."""
        before = self._before
        if before is None:
            return MachineSample()
        return MachineSample.between(before, self._look(), self._turns.clock.monotonic_s() - self._before_s)

    def _begin_run(self, wall_s: float) -> None:
        self._run_s = self._seen_s = wall_s
        self._store.add("run", (wall_s, wall_s))

    def _wait(self) -> None:
        wall_s = self._turns.clock.wall_s()
        self._timer = self._turns.after(MINUTE_S - wall_s % MINUTE_S, self._minute)

    def _minute(self) -> None:
        self._wait()  # also after a fault in what follows
        self._observe(self._turns.wall_s)

    def _observe(self, wall_s: float) -> None:
        now, now_s = self._look(), self._turns.clock.monotonic_s()
        before, observed_s = self._before, now_s - self._before_s
        self._before, self._before_s = now, now_s
        assert before is not None, "it was started"
        self._follow_clock(wall_s, observed_s)
        self._put(MachineSample.between(before, now, observed_s), wall_s - min(observed_s, MINUTE_S) / 2)
        if self._store.fault is None:
            self._age(wall_s)
        for call in self.on_minute:
            call(wall_s)

    def _follow_clock(self, wall_s: float, observed_s: float) -> None:
        if abs(wall_s - self._seen_s - observed_s) > SET_S:
            log.info("the clock was set by %+.1f s", wall_s - self._seen_s - observed_s)
            self._begin_run(wall_s)
        else:
            self._store.add("run", (self._run_s, wall_s))
        self._seen_s = wall_s

    def _put(self, sample: MachineSample, middle_s: float) -> None:
        t = int(middle_s // MINUTE_S * MINUTE_S)
        self._add_stored(sample, MINUTE_S, t)
        self._store.add("sample", (MINUTE_S, t, *sample.row()))

    def _add_stored(self, sample: MachineSample, step: int, t: int) -> None:
        rows = self._store.read(f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t = ?", (step, t))
        for row in intact(rows):
            sample.add(MachineSample.of_row(row[2:]))

    def _age(self, wall_s: float) -> None:
        for (step, longer), age_max_s in zip(COARSER, (MINUTES_AGE_MAX_S, TENS_AGE_MAX_S), strict=True):
            self._make_coarser(step, longer, int((wall_s - age_max_s) // longer * longer))
        self._store.remove("sample", (COARSER[-1][1], 0, int(wall_s - SAMPLE_HOURS_AGE_MAX_S)))
        self._store.remove("run", (wall_s - SAMPLE_HOURS_AGE_MAX_S,))

    def _make_coarser(self, step: int, longer: int, until: int) -> None:
        """Put the oldest rows of one length, before `until`, together to rows of the next: never a part of one."""
        wanted = f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t < ? ORDER BY t LIMIT ?"
        rows = self._store.read(wanted, (step, until, MERGED_ROWS_MAX))
        if len(rows) == MERGED_ROWS_MAX:
            until = rows[-1][1] // longer * longer
        found: dict[int, MachineSample] = {}
        for _, t, *row in intact(rows):
            if t < until:
                found.setdefault(t // longer * longer, MachineSample()).add(MachineSample.of_row(row))
        for t, sample in found.items():
            self._add_stored(sample, longer, t)
            self._store.add("sample", (longer, t, *sample.row()))
        if rows:
            self._store.remove("sample", (step, 0, until))


# ---- intervals of target states

INTERVALS_AGE_MAX_S = 731 * DAY
"""Rows that ended longer ago are removed."""
INTERVALS_MAX = 200_000
"""Maximum number of intervals; the oldest ones beyond it are removed: 20 MiB."""
GATHER_S: Final = 1.0
"""Changes within this time are looked at together (seconds); they count from the first."""

Condition = tuple[str, str]
"""A state and its note."""
Conditions = Mapping[Condition, Idset]


class OpenInterval(NamedTuple):
    """Row of an interval that has not ended."""

    id: int
    targets: Idset
    began_s: float


class StateIntervals:
    """Recorder of intervals, from `start` on; `look` returns the targets in each recorded condition."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Conditions]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._open: dict[Condition, list[OpenInterval]] = {}
        self._last_id = 0
        self._timer: Timer | None = None
        self._changed_s = 0.0
        self._waits_for_jobs = False
        """True if the end of a job may be a change: some target is draining."""

    def start(self) -> None:
        """Read the open intervals; those whose condition is over ended when the last instance was seen."""
        now_s = self._turns.wall_s
        ((self._last_id,),) = self._store.read("SELECT coalesce(max(id), 0) FROM interval")
        runs = intact(self._store.read(f"SELECT {SELECTED['run']} FROM run"))
        seen_s = max((seen_s for _, seen_s in runs), default=now_s)
        rows = self._store.read(f"SELECT {SELECTED['interval']} FROM interval WHERE ended IS NULL")
        for number, targets, state, note, began_s, _ in intact(rows):
            self._open.setdefault((state, note), []).append(OpenInterval(number, Idset.parse(targets), began_s))
        self._follow(now_s, min(now_s, seen_s))

    def note_change(self) -> None:
        """Note that some target may have changed its state."""
        if self._timer is None or self._timer.call is None:
            self._changed_s = self._turns.wall_s
            self._timer = self._turns.after(GATHER_S, lambda: self._follow(self._changed_s, self._changed_s))

    def unheld(self, released: Sequence[tuple[int, Idset]]) -> None:
        """Note that a target may have been drained by the end of a job."""
        if self._waits_for_jobs:
            self.note_change()

    def age(self, now_s: float) -> None:
        """Remove intervals that are too old or too many."""
        self._store.remove("interval", (now_s - INTERVALS_AGE_MAX_S, self._last_id - INTERVALS_MAX))

    def _follow(self, now_s: float, ended_s: float) -> None:
        """Bring the rows up to date: new intervals began at `now_s`, those that are over ended at `ended_s`."""
        found = {condition: targets for condition, targets in self._look().items() if targets}
        for condition, rows in [*self._open.items()]:
            there = found.get(condition, EMPTY)
            self._open[condition] = [kept for row in rows if (kept := self._keep(condition, row, there, ended_s))]
        for condition, targets in found.items():
            rows = self._open.setdefault(condition, [])
            new = targets
            for row in rows:
                new -= row.targets
            if new:
                self._last_id += 1
                rows.append(OpenInterval(self._last_id, new, now_s))
                self._put(condition, rows[-1], None)
        self._open = {condition: rows for condition, rows in self._open.items() if rows}
        self._waits_for_jobs = any(state == "draining" for state, _ in self._open)

    def _keep(self, condition: Condition, row: OpenInterval, there: Idset, ended_s: float) -> OpenInterval | None:
        """Return the part of an open row that continues; store the rest as ended."""
        gone = row.targets - there
        if not gone:
            return row
        ended_s = max(row.began_s, ended_s)
        if gone == row.targets:
            self._put(condition, row, ended_s)
            return None
        self._last_id += 1
        self._put(condition, OpenInterval(self._last_id, gone, row.began_s), ended_s)
        kept = row._replace(targets=row.targets - gone)
        self._put(condition, kept, None)
        return kept

    def _put(self, condition: Condition, row: OpenInterval, ended_s: float | None) -> None:
        self._store.add("interval", (row.id, str(row.targets), *condition, row.began_s, ended_s))


def conditions(states: Mapping[str, Idset], drains: Iterable[tuple[Idset, Any]]) -> Conditions:
    """Return the conditions that are kept: all states but those in which jobs may be put on a target; drains by
    reason.
    """
    found = {(state, ""): ranks for state, ranks in states.items() if state not in USABLE}
    for ranks, line in drains:
        condition = (line.state, line.reason)
        there = ranks & states[line.state]
        if line.reason and there:
            found[line.state, ""] -= there
            found[condition] = found.get(condition, EMPTY) | there
    return found


# ---- samples and intervals in the store

SampleRow = tuple[int, int, Sequence[Any]]
"""Length and beginning (seconds), and what `Sample.of_row` takes."""
IntervalRow = tuple[str, str, float, float | None, str]
"""Targets, state, from when, until when, note."""
INTERVALS_USUAL: Final = 1000
INTERVALS_SHOWN_MAX = 10_000
"""Intervals in one answer: a MiB."""
RUNS_SHOWN_MAX = 1000
"""Runs of instances in one answer, the latest."""
LENGTHS_S: Final = (60, 600, 3600)
"""Lengths of the samples that are kept."""


def read_samples(read: Query, since_s: float, until_s: float) -> list[SampleRow]:
    """Return the samples that overlap this time."""
    sql = f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t > ? AND t < ?"
    rows = [row for step in LENGTHS_S for row in intact(read(sql, (step, since_s - step, until_s)))]
    return [(step, t, row) for step, t, *row in rows]


def read_intervals(
    read: Query, since_s: float, until_s: float, targets: Idset | None, max_entries: int
) -> tuple[list[IntervalRow], int]:
    """Return the intervals that overlap this time, of some targets if given, oldest first; and the number of those left
    out.
    """
    rows = read(
        f"SELECT {SELECTED['interval']} FROM interval WHERE began < ? AND (ended IS NULL OR ended > ?) "
        "ORDER BY began DESC, id DESC",
        (until_s, since_s),
    )
    found: list[IntervalRow] = []
    left_out, wanted = 0, min(max_entries or INTERVALS_USUAL, INTERVALS_SHOWN_MAX)
    for _, text, state, note, *span in intact(rows):
        ranks = Idset.parse(text)
        if targets is not None and targets.isdisjoint(ranks):
            continue
        if len(found) < wanted:
            found.append((str(ranks if targets is None else ranks & targets), state, *span, note))
        else:
            left_out += 1
    return found[::-1], left_out


def read_runs(read: Query, since_s: float, until_s: float) -> list[tuple[float, float]]:
    """Return the periods in which instances ran in this time, oldest first."""
    sql = f"SELECT {SELECTED['run']} FROM run WHERE began < ? AND seen >= ? ORDER BY began DESC LIMIT ?"
    found = intact(read(sql, (until_s, since_s, RUNS_SHOWN_MAX)))
    return [(max(began, since_s), min(seen, until_s)) for began, seen in found][::-1]


def damaged_history(read: Query) -> list[str]:
    """Return names of the rows that are not as they were written."""
    return [
        f"{table} {' '.join(map(str, row[:2]))}"
        for table in ("sample", "run", "interval")
        for row in read(f"SELECT {SELECTED[table]} FROM {table}", ())
        if not is_intact(row)
    ]
