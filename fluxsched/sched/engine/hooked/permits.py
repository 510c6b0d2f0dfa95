"""Jobs that hold their resources and wait until plugins permit them to start.

Law: nothing is said to the job manager of such a job but its reason; it holds what the ledger says, and gives it back
whole: when it is refused, when its time is over, when it is canceled, and when a target of it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.hooks.api import JobSeen
from fluxsched.sched.hooks.chain import Chain
from fluxsched.sched.pool.placement import Fits
from fluxsched.sched.queue.pending import Waiting


class WaitingPermit:
    """A job that waits for its permit: `whys` has the plugins that it waits for, and their reasons."""

    __slots__ = ("chain", "due_s", "fit", "job", "queue", "reserved", "seen", "selection", "whys")

    def __init__(
        self,
        job: Waiting,
        queue: PolicyQueue,
        chain: Chain,
        seen: JobSeen,
        fit: Fits,
        reserved: Sequence[str],
        selection: str,
        whys: dict[str, str],
        due_s: float,
    ) -> None:
        self.job = job
        self.queue = queue
        self.chain = chain
        self.seen = seen
        self.fit = fit
        self.reserved = reserved
        self.selection = selection
        self.whys = whys
        self.due_s = due_s


class Permits:
    """Those of one group; `asked` are the queues (scopes of plugins) whose waiting jobs are to be asked about again."""

    __slots__ = ("asked", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, WaitingPermit] = {}
        self.asked: set[str] = set()

    @property
    def next_s(self) -> float:
        """When the time of one is over (wall time, seconds; inf if none waits)."""
        return min([each.due_s for each in self.waiting.values()], default=inf)

    def add(self, each: WaitingPermit) -> None:
        """A job waits from now on."""
        self.came(each.chain.scope)
        self.waiting[each.job.jobid] = each

    def came(self, scope: str) -> None:
        """A job has come to its permit, or has left it: others of its queue may have waited for that."""
        if self.waiting:
            self.asked.add(scope)

    def pop(self, jobid: int) -> WaitingPermit | None:
        """The job waits no more."""
        found = self.waiting.pop(jobid, None)
        if found is not None:
            self.came(found.chain.scope)
        return found
