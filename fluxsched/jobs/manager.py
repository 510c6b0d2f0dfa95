"""The job manager: all jobs of an instance (RFC 21), their queues (RFC 33), dependencies (RFC 26) and holdings.

Law: it is put together from parts that share the `Lifecycle`; each part is all that one kind of caller may ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fluxsched.errors import InvalidValue
from fluxsched.jobs.effects import Effect
from fluxsched.jobs.holdings.holdings import Holdings
from fluxsched.jobs.job.table import INACTIVE_KEPT_MAX, JobTable
from fluxsched.jobs.lifecycle.allocation import Allocation
from fluxsched.jobs.lifecycle.check import check
from fluxsched.jobs.lifecycle.execution import Execution
from fluxsched.jobs.lifecycle.lifecycle import Lifecycle
from fluxsched.jobs.lifecycle.links import Links
from fluxsched.jobs.lifecycle.queue_control import QueueControl
from fluxsched.jobs.lifecycle.requests import JOBS_ACTIVE_MAX, Requests
from fluxsched.jobs.lifecycle.restore import Restored, StoredJob, restore, restore_ended
from fluxsched.jobs.queue.banks import ANY_BANK, Banks
from fluxsched.jobs.queue.queues import QueueConfig, Queues


class JobManager:
    """`requests` is for users, `execution` for executors, `allocation` for schedulers, `queue_control` for
    administrators; `jobs`, `queues`, `holdings` and `links` may be read by all. `new_id` makes ids for jobs that are
    submitted again, each greater than all before it.
    """

    def __init__(
        self,
        new_id: Callable[[float], int],
        queues: Mapping[str | None, QueueConfig] | None = None,
        *,
        default_queue: str | None = None,
        active_max: int = JOBS_ACTIVE_MAX,
        inactive_kept_max: int = INACTIVE_KEPT_MAX,
        banks: Banks = ANY_BANK,
    ) -> None:
        self.jobs = JobTable(inactive_kept_max)
        self.queues = Queues(queues or {}, default_queue)
        self.holdings = Holdings()
        self.links = Links()
        self._lifecycle = lifecycle = Lifecycle(self.jobs, self.queues, self.holdings, self.links, new_id)
        self.requests = Requests(lifecycle, active_max, banks)
        self.execution = Execution(lifecycle)
        self.allocation = Allocation(lifecycle)
        self.queue_control = QueueControl(lifecycle)

    def due(self, now_s: float) -> list[Effect]:
        """Begin-times up to now have come; a call that is too early asks for another."""
        return self._lifecycle.due(now_s)

    def restore(self, rows: Iterable[StoredJob], now_s: float) -> Restored:
        """Restore the stored jobs, oldest first, before anything else is asked; see `restore.py`."""
        return restore(self._lifecycle, rows, now_s)

    def restore_ended(
        self, pieces: Iterable[Sequence[StoredJob]], failed: Callable[[InvalidValue], None]
    ) -> Iterator[None]:
        """Restore stored jobs that have ended: long work, which is done at once when something needs an ended job.

        `failed` is called with what is wrong with one that cannot be read.
        """
        return self.jobs.read_later(restore_ended(self._lifecycle, pieces, failed))

    def check(self) -> None:
        """Assert every law of the package over the whole state."""
        check(self._lifecycle)
