"""The available policies, for `fluxsched policy list` and for completion of names in a shell.

Law: it answers at once, so it imports neither the simulator nor an instance; and whatever an installed package does
when it is imported, the list is made. So those that are not ours are looked at in processes of their own:
`python -m fluxsched.runtime.config.policy_list NAME FD`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from fluxsched.errors import FluxschedError
from fluxsched.runtime.system.isolated_process import IsolatedProcess
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.policy import Option
from fluxsched.sched.registry import OWN, known_policies, make, says

__all__ = ["ListedPolicy", "fault_of", "known_policies", "policies"]

IMPORT_S = 5.0
"""How long importing a policy may take before the list continues without it (seconds); all are imported at once."""

CANNOT = "cannot be loaded: "


class ListedPolicy(NamedTuple):
    """An available policy, its options as `key=default`, and its description, or why it cannot be loaded.

    An option without a default of its own is just `key`: the configuration has it.
    """

    name: str
    options: str
    says: str


def policies(import_s: float = IMPORT_S) -> Iterator[ListedPolicy]:
    """Ours and those of installed packages, by name."""
    names = known_policies()
    with ExitStack() as stack:
        others: dict[str, IsolatedProcess] = {}
        for name in names:
            if name not in OWN:
                others[name] = IsolatedProcess(__name__, [name], quiet=True)
                stack.callback(others[name].close)
        for name in names:
            yield _heard(name, others[name], import_s) if name in others else listed(name)


def _heard(name: str, foreign: IsolatedProcess, import_s: float) -> ListedPolicy:
    line = foreign.line(import_s)
    if line is None:
        return ListedPolicy(name, "", f"{CANNOT}it {foreign.ending(import_s)} while it was imported")
    return ListedPolicy(*json.loads(line))


def fault_of(spec: str, import_s: float = IMPORT_S) -> str | None:
    """Why a policy, `NAME:key=value` or a file, cannot be used; it is tried in a process of its own."""
    foreign = IsolatedProcess(__name__, [spec], quiet=True)
    try:
        says = _heard(spec, foreign, import_s).says
    finally:
        foreign.close()
    return says.removeprefix(CANNOT) if says.startswith(CANNOT) else None


def _with_default(key: str, option: Option) -> str:
    return key if option.default is None else f"{key}={option.default}"


def listed(name: str) -> ListedPolicy:
    """One policy, imported here."""
    try:
        policy = make(*parse_spec(name))
        options = " ".join(_with_default(key, option) for key, option in getattr(policy, "OPTIONS", {}).items())
        return ListedPolicy(name, options, says(policy))
    except FluxschedError as fault:
        return ListedPolicy(name, "", f"{CANNOT}{fault}")
    except Exception as fault:  # foreign code: whatever it raises belongs into the list
        return ListedPolicy(name, "", f"{CANNOT}{type(fault).__name__}: {fault}")


if __name__ == "__main__":
    os.write(int(sys.argv[2]), f"{json.dumps(listed(sys.argv[1]))}\n".encode())
