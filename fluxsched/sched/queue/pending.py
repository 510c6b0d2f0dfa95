"""Who waits, in order: higher priority first, then who submitted earlier, then the lower job id (RFC 27).

Law: adding, taking away and re-prioritising cost O(log n) in each order that is kept. Jobs of priority 0 are held
(RFC 21): they are in the queue but are not offered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.sched.queue.orders import FIFO, FIXED, LXF, expansion
from fluxsched.sched.queue.sorted_jobs import CHUNK, Entry, Skips, SortedJobs, Waiting
from fluxsched.sched.shape import Shape

__all__ = ["CHUNK", "WAITING_MAX", "PendingJobs", "Skips", "Waiting"]

WAITING_MAX = 2_000_000
"""Jobs in one queue: twice the million that RFC 27 asks for; about 1 KiB each, so 2 GiB is where we stop."""


class PendingJobs:
    """The waiting jobs of one group, or of one queue of it that has a policy of its own."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}  # by job id; changed here alone
        self._offered = SortedJobs()
        self._held = SortedJobs()
        self._orders: dict[str, SortedJobs] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, jobid: int) -> bool:
        return jobid in self.entries

    def __iter__(self) -> Iterator[Waiting]:
        """Jobs that may start, in order; what is added or removed meanwhile is met or not, never met twice or wrong."""
        return cast("Iterator[Waiting]", self._offered.walk(Skips()))  # None comes only where jobs are skipped

    @property
    def first(self) -> Waiting | None:
        """The first job that may start."""
        chunks = self._offered.chunks
        return chunks[0].entries[0][3] if chunks else None

    @property
    def front(self) -> Entry | None:
        """Where the first job stands that may start."""
        chunks = self._offered.chunks
        return chunks[0].entries[0] if chunks else None

    def shapes(self) -> Iterator[tuple[Shape, int]]:
        """The different shapes and how many jobs are of each, held ones too; one may come more than once."""
        return chain(self._offered.shapes(), self._held.shapes())

    def get(self, jobid: int) -> Waiting | None:
        entry = self.entries.get(jobid)
        return None if entry is None else entry[3]

    def everyone(self) -> list[Waiting]:
        """All jobs, held ones too, in order."""
        return [entry[3] for entry in chain(self._offered, self._held)]

    def walk(self, skips: Skips, order: str = FIFO, now_s: float = 0.0) -> Iterator[Waiting | None]:
        """Jobs that may start, in one of the ORDERS, without those that `skips` names, now and as it grows.

        Now and then None comes instead of a job, so that whoever walks far may pause.
        """
        if order == FIFO:
            return self._offered.walk(skips)
        if order == LXF:
            return self._by_expansion(skips, now_s)
        return self._ordered(order).walk(skips)

    def add(self, job: Waiting) -> Entry:
        """Returns where it stands, which begins with its `key`. Raises LimitExceeded when the queue is full."""
        jobid, priority, _, t_submit_s, _, _ = job
        entries = self.entries
        if jobid in entries:
            raise LocalProtocolError(f"job {jobid} is in the queue already")
        if len(entries) >= WAITING_MAX:
            raise LimitExceeded(f"the queue is full: {WAITING_MAX} jobs wait; submit again when some have started")
        entry = entries[jobid] = (-priority, t_submit_s, jobid, job)
        if not priority:
            self._held.add(entry)
            return entry
        self._offered.add(entry)
        for order, jobs in self._orders.items():
            jobs.add((*FIXED[order](job), job))
        return entry

    def remove(self, jobid: int) -> Waiting | None:
        """The job, off the queue; None if it is not there."""
        entry = self.entries.pop(jobid, None)
        if entry is None:
            return None
        job: Waiting = entry[3]
        if entry[0]:
            self._offered.remove(entry)
            for order, jobs in self._orders.items():
                jobs.remove((*FIXED[order](job), job))
        else:
            self._held.remove(entry)
        return job

    def prioritize(self, jobid: int, priority: int) -> bool:
        """Whether the job is there; it moves to its new place."""
        job = self.get(jobid)
        if job is None:
            return False
        if job.priority != priority:
            self.remove(jobid)
            self.add(job._replace(priority=priority))
        return True

    def ahead_of(self, jobid: int, order: str = FIFO, now_s: float = 0.0) -> int:
        """How many jobs come before this one, which is in the queue, in one of the ORDERS (held ones: in theirs)."""
        entry = self.entries[jobid]
        if entry[0] and order == LXF:
            mine = expansion(entry[3], now_s)
            return sum((-expansion(each[3], now_s), *each) < (-mine, *entry) for each in self._offered)
        if entry[0] and order != FIFO:
            return self._ordered(order).before((*FIXED[order](entry[3]), entry[3]))
        if entry[0]:
            return self._offered.before(entry)
        return self._held.before(entry) + len(self.entries) - self._held.size

    def _by_expansion(self, skips: Skips, now_s: float) -> Iterator[Waiting | None]:
        jobs = SortedJobs()
        for entry in self._offered:
            jobs.add((-expansion(entry[3], now_s), *entry))
        for job in jobs.walk(skips):
            if job is None or self.get(job.jobid) is job:
                yield job

    def _ordered(self, order: str) -> SortedJobs:
        """The jobs of a fixed order; sorted once, when it is asked for the first time, then kept."""
        jobs = self._orders.get(order)
        if jobs is None:
            jobs = self._orders[order] = SortedJobs()
            for entry in self._offered:
                jobs.add((*FIXED[order](entry[3]), entry[3]))
        return jobs
