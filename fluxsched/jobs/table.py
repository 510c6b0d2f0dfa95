"""Table of all jobs of an instance: those that are active, records of those that ended last, and their results.

Laws: ids of active jobs are walked in the order of arrival, however long a walk takes. A dictionary cannot be iterated
while it changes, and copying a million ids blocks the instance for 40 ms, so the ids are also kept in an array that
only grows; a walk finds out which jobs have ended. The array is replaced, never changed, once most of it is stale: a
walk under way keeps the one it began with. Ended jobs are walked from the last one back: each has a number, which it
keeps, from the first that ever ended on; a walk remembers numbers, and what has a higher one has ended since it began.
Nothing is copied but what a step asks for.

A result follows from the job's log alone, so a job that is read back from the store has the result that it had. The
sizes that a job had follow each other without gaps from its start on; the last one lasts. A job that never changed has
none, and costs nothing here.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.jobs.job import Job, JobSummary, shell_code
from fluxsched.jobs.states import INACTIVE

STALE_SLACK = 4096
"""Ids of ended jobs that are not worth a new array."""


class ActiveIds:
    """The keys of `present`, ids below 2**64, in the order in which they were added."""

    __slots__ = ("_ids", "_present", "_slack")

    def __init__(self, present: Mapping[int, object], slack: int = STALE_SLACK) -> None:
        self._present = present
        self._slack = slack
        self._ids = array("Q")

    def add(self, jobid: int) -> None:
        """Append an id, which must be in `present` already."""
        ids = self._ids
        ids.append(jobid)
        if len(ids) > 2 * len(self._present) + self._slack:
            self._ids = array("Q", self._present)

    def walk(self, step: int) -> Iterator[Sequence[int]]:
        """Yield the latest first, `step` ids at a time.

        Each id that is present throughout comes once, whatever happens meanwhile; others may have left before or since.
        """
        ids = self._ids
        return (ids[max(0, end - step) : end][::-1] for end in range(len(ids), 0, -step))


# ---- ids of ended jobs

FORGOTTEN_SLACK = 4096
"""Ids of forgotten jobs that are not worth moving the others."""


class EndedIds:
    """Ids below 2**64, of the jobs in `kept` and of some that were kept and are forgotten: mostly the oldest."""

    __slots__ = ("_first", "_forgotten", "_ids", "_kept", "_slack")

    def __init__(self, kept: Container[int], slack: int = FORGOTTEN_SLACK) -> None:
        self._kept = kept
        self._slack = slack
        self._ids = array("Q")
        self._first = 0
        """The number of the first id in the array."""
        self._forgotten = 0
        """Ids at the front that are not kept any more."""

    @property
    def end(self) -> int:
        """The number that the next one gets."""
        return self._first + len(self._ids)

    def add(self, jobid: int) -> None:
        """Record that a job has ended, which is kept."""
        self._ids.append(jobid)

    @property
    def oldest(self) -> int:
        """The id of the kept job that ended first; there must be one."""
        return self._ids[self._forgotten]

    def forget(self) -> None:
        """Something is not kept any more."""
        while self._forgotten < len(self._ids) and self._ids[self._forgotten] not in self._kept:
            self._forgotten += 1
        if self._forgotten > len(self._ids) // 2 + self._slack:
            del self._ids[: self._forgotten]
            self._first += self._forgotten
            self._forgotten = 0

    def between(self, low: int, high: int) -> Sequence[int]:
        """Return ids numbered from `low` to below `high`, in the order in which they ended, without the oldest
        forgotten ones.
        """
        begin = self._first + self._forgotten
        return self._ids[max(low, begin) - self._first : max(high, begin) - self._first]


# ---- the table

INACTIVE_KEPT_MAX = 100_000
"""Records of ended jobs in memory, for listings and dependencies; older ones are in the store."""


class JobTable:
    """Jobs by id: `active` in the order of arrival, `inactive` in the order in which they ended."""

    def __init__(self, inactive_kept_max: int = INACTIVE_KEPT_MAX) -> None:
        self.active: dict[int, Job] = {}
        self._inactive: dict[int, JobSummary] = {}
        self._unread: Iterator[None] | None = None
        """Reads the jobs that ended before a restart."""
        self.inactive_kept_max = inactive_kept_max
        self._active_ids = ActiveIds(self.active)
        self._ended_ids = EndedIds(self._inactive)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.active or self.find(jobid) is not None

    @property
    def inactive(self) -> Mapping[int, JobSummary]:
        """The ended jobs; what has not been read yet of those before a restart is read now."""
        self._read()
        return self._inactive

    def _read(self) -> None:
        unread, self._unread = self._unread, None
        if unread is not None:
            for _ in unread:
                pass

    def read_later(self, work: Iterator[None]) -> Iterator[None]:
        """`work` ends in `keep_earlier`: it is to be done as long work, or as soon as something needs an ended job."""
        self._unread = work
        return work

    def keep_earlier(self, jobs: Iterable[JobSummary]) -> None:
        """Keep jobs that ended before all that are kept now, in this order."""
        self._unread, later = None, self._inactive
        self._inactive = {}
        self._ended_ids = EndedIds(self._inactive)
        for job in jobs:
            self.keep(job)
        for job in later.values():
            self.keep(job)

    def add(self, job: Job) -> None:
        """Add a job that becomes active."""
        self.active[job.id] = job
        self._active_ids.add(job.id)

    def end(self, job: Job) -> None:
        """Record that an active job becomes inactive."""
        del self.active[job.id]
        self.keep(job.summary())

    def keep(self, job: JobSummary) -> None:
        """Keep an inactive job; the oldest one is forgotten if there are too many."""
        self._inactive[job.id] = job
        self._ended_ids.add(job.id)
        if len(self._inactive) > self.inactive_kept_max:
            del self._inactive[self._ended_ids.oldest]
            self._ended_ids.forget()

    def forget(self, jobid: int) -> None:
        """Keep nothing of a job that has ended."""
        self._read()
        self._inactive.pop(jobid, None)
        self._ended_ids.forget()

    def find(self, jobid: int) -> JobSummary | None:
        """Return the job, active or kept; None for any other."""
        job = self.active.get(jobid) or self._inactive.get(jobid)
        return job if job is not None or self._unread is None else self.inactive.get(jobid)

    def get(self, jobid: int) -> JobSummary:
        """Return the job, active or kept. Raises Refused (ENOENT)."""
        found = self.active.get(jobid) or self.find(jobid)
        if found is None:
            gone = "it never existed, or it ended so long ago that only its record is left"
            raise Refused(f"job {format_f58(jobid)} is not known: {gone}", errno.ENOENT)
        return found

    def user_of(self, jobid: int) -> int | None:
        """Return the job's user; None for a job that is not known."""
        found = self.find(jobid)
        return None if found is None else found.userid

    def last(self, jobid: int) -> JobSummary:
        """Return the last attempt of the job that is known, which is mostly the job itself. Raises Refused (ENOENT)."""
        job = self.get(jobid)
        while (following := self.find(job.next_id) if job.next_id else None) is not None:
            job = following
        return job

    def get_active(self, jobid: int) -> Job:
        """Return the active job. Raises Refused: ENOENT for an unknown one, EINVAL for one that has ended."""
        found = self.active.get(jobid)
        if found is None:
            raise Refused(f"{self.get(jobid).title} has ended: it cannot be changed any more", errno.EINVAL)
        return found

    def known(self, jobids: Iterable[int]) -> list[JobSummary]:
        """Return the jobs among these that are active or kept."""
        found = map(self.find, jobids)
        return [job for job in found if job is not None]

    def walk_active(self, step: int) -> Iterator[list[JobSummary]]:
        """Yield the jobs that are active now, the latest first, at most `step` at a time.

        Anything may happen between two steps: a job that has ended since comes as what it is then.
        """
        end = self._ended_ids.end
        since: set[int] = set()
        for jobids in self._active_ids.walk(step):  # some of which may have ended before
            since.update(self._ended_ids.between(end, self._ended_ids.end))
            end = self._ended_ids.end
            yield self.known(jobid for jobid in jobids if jobid in self.active or jobid in since)

    def walk_ended(self, step: int) -> Iterator[list[JobSummary]]:
        """Yield the jobs that have ended by now and are kept, the last to end first, at most `step` at a time.

        Of those that are forgotten between two steps none comes.
        """
        self._read()  # numbers change when what ended before a restart is read
        return self._walk_ended(step, self._ended_ids.end)

    def _walk_ended(self, step: int, end: int) -> Iterator[list[JobSummary]]:
        for high in range(end, 0, -step):
            some = self._ended_ids.between(high - step, high)
            if not some:
                return
            yield self.known(reversed(some))


# ---- results


class JobResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a job; `status` is a wait status, -1 if nothing ran; `result` COMPLETED, FAILED, CANCELED, TIMEOUT.

    `next_id` is the attempt that follows on it; `last_id` the attempt that it tells of, where that is another job (0:
    there is none).
    """

    jobid: int
    success: bool
    status: int
    result: str
    errstr: str
    exception_type: str | None
    exception_note: str | None
    t_inactive: float
    next_id: int = 0
    last_id: int = 0


COMPLETED: Final = "COMPLETED"
RESULTS: Final = (COMPLETED, "FAILED", "CANCELED", "TIMEOUT")
_RESULTS = {"cancel": "CANCELED", "timeout": "TIMEOUT", "timelimit": "TIMEOUT"}


def result_name(job: JobSummary) -> str | None:
    """Return the name of the job's result (RFC 43); None until it is inactive."""
    if job.state is not INACTIVE:
        return None
    if job.success:
        return COMPLETED
    return _RESULTS.get(job.fatal["type"], "FAILED") if job.fatal else "FAILED"


def result(job: JobSummary) -> JobResult | None:
    """Return the job's result; None until it is inactive."""
    name = result_name(job)
    if name is None:
        return None
    success = name == COMPLETED
    fatal = None if success else job.fatal
    return JobResult(
        jobid=job.id,
        success=success,
        status=-1 if job.status is None else job.status,
        result=name,
        errstr="" if success else error_text(job),
        exception_type=fatal["type"] if fatal else None,
        exception_note=fatal["note"] if fatal else None,
        t_inactive=job.t_inactive,
        next_id=job.next_id,
    )


def as_asked(asked: int, found: JobResult) -> JobResult:
    """Return the result of a job's last attempt as that of the job that was asked for."""
    if found.jobid == asked:
        return found
    return msgspec.structs.replace(found, jobid=asked, last_id=found.jobid)


def shell_status(status: int) -> int:
    """Return a wait status as a shell passes it on, whose exit code is 128 + n where signal n ended its program (RFC
    21).
    """
    return shell_code(status) << 8


def error_text(job: JobSummary) -> str:
    """Return the reason of the job's end, in words; empty if it ended well by itself."""
    fatal, status = job.fatal, job.status
    if job.success:
        return ""
    if fatal is not None:
        return f"exception {fatal['type']}: {fatal['note']}" if fatal["note"] else f"exception {fatal['type']}"
    if not status:
        return ""
    signum = status & 0x7F
    return f"ended by signal {signum}" if signum else f"exit code {status >> 8 & 0xFF}"


# ---- sizes of a job over time

SIZE_CHANGES_MAX = 10_000
"""Changes of one job: after so many it grows no more. They are kept in memory and in its log, 0.2 and 1 KiB each."""

SIZES_LISTED_MAX = 100
"""Former sizes of a job in an answer, the latest ones: else a job of SIZE_CHANGES_MAX would fill a list of jobs."""


class Used(NamedTuple):
    """Usage in core-seconds and GPU-seconds."""

    core_s: float
    gpu_s: float


UNUSED: Final = Used(0.0, 0.0)


def used(job: JobSummary, since_s: float, until_s: float) -> Used:
    """Return the usage of a job from `since_s` to `until_s`, within the time that it ran."""
    if until_s <= since_s:
        return UNUSED
    if job.sizes is None:
        return Used(job.ncores * (until_s - since_s), job.ngpus * (until_s - since_s))
    core_s = gpu_s = 0.0
    begin_s = since_s
    for ended_s, ncores, ngpus, _ in job.sizes:
        end_s = min(ended_s, until_s)
        if end_s > begin_s:
            core_s += ncores * (end_s - begin_s)
            gpu_s += ngpus * (end_s - begin_s)
            begin_s = end_s
    left_s = max(0.0, until_s - begin_s)
    return Used(core_s + job.ncores * left_s, gpu_s + job.ngpus * left_s)


def listed_sizes(job: JobSummary, sizes_max: int = SIZES_LISTED_MAX) -> list[tuple[str, float, int]]:
    """Its former sizes, each as targets, until when (wall time, seconds), and cores.

    Beyond `sizes_max` the earliest ones are one entry, without targets, that ends when the listed ones begin.
    """
    sizes = job.sizes or ()
    left_out = len(sizes) - sizes_max
    listed = [(str(ranks), ended_s, ncores) for ended_s, ncores, _, ranks in sizes[max(left_out, 0) :]]
    return [("", sizes[left_out - 1][0], 0), *listed] if left_out > 0 else listed
