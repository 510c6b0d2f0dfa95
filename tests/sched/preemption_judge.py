"""Judges every preemption of a schedule from its log alone; nothing of it is shared with what decides.

What breaks a law is noted in `faults`, in words: allowed by its age, above its share while the other is within its own,
never in one account, within the rate, in nobody's vain, never in turn, at most one job a core, and no job lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from types import SimpleNamespace
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import PREEMPT, Canceled, Denied, Effect, Granted, Raise
from fluxsched.sched.engine.scheduler import Scheduler
from tests.sched.progressive_filling import Asked, Filling, Path, Site

WINDOW_S = 60.0
AGE_SLACK_S = 1e-6

Place = tuple[int, int]
"""A rank and a core of it."""


class Claim:
    """A job for which others go, until it starts or leaves; `going` are all that were when it was chosen.

    Where they go makes no difference: who has others go may start where they go for another, and they for it.
    """

    def __init__(self, job: Asked, now_s: float, shares: dict[Path, Fraction]) -> None:
        self.job, self.now_s, self.shares = job, now_s, shares
        self.going: set[int] = set()
        self.places: set[Place] = set()
        self.taken_by: list[int] = []  # who started there: harmless if this job starts once all have gone
        self.is_settled = False  # whether the pass that chose it has ended
        self.is_excused = False  # something has happened that no plan could know


class Judge:
    """Told what happens, in order; times are wall time in seconds."""

    def __init__(self, site: Site, rate: int) -> None:
        self.filling = Filling(site)
        self.rate = rate
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0
        self.started_s: dict[int, float] = {}
        self.places: dict[int, set[Place]] = {}
        self.users: dict[Place, int] = {}
        self.claims: dict[int, Claim] = {}
        self.going: dict[int, int] = {}
        self._preempted_s: deque[float] = deque()
        self._won: dict[int, dict[Path, Fraction]] = {}
        self._capacity: dict[int, Fraction] = {}
        self._usable: set[int] = set()

    def fault(self, text: str) -> None:
        self.faults.append(f"at {self.now_s:.3f} s: {text}")

    # ---- jobs

    def submitted(self, job: Asked) -> None:
        self.counts["submitted"] += 1
        if job.jobid in self.filling.waiting or job.jobid in self.filling.holding:
            self.fault(f"job {job.jobid} is there twice")
        self.filling.waits(job)
        for claim in self.claims.values():
            claim.is_excused |= job.priority > claim.job.priority

    def prioritized(self, jobid: int, priority: int) -> None:
        job = self.filling.waiting.get(jobid)
        if job is not None:
            self.filling.leaves(jobid)
            self.filling.waits(replace(job, priority=priority))
            self._excuse_all()
            if not priority:
                self.claims.pop(jobid, None)

    def left(self, jobid: int) -> None:
        """Cancelled or denied while it waited."""
        self.counts["left"] += 1
        self.filling.leaves(jobid)
        self.claims.pop(jobid, None)

    def started(self, jobid: int, places: set[Place], now_s: float) -> None:
        self.now_s = now_s
        self.counts["started"] += 1
        if jobid not in self.filling.waiting:
            self.fault(f"job {jobid} starts, and does not wait")
            return
        if taken := [place for place in places if place in self.users]:
            self.fault(f"job {jobid} starts on {taken[:3]}, which others hold")
        if unusable := {rank for rank, _ in places} - self._usable:
            self.fault(f"job {jobid} starts on ranks {unusable}, which are not usable")
        claim = self.claims.pop(jobid, None)
        if claim is not None:
            self.counts["won"] += 1
            self._won[jobid] = claim.shares
        for other in self.claims.values():
            if other.places & places:
                other.taken_by.append(jobid)
        self.filling.starts(jobid, now_s)
        self.started_s[jobid] = now_s
        self.places[jobid] = places
        self.users.update(dict.fromkeys(places, jobid))
        for won in [won for won in self._won if won != jobid and won in self.filling.holding]:
            if self.filling.holding[won].path[0] == self.filling.holding[jobid].path[0]:
                del self._won[won]  # its account has grown since

    def freed(self, jobid: int, now_s: float) -> None:
        self.now_s = now_s
        if jobid not in self.filling.holding:
            self.fault(f"job {jobid} frees what it does not hold")
            return
        self.counts["freed"] += 1
        self.filling.frees(jobid, now_s)
        for place in self.places.pop(jobid):
            del self.users[place]
        del self.started_s[jobid]
        self._won.pop(jobid, None)
        self.going.pop(jobid, None)
        for claim in self.claims.values():
            claim.going.discard(jobid)
        self._count_capacity()

    # ---- preemptions

    def preempted(self, victim: int, for_jobid: int | None, now_s: float) -> None:
        self.now_s = now_s
        self.counts["preempted"] += 1
        beneficiary, running = self.filling.waiting.get(for_jobid or 0), self.filling.holding.get(victim)
        if beneficiary is None or running is None or victim in self.going:
            self.fault(f"job {victim} is preempted for {for_jobid}: one does not run, or the other does not wait")
            return
        what = f"job {victim} of {'/'.join(running.path)}, preempted for {for_jobid} of {'/'.join(beneficiary.path)},"
        self._judge_age(running, what)
        self._judge_rate()
        claim = self.claims.get(beneficiary.jobid)
        if claim is None:
            claim = self._claim(beneficiary)
        elif claim.now_s < now_s and beneficiary.jobid in self.going.values():
            self.fault(f"{what} is one more while others still go for it")
        shared = _shared(running.path, beneficiary.path)
        if shared == len(running.path) == len(beneficiary.path):
            self.fault(f"{what} is of the same account")
        for at in _levels(beneficiary.path, shared):
            if self._usage(at) > self.filling.fair_usage(at):
                self.fault(f"{what}: {'/'.join(at)} would use {self._numbers(at)}")
        for at in _levels(running.path, shared):
            if self._usage(at) <= self.filling.fair_usage(at) and not self._may_get_more(at, running.path):
                self.fault(f"{what}: its {'/'.join(at)} uses {self._numbers(at)}")
        self._judge_turn(victim, what)
        self.going[victim] = beneficiary.jobid
        claim.places |= self.places[victim]

    def _claim(self, job: Asked) -> Claim:
        levels = [job.path[:depth] for depth in range(1, len(job.path) + 1)]
        claim = Claim(job, self.now_s, {at: self.filling.fair_usage(at) for at in levels})
        self.claims[job.jobid] = claim
        return claim

    def _judge_age(self, running: Asked, what: str) -> None:
        age_s = self.now_s - self.started_s[running.jobid]
        if running.preemptible_after_s is None or age_s < running.preemptible_after_s - AGE_SLACK_S:
            self.fault(f"{what} has run {age_s:g} s and allows it after {running.preemptible_after_s} s")

    def _judge_rate(self) -> None:
        self._preempted_s.append(self.now_s)
        while self._preempted_s[0] <= self.now_s - WINDOW_S:
            self._preempted_s.popleft()
        if len(self._preempted_s) > self.rate:
            self.fault(f"{len(self._preempted_s)} jobs are preempted within {WINDOW_S:g} s")

    def _judge_turn(self, victim: int, what: str) -> None:
        """One for which others went is not preempted while shares and what its bank holds stay."""
        shares = self._won.get(victim)
        if shares is not None and all(self.filling.fair_usage(at) >= share for at, share in shares.items()):
            self.fault(f"{what} had others go for it, and shares are the same")

    def _usage(self, path: Path) -> Fraction:
        """What is held, less what goes, plus what those ask for others go for."""
        usage = self.filling.usage(path)
        usage -= sum(self.filling.holding[one].usage for one in self.going if self._is_in(one, path))
        return usage + sum(claim.job.usage for claim in self.claims.values() if claim.job.path[: len(path)] == path)

    def _may_get_more(self, bank: Path, victim: Path) -> bool:
        """Whether others of a bank may start where some go already, which counts in what it uses by then."""
        others = [job for job in self.filling.waiting.values() if job.path != victim and job.path[: len(bank)] == bank]
        return bank != victim and bool(self.going) and bool(others)

    def _is_in(self, jobid: int, path: Path) -> bool:
        return self.filling.holding[jobid].path[: len(path)] == path

    def _numbers(self, path: Path) -> str:
        return f"{float(self._usage(path)):g} of {float(self.filling.fair_usage(path)):g}"

    # ---- passes and targets

    def passed(self, now_s: float) -> None:
        """A pass has ended: who had all its victims gone has started, or has left."""
        self.now_s = now_s
        for claim in list(self.claims.values()):
            if claim.now_s == now_s and not claim.is_settled:
                claim.is_settled = True
                claim.going |= self.going.keys()
            elif not claim.going:
                self.counts["late"] += claim.is_excused
                if not claim.is_excused:
                    taken = f", jobs {claim.taken_by} started there" if claim.taken_by else ""
                    self.fault(f"all that went for job {claim.job.jobid} are gone, and it waits{taken}")
                del self.claims[claim.job.jobid]

    def has(self, ranks: set[int], cores: int) -> None:
        """Targets with so many cores each."""
        self._capacity.update(dict.fromkeys(ranks, Fraction(cores)))

    def usable(self, ranks: set[int], up: bool) -> None:
        self._usable = self._usable | ranks if up else self._usable - ranks
        self._excuse_all()
        self._won.clear()
        self._count_capacity()

    def _count_capacity(self) -> None:
        usable = sum((self._capacity[rank] for rank in self._usable), Fraction(0))
        elsewhere = sum(rank not in self._usable for rank, _ in self.users)
        self.filling.site = replace(self.filling.site, capacity=usable + elsewhere)

    def _excuse_all(self) -> None:
        for claim in self.claims.values():
            claim.is_excused = True


def _shared(one: Path, other: Path) -> int:
    """How many levels two accounts have in common."""
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return shared


def _levels(path: Path, shared: int) -> Iterator[Path]:
    for depth in range(shared + 1, len(path) + 1):
        yield path[:depth]


# ---- the log of a scheduler, written as it is asked and answers


def watched(scheduler: Scheduler, judge: Judge, path_of: Callable[[str | None, int], Path]) -> SimpleNamespace:
    """The methods of a scheduler that also tell a judge what it is told, and what it says.

    `path_of` is the account of a bank and a user.
    """
    made = SimpleNamespace()

    def after(name: str, tell: Callable[..., None]) -> None:
        plain = getattr(scheduler, name)

        @wraps(plain)
        def told(*arguments: Any, **named: Any) -> Any:
            found = plain(*arguments, **named)
            tell(found, *arguments, **named)
            return found

        setattr(made, name, told)

    def asked(effects: list[Effect], jobid: int, *rest: Any, **_: Any) -> None:
        priority, userid, submit_s, spec, *_times = rest
        if not any(isinstance(effect, Denied) for effect in effects):
            parsed = spec if isinstance(spec, Jobspec) else Jobspec.parse(spec)
            path = path_of(parsed.sharing.bank, userid)
            judge.submitted(_asked_for(jobid, path, priority, submit_s, parsed))

    def freed(effects: list[Effect], jobid: int, now_s: float = 0.0) -> None:
        judge.freed(jobid, now_s)

    def canceled(effects: list[Effect], jobid: int) -> None:
        if any(isinstance(effect, Canceled) for effect in effects):
            judge.left(jobid)

    def prioritized(effects: list[Effect], jobs: list[tuple[int, int]]) -> None:
        for jobid, priority in jobs:
            judge.prioritized(jobid, priority)

    def scheduling(now_s: float) -> Iterator[Effect]:
        for effect in plainly(now_s):
            match effect:
                case Granted(jobid):
                    judge.started(jobid, places_of(effect.resources), now_s)
                case Denied(jobid):
                    judge.left(jobid)
                case Raise(jobid) if effect.type == PREEMPT:
                    judge.preempted(jobid, effect.for_jobid, now_s)
            yield effect
        judge.passed(now_s)

    plainly = scheduler.schedule
    made.schedule = scheduling
    after("alloc", asked)
    after("free_all", freed)
    after("cancel", canceled)
    after("prioritize", prioritized)
    after("went_online", lambda _, targets, *_rest: judge.usable(set(targets), True))
    after("went_offline", lambda _, targets, *_rest: judge.usable(set(targets), False))
    return made


def _asked_for(jobid: int, path: Path, priority: int, submit_s: float, spec: Jobspec) -> Asked:
    request = spec.request
    cores = request.slots.min * request.cores * (1 if request.nodes is None else request.nodes.min)
    return Asked(jobid, path, Fraction(cores), priority, submit_s, spec.sharing.preemptible_after_s, spec.duration_s)


def places_of(resources: ResourceSet) -> set[Place]:
    """The cores of an R."""
    return {(rank, core) for rank in resources.ranks for core in resources.children(rank).cores}
