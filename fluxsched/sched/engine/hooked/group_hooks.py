"""What plugins have to do with one group: verdicts on shapes, jobs at gates, jobs that wait for a permit.

Law: this knows no policy and no pass; `Plugins` and `HookedPass` do what is to be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluxsched.sched.engine.hooked.gates import Gates
from fluxsched.sched.engine.hooked.permits import Permits
from fluxsched.sched.hooks.api import JobSeen
from fluxsched.sched.hooks.chain import Chain
from fluxsched.sched.hooks.verdicts import Verdicts
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.running import RunningJobs
from fluxsched.sched.pool.placement import Fits
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue.pending import Waiting
from fluxsched.sched.shape import Shape


class GroupHooks:
    """`chains` are the plugins by scope, `bound` the jobs of which `on_free` is to be told.

    `now_s` is the time of the last event that had one (wall time, seconds).
    """

    __slots__ = (
        "_pool", "_running", "bound", "chains", "faults", "gates", "generations", "now_s", "permits", "verdicts",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        pool: Pool,
        running: RunningJobs,
        chains: Mapping[str, Chain],
        faults: list[str],
        bound: dict[int, tuple[Chain, JobSeen, Fits]],
    ) -> None:
        self.bound = bound
        self.chains = chains
        self.faults = faults
        self.verdicts = Verdicts(name, pool, chains, faults)
        self.gates = Gates(faults)
        self.permits = Permits()
        self.now_s = 0.0
        self._running = running
        self._pool = pool
        self.generations = self._generations()

    def renew(self, shape: Shape) -> bool:
        """Asks about a shape what is not known; whether what is left of its choice may be another than before."""
        if not self.verdicts.renew(shape, self.now_s):
            return False
        self._running.needs.pop(shape.number, None)
        return True

    def is_stale(self, now_s: float) -> bool:
        """Whether some verdict may be another by now."""
        self.now_s = now_s
        generations = self._generations()
        if generations == self.generations and now_s < self.verdicts.until_s:
            return False
        self.generations = generations
        return True

    def _generations(self) -> list[int]:
        return [self._pool.generation, *[chain.generation for chain in self.chains.values()]]

    @property
    def next_s(self) -> float:
        """When there is something to do though nothing happens (wall time, seconds; else inf)."""
        return min(self.gates.next_s, self.permits.next_s, self.verdicts.until_s)

    def check(self, offered: set[int], ledger: Ledger) -> set[int]:
        """Asserts that a job is in one place; the jobs that are here. For tests and the simulator."""
        gated, waits = self.gates.gated.keys(), self.permits.waiting.keys()
        assert offered.isdisjoint(gated), "a job is offered that is at a gate"
        assert offered.isdisjoint(waits), "a job is offered that waits for a permit"
        assert all(jobid in ledger for jobid in waits), "a job waits for a permit and holds nothing"
        assert all(jobid in ledger for jobid in self.bound), "a job is to be told of that holds nothing"
        return gated | waits

    def prioritize(self, jobid: int, priority: int) -> bool:
        """A new priority for a job that is not in its queue but here; whether it is."""
        gated, waits = self.gates.gated.get(jobid), self.permits.waiting.get(jobid)
        if gated is not None:
            gated.job = gated.job._replace(priority=priority)
        if waits is not None:
            waits.job = waits.job._replace(priority=priority)
        return gated is not None or waits is not None


def seen_of(job: Waiting, now_s: float) -> JobSeen:
    """The job as plugins see it."""
    jobid, priority, userid, t_submit_s, shape, limit_s, *_ = job
    return _seen(JobSeen, (jobid, priority, userid, t_submit_s, limit_s, shape, now_s, False))


_seen: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a start
