"""The policy of an instance whose decisions are made elsewhere: it starts what has been given its allocations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from fluxsched.adapters.si.rm.resource_manager import NO_SERVICE, InstanceRM, ServiceLink
from fluxsched.sched.policy import Decision, Option, Pending, Start, View


class RemoteDecisions:
    """A scheduler service of YuniKorn's interface decides.

    Jobs that it has placed are started, and owners of others are told what it said. `rm` is set before the first pass.
    """

    name: ClassVar[str] = "si"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self) -> None:
        self.rm: InstanceRM | None = None

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yields what the resource manager has."""
        if self.rm is None:
            return
        for jobid in self.rm.placed():
            job = view.job(jobid)
            fit = None if job is None else self.rm.fit(job, now_s)
            if fit is not None:
                yield Start(jobid, fit)
        if self.rm.link is ServiceLink.DOWN:
            for job in view.queue:
                yield Pending(job.jobid, NO_SERVICE)
        while self.rm.reasons:
            jobid, reason = self.rm.reasons.popitem()
            yield Pending(jobid, reason)
