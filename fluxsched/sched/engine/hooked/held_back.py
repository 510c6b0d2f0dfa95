"""Jobs that plugins hold back in a pass: they find no place in it any more.

Law: it ends with the pass, and nothing is decided here.
"""

from __future__ import annotations

from fluxsched.sched.pool.placement import WORST_FIT
from fluxsched.sched.queue.pending import Skips, Waiting


class HeldBack:
    """What plugins said, by job and by number of the shape.

    `skips` are those of the policy's last walk, `placement` is that in which it asked last.
    """

    __slots__ = ("of_job", "of_shape", "placement", "skips")

    def __init__(self) -> None:
        self.of_job: dict[int, str] = {}
        self.of_shape: dict[int, str] = {}
        self.skips: Skips | None = None
        self.placement = WORST_FIT

    def add(self, job: Waiting, why: str, with_equals: bool) -> None:
        """The job finds no place in this pass any more, nor do its equals, if that is asked for."""
        self.of_job[job.jobid] = why
        if with_equals:
            self.of_shape[job.shape.number] = why
            if self.skips is not None:
                self.skips.fits_nowhere(job)

    def clear(self) -> None:
        """All may be tried again."""
        self.of_job.clear()
        self.of_shape.clear()

    def has(self, job: Waiting) -> bool:
        """Whether the job is held back."""
        return bool(self.of_job) and (job.jobid in self.of_job or job.shape.number in self.of_shape)

    def bars(self, job: Waiting, placement: str) -> bool:
        """The same, as the policy asks for a place."""
        self.placement = placement
        return self.has(job)

    def why(self, job: Waiting) -> str:
        """What was said of a job that is held back."""
        return self.of_job.get(job.jobid) or self.of_shape[job.shape.number]
