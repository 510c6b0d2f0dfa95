"""Accounts of what jobs used, by hour, user, bank, queue, group and properties: sums that are added to the store.

Law: a job is counted once. The sums in the store have the jobs whose ends are in rows up to a number that is written
with them; after a kill the others are counted again from their records. A job counts with its wait and result in the
hour in which it ended, and its use in the hours in which it was. An end costs a few additions here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec.json import decode

from fluxsched.core.jobfields import DEFAULT_BANK
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError
from fluxsched.jobs import manager
from fluxsched.jobs.job import Job
from fluxsched.jobs.queues import JobQueue
from fluxsched.jobs.table import result_name, used
from fluxsched.store.jobs import DamagedJob, JobRecord, Query, read_ended
from fluxsched.store.schema import DAY, HOUR, RESULT_COLUMNS, SUMS
from fluxsched.store.store import Store
from fluxsched.system.clock import local_day, local_hour
from fluxsched.system.log import logger
from fluxsched.system.loop import WAITS_S, Turns

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

    def ended(self, job: Job, result: str) -> None:
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

    def _use_before(self, job: Job, key: _Key) -> None:
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


def _use(sums: list[float], job: Job, since_s: float, until_s: float) -> None:
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


# ---- recounting from stored jobs

QueueOf = Callable[[str | None], JobQueue]
"""The queue of a name that a stored job has."""


def uncounted(read: Query, counted: int) -> list[int]:
    """Return the jobs whose ends are in rows after that one."""
    return [jobid for (jobid,) in read("SELECT jobid FROM job_log WHERE seq > ? AND ended ORDER BY seq", (counted,))]


def ended_job(record: JobRecord, queue_of: QueueOf) -> Job | None:
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


def group_name(job: Job, group_of: GroupOf) -> str:
    """Return the group of the lowest of the job's targets, as they are now; all groups of its queue if it had none, or
    those are elsewhere.
    """
    config = job.queue.config
    if not config.others:
        return config.group
    found = group_of(job.ranks.min()) if job.ranks else None
    return found if found is not None and found in config.groups else job.queue.groups_text
