"""`policy check` in a separate process, since the policy may exit, crash or loop. The parent's half and the child's.

The child, `python -m fluxsched.cli.policy_check SPEC SEED FD`, writes a JSON line when the policy is made, one
as each case begins, and one a verdict. Law: the child looks at the policy as closely as it can and reports the line at
fault; the parent relies only on the child's output and exit, so nothing that the policy does hides what happened.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.sim.conformance.suite import CASE_S, Finding, RuleVerdict, check, unclear
from fluxsched.system.clock import SystemClock, interrupted
from fluxsched.system.processes import IsolatedProcess

IMPORT_S = 10.0
"""Time that a policy may take to be imported and made (seconds)."""

SILENT_S = CASE_S + 30.0
"""Time that a case may take which the child itself could not end (seconds): it deals with signals, or never leaves C.
"""

MADE, CASE, VERDICT, FAULT, DONE = "made", "case", "verdict", "fault", "done"


Unclear = Callable[[tuple[str, int] | None, str], Iterator[RuleVerdict]]
"""Makes the report where the child itself ended early."""


def check_apart(
    spec: str, seed: int, *, import_s: float = IMPORT_S, silent_s: float = SILENT_S
) -> Iterator[RuleVerdict]:
    """The verdicts on a policy. A rule in whose case the process came to an end is broken, all others are unclear then.

    Raises InvalidValue for a policy that cannot be made, with what it did instead.
    """
    return heard(IsolatedProcess(__name__, [spec, str(seed)]), "policy", spec, unclear, import_s, silent_s)


def heard(
    child: IsolatedProcess, what: str, spec: str, unclear: Unclear, import_s: float, silent_s: float
) -> Iterator[RuleVerdict]:
    """The parent's half, on a policy or a plugin (`what`)."""
    case: tuple[str, int] | None = None
    is_done = False
    try:
        limit_s = import_s
        while (line := child.line(limit_s)) is not None:
            kind, value = json.loads(line)
            if kind == FAULT:
                raise InvalidValue(value)
            if kind == VERDICT:
                rule, verdict, cases, says, finding = value
                yield RuleVerdict(rule, verdict, cases, says, finding and Finding(*finding))
            elif kind == CASE:
                case = (value[0], value[1])
            is_done |= kind == DONE
            limit_s = silent_s
        ending = child.ending(limit_s)
    finally:
        child.close()
    if limit_s == import_s:
        late = f"was still importing after {import_s:g} s"
        raise InvalidValue(f"{what} {spec} {late if 'come back' in ending else f'{ending} while it was imported'}")
    if not is_done:
        yield from unclear(case, f"the {what} {ending}")


def told(found: Iterator[RuleVerdict], spec: str, tell: Callable[[str, Any], None]) -> None:
    """The child's half, once what is judged is made."""
    tell(MADE, spec)
    for verdict in found:
        tell(VERDICT, verdict)
    tell(DONE, None)


def main(spec: str, seed: int, tell: Callable[[str, Any], None]) -> None:
    """Run the check in the child process."""
    try:
        found = check(spec, seed, SystemClock.cpu_s, interrupted, lambda rule, at: tell(CASE, [rule, at]))
    except FluxschedError as fault:
        tell(FAULT, str(fault))
        return
    told(found, spec, tell)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[3]), "w") as pipe:
        main(sys.argv[1], int(sys.argv[2]), lambda kind, value: print(json.dumps([kind, value]), file=pipe, flush=True))
