"""A synthetic machine with a policy under test on it: production resource module, session, scheduler and pool.

Law: events are caused as in an instance (an administrator drains, a job manager cancels), so a policy meets here what
it will meet there. Jobs end by their run time or their limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from math import inf
from typing import Final, NamedTuple

from fluxsched.config.inventory import fake_resources
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.protocol.messages.alloc import (
    ExpirationRequest,
    HelloResponse,
    PrioritizeRequest,
    SchedCancelRequest,
)
from fluxsched.sched.decisions import PREEMPT, Granted, Grown, Shrunk
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sim.conformance.checker import PROGRESS, Checker, GroundTruth
from fluxsched.sim.conformance.preemption import Preemptible, rate_of
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.engine.system import SharedBy, System

BEGIN_S = 1_700_000_000.0
"""Wall time at the beginning, unless a case has another; not 0.0, which means no time."""

URGENCY = 16
"""The usual one (RFC 25)."""

INSTANTS_MAX = 10_000
"""Instants until a harness is empty; a workload of some hundred jobs needs some hundred."""

FAIR: Final = FairSettings(rate=8, weights={"core": 1.0})
"""Few preemptions in a minute, so that a case reaches them. Idle GPUs count for nothing, or no user would be over."""

GRACE_S: Final = 2.0
"""How long a preempted job takes to end."""

ELSEWHERE = "elsewhere"
"""The group that targets leave to."""


class HarnessJob(NamedTuple):
    """A job as the job manager has it; `run_s` is how long it would run."""

    spec: Jobspec
    priority: int
    submit_s: float
    run_s: float
    userid: int = 1


class Harness:
    """One machine of equal targets, `HOSTSxCORES+GPUS`."""

    def __init__(
        self,
        policy: Policy,
        machine: str,
        begin_s: float = BEGIN_S,
        running: Sequence[HelloResponse] = (),
        fair: FairSettings = FAIR,
        plugins: Sequence[Plugin] = (),
    ) -> None:
        self.jobs: dict[int, HarnessJob] = {}
        self.running: dict[int, ResourceSet] = {}
        self.ends_s: dict[int, float] = {}
        self._leaving: list[tuple[float, int, ResourceSet]] = []  # when a running job has left these
        self._drained = EMPTY
        self._holds: bool = getattr(policy, "HOLDS", False)
        self._pristine, self._machine = deepcopy(policy), machine
        resources = fake_resources(machine)
        self.ranks = resources.ranks
        self._all = {rank: _masks(resources, rank) for rank in resources.ranks}
        self.truth = GroundTruth(dict(self._all), lambda: self.system.module.usable(DEFAULT_GROUP))
        self.checker = Checker(deepcopy(policy), self.truth, self._first, rate_of(policy, fair))
        self.system = System(
            self, resources, self.checker, {}, [DEFAULT_GROUP], {}, begin_s, running=running, sharing=SharedBy(fair),
            plugins={"": plugins} if plugins else None,
        )  # fmt: skip

    @property
    def now_s(self) -> float:
        """Wall time."""
        return self.system.now_s

    # ---- jobs

    def submit(self, spec: Jobspec, run_s: float = inf, priority: int = URGENCY, userid: int = 1) -> int:
        """A job enters the queue; its id counts from 1."""
        jobid = len(self.jobs) + 1
        self._enter(jobid, HarnessJob(spec, priority, self.now_s, run_s, userid))
        return jobid

    def _enter(self, jobid: int, job: HarnessJob) -> None:
        self.jobs[jobid] = job
        self.truth.waiting[jobid] = job.spec.request
        self.truth.users[jobid] = job.userid
        (self.truth.on_hold.discard if job.priority else self.truth.on_hold.add)(jobid)
        self.system.submit(jobid, job.priority, job.userid, job.submit_s, job.spec)

    def cancel(self, jobid: int) -> None:
        """Cancel a waiting job, or end a running one."""
        if jobid in self.running:
            self.end(jobid)
        else:
            self.system.send("sched.cancel", SchedCancelRequest(jobid))

    def prioritize(self, jobid: int, priority: int) -> None:
        """0 holds a job."""
        self.jobs[jobid] = self.jobs[jobid]._replace(priority=priority)
        (self.truth.on_hold.discard if priority else self.truth.on_hold.add)(jobid)
        self.system.send("sched.prioritize", PrioritizeRequest([(jobid, priority)]))

    def end(self, jobid: int) -> None:
        """A running job ends and gives everything back."""
        held = self.running.pop(jobid)
        del self.ends_s[jobid], self.truth.running[jobid], self.truth.users[jobid]
        self.checker.preemptions.ended(jobid)
        self.checker.sizes.ended(jobid)
        self._leaving = [each for each in self._leaving if each[1] != jobid]
        self._give_back(held)
        self.system.free(jobid)

    def _leave(self, jobid: int, left: ResourceSet) -> None:
        """A running job has ended on some of its targets."""
        self.running[jobid] = self.running[jobid].restrict(self.running[jobid].ranks - left.ranks)
        self._give_back(left)
        self.system.free_part(jobid, left)

    def _give_back(self, held: ResourceSet) -> None:
        for rank in held.ranks:
            cores, gpus = self.truth.free[rank]
            more_cores, more_gpus = _masks(held, rank)
            self.truth.free[rank] = cores | more_cores, gpus | more_gpus

    def limit(self, jobid: int, limit_s: float) -> None:
        """A running job may run so long from now on."""
        self.system.send("sched.expiration", ExpirationRequest(jobid, self.now_s + limit_s))
        self.ends_s[jobid] = min(self.ends_s[jobid], self.now_s + limit_s)

    # ---- targets

    def offline(self, targets: Idset) -> None:
        """Targets go offline; jobs there keep running."""
        self.system.tell(self.system.module.set_offline(targets, self.now_s))

    def drain(self, targets: Idset) -> None:
        """An administrator takes targets out of use."""
        self._drained |= targets
        self.system.tell(self.system.module.drain(targets, "conformance", "update", None, self.now_s))

    def move(self, targets: Idset) -> None:
        """Targets leave the group at once: jobs there end."""
        self.system.tell(self.system.module.assign(targets, ELSEWHERE, self.now_s))

    def lose(self, targets: Idset) -> None:
        """Targets are gone, and the jobs on them."""
        self.offline(targets)
        for jobid in [jobid for jobid, held in self.running.items() if not held.ranks.isdisjoint(targets)]:
            self.end(jobid)

    def restore(self) -> None:
        """All targets are back, and usable again."""
        module, now_s = self.system.module, self.now_s
        self.system.tell(module.set_online(self.ranks, now_s))
        if self._drained:
            self.system.tell(module.undrain(self._drained, None, "update", None, now_s))
            self._drained = EMPTY
        if elsewhere := self.ranks - module.targets_of_group(DEFAULT_GROUP):
            self.system.tell(module.include(elsewhere, now_s))

    def resources_end(self, in_s: float) -> None:
        """The resources themselves get an expiration."""
        self.system.tell(self.system.module.set_expiration(self.now_s + in_s, self.now_s))

    # ---- time

    def decide(self, grants: int | None = None) -> int:
        """One pass; with `grants` it is dropped after so many, as for a message. Returns how many jobs have started."""
        before = len(self.truth.started)
        self.system.run_pass(grants)
        if self.checker.judging:
            self.system.check()
        if grants is None:
            self.checker.check_promises(self.now_s)
            self.checker.preemptions.passed(self.truth.waiting)
        return len(self.truth.started) - before

    def advance(self, to_s: float = inf) -> bool:
        """Advance to the next end of a job, or to `to_s` if sooner, and end the jobs due; False if there is none."""
        next_s = min([*self.ends_s.values(), *[each[0] for each in self._leaving], to_s])
        if next_s == inf:
            return False
        self.system.now_s = max(self.now_s, next_s)
        for jobid in [jobid for jobid, end_s in self.ends_s.items() if end_s <= self.now_s]:
            self.end(jobid)
        due = [each for each in self._leaving if each[0] <= self.now_s]
        self._leaving = [each for each in self._leaving if each[0] > self.now_s]
        for _, jobid, left in due:
            self._leave(jobid, left)
        return True

    def finish(self) -> None:
        """Run until no job waits. Raises RuleBroken if a job waits forever on an idle machine."""
        for _ in range(INSTANTS_MAX):
            started = self.decide()
            waiting = self.truth.waiting.keys() - self.truth.on_hold
            if not waiting and not self.running:
                return
            if not self.advance():
                if self.running:  # jobs without any end
                    self.end(next(iter(self.running)))
                elif not started and self._holds:
                    return
                elif not started:
                    raise RuleBroken(PROGRESS, f"no job is started, though all is free and job {_named(waiting)} waits")
        raise RuleBroken(PROGRESS, f"jobs are left after {INSTANTS_MAX} instants")

    def reloaded(self) -> Harness:
        """The scheduler module is reloaded: a fresh policy takes over running jobs, and waiting jobs are sent again."""
        running = [
            _hello(jobid, self.jobs[jobid], held) for jobid, held in self.running.items()
        ]
        fresh = Harness(self._pristine, self._machine, self.now_s, running)
        fresh.truth.started |= self.truth.started
        fresh.jobs, fresh.ends_s = dict(self.jobs), dict(self.ends_s)
        fresh.truth.running.update(self.truth.running)
        fresh.truth.users.update(self.truth.users)
        for jobid, held in self.running.items():
            fresh._hold(jobid, held)
        for jobid in self.truth.waiting:
            fresh._enter(jobid, self.jobs[jobid])
        return fresh

    # ---- within

    def _first(self) -> int | None:
        """The first job of the queue, in RFC 27's order."""
        line = [(-job.priority, job.submit_s, jobid) for jobid, job in self._offered()]
        return min(line)[2] if line else None

    def _offered(self) -> Iterable[tuple[int, HarnessJob]]:
        return ((jobid, self.jobs[jobid]) for jobid in self.truth.waiting if jobid not in self.truth.on_hold)

    def began(self, granted: Granted) -> None:
        """A job got its resources."""
        jobid = granted.jobid
        del self.truth.waiting[jobid]
        self.truth.started.add(jobid)
        self.ends_s[jobid] = min(self.now_s + self.jobs[jobid].run_s, granted.expiration_s or inf)
        after_s = self.jobs[jobid].spec.sharing.preemptible_after_s
        self.truth.running[jobid] = None if after_s is None else Preemptible(self.now_s + after_s)
        self._hold(jobid, granted.resources)
        self.checker.sizes.began(jobid, self.jobs[jobid].spec.request, granted.resources)

    def grew(self, grown: Grown) -> None:
        """A running job got more."""
        held = self.running[grown.jobid]
        self._hold(grown.jobid, grown.resources)
        self.running[grown.jobid] = held | grown.resources
        self.checker.sizes.grew(grown.jobid, grown.resources)

    def shrank(self, shrunk: Shrunk) -> None:
        """A running job leaves targets, which takes a moment."""
        self.checker.sizes.shrank(shrunk.jobid, shrunk.ranks)
        left = self.running[shrunk.jobid].restrict(shrunk.ranks)
        self._leaving.append((self.now_s + GRACE_S, shrunk.jobid, left))

    def left(self, jobid: int, note: str) -> None:
        """A waiting job was denied or canceled."""
        self.truth.waiting.pop(jobid, None)
        self.truth.users.pop(jobid, None)
        self.truth.on_hold.discard(jobid)

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """A running job gets a fatal exception, and ends; a preempted one takes a moment."""
        if type == PREEMPT:
            self.ends_s[jobid] = min(self.ends_s[jobid], self.now_s + GRACE_S)
        else:
            self.end(jobid)

    def _hold(self, jobid: int, held: ResourceSet) -> None:
        self.running[jobid] = held
        for rank in held.ranks:
            cores, gpus = self.truth.free[rank]
            taken_cores, taken_gpus = _masks(held, rank)
            self.truth.free[rank] = cores & ~taken_cores, gpus & ~taken_gpus


def _hello(jobid: int, job: HarnessJob, held: ResourceSet) -> HelloResponse:
    return HelloResponse(jobid, job.priority, job.userid, job.submit_s, None, held.to_json(), job.spec.raw)


def _masks(resources: ResourceSet, rank: int) -> tuple[int, int]:
    children = resources.children(rank)
    return children.cores.mask, children.gpus.mask


def _named(jobids: set[int]) -> str:
    return format_f58(min(jobids))


MakeHarness = Callable[[str], Harness]
"""Makes a harness of a machine, with the policy under test on it."""
