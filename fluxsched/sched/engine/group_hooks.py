"""Plugins and one group: verdicts on shapes, jobs at gates, jobs held back in a pass, jobs that wait for a permit.

Law: this knows no policy and no pass; `Plugins` and `HookedPass` do what is to be done. A job at a gate is in no queue
yet, and is asked about on entry, at the time that its Gate names, and after the events that it names. A job that waits
for a permit holds what the ledger says, and gives it back whole: when it is refused, when its time is over, when it is
canceled, and when a target of it goes; nothing but its reason is said to the job manager. What is held back in a pass
is so until the pass ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from fluxsched.sched.engine.policy_queue import PolicyQueue
from fluxsched.sched.hooks.api import JobSeen
from fluxsched.sched.hooks.chain import RETRY_S, Chain, PluginFault, ask, check_gate, why_of
from fluxsched.sched.hooks.verdicts import Verdicts
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.running_jobs import RunningJobs
from fluxsched.sched.pool.placement import WORST_FIT, Fits, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.sorted_jobs import PendingJob, Skips


class GatedJob:
    """Job at a gate, with its queue, and the reason and events that its plugin gave."""

    __slots__ = ("at_s", "job", "on", "queue", "why")

    def __init__(self, job: PendingJob, queue: PolicyQueue, why: str, on: tuple[str, ...], at_s: float) -> None:
        self.job = job
        self.queue = queue
        self.why = why
        self.on = on
        self.at_s = at_s


class Gates:
    """Gates of one group: the jobs that plugins have not admitted to their queue yet.

    `next_s` is when some job is to be asked about again (wall time, seconds; else inf).
    """

    __slots__ = ("_faults", "_happened", "gated", "next_s")

    def __init__(self, faults: list[str]) -> None:
        self._faults = faults
        self._happened: set[str] = set()
        self.gated: dict[int, GatedJob] = {}
        self.next_s = inf

    def ask(self, chain: Chain, seen: JobSeen, job: PendingJob, queue: PolicyQueue) -> GatedJob | None:
        """Ask the plugins one by one whether the job may enter; return None if it may, else it is kept at the gate."""
        for name, method in chain.gates:
            found = check_gate(name, ask(name, method, seen))
            if found is None:
                continue
            if isinstance(found, PluginFault):
                self._faults.append(found.why)
                gated = GatedJob(job, queue, found.why, (), seen.now_s + RETRY_S)
            else:
                at_s = inf if found.at_s is None or found.at_s <= seen.now_s else found.at_s
                gated = GatedJob(job, queue, why_of(name, found), found.on, at_s)
            self.keep(gated)
            return gated
        return None

    def keep(self, gated: GatedJob) -> None:
        """Keep a job at the gate until its time."""
        self.gated[gated.job.jobid] = gated
        self.next_s = min(self.next_s, gated.at_s)

    def ask_soon(self, job: PendingJob, queue: PolicyQueue) -> None:
        """Keep a job at the gate until the next turn, in which plugins are asked about it."""
        self.keep(GatedJob(job, queue, "", (), -inf))

    def happened(self, event: str) -> None:
        """Record an event, one of EVENTS."""
        if self.gated:
            self._happened.add(event)

    @property
    def has_events(self) -> bool:
        """Return whether some job may be asked about again because of an event."""
        return bool(self._happened)

    def due(self, now_s: float) -> list[GatedJob]:
        """Remove and return the jobs to be asked about again, in the order of their arrival."""
        if not self._happened and now_s < self.next_s:
            return []
        happened, self._happened = self._happened, set()
        due = [each for each in self.gated.values() if each.at_s <= now_s or not happened.isdisjoint(each.on)]
        for each in due:
            del self.gated[each.job.jobid]
        self.next_s = min([each.at_s for each in self.gated.values()], default=inf)
        return due


# ---- permits

class WaitingPermit:
    """Job that waits for its permit: `whys` has the plugins that have not permitted it, and their reasons."""

    __slots__ = ("chain", "due_s", "fit", "job", "queue", "reserved", "seen", "selection", "whys")

    def __init__(
        self,
        job: PendingJob,
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
    """Jobs of one group that wait for a permit.

    `asked` holds the queues (scopes of plugins) whose waiting jobs are to be asked about again.
    """

    __slots__ = ("asked", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, WaitingPermit] = {}
        self.asked: set[str] = set()

    @property
    def next_s(self) -> float:
        """Return when the first permit times out (wall time, seconds; inf if no job waits for one)."""
        return min([each.due_s for each in self.waiting.values()], default=inf)

    def add(self, each: WaitingPermit) -> None:
        """Add a job that waits for its permit."""
        self.came(each.chain.scope)
        self.waiting[each.job.jobid] = each

    def came(self, scope: str) -> None:
        """Record that a job of the queue has reached its permit or was removed, for which other jobs may wait."""
        if self.waiting:
            self.asked.add(scope)

    def pop(self, jobid: int) -> WaitingPermit | None:
        """Remove and return a job; None if it is not waiting."""
        found = self.waiting.pop(jobid, None)
        if found is not None:
            self.came(found.chain.scope)
        return found


# ---- held back

class HeldBack:
    """Jobs that plugins have deferred in a pass, with the reasons, by job and by number of the shape.

    `skips` are those of the policy's last walk, `placement` is the placement of its last query.
    """

    __slots__ = ("of_job", "of_shape", "placement", "skips")

    def __init__(self) -> None:
        self.of_job: dict[int, str] = {}
        self.of_shape: dict[int, str] = {}
        self.skips: Skips | None = None
        self.placement = WORST_FIT

    def add(self, job: PendingJob, why: str, with_equals: bool) -> None:
        """Defer the job for the rest of this pass, with its equals if requested."""
        self.of_job[job.jobid] = why
        if with_equals:
            self.of_shape[job.shape.number] = why
            if self.skips is not None:
                self.skips.fits_nowhere(job)

    def clear(self) -> None:
        self.of_job.clear()
        self.of_shape.clear()

    def has(self, job: PendingJob) -> bool:
        """Return whether the job is deferred."""
        return bool(self.of_job) and (job.jobid in self.of_job or job.shape.number in self.of_shape)

    def bars(self, job: PendingJob, placement: str) -> bool:
        """Return whether the job is deferred, and record the placement that the policy asked for."""
        self.placement = placement
        return self.has(job)

    def why(self, job: PendingJob) -> str:
        """Return the reason why the job is deferred."""
        return self.of_job.get(job.jobid) or self.of_shape[job.shape.number]


# ---- group hooks

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
        """Ask for unknown verdicts on a shape; return whether its remaining choice may have changed."""
        if not self.verdicts.renew(shape, self.now_s):
            return False
        self._running.needs.pop(shape.number, None)
        return True

    def is_stale(self, now_s: float) -> bool:
        """Return whether some verdict may have changed by `now_s`."""
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
        """Return when something is due even without an event (wall time, seconds; else inf)."""
        return min(self.gates.next_s, self.permits.next_s, self.verdicts.until_s)

    def check(self, offered: set[int], ledger: Ledger) -> set[int]:
        """Assert that each job is in one state; return the jobs at gates and permits. For tests and the simulator."""
        gated, waits = self.gates.gated.keys(), self.permits.waiting.keys()
        assert offered.isdisjoint(gated), "a job is offered that is at a gate"
        assert offered.isdisjoint(waits), "a job is offered that waits for a permit"
        assert all(jobid in ledger for jobid in waits), "a job waits for a permit and holds nothing"
        assert all(jobid in ledger for jobid in self.bound), "a job is to be told of that holds nothing"
        return gated | waits

    def prioritize(self, jobid: int, priority: int) -> bool:
        """Set the priority of a job at a gate or a permit; return whether there is one."""
        gated, waits = self.gates.gated.get(jobid), self.permits.waiting.get(jobid)
        if gated is not None:
            gated.job = gated.job._replace(priority=priority)
        if waits is not None:
            waits.job = waits.job._replace(priority=priority)
        return gated is not None or waits is not None


def seen_of(job: PendingJob, now_s: float) -> JobSeen:
    """Return the job as plugins see it."""
    jobid, priority, userid, t_submit_s, shape, limit_s, *_ = job
    return _seen(JobSeen, (jobid, priority, userid, t_submit_s, limit_s, shape, now_s, False))


_seen: Final = tuple.__new__  # what the constructor of a NamedTuple calls: half its cost, once a start
