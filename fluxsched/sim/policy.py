"""For the command `policy check`: the conformance suite on a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxsched.config.policies import check_files, check_policy
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import make
from fluxsched.sim.conformance.suite import CASE_S, Finding, RuleVerdict, TimeLimit, examine, unclear
from fluxsched.sim.policy_guard import policy_faults

__all__ = ["CASE_S", "Finding", "RuleVerdict", "check", "check_words", "unclear"]


def check_words(spec: str) -> None:
    """Raises InvalidValue for words that name no policy or file, and for options that one of ours does not have."""
    check_policy(spec)
    check_files(spec)


def check(
    spec: str,
    seed: int,
    stopwatch: Callable[[], float],
    time_limit: TimeLimit,
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """The conformance suite on a policy, `NAME:key=value` or a file; `began` is called before each case, with rule and
    seed.

    Raises InvalidValue if it cannot be made.
    """
    return examine(_made(spec), seed, stopwatch, time_limit=time_limit, began=began)


def _made(spec: str) -> Policy:
    with policy_faults(spec, " while it was imported"):
        return make(*parse_spec(spec))
