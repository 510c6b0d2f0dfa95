"""Records of simulated jobs: their users, attempts after preemptions, amounts, sizes and distances.

Law: nothing is decided here, and with `enabled` false no amounts are recorded. An attempt has a job id of its own, as
in an instance, and all attempts of a job have one row of the table. Job `row` begins as job id `row` + 1; the ids of
later attempts follow those of all first ones. Work is done by the cores that a job has, but for those that it is to
leave; a job ends with the last of its work, or at its limit. All others end after their run time, and nothing of them
is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.fair.accounts import Vector
from fluxsched.sched.fair.usage import AmountCounter, summed
from fluxsched.sched.pool.placement import Fits
from fluxsched.sim.engine.assembly import System
from fluxsched.sim.engine.site import Site
from fluxsched.sim.result import UNKNOWN_USER
from fluxsched.sim.table import AmountColumns, Preemption, Resizing
from fluxsched.sim.traces import TraceJob

# ---- users

NAMED_FROM: Final = 1 << 32
"""User ids have 32 bits: above are those of users that a trace names by texts."""


class Users:
    """Ids of users by name; numbers stand for themselves."""

    def __init__(self) -> None:
        self._ids: dict[str | None, int] = {}
        self._names: list[str] = []

    def userid(self, user: int | str | None) -> int:
        """Return the number of a user."""
        if isinstance(user, int):
            return user
        userid = self._ids.get(user)
        if userid is None:
            userid = self._ids[user] = NAMED_FROM + len(self._names)
            self._names.append(UNKNOWN_USER if user is None else user)
        return userid

    def name(self, userid: int) -> str:
        """Return the trace's name for a number."""
        at = userid - NAMED_FROM
        return self._names[at] if 0 <= at < len(self._names) else str(userid)


# ---- amounts

class AmountRecorder:
    """Recorder of the amounts that `rows` jobs request and hold; equal ones are one object."""

    def __init__(self, site: Site, system: System, enabled: bool, rows: int) -> None:
        self.enabled = enabled
        self.amounts: AmountColumns | None = None
        self._system = system
        kinds = ("core", "gpu", *[kind for kind, _ in site.resources.counted()])
        self._counter = AmountCounter(kinds)
        self._nothing: Vector = (0,) * len(kinds)
        self._known: dict[Vector, Vector] = {}
        if enabled:
            self.amounts = AmountColumns(kinds, [self._nothing] * rows, [])
            self.changed(0.0)

    def asked(self, row: int, request: Request) -> None:
        """Record the least that a job asks for."""
        assert self.amounts is not None
        vector = self._counter.of_request(request)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def held(self, row: int, fit: Fits) -> None:
        """Record the amounts that the job in this row got."""
        assert self.amounts is not None
        vector = self._counter.of_blocks(fit.blocks)
        self.amounts.of_row[row] = self._known.setdefault(vector, vector)

    def changed(self, now_s: float) -> None:
        """Other targets may be usable from now on."""
        if self.amounts is not None:
            resources = self._system.module.resources
            usable = self._counter.of_targets(resources, self._system.usable())
            vector = summed((usable, self._counter.of_amounts(resources.shared)), len(self._nothing))
            self.amounts.capacity.append((now_s, vector))


# ---- attempts of preempted jobs

class Attempts:
    """Rows of preempted jobs; `requeue` is how often each row's job may be submitted again.

    `preemptions` are those that have happened, in order; `known` is false until the first job is preempted, or
    true from the beginning where ends may be late.
    """

    def __init__(self, requeue: list[int], known: bool = False) -> None:
        self.preemptions: list[Preemption] = []
        self.known = known
        self._first_ids = len(requeue)
        self._left = requeue
        self._rows: list[int] = []  # of ids after the first ones
        self._ids: dict[int, int] = {}  # of rows that were submitted again
        self._going: dict[int, tuple[float, int]] = {}  # row -> when it ends at the latest, and for which row

    def row(self, jobid: int) -> int:
        """Return the row of an attempt."""
        return jobid - 1 if jobid <= self._first_ids else self._rows[jobid - self._first_ids - 1]

    def jobid(self, row: int) -> int:
        """Return the id of a row's present attempt."""
        return self._ids.get(row, row + 1) if self._ids else row + 1

    def preempt(self, row: int, end_s: float, for_row: int) -> bool:
        """Record that the running job of a row is to be over by `end_s`, for that of another (or NO_ROW); False if it
        goes already.
        """
        if row in self._going:
            return False
        self.known = True
        self._going[row] = end_s, for_row
        return True

    def goes(self, row: int) -> bool:
        """Return whether the running job in this row was preempted."""
        return row in self._going

    def latest_end_s(self, row: int) -> float:
        """By when a job that goes is over; inf for any other."""
        return self._going[row][0] if row in self._going else inf

    def ended(self, row: int, start_s: float, end_s: float, procs: int, ranks: str | None = None) -> bool:
        """End an attempt that was preempted; return whether there is to be another one."""
        _, for_row = self._going.pop(row)
        again = self._left[row] > 0
        if again:
            self._left[row] -= 1
        self.preemptions.append(Preemption(row, start_s, end_s, procs, for_row, again, ranks))
        return again

    def next_id(self, row: int) -> int:
        """Return the id of a further attempt."""
        self._rows.append(row)
        jobid = self._ids[row] = self._first_ids + len(self._rows)
        return jobid


# ---- distances within jobs

def largest_hops(topology: Topology, resources: ResourceSet) -> int | None:
    """Return the most between any two targets of the job, of each part where it has several.

    None where there is but one target, or where some are not connected.
    """
    parts = resources.parts
    ranks = list(parts.values()) if parts else [resources.ranks]
    found = [_of_hosts(topology, resources.hosts(each).hosts) for each in ranks if len(each) > 1]
    known = [hops for hops in found if hops is not None]
    return max(known, default=None)


def _of_hosts(topology: Topology, hosts: Sequence[str]) -> int | None:
    common = topology.lowest_common(hosts)
    if common is None:
        return None
    leaves = {topology.leaf_of[host] for host in hosts}
    return 2 * (max([topology.chain(leaf).index(common) for leaf in leaves]) + 1)


# ---- sizes of elastic jobs

DONE = 1e-9
"""Of the work of a job may be left when it ends with it, as doubles round."""


class PartLeft(NamedTuple):
    """A job that goes on has ended on these targets."""

    jobid: int
    resources: ResourceSet


class SizedJob:
    """One that runs: what it has, since when it has just these cores, and when it ends if that stays so."""

    __slots__ = ("at_start", "cores", "due_s", "is_done_at_end", "latest_s", "left", "resources", "since_s")

    def __init__(self, resources: ResourceSet, job: TraceJob, now_s: float, limit_s: float) -> None:
        self.resources = resources
        self.cores = self.at_start = resources.count("core")
        self.since_s = now_s
        self.left = inf if job.work is None else job.work
        self.latest_s = now_s + (limit_s if job.work is not None else min(job.run_s, limit_s))
        self.is_done_at_end = job.run_s <= limit_s
        self.due_s = self._end_s()

    def set_cores(self, cores: int, now_s: float) -> None:
        """Set the number of cores that the job has from now on."""
        self.left = max(0.0, self.left - self.cores * (now_s - self.since_s))
        self.cores, self.since_s = cores, now_s
        self.due_s = self._end_s()

    def _end_s(self) -> float:
        return min(self.latest_s, self.since_s + self.left / self.cores)


class Sizes:
    """Running jobs of variable size, by row; `resizes` are all changes so far."""

    def __init__(self, jobs: Sequence[TraceJob]) -> None:
        self.rows = {row for row, job in enumerate(jobs) if job.work is not None or job.ask.elastic}
        """Of jobs that this is about."""
        self.running: dict[int, SizedJob] = {}
        self.resizes: list[Resizing] = []
        self._jobs = jobs
        self._begun: dict[int, int] = {}  # row -> how many resizes there were before its present attempt

    def began(self, row: int, resources: ResourceSet, now_s: float, limit_s: float) -> float:
        """Begin a job; return when it ends if it keeps its size."""
        job = self.running[row] = SizedJob(resources, self._jobs[row], now_s, limit_s)
        self._begun[row] = len(self.resizes)
        return job.due_s

    def grew(self, row: int, added: ResourceSet, now_s: float) -> float:
        """Add resources to the job in this row; return its new end."""
        job = self.running[row]
        job.resources |= added
        return self._resize(row, job, added.count("core"), added.ranks, now_s)

    def shrank(self, row: int, ranks: Idset, now_s: float) -> tuple[ResourceSet, float]:
        """Take the job in this row off these targets; return the resources that it had there, and its new end."""
        job = self.running[row]
        leaves = job.resources.restrict(ranks)
        job.resources = job.resources.restrict(job.resources.ranks - ranks)
        return leaves, self._resize(row, job, -leaves.count("core"), ranks, now_s)

    def _resize(self, row: int, job: SizedJob, change: int, ranks: Idset, now_s: float) -> float:
        job.set_cores(job.cores + change, now_s)
        self.resizes.append(Resizing(row, now_s, None, change, str(ranks)))
        return job.due_s

    def ended(self, row: int, now_s: float) -> bool:
        """End an attempt; return whether it has had all its work, if it had to have some."""
        job = self.running.pop(row)
        for at in range(self._begun.pop(row), len(self.resizes)):
            if self.resizes[at].row == row:
                self.resizes[at] = self.resizes[at]._replace(until_s=now_s)
        job.set_cores(job.cores, now_s)
        work = self._jobs[row].work
        return job.is_done_at_end if work is None else job.left <= work * DONE
