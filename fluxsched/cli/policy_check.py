"""`policy check` and `plugin check` in a separate process, since what they check may exit, crash or loop.

The child, `python -m fluxsched.cli.policy_check SPEC SEED POLICY FD`, writes a JSON line when the policy is made, one
as each case begins, and one a verdict. Where POLICY is not empty, SPEC is a plugin, checked under it. Law: the child
looks at the policy as closely as it can and reports the line at fault; the parent relies only on the child's output and
exit, so nothing that the policy does hides what happened.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.sim import conformance as suite
from fluxsched.sim import plugin_conformance as plugin_suite
from fluxsched.sim.conformance import CASE_S, Finding, RuleVerdict
from fluxsched.system.clock import SystemClock, interrupted
from fluxsched.system.processes import IsolatedProcess

IMPORT_S = 10.0
"""Time that a policy may take to be imported and made (seconds)."""

SILENT_S = CASE_S + 30.0
"""Time for a case that the child could not end itself (seconds): a policy may handle signals, or never leave C code."""

MADE, CASE, VERDICT, FAULT, DONE = "made", "case", "verdict", "fault", "done"


def check_apart(
    spec: str, seed: int, policy: str = "", *, import_s: float = IMPORT_S, silent_s: float = SILENT_S
) -> Iterator[RuleVerdict]:
    """Yield the verdicts on a policy, or with `policy` on a plugin under it.

    A rule in whose case the process came to an end is broken, all others are unclear then. Raises InvalidValue for a
    policy or plugin that cannot be made, with what it did instead.
    """
    kind, unclear = ("plugin", plugin_suite.unclear) if policy else ("policy", suite.unclear)
    child = IsolatedProcess(__name__, [spec, str(seed), policy])
    case: tuple[str, int] | None = None
    is_done = False
    try:
        limit_s = import_s
        while (line := child.line(limit_s)) is not None:
            key, value = json.loads(line)
            if key == FAULT:
                raise InvalidValue(value)
            if key == VERDICT:
                rule, verdict, cases, says, finding = value
                yield RuleVerdict(rule, verdict, cases, says, finding and Finding(*finding))
            elif key == CASE:
                case = (value[0], value[1])
            is_done |= key == DONE
            limit_s = silent_s
        ending = child.ending(limit_s)
    finally:
        child.close()
    if limit_s == import_s:
        late = f"was still importing after {import_s:g} s"
        raise InvalidValue(f"{kind} {spec} {late if 'come back' in ending else f'{ending} while it was imported'}")
    if not is_done:
        yield from unclear(case, f"the {kind} {ending}")


def main(spec: str, seed: int, policy: str, tell: Callable[[str, Any], None]) -> None:
    """Run the check in the child process."""

    def began(rule: str, at: int) -> None:
        tell(CASE, [rule, at])

    try:
        if policy:
            verdicts = plugin_suite.check(spec, policy, seed, interrupted, began)
        else:
            verdicts = suite.check(spec, seed, SystemClock.cpu_s, interrupted, began)
    except FluxschedError as fault:
        tell(FAULT, str(fault))
        return
    tell(MADE, spec)
    for verdict in verdicts:
        tell(VERDICT, verdict)
    tell(DONE, None)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[4]), "w") as pipe:
        main(
            sys.argv[1], int(sys.argv[2]), sys.argv[3],
            lambda key, value: print(json.dumps([key, value]), file=pipe, flush=True),
        )  # fmt: skip
