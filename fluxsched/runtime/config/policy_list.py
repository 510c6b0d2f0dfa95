"""The available policies and plugins, for `fluxsched policy list` and `plugin list`, and for completion in a shell.

Law: it answers at once, so it imports neither the simulator nor an instance; and whatever an installed package does
when it is imported, the list is made. So those that are not ours are looked at in processes of their own:
`python -m fluxsched.runtime.config.policy_list policy|plugin|used-plugin NAME FD`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from fluxsched.errors import FluxschedError
from fluxsched.runtime.system.isolated_process import IsolatedProcess
from fluxsched.runtime.system.log import exception_text
from fluxsched.runtime.system.own_process import die_with
from fluxsched.sched.loading import parse_spec
from fluxsched.sched.plugin_registry import OWN_PLUGINS, find_plugin, known_plugins, make_plugin
from fluxsched.sched.policy import Option
from fluxsched.sched.registry import OWN, known_policies, make, says

__all__ = ["ListedPolicy", "fault_of", "known_policies", "plugins", "policies"]

IMPORT_S = 5.0
"""How long importing a policy may take before the list continues without it (seconds); all are imported at once."""

CANNOT = "cannot be loaded: "

POLICY, PLUGIN, USED_PLUGIN = "policy", "plugin", "used-plugin"
"""What is named: a policy; a plugin, for the list; a plugin with the options that it is to be used with."""


class ListedPolicy(NamedTuple):
    """An available policy (or plugin), its options as `key=default`, and its description, or why it cannot be loaded.

    An option without a default of its own is just `key`: the configuration has it.
    """

    name: str
    options: str
    says: str


def policies(import_s: float = IMPORT_S) -> Iterator[ListedPolicy]:
    """Ours and those of installed packages, by name."""
    return _all(POLICY, known_policies(), OWN, import_s)


def plugins(import_s: float = IMPORT_S) -> Iterator[ListedPolicy]:
    """The same of plugins."""
    return _all(PLUGIN, known_plugins(), OWN_PLUGINS, import_s)


def _all(noun: str, names: Sequence[str], own: Container[str], import_s: float) -> Iterator[ListedPolicy]:
    with ExitStack() as stack:
        others: dict[str, IsolatedProcess] = {}
        for name in names:
            if name not in own:
                others[name] = IsolatedProcess(__name__, [noun, name], quiet=True)
                stack.callback(others[name].close)
        for name in names:
            yield _heard(name, others[name], import_s) if name in others else LISTED[noun](name)


def _heard(name: str, foreign: IsolatedProcess, import_s: float) -> ListedPolicy:
    line = foreign.line(import_s)
    if line is None:
        return ListedPolicy(name, "", f"{CANNOT}it {foreign.ending(import_s)} while it was imported")
    return ListedPolicy(*json.loads(line))


def fault_of(spec: str, noun: str = POLICY, import_s: float = IMPORT_S) -> str | None:
    """Why `NAME:key=value`, a POLICY or a USED_PLUGIN, cannot be used; it is tried in a process of its own."""
    foreign = IsolatedProcess(__name__, [noun, spec], quiet=True)
    try:
        says = _heard(spec, foreign, import_s).says
    finally:
        foreign.close()
    return says.removeprefix(CANNOT) if says.startswith(CANNOT) else None


def _with_default(key: str, option: Option) -> str:
    return key if option.default is None else f"{key}={option.default}"


def listed(name: str) -> ListedPolicy:
    """One policy, imported here."""
    return _listed(name, lambda: make(*parse_spec(name)))


def listed_plugin(name: str) -> ListedPolicy:
    """One plugin, imported here; its class will do, since an option may have no default that can be used."""
    return _listed(name, lambda: find_plugin(parse_spec(name)[0]))


def used_plugin(spec: str) -> ListedPolicy:
    """One plugin, made here with its options."""
    return _listed(spec, lambda: make_plugin(spec))


def _listed(name: str, found: Callable[[], object]) -> ListedPolicy:
    try:
        thing = found()
        options = " ".join(_with_default(key, option) for key, option in getattr(thing, "OPTIONS", {}).items())
        return ListedPolicy(name, options, says(thing))
    except FluxschedError as fault:
        return ListedPolicy(name, "", f"{CANNOT}{fault}")
    except Exception as fault:  # foreign code: whatever it raises belongs in the list
        return ListedPolicy(name, "", f"{CANNOT}{exception_text(fault)}")


LISTED: Final = {POLICY: listed, PLUGIN: listed_plugin, USED_PLUGIN: used_plugin}


if __name__ == "__main__":
    die_with(os.getppid())
    os.write(int(sys.argv[3]), f"{json.dumps(LISTED[sys.argv[1]](sys.argv[2]))}\n".encode())
