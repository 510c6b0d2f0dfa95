"""Limits of a site as submission obeys them: waiting jobs by holder, and jobs that are too large or too long.

Law: the jobs of a holder are those in DEPEND, PRIORITY and SCHED, whatever made them wait; a job that is accepted stays
accepted, so a lower limit, a restart and a further attempt refuse nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.limits import NOTHING, Holder, SiteLimit, least_amounts
from fluxsched.errors import Refused
from fluxsched.jobs.job import Job
from fluxsched.jobs.states import PENDING


class SiteLimits:
    """The limits in force, with the waiting jobs of each holder of those that bound them."""

    def __init__(self, limits: Sequence[SiteLimit] = ()) -> None:
        self._limits = tuple(limits)
        self._waiting: dict[tuple[int, Holder], set[int]] = {}

    def change(self, limits: Sequence[SiteLimit], active: Iterable[Job]) -> None:
        """Obey other limits from now on."""
        self._limits, self._waiting = tuple(limits), {}
        if any(limit.waiting is not None for limit in self._limits):
            for job in active:
                self.enter(job)

    def check(self, jobspec: Jobspec, userid: int, queue: str | None) -> None:
        """Raise Refused (EINVAL, EAGAIN) for a new job that a limit excludes, naming value, limit and remedy."""
        for at, limit in enumerate(self._limits):
            holder = limit.holder(userid, jobspec.sharing.bank, queue)
            if holder is None:
                continue
            if text := limit.exceeded(NOTHING, least_amounts(jobspec.request)):
                raise Refused(f"{text}, so the job could never start: ask for less", errno.EINVAL)
            if text := limit.too_long(jobspec.duration_s):
                raise Refused(text, errno.EINVAL)
            count = len(self._waiting.get((at, holder), ()))
            if limit.waiting is not None and count >= limit.waiting:
                may = f"{count} jobs wait, {limit.waiting} may: submit when some have started"
                raise Refused(f"{limit.title}: {may}", errno.EAGAIN)

    def check_duration(self, job: Job, duration_s: float) -> None:
        """Raise Refused (EINVAL) where a job may not have this time limit (seconds, 0: none)."""
        for limit in self._limits:
            text = limit.too_long(duration_s)
            if text and limit.holder(job.userid, job.sharing.bank, job.queue.name) is not None:
                raise Refused(text, errno.EINVAL)

    def enter(self, job: Job) -> None:
        """Count a job, if it waits."""
        if job.state & PENDING:
            for key in self._keys(job):
                self._waiting.setdefault(key, set()).add(job.id)

    def leave(self, job: Job) -> None:
        """Count a job no longer: it waits no more."""
        for key in self._keys(job):
            jobids = self._waiting.get(key)
            if jobids is not None:
                jobids.discard(job.id)
                if not jobids:
                    del self._waiting[key]

    def _keys(self, job: Job) -> list[tuple[int, Holder]]:
        found: list[tuple[int, Holder]] = []
        for at, limit in enumerate(self._limits):
            if limit.waiting is not None:
                holder = limit.holder(job.userid, job.sharing.bank, job.queue.name)
                if holder is not None:
                    found.append((at, holder))
        return found

    def verify(self, active: Iterable[Job]) -> None:
        """Assert that the jobs that wait are counted, and no others."""
        found = SiteLimits(self._limits)
        found.change(self._limits, active)
        assert found._waiting == self._waiting, f"waiting jobs by holder: {self._waiting}, but it is {found._waiting}"
