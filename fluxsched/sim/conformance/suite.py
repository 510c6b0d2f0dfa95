"""The conformance suite: checks a policy, on made-up machines, against the laws for policies.

Law: what is judged is the production code with the policy in it. A rule is broken by its first failing case, which is
reported with its seed, its job and the policy's line; the same seed gives the same cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

from fluxsched.sched.loading import policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sim.conformance import cases as put
from fluxsched.sim.conformance import elastic_cases
from fluxsched.sim.conformance.checker import PROGRESS
from fluxsched.sim.conformance.cost import SIZES, cost
from fluxsched.sim.conformance.harness import Harness, MakeHarness
from fluxsched.sim.conformance.rule_broken import RuleBroken
from fluxsched.sim.policy_guard import exit_text
from fluxsched.system.clock import Chance, seeded

T = TypeVar("T")

KEPT, BROKEN, NO_CLAIM, UNCLEAR = "kept", "broken", "no claim", "unclear"

CASES = 10
"""Cases of each rule that chance has a part in."""

CASE_S = 120.0
"""How long one case may take (seconds), where a time limit is set: ours take one at most, or some on a busy machine."""

LAWS = {
    "usable": "starts no job on targets that are down, drained or leaving",
    "free": "starts no job on resources that are in use",
    "waiting": "starts only waiting jobs, each once, on the resources it requested",
    "progress": "ends its passes, denies no job that can run, leaves no job waiting on an idle machine",
    "allowed": "preempts only running jobs that allow it by then, each once",
    "rate": "preempts no more jobs in a minute than its rate",
    "sizes": "keeps every part of an elastic job within its range, on usable targets that are free",
}
"""Judged in every case."""


class Rule(NamedTuple):
    """What a rule says, and what it is tried with, often if chance has a part in it."""

    says: str
    case: Callable[[MakeHarness, Chance], bool]
    by_chance: bool = True


RULES = {
    "ordinary": Rule("raises no exception while jobs and targets come and go", put.ordinary),
    "head": Rule("the first job in line starts no later than its reservation", put.head),
    "deterministic": Rule("makes the same decisions for the same input", put.deterministic),
    "targets": Rule("survives targets lost, offline, drained or moved during a pass", put.targets),
    "jobs": Rule("survives jobs canceled, held and moved in the queue during a pass", put.jobs),
    "expiration": Rule("survives changes of job limits and of the expiration of the resources", put.expiration),
    "in-vain": Rule("preempts no job in vain: the other one starts or leaves, unless shares change", put.preempts),
    "extras": Rule("takes what jobs have above their minima for those in line, and gives none while they wait",
                   elastic_cases.extras),
    "elastic": Rule("survives elastic jobs, and jobs of several parts, while jobs and targets come and go",
                    elastic_cases.elastic),
    "reload": Rule("continues after a reload with the jobs that are already running", put.reload),
    "burst": Rule("survives 60 jobs submitted at once behind a blocked first job", put.burst, False),
    "recursion": Rule("survives 2,000 jobs that become runnable at once", put.recursion, False),
    "not-nothing": Rule("survives empty constraints", put.not_nothing, False),
    "rounding": Rule("survives a reservation at a time where floating-point resolution changes", put.rounding, False),
    "queue-head": Rule("the first job of each queue is protected, not only the first of all", put.queue_head, False),
    "frozen": Rule("moves its reservation forward when a job ends early", put.frozen, False),
}
COST, COST_SAYS = "cost", "the cost of a pass grows no faster than n log n with the queue"


class Finding(NamedTuple):
    """What went wrong in the first failing case of a rule; `line` is the policy's, if one was about to decide."""

    seed: int
    what: str
    line: str | None = None

    def __str__(self) -> str:
        return f"seed {self.seed}{f', {self.line}' if self.line else ''}: {self.what}"


class RuleVerdict(NamedTuple):
    """One line of the report; `cases` are those that were judged to their end, and the first that was not."""

    rule: str
    verdict: str
    cases: int
    says: str
    finding: Finding | None = None


class CaseStuck(BaseException):
    """A case does not end. Not an Exception, which a policy may catch, to continue."""


TimeLimit = Callable[[float, BaseException], AbstractContextManager[None]]
"""Raises what it is given in the midst of what takes longer than so many seconds."""


def examine(
    policy: Policy,
    seed: int = 0,
    stopwatch: Callable[[], float] | None = None,
    *,
    cases: int = CASES,
    sizes: tuple[int, ...] = SIZES,
    time_limit: TimeLimit = lambda limit_s, fault: nullcontext(),
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """All rules, one after the other; with a stopwatch (seconds of CPU) also what it costs, if all others are kept.

    Without `time_limit` a case may take forever; with it, no other case is run after one that does. `began` is called
    for each case before it begins.
    """
    findings: dict[str, Finding] = {}
    counts = dict.fromkeys([*LAWS, *RULES], 0)
    claims: set[str] = set()

    try:
        for name, at in _tries(seed, cases):
            began(name, at)
            case = partial(RULES[name].case, _making(policy, at), seeded(at))
            claimed, broken, finding = tried(name, at, case, time_limit)
            counts[broken] += 1
            counts.update({law: counts[law] + 1 for law in LAWS if law != broken})
            if claimed or finding is not None:
                claims.add(name)
            if finding is not None:
                findings.setdefault(broken, finding)
    except CaseStuck as stuck:  # so may be all other cases
        findings.setdefault(PROGRESS, Finding(at, f"{stuck} (case {name!r})", policy_line(stuck)))
    for name, says in {**LAWS, **{name: rule.says for name, rule in RULES.items()}}.items():
        claimed = name in LAWS or name in claims
        yield RuleVerdict(
            name, verdict_of(counts[name], claimed, name in findings), counts[name], says, findings.get(name)
        )
    if stopwatch is not None and not findings:
        began(COST, seed)
        yield _cost(_making(policy, seed), stopwatch, sizes, seed, time_limit)


def _tries(seed: int, cases: int) -> Iterator[tuple[str, int]]:
    """Rules, and the seeds that each is tried with."""
    return ((name, at) for name, rule in RULES.items() for at in range(seed, seed + (cases if rule.by_chance else 1)))


def _making(policy: Policy, seed: int) -> MakeHarness:
    """Stages of a case: when they begin is in its seed as well."""
    return lambda machine: Harness(policy, machine, put.BEGINS_S[seed % len(put.BEGINS_S)])


def tried(
    name: str, seed: int, case: Callable[[], T], time_limit: TimeLimit
) -> tuple[T | None, str, Finding | None]:
    """What comes of a case, or which law or rule it has found broken, and how. Raises CaseStuck."""
    try:
        with time_limit(CASE_S, CaseStuck(f"it takes more than {CASE_S:g} s")):
            return case(), name, None
    except RuleBroken as broken:
        where = "" if broken.law == name else f" (case {name!r})"
        return None, broken.law, Finding(seed, f"{broken}{where}", broken.line or policy_line(broken))
    except SystemExit as fault:
        return None, name, Finding(seed, exit_text(fault), policy_line(fault))
    except Exception as fault:  # foreign code: whatever it raises is a finding
        return None, name, Finding(seed, f"{type(fault).__name__}: {fault}", policy_line(fault))


def unclear(case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """The report when the suite itself ended early: `what` happened in a case of this rule; all others are unclear."""
    return all_unclear({**LAWS, **{name: rule.says for name, rule in RULES.items()}}, case, what)


def all_unclear(says: Mapping[str, str], case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """The same for rules of any suite, each with what it says; `progress` is one of them."""
    rule, seed = case or (PROGRESS, 0)
    if rule == COST:
        yield RuleVerdict(COST, BROKEN, 0, COST_SAYS, Finding(seed, what))
    for name, text in says.items():
        broken = name == rule
        yield RuleVerdict(name, BROKEN if broken else UNCLEAR, 0, text, Finding(seed, what) if broken else None)


def verdict_of(cases: int, claimed: bool, broken: bool) -> str:
    """Of a rule that was judged in so many cases."""
    if broken:
        return BROKEN
    if not cases:
        return UNCLEAR
    return KEPT if claimed else NO_CLAIM


def _cost(
    make: MakeHarness, stopwatch: Callable[[], float], sizes: tuple[int, ...], seed: int, time_limit: TimeLimit
) -> RuleVerdict:
    """Cost is judged by its growth, and is reported even if it is good."""
    try:
        growth, _, finding = tried(COST, seed, lambda: cost(make, stopwatch, sizes), time_limit)
    except CaseStuck as stuck:
        growth, finding = None, Finding(seed, str(stuck), policy_line(stuck))
    if growth is None:
        return RuleVerdict(COST, BROKEN, 0, COST_SAYS, finding)
    if growth.excess is not None:
        return RuleVerdict(COST, BROKEN, growth.cases, COST_SAYS, Finding(seed, growth.excess))
    return RuleVerdict(COST, KEPT, growth.cases, growth.says)
