"""`plugin check` in a separate process, as `policy check`: the child's half, and its start.

The child is `python -m fluxsched.cli.studies.plugin_check SPEC POLICY SEED FD`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from fluxsched.cli.policy_check import CASE, FAULT, IMPORT_S, SILENT_S, heard, told
from fluxsched.errors import FluxschedError
from fluxsched.sim.conformance.plugin_suite import check, unclear
from fluxsched.sim.conformance.suite import RuleVerdict
from fluxsched.system.clock import interrupted
from fluxsched.system.processes import IsolatedProcess


def check_apart(spec: str, policy: str, seed: int) -> Iterator[RuleVerdict]:
    """The verdicts on a plugin. Raises InvalidValue for one that cannot be made, with what it did instead."""
    child = IsolatedProcess(__name__, [spec, policy, str(seed)])
    return heard(child, "plugin", spec, unclear, IMPORT_S, SILENT_S)


def main(spec: str, policy: str, seed: int, tell: Callable[[str, Any], None]) -> None:
    """Run the check in the child process."""
    try:
        found = check(spec, policy, seed, interrupted, lambda rule, at: tell(CASE, [rule, at]))
    except FluxschedError as fault:
        tell(FAULT, str(fault))
        return
    told(found, spec, tell)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[4]), "w") as pipe:
        main(
            sys.argv[1], sys.argv[2], int(sys.argv[3]),
            lambda kind, value: print(json.dumps([kind, value]), file=pipe, flush=True),
        )  # fmt: skip
