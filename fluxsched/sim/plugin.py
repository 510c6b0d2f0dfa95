"""For the command `plugin check`: the conformance suite on a plugin, under a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fluxsched.config.policies import check_files, check_policy
from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.loading import is_file, parse_spec
from fluxsched.sched.registry import check_plugin, make, make_plugin
from fluxsched.sim.conformance.hooked.plugin_suite import ALL_SAYS, examine_plugin
from fluxsched.sim.conformance.suite import RuleVerdict, TimeLimit, all_unclear
from fluxsched.sim.policy_guard import policy_faults


def check_words(spec: str, policy: str) -> None:
    """Raises InvalidValue for words that name no plugin, policy or file; no code of a plugin is run."""
    check_plugin(spec)
    name = spec.partition(":")[0]
    if is_file(name) and not Path(name).is_file():
        raise InvalidValue(f"there is no file {name}")
    check_policy(policy)
    check_files(policy)


def check(
    spec: str,
    policy: str,
    seed: int,
    time_limit: TimeLimit,
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """The suite on a plugin, `NAME:key=value` or a file; `began` is called before each case, with rule and seed.

    Raises InvalidValue if plugin or policy cannot be made.
    """
    with policy_faults(spec, " while it was imported", "plugin"):
        _made(spec)
    with policy_faults(policy, " while it was imported"):
        under = make(*parse_spec(policy))
    return examine_plugin(under, partial(_made, spec), seed, time_limit=time_limit, began=began)


def _made(spec: str) -> Plugin:
    return make_plugin(spec)


def unclear(case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """The report when the suite itself ended early."""
    return all_unclear(ALL_SAYS, case, what)
