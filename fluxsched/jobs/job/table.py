"""All jobs of an instance: those that are active, and summaries of those that ended last."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.jobs.job.active_ids import ActiveIds
from fluxsched.jobs.job.ended_ids import EndedIds
from fluxsched.jobs.job.job import Job

INACTIVE_KEPT_MAX = 100_000
"""Summaries of ended jobs in memory, for listings and dependencies; older ones are in the store."""


class JobTable:
    """Jobs by id: `active` in the order of arrival, `inactive` in the order in which they ended."""

    def __init__(self, inactive_kept_max: int = INACTIVE_KEPT_MAX) -> None:
        self.active: dict[int, Job] = {}
        self._inactive: OrderedDict[int, Job] = OrderedDict()
        self._unread: Iterator[None] | None = None
        """Reads the jobs that ended before a restart."""
        self.inactive_kept_max = inactive_kept_max
        self._active_ids = ActiveIds(self.active)
        self._ended_ids = EndedIds(self._inactive)

    def __contains__(self, jobid: int) -> bool:
        return self.find(jobid) is not None

    @property
    def inactive(self) -> OrderedDict[int, Job]:
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

    def keep_earlier(self, jobs: Iterable[Job]) -> None:
        """Keep summaries of jobs that ended before all that are kept now, in this order."""
        self._unread, later = None, self._inactive
        self._inactive = OrderedDict()
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
        """An active job becomes inactive."""
        del self.active[job.id]
        self.keep(job)

    def keep(self, job: Job) -> None:
        """Keep a summary of an inactive job; the oldest one is forgotten if there are too many."""
        job.forget()
        self._inactive[job.id] = job
        self._ended_ids.add(job.id)
        if len(self._inactive) > self.inactive_kept_max:
            self._inactive.popitem(last=False)
            self._ended_ids.forget()

    def forget(self, jobid: int) -> None:
        """Keep nothing of a job that has ended."""
        self.inactive.pop(jobid, None)
        self._ended_ids.forget()

    def find(self, jobid: int) -> Job | None:
        """The job, active or kept; None for any other."""
        job = self.active.get(jobid) or self._inactive.get(jobid)
        return job if job is not None or self._unread is None else self.inactive.get(jobid)

    def get(self, jobid: int) -> Job:
        """The job, active or kept. Raises Refused (ENOENT)."""
        found = self.find(jobid)
        if found is None:
            gone = "it never existed, or it ended so long ago that only its record is left"
            raise Refused(f"job {format_f58(jobid)} is not known: {gone}", errno.ENOENT)
        return found

    def user_of(self, jobid: int) -> int | None:
        """The job's user; None for a job that is not known."""
        found = self.find(jobid)
        return None if found is None else found.userid

    def last(self, jobid: int) -> Job:
        """The last attempt of the job that is known, which is mostly the job itself. Raises Refused (ENOENT)."""
        job = self.get(jobid)
        while (following := self.find(job.next_id) if job.next_id else None) is not None:
            job = following
        return job

    def get_active(self, jobid: int) -> Job:
        """The active job. Raises Refused: ENOENT for an unknown one, EINVAL for one that has ended."""
        found = self.active.get(jobid)
        if found is None:
            raise Refused(f"{self.get(jobid).title} has ended: it cannot be changed any more", errno.EINVAL)
        return found

    def known(self, jobids: Iterable[int]) -> list[Job]:
        """Return the jobs among these that are active or kept."""
        found = map(self.find, jobids)
        return [job for job in found if job is not None]

    def walk_active(self, step: int) -> Iterator[list[Job]]:
        """The jobs that are active now, the latest first, at most `step` at a time.

        Anything may happen between two steps: a job that has ended since comes as what it is then.
        """
        end = self._ended_ids.end
        since: set[int] = set()
        for jobids in self._active_ids.walk(step):  # some of which may have ended before
            since.update(self._ended_ids.between(end, self._ended_ids.end))
            end = self._ended_ids.end
            yield self.known(jobid for jobid in jobids if jobid in self.active or jobid in since)

    def walk_ended(self, step: int) -> Iterator[list[Job]]:
        """The jobs that have ended by now and are kept, the last to end first, at most `step` at a time.

        Of those that are forgotten between two steps none comes.
        """
        self._read()  # numbers change when what ended before a restart is read
        return self._walk_ended(step, self._ended_ids.end)

    def _walk_ended(self, step: int, end: int) -> Iterator[list[Job]]:
        for high in range(end, 0, -step):
            some = self._ended_ids.between(high - step, high)
            if not some:
                return
            yield self.known(reversed(some))
