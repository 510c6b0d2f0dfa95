"""The conformance suite for plugins: a policy with a plugin, against the laws for plugins.

Law: what is judged is the production code with the plugin in it, between others; so what the engine owes plugins is
judged as well. A rule is broken by its first failing case, which is reported with its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final, NamedTuple

from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.loading import policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sim.conformance.hooked import plugin_cases as put
from fluxsched.sim.conformance.hooked import plugin_judge as laws
from fluxsched.sim.conformance.hooked.plugin_judge import PluginJudge
from fluxsched.sim.conformance.suite import (
    CaseStuck,
    Finding,
    RuleVerdict,
    TimeLimit,
    tried,
    verdict_of,
)
from fluxsched.system.clock import seeded

CASES: Final = 3
"""Cases of each rule."""

LAWS: Final = {
    laws.RAISES: "raises no exception at any point",
    laws.ANSWERS: "answers what its points may answer",
    laws.PURE: "gives the same answer to the same question",
    laws.HOLDS: "what it says of a shape holds until targets or its generation change",
    laws.RESERVED: "is unreserved just for what it has reserved, in the reverse order of other plugins",
}
"""Judged in every case."""


class PluginRule(NamedTuple):
    """What a rule says, and what it is tried with."""

    says: str
    case: put.Case


RULES: Final = {
    "progress": PluginRule("leaves no job waiting on an idle machine without a reason", put.ordinary),
    "policy": PluginRule("the laws for policies hold with it, on ordinary days", put.under_policy),
    "deterministic": PluginRule("has the same jobs start at the same times for the same input", put.deterministic),
    put.FAULTS: PluginRule("a failure at any point holds back just the jobs asked about", put.faults),
    put.LEAKS: PluginRule("keeps nothing of starts that failed and of jobs that ended", put.leaks),
    laws.SKIPS: PluginRule("SKIP reaches the filter of its plugin alone", put.skips),
    laws.TIMED_OUT: PluginRule("each wait for a permit has an end, after which nothing is held", put.permits),
    laws.CALLS: PluginRule("questions about shapes stay within shapes times kinds of targets", put.calls),
}

ALL_SAYS: Final = {**LAWS, **{name: rule.says for name, rule in RULES.items()}}


def examine_plugin(
    policy: Policy,
    make: Callable[[], Plugin],
    seed: int = 0,
    *,
    cases: int = CASES,
    rules: Sequence[str] = tuple(RULES),
    time_limit: TimeLimit = lambda limit_s, fault: nullcontext(),
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """All rules, or some, on the plugins that `make` makes; `began` is called for each case before it begins.

    After a case that does not end there is no other.
    """
    findings: dict[str, Finding] = {}
    counts = dict.fromkeys(ALL_SAYS, 0)
    claims: set[str] = set()
    try:
        for name in rules:
            for at in range(seed, seed + cases):
                began(name, at)
                if _try(name, at, put.Tried(policy, make), time_limit, findings, counts, claims):
                    break  # it takes long to go on with what fails again and again
    except CaseStuck as stuck:
        findings.setdefault("progress", Finding(at, f"{stuck} (case {name!r})", policy_line(stuck)))
    for name, says in ALL_SAYS.items():
        verdict = verdict_of(counts[name], name in LAWS or name in claims, name in findings)
        yield RuleVerdict(name, verdict, counts[name], says, findings.get(name))


def _try(
    name: str,
    seed: int,
    what: put.Tried,
    time_limit: TimeLimit,
    findings: dict[str, Finding],
    counts: dict[str, int],
    claims: set[str],
) -> bool:
    """One case, and all that it has found; whether that is anything."""
    judges: list[PluginJudge] = []
    case = partial(RULES[name].case, what, seeded(seed), judges)
    claimed, law, finding = tried(name, seed, case, time_limit)
    found = {law: finding} if finding is not None else {}
    for judge in judges:
        for noted, (text, line) in judge.found.items():
            found.setdefault(noted, Finding(seed, text, line))
    for broken, each in found.items():
        findings.setdefault(broken, each)
    for kept in {name, *LAWS} - found.keys():
        counts[kept] += 1
    if claimed or name in found:
        claims.add(name)
    return bool(found)
