"""Synthetic machine with a policy under test: each decision is judged against a record kept here, before the engine
gets it.

Law: nothing is shared with what is judged. Ages, victims and the rate are counted here; shares have changed when other
users have jobs than when a job was preempted. Nothing is shared with what is judged. What a job holds follows from what
it was granted, got and left. Nothing is shared with what is judged. What waits and what is held follows from what was
submitted, granted and freed, and what is usable is asked of the resource module. What is broken is raised out of the
policy's own yield. Events are caused as in an instance (an administrator drains, a job manager cancels), so a policy
meets here what it will meet there. Jobs end by their run time or their limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from fluxsched.config.inventory import fake_resources
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage
from fluxsched.core.request import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.protocol.messages.jobs import ExpirationRequest, HelloResponse, PrioritizeRequest, SchedCancelRequest
from fluxsched.sched.decisions import PREEMPT, Granted, Grown, Shrunk
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP
from fluxsched.sched.fair.accounts import RATE_WINDOW_S, FairSettings
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.loading import checked, raise_at
from fluxsched.sched.policy import (
    Decision,
    Deny,
    Fits,
    Grow,
    Option,
    Pending,
    Policy,
    Preempt,
    Reserve,
    Shrink,
    Start,
    View,
    placement_of,
)
from fluxsched.sched.pool.placement import parts_in
from fluxsched.sim.site import SharedBy, System


class RuleBroken(Exception):
    """A policy has broken the law of this name; `line` is the policy's, where it is not that of the exception."""

    def __init__(self, law: str, text: str, line: str | None = None) -> None:
        super().__init__(text)
        self.law = law
        self.line = line


# ---- checks of preemption

ALLOWED, RATE, IN_VAIN = "allowed", "rate", "in-vain"
"""Laws, by the names of the rules that they belong to."""


class Preemptible(NamedTuple):
    """A running job that may be preempted from a time on (wall time, seconds)."""

    from_s: float


class _Awaited(NamedTuple):
    """A job for which others were preempted: the users who had jobs then, and the policy's line."""

    users: frozenset[int]
    line: str | None


class PreemptionJudge:
    """`running` are all jobs that run, None where one never may be preempted; `users` has the user of each job that
    waits or runs. `rate` jobs may be preempted in any RATE_WINDOW_S.
    """

    def __init__(self, rate: int, running: Mapping[int, Preemptible | None], users: Mapping[int, int]) -> None:
        self.preempted = 0
        self._rate = rate
        self._running = running
        self._users = users
        self._going: dict[int, int] = {}
        self._begun_s: list[float] = []
        self._awaited: dict[int, _Awaited] = {}

    def judge(self, decision: Preempt, waits: bool, now_s: float, line: str | None) -> None:
        """Raise RuleBroken for a decision that may not be; `waits`: the job for which it is may start."""
        jobid, beneficiary, _ = decision
        name = format_f58(jobid)
        if jobid not in self._running:
            raise RuleBroken(ALLOWED, f"job {name} is preempted, although it does not run")
        if jobid in self._going:
            raise RuleBroken(ALLOWED, f"job {name} is preempted again, although it is being preempted already")
        allows = self._running[jobid]
        if allows is None:
            raise RuleBroken(ALLOWED, f"job {name} is preempted, although it may never be")
        if now_s < allows.from_s:
            early_s = allows.from_s - now_s
            raise RuleBroken(ALLOWED, f"job {name} is preempted {early_s:g} s before it may be")
        if not waits:
            text = f"job {name} is preempted for job {format_f58(beneficiary)}, which does not wait"
            raise RuleBroken(IN_VAIN, text)
        self._begun_s = [begun_s for begun_s in self._begun_s if now_s < begun_s + RATE_WINDOW_S]
        if len(self._begun_s) >= self._rate:
            text = f"job {name} is preempted, the {len(self._begun_s) + 1}th within {RATE_WINDOW_S:g} s"
            raise RuleBroken(RATE, f"{text}: the rate is {self._rate}")
        self._begun_s.append(now_s)
        self._going[jobid] = beneficiary
        self._awaited[beneficiary] = _Awaited(frozenset(self._users.values()), line)
        self.preempted += 1

    def ended(self, jobid: int) -> None:
        """Take note that a job has ended."""
        self._going.pop(jobid, None)

    def passed(self, waiting: Mapping[int, Any]) -> None:
        """Record that a pass has ended. Raises RuleBroken if a job still waits for which all have gone, and shares are
        the same.
        """
        going = set(self._going.values())
        users = frozenset(self._users.values())
        for jobid, awaited in list(self._awaited.items()):
            if jobid in going:
                continue
            del self._awaited[jobid]
            if jobid in waiting and awaited.users == users:
                text = f"job {format_f58(jobid)} waits on, although all jobs preempted for it have ended"
                raise RuleBroken(IN_VAIN, text, awaited.line)


def rate_of(policy: Policy, fair: FairSettings) -> int:
    """Return the number of jobs that the policy may preempt in RATE_WINDOW_S."""
    rate = getattr(policy, "fair_overrides", {}).get("rate", fair.rate)
    assert isinstance(rate, int)
    return rate


def line_of(decisions: Iterator[object]) -> str | None:
    """`mine.py:12`, the line of the innermost `yield` at which a generator stands; None for what is no generator."""
    frame, at = None, decisions
    while (found := getattr(at, "gi_frame", None)) is not None:
        frame, at = found, at.gi_yieldfrom  # type: ignore[attr-defined]
    return None if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


# ---- checks of sizes

SIZES, EXTRAS = "sizes", "extras"
"""Laws, by the names of the rules that they belong to."""


class _Sized:
    """An elastic job that runs: by part, the targets that it has and is not to leave."""

    def __init__(self, request: Request, held: ResourceSet) -> None:
        by_label = held.parts
        self.parts = request.each_part
        self.ranks = [by_label.get(part.label, EMPTY) for part in self.parts] if by_label else [held.ranks]


class SizeJudge:
    """`usable` and `free` are asked of the truth."""

    def __init__(self) -> None:
        self.grown: set[int] = set()
        self._jobs: dict[int, _Sized] = {}

    def began(self, jobid: int, request: Request, held: ResourceSet) -> None:
        """Record that a job has started; only elastic ones are of interest."""
        if request.elastic:
            self._jobs[jobid] = _Sized(request, held)

    def ended(self, jobid: int) -> None:
        """Take note that a job has ended."""
        self._jobs.pop(jobid, None)

    def grew(self, jobid: int, added: ResourceSet) -> None:
        """Record that a job has got more."""
        job = self._jobs[jobid]
        by_label = added.parts
        for at, part in enumerate(job.parts):
            job.ranks[at] |= by_label.get(part.label, EMPTY) if by_label else added.ranks
        self.grown.add(jobid)
        self._check(jobid, job)

    def shrank(self, jobid: int, ranks: Idset) -> None:
        """Record that a job is to leave targets. Raises RuleBroken below a minimum."""
        job = self._jobs[jobid]
        job.ranks = [mine - ranks for mine in job.ranks]
        self._check(jobid, job)

    def judge_shrink(self, jobid: int, ranks: Idset) -> None:
        """Raise RuleBroken for a decision that may not be."""
        name, job = format_f58(jobid), self._jobs.get(jobid)
        if job is None:
            raise RuleBroken(SIZES, f"job {name} is shrunk, although no elastic job of this id runs")
        if foreign := ranks - Idset.of([rank for mine in job.ranks for rank in mine]):
            raise RuleBroken(SIZES, f"job {name} is shrunk by ranks {foreign}, which it does not hold")
        for part, mine in zip(job.parts, job.ranks, strict=True):
            self._check_count(name, part, len(mine - ranks))

    def judge_grow(self, jobid: int, fit: Fits, usable: Idset, free: Mapping[int, tuple[int, int]]) -> None:
        """Judge a decision to grow an elastic job by more targets."""
        name, job = format_f58(jobid), self._jobs.get(jobid)
        if job is None:
            raise RuleBroken(SIZES, f"job {name} is grown, although no elastic job of this id runs")
        parts = list(parts_in(fit.blocks))
        ranks = Idset.of([part.rank for part in parts])
        if useless := ranks - usable:
            raise RuleBroken(SIZES, f"job {name} is grown by ranks {useless}, which are down, drained or leaving")
        for part in parts:
            cores, gpus = free[part.rank]
            if part.cores & ~cores or part.gpus & ~gpus:
                raise RuleBroken(SIZES, f"job {name} is grown by more of rank {part.rank} than is free there")
        added = fit.by_part or (ranks,)
        for each, mine, more in zip(job.parts, job.ranks, added, strict=True):
            self._check_count(name, each, len(mine | more))

    def _check(self, jobid: int, job: _Sized) -> None:
        for part, mine in zip(job.parts, job.ranks, strict=True):
            self._check_count(format_f58(jobid), part, len(mine))

    def _check_count(self, name: str, part: Request, count: int) -> None:
        asked = part.nodes
        assert asked is not None, "an elastic job has a range of nodes"
        if count not in asked:
            whose = f"part {part.label} of job {name}" if part.label else f"job {name}"
            raise RuleBroken(SIZES, f"{whose} would have {count} nodes, although it asks for {asked}")


# ---- the checker

USABLE, FREE, WAITING, PROGRESS, HEAD, OUTAGE = "usable", "free", "waiting", "progress", "head", "outage"
"""Laws, by the names of the rules that they belong to."""

DECISIONS_EACH_MAX, DECISIONS_MORE_MAX = 20, 1000
"""Decisions in one pass, for each job that waits and on top: a policy that yields more never ends its pass."""

LATE_S = 1e-6
"""Tolerance for rounding when a promised time is compared (seconds)."""


class PlannedTime(NamedTuple):
    """An outage of targets, from one time to before another (wall time, seconds)."""

    targets: Idset
    from_s: float
    until_s: float


class GroundTruth:
    """True state of the machine, by the parts that know it: `free` are core and GPU masks by rank, `usable` are ranks,
    and `users` has those of jobs that wait or run. `limits_s` are those of all jobs, 0 for none.
    """

    def __init__(self, free: dict[int, tuple[int, int]], usable: Callable[[], Idset]) -> None:
        self.free = free
        self.usable = usable
        self.waiting: dict[int, Request] = {}
        self.limits_s: dict[int, float] = {}
        self.outages: list[PlannedTime] = []
        self.running: dict[int, Preemptible | None] = {}
        self.users: dict[int, int] = {}
        self.on_hold: set[int] = set()
        self.started: set[int] = set()


class Checker:
    """A policy around the policy. `said` is what it has decided; `promised` when the first in line was to start.

    A promise is the first reservation of a pass, if it is for the first in line; a policy that once reserves for
    another job before has an order of his own, and promises nothing. With `promises_hold` nothing happens that would
    excuse a later start. Where `judging` is false decisions are only counted.
    """

    name: ClassVar[str] = "checker"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, policy: Policy, truth: GroundTruth, first: Callable[[], int | None], rate: int) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.promised: dict[int, float] = {}
        self.promises_hold = False
        self.own_order = False
        self.judging = True
        self._policy = policy
        self._truth = truth
        self.first = first
        self.preemptions = PreemptionJudge(rate, truth.running, truth.users)
        self.sizes = SizeJudge()
        if hasattr(policy, "ended"):
            self.ended = policy.ended
        self.GROWS, self.placement = getattr(policy, "GROWS", False), placement_of(policy)  # which the engine asks for
        if hasattr(policy, "ACCOUNTS"):
            self.ACCOUNTS = policy.ACCOUNTS
            self.fair_overrides = getattr(policy, "fair_overrides", {})

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yield the policy's decisions, each judged."""
        decisions = checked(self._policy.schedule(view, now_s))
        judge = _Pass(self, self._truth, now_s)
        try:
            for decision in decisions:
                try:
                    judge.count()
                    if self.judging:
                        judge.judge(decision, decisions)
                    yield decision
                except Exception as fault:
                    raise_at(decisions, fault)
                    raise
        finally:
            close = getattr(decisions, "close", None)
            if close is not None:
                close()

    def check_promises(self, now_s: float) -> None:
        """Raise RuleBroken if after a pass a job waits that was to have started."""
        for jobid in self.promised.keys() & self._truth.waiting.keys():
            self.check_promise(jobid, now_s, " and still waits")

    def check_promise(self, jobid: int, now_s: float, what: str = "") -> None:
        """Raise RuleBroken if this job was to have started before."""
        promised_s = self.promised.get(jobid, inf)
        if self.promises_hold and now_s > promised_s + LATE_S:
            late = f"job {format_f58(jobid)}, the first in line, should have started {now_s - promised_s:g} s ago"
            raise RuleBroken(HEAD, late + what)


class _Pass:
    """Record of one pass of the policy."""

    def __init__(self, checker: Checker, truth: GroundTruth, now_s: float) -> None:
        self._checker = checker
        self._truth = truth
        self._now_s = now_s
        self._reserved = False
        self._left = DECISIONS_EACH_MAX * len(truth.waiting) + DECISIONS_MORE_MAX

    def count(self) -> None:
        """Raise RuleBroken when a pass has too many decisions."""
        self._left -= 1
        if self._left < 0:
            raise RuleBroken(PROGRESS, "too many decisions in one pass: a pass should end when no job can start")

    def judge(self, decision: Decision, decisions: Iterator[Decision]) -> None:
        """Raise RuleBroken if the decision breaks a law; what is no decision at all is for the engine to refuse."""
        match decision:
            case Start(jobid, fit) if isinstance(fit, Fits):
                self._start(jobid, fit)
            case Reserve(reservation, reason):
                self._checker.said.append(("reserve", reservation.jobid, reservation.start_s))
                self._reserve(reservation.jobid, reservation.start_s)
                _ = reason if isinstance(reason, str) else reason()
            case Pending(jobid, reason):
                self._checker.said.append(("pending", jobid))
                _ = reason if isinstance(reason, str) else reason()
            case Preempt(jobid, for_jobid):
                self._checker.said.append(("preempt", jobid, for_jobid))
                waits = for_jobid in self._truth.waiting and for_jobid not in self._truth.on_hold
                self._checker.preemptions.judge(decision, waits, self._now_s, line_of(decisions))
            case Shrink(jobid, ranks):
                self._checker.said.append(("shrink", jobid, str(ranks)))
                self._checker.sizes.judge_shrink(jobid, ranks)
            case Grow(jobid, fit) if isinstance(fit, Fits):
                self._checker.said.append(("grow", jobid, fit.parts))
                self._checker.sizes.judge_grow(jobid, fit, self._truth.usable(), self._truth.free)
            case Deny(jobid):
                if jobid in self._truth.waiting:
                    raise RuleBroken(PROGRESS, f"job {format_f58(jobid)} is denied, although it can run here")

    def _start(self, jobid: int, fit: Fits) -> None:
        truth, name = self._truth, format_f58(jobid)
        asked = truth.waiting.get(jobid)
        if asked is None:
            how = "has started already" if jobid in truth.started else "does not wait"
            raise RuleBroken(WAITING, f"job {name} is started, although it {how}")
        if jobid in truth.on_hold:
            raise RuleBroken(WAITING, f"job {name} is started, although it is held")
        have, need = _total(fit), _asked(asked)
        if fit.request != asked or have.cores < need.cores or have.gpus < need.gpus:
            raise RuleBroken(WAITING, f"job {name} is started on resources that do not match its request: {asked}")
        ranks = Idset.of([part.rank for part in parts_in(fit.blocks)])
        if useless := ranks - truth.usable():
            raise RuleBroken(USABLE, f"job {name} is started on ranks {useless}, which are down, drained or leaving")
        end_s = self._now_s + (truth.limits_s[jobid] or inf)
        for targets, from_s, until_s in truth.outages:
            if (kept := ranks & targets) and from_s < end_s and self._now_s < until_s:
                in_s = from_s - self._now_s
                raise RuleBroken(OUTAGE, f"job {name} is started on ranks {kept}, whose outage begins in {in_s:g} s")
        left: dict[int, tuple[int, int]] = {}
        for part in parts_in(fit.blocks):
            cores, gpus = left.get(part.rank) or truth.free[part.rank]
            if part.cores & ~cores or part.gpus & ~gpus:
                raise RuleBroken(FREE, f"job {name} is started on more of rank {part.rank} than is free there")
            left[part.rank] = cores & ~part.cores, gpus & ~part.gpus
        self._checker.said.append(("start", jobid, fit.parts))
        self._checker.check_promise(jobid, self._now_s)

    def _reserve(self, jobid: int, start_s: float) -> None:
        checker = self._checker
        if not self._reserved and jobid != checker.first():
            checker.own_order = True
            checker.promised.clear()
        elif not self._reserved and start_s < inf and not checker.own_order:
            checker.promised.setdefault(jobid, start_s)
        self._reserved = True


class Totals(NamedTuple):
    """Total numbers of cores and GPUs."""

    cores: int
    gpus: int


def _total(fit: Fits) -> Totals:
    parts = fit.parts
    return Totals(sum([part.cores.bit_count() for part in parts]), sum([part.gpus.bit_count() for part in parts]))


def _asked(request: Request) -> Totals:
    return Totals(request.least_cores, request.least_gpus)


# ---- the harness

BEGIN_S = 1_700_000_000.0
"""Wall time at the beginning, unless a case has another; not 0.0, which means no time."""

URGENCY = 16
"""The usual one (RFC 25)."""

INSTANTS_MAX = 10_000
"""Instants until a harness is empty; a workload of some hundred jobs needs some hundred."""

FAIR: Final = FairSettings(rate=8, weights={"core": 1.0})
"""Few preemptions in a minute, so that a case reaches them. Idle GPUs count for nothing, or no user would be over."""

GRACE_S: Final = 2.0
"""Time that a preempted job takes to end (seconds)."""

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
        plugins: Sequence[Plugin] = (),
    ) -> None:
        self.jobs: dict[int, HarnessJob] = {}
        self.running: dict[int, ResourceSet] = {}
        self.ends_s: dict[int, float] = {}
        self._leaving: list[tuple[float, int, ResourceSet]] = []  # when a running job has left these
        self._drained = EMPTY
        self.holds: bool = getattr(policy, "HOLDS", False)
        self._pristine, self._machine = deepcopy(policy), machine
        resources = fake_resources(machine)
        self.ranks = resources.ranks
        self._all = {rank: _masks(resources, rank) for rank in resources.ranks}
        self.truth = GroundTruth(dict(self._all), lambda: self.system.module.usable(DEFAULT_GROUP))
        self.checker = Checker(deepcopy(policy), self.truth, self._first, rate_of(policy, FAIR))
        self.system = System(
            self, resources, self.checker, {}, [DEFAULT_GROUP], {}, begin_s, running=running, sharing=SharedBy(FAIR),
            plugins={"": plugins} if plugins else None,
        )  # fmt: skip

    @property
    def now_s(self) -> float:
        """Return the time of the harness (wall time)."""
        return self.system.now_s

    # ---- jobs

    def submit(self, spec: Jobspec, run_s: float = inf, priority: int = URGENCY, userid: int = 1) -> int:
        """Add a job to the queue; its id counts from 1."""
        jobid = len(self.jobs) + 1
        self._enter(jobid, HarnessJob(spec, priority, self.now_s, run_s, userid))
        return jobid

    def _enter(self, jobid: int, job: HarnessJob) -> None:
        self.jobs[jobid] = job
        self.truth.waiting[jobid] = job.spec.request
        self.truth.limits_s[jobid] = job.spec.duration_s
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
        """Set the priority of a job; 0 holds it."""
        self.jobs[jobid] = self.jobs[jobid]._replace(priority=priority)
        (self.truth.on_hold.discard if priority else self.truth.on_hold.add)(jobid)
        self.system.send("sched.prioritize", PrioritizeRequest([(jobid, priority)]))

    def end(self, jobid: int) -> None:
        """End a running job, which gives everything back."""
        held = self.running.pop(jobid)
        del self.ends_s[jobid], self.truth.running[jobid], self.truth.users[jobid]
        self.checker.preemptions.ended(jobid)
        self.checker.sizes.ended(jobid)
        self._leaving = [each for each in self._leaving if each[1] != jobid]
        self._give_back(held)
        self.system.free(jobid)

    def _leave(self, jobid: int, left: ResourceSet) -> None:
        """End a running job on some of its targets."""
        self.running[jobid] = self.running[jobid].restrict(self.running[jobid].ranks - left.ranks)
        self._give_back(left)
        self.system.free_part(jobid, left)

    def _give_back(self, held: ResourceSet) -> None:
        for rank in held.ranks:
            cores, gpus = self.truth.free[rank]
            more_cores, more_gpus = _masks(held, rank)
            self.truth.free[rank] = cores | more_cores, gpus | more_gpus

    def limit(self, jobid: int, limit_s: float) -> None:
        """Let a running job run so long from now on."""
        self.system.send("sched.expiration", ExpirationRequest(jobid, self.now_s + limit_s))
        self.ends_s[jobid] = min(self.ends_s[jobid], self.now_s + limit_s)

    # ---- targets

    def offline(self, targets: Idset) -> None:
        """Targets go offline; jobs there keep running."""
        self.system.pass_on(self.system.module.set_offline(targets, self.now_s))

    def drain(self, targets: Idset) -> None:
        """Take targets out of use, as an administrator would."""
        self._drained |= targets
        self.system.pass_on(self.system.module.drain(targets, "conformance", "update", None, self.now_s))

    def plan_outage(self, targets: Idset, in_s: float, lasts_s: float, *, is_reservation: bool = False) -> None:
        """Plan an outage of targets, as an administrator would; a reservation is one that no job names."""
        module, now_s = self.system.module, self.now_s
        planned = PlannedTime(targets, now_s + in_s, now_s + in_s + lasts_s)
        self.truth.outages.append(planned)
        outage = Outage(module.outages.name_for(None), *planned, is_reservation=is_reservation)
        self.system.pass_on(module.add_outage(outage, None, now_s))

    def is_reserved(self, targets: Idset) -> bool:
        """Return whether some of these targets are in a reservation, so that no other one may be planned there."""
        return any(each.outage.is_reservation and each.outage.targets & targets for each in self.system.module.outages)

    def move(self, targets: Idset) -> None:
        """Targets leave the group at once: jobs there end."""
        self.system.pass_on(self.system.module.assign(targets, ELSEWHERE, self.now_s))

    def lose(self, targets: Idset) -> None:
        """Targets are gone, and the jobs on them."""
        self.offline(targets)
        for jobid in [jobid for jobid, held in self.running.items() if not held.ranks.isdisjoint(targets)]:
            self.end(jobid)

    def restore(self) -> None:
        """All targets are back, and usable again."""
        module, now_s = self.system.module, self.now_s
        self.system.pass_on(module.set_online(self.ranks, now_s))
        if self._drained:
            self.system.pass_on(module.undrain(self._drained, None, "update", None, now_s))
            self._drained = EMPTY
        if elsewhere := self.ranks - module.targets_of_group(DEFAULT_GROUP):
            self.system.pass_on(module.include(elsewhere, now_s))

    def resources_end(self, in_s: float) -> None:
        """Give the resources themselves an expiration."""
        self.system.pass_on(self.system.module.set_expiration(self.now_s + in_s, self.now_s))

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
        """Advance to the next end of a job, turn of an outage, or to `to_s` if sooner, and do what is due; return False
        if there is none.
        """
        module = self.system.module
        next_s = min([*self.ends_s.values(), *[each[0] for each in self._leaving], module.outages.next_s, to_s])
        if next_s == inf:
            return False
        self.system.now_s = max(self.now_s, next_s)
        for jobid in [jobid for jobid, end_s in self.ends_s.items() if end_s <= self.now_s]:
            self.end(jobid)
        if module.outages.next_s <= self.now_s:
            self.system.pass_on(module.advance_outages(self.now_s))
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
                elif not started and self.holds:
                    return
                elif not started:
                    raise RuleBroken(PROGRESS, f"no job is started, though all is free and job {_named(waiting)} waits")
        raise RuleBroken(PROGRESS, f"jobs are left after {INSTANTS_MAX} instants")

    def reloaded(self) -> Harness:
        """Reload the scheduler module: a fresh policy takes over running jobs, and waiting jobs are sent again."""
        running = [_hello(jobid, self.jobs[jobid], held) for jobid, held in self.running.items()]
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
        """Return the first job of the queue, in RFC 27's order."""
        line = [(-job.priority, job.submit_s, jobid) for jobid, job in self._offered()]
        return min(line)[2] if line else None

    def _offered(self) -> Iterable[tuple[int, HarnessJob]]:
        return ((jobid, self.jobs[jobid]) for jobid in self.truth.waiting if jobid not in self.truth.on_hold)

    def began(self, granted: Granted) -> None:
        """Record that a job got its resources."""
        jobid = granted.jobid
        del self.truth.waiting[jobid]
        self.truth.started.add(jobid)
        self.ends_s[jobid] = min(self.now_s + self.jobs[jobid].run_s, granted.expiration_s or inf)
        after_s = self.jobs[jobid].spec.sharing.preemptible_after_s
        self.truth.running[jobid] = None if after_s is None else Preemptible(self.now_s + after_s)
        self._hold(jobid, granted.resources)
        self.checker.sizes.began(jobid, self.jobs[jobid].spec.request, granted.resources)

    def grew(self, grown: Grown) -> None:
        """Record that a running job got more."""
        held = self.running[grown.jobid]
        self._hold(grown.jobid, grown.resources)
        self.running[grown.jobid] = held | grown.resources
        self.checker.sizes.grew(grown.jobid, grown.resources)

    def shrank(self, shrunk: Shrunk) -> None:
        """Record that a running job leaves targets, which takes a moment."""
        self.checker.sizes.shrank(shrunk.jobid, shrunk.ranks)
        left = self.running[shrunk.jobid].restrict(shrunk.ranks)
        self._leaving.append((self.now_s + GRACE_S, shrunk.jobid, left))

    def left(self, jobid: int, note: str) -> None:
        """Record that a waiting job was denied or canceled."""
        self.truth.waiting.pop(jobid, None)
        self.truth.users.pop(jobid, None)
        self.truth.on_hold.discard(jobid)

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """Record that a running job gets a fatal exception, and ends; a preempted one takes a moment."""
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
