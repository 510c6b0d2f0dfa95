"""Checks each decision of a policy before the engine gets it, against the truth as recorded here.

Law: nothing is shared with what is judged. What waits and what is held follows from what was submitted, granted and
freed, and what is usable is asked of the resource module. What is broken is raised out of the policy's own yield.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, ClassVar, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Request
from fluxsched.sched.loading import raise_at
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
from fluxsched.sim.conformance.preemption import Preemptible, PreemptionJudge, line_of
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.conformance.sizes import SizeJudge

USABLE, FREE, WAITING, PROGRESS, HEAD = "usable", "free", "waiting", "progress", "head"
"""Laws, by the names of the rules that they belong to."""

DECISIONS_EACH_MAX, DECISIONS_MORE_MAX = 20, 1000
"""Decisions in one pass, for each job that waits and on top: a policy that yields more never ends its pass."""

LATE_S = 1e-6
"""What rounding may do to a promise."""


class GroundTruth:
    """What is true, by those who would know: `free` are core and GPU masks by rank, `usable` are ranks, and `users` has
    those of jobs that wait or run.
    """

    def __init__(self, free: dict[int, tuple[int, int]], usable: Callable[[], Idset]) -> None:
        self.free = free
        self.usable = usable
        self.waiting: dict[int, Request] = {}
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
        """The policy's decisions, each judged."""
        decisions = self._policy.schedule(view, now_s)
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
        """Raises RuleBroken if after a pass a job waits that was to have started."""
        for jobid in self.promised.keys() & self._truth.waiting.keys():
            self.check_promise(jobid, now_s, " and still waits")

    def check_promise(self, jobid: int, now_s: float, what: str = "") -> None:
        """Raises RuleBroken if this job was to have started before."""
        promised_s = self.promised.get(jobid, inf)
        if self.promises_hold and now_s > promised_s + LATE_S:
            late = f"job {format_f58(jobid)}, the first in line, should have started {now_s - promised_s:g} s ago"
            raise RuleBroken(HEAD, late + what)


class _Pass:
    """One pass."""

    def __init__(self, checker: Checker, truth: GroundTruth, now_s: float) -> None:
        self._checker = checker
        self._truth = truth
        self._now_s = now_s
        self._reserved = False
        self._left = DECISIONS_EACH_MAX * len(truth.waiting) + DECISIONS_MORE_MAX

    def count(self) -> None:
        """Raises RuleBroken when a pass has too many decisions."""
        self._left -= 1
        if self._left < 0:
            raise RuleBroken(PROGRESS, "too many decisions in one pass: a pass should end when no job can start")

    def judge(self, decision: Decision, decisions: Iterator[Decision]) -> None:
        """Raises RuleBroken if the decision breaks a law; what is no decision at all is for the engine to refuse."""
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
    """How much in all."""

    cores: int
    gpus: int


def _total(fit: Fits) -> Totals:
    parts = fit.parts
    return Totals(sum([part.cores.bit_count() for part in parts]), sum([part.gpus.bit_count() for part in parts]))


def _asked(request: Request) -> Totals:
    return Totals(request.least_cores, request.least_gpus)
