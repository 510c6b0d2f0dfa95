"""Policies and plugins before any scheduler starts: which one orders which queue, and which are available.

Law: only the specification itself is checked, and no code of a plugin is run: its own process does that. A queue has
the policy that its scheduler's own words give it, else that of its configuration, else its scheduler's. The list
(`fluxsched policy list`, `plugin list`, completion in a shell) is made at once, without simulator or instance, and
whatever an installed package does when it is imported: those that are not ours are looked at in processes of their own,
`python -m fluxsched.config.policies policy|plugin|used-plugin NAME FD`.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from fluxsched.core.text import there_are
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs.queues import DEFAULT_GROUP, QueueConfig
from fluxsched.sched.engine.held_jobs import book_for
from fluxsched.sched.loading import PLUGIN_SIGN, is_file, join_plugins, parse_spec, split_options, split_plugins
from fluxsched.sched.policy import Option
from fluxsched.sched.registry import (
    OWN,
    OWN_PLUGINS,
    check_plugin,
    find,
    find_plugin,
    has_plugin,
    inner_option,
    join_queues,
    known_plugins,
    known_policies,
    make,
    make_plugin,
    names_in,
    says,
    split_queues,
    unknown_policy,
)
from fluxsched.system.log import exception_text
from fluxsched.system.processes import IsolatedProcess, die_with

__all__ = [
    "ListedPolicy",
    "fault_of",
    "known_policies",
    "plugins",
    "policies",
]

YAML: Final = (".yaml", ".yml")
"""Options of plugins that end so name files."""


def check_policy(spec: str) -> None:
    """Raise InvalidValue for an unknown policy, and for options that a built-in policy does not have."""
    spec, plugins = split_plugins(spec)
    for plugin in plugins:
        check_plugin(plugin)
    for name in names_in(spec):
        if name not in OWN and not is_file(name) and name not in known_policies():
            raise unknown_policy(name)
    name, options = parse_spec(spec)
    if not has_plugin(spec):
        make(name, options)
    elif name in OWN:  # around a plugin: which of the others the plugin has is not known
        inner, declared = inner_option(name), find(name).OPTIONS
        make(name, {key: value for key, value in options.items() if key in declared and key != inner})


def check_queue_policy(spec: str) -> None:
    """Check the policy of a queue, which may consist of plugins alone."""
    if spec.startswith(PLUGIN_SIGN):
        for plugin in split_plugins(spec)[1]:
            check_plugin(plugin)
    else:
        check_policy(spec)


def check_policies(specs: str) -> tuple[str, dict[str, str]]:
    """Return `split_queues`, with each policy checked. Raises InvalidValue naming the queue at fault."""
    general, own = split_queues(specs)
    check_policy(general)
    for queue, spec in own.items():
        try:
            check_queue_policy(spec)
        except InvalidValue as fault:
            raise type(fault)(f"queue {queue!r}: {fault}") from None
    return general, own


def check_files(specs: str) -> None:
    """Raise InvalidValue for `SPEC;QUEUE=SPEC;...` with a policy in a file that is not there."""
    for name in absent_files(specs):
        raise InvalidValue(f"there is no file {name}")


def absent_files(specs: str) -> Iterator[str]:
    """Yield the files that `SPEC;QUEUE=SPEC;...` names and that are not there."""
    return (name for name in files_in(specs) if not Path(name).is_file())


def files_in(specs: str) -> Iterator[str]:
    """Yield the files with code that `SPEC;QUEUE=SPEC;...` names."""
    general, own = split_queues(specs)
    for spec in (general, *own.values()):
        policy, plugins = split_plugins(spec)
        names = [*(names_in(policy) if policy else ()), *(parse_spec(plugin, "plugin")[0] for plugin in plugins)]
        for name in names:
            if is_file(name):
                yield name


def located(specs: str, directory: Path) -> str:
    """Return `SPEC;QUEUE=SPEC;...` with absolute files; relative ones count from `directory`."""
    general, own = split_queues(specs)
    return join_queues(_located(general, directory), {queue: _located(spec, directory) for queue, spec in own.items()})


def _located(spec: str, directory: Path) -> str:
    policy, plugins = split_plugins(spec)
    return join_plugins(_located_class(policy, directory), [_located_plugin(each, directory) for each in plugins])


def may_keep_accounts(specs: str) -> bool:
    """Return whether a policy of `SPEC;QUEUE=SPEC;...` may have read `[fair]`: ours, or one in a file."""
    general, own = split_queues(specs)
    names = [name for spec in (general, *own.values()) for name in names_in(spec)]
    return "fair" in names or any(map(is_file, names))


def with_plugins(specs: str, plugins: Sequence[str]) -> str:
    """Return `SPEC;QUEUE=SPEC;...` with further plugins for the queues that have none of their own."""
    general, semicolon, own = specs.partition(";")
    return join_plugins(general, list(plugins)) + semicolon + own


def _located_plugin(spec: str, directory: Path) -> str:
    """Return a plugin with absolute files: its own, and those of options that are YAML files."""
    name, colon, options = _located_class(spec, directory).partition(":")
    parts = [part.partition("=") for part in split_options(options)] if colon else []
    located = [
        f"{key}={os.path.abspath(directory / value)}" if value.endswith(YAML) else key + equals + value
        for key, equals, value in parts
    ]
    return f"{name}{colon}{','.join(located)}"


def with_absolute_file(spec: str, directory: Path) -> str:
    """Return the text with an absolute file, if it names one; a relative one counts from `directory`."""
    name, colon, options = spec.partition(":")
    return f"{os.path.abspath(directory / name)}{colon}{options}" if is_file(name) else spec


def _located_class(spec: str, directory: Path) -> str:
    name, _, options = spec.partition(":")
    if is_file(name):
        return with_absolute_file(spec, directory)
    before, inner, after = options.partition(f"{inner_option(name)}=")
    if not inner or (before and not before.endswith(",")):
        return spec
    file, comma, others = after.partition(",")
    return f"{name}:{before}{inner}{_located_class(file, directory)}{comma}{others}"


def default_name(spec: str, groups: Sequence[str]) -> str:
    """Return the name of a module: `fifo:placement=best-fit` is sched-fifo; for group debug it is sched-fifo-debug."""
    base = Path(re.split("[:;|]", spec, maxsplit=1)[0]).name.removesuffix(".py")
    name = base if base.startswith("sched-") else f"sched-{base}"
    return "-".join([name, *(group for group in groups if group != DEFAULT_GROUP)])


def composed(specs: str, groups: Sequence[str], queues: Mapping[str, QueueConfig]) -> str:
    """Return `SPEC;QUEUE=SPEC;...` for a scheduler of these groups, completed from its queues' configuration.

    Raises InvalidValue for an unknown policy, and for a queue that is not configured, that another group serves, or
    that has other groups as well.
    """
    general, named = check_policies(specs)
    for text in queues_split_by(groups, queues).values():
        raise InvalidValue(text)
    for name in named:
        if name not in queues:
            known = there_are(list(queues))
            raise InvalidValue(f"queue {name!r} has a policy in {specs!r}, but is not configured: {known}")
        if (group := queues[name].group) not in groups:
            raise InvalidValue(
                f"queue {name!r} has a policy in {specs!r}, but group {group!r} serves it, and this scheduler "
                f"{', '.join(groups)}"
            )
    served = {name: queue.policy for name, queue in queues.items() if queue.policy and queue.group in groups}
    own = named | {name: spec for name, spec in served.items() if name not in named}
    _check_agreement([general, *own.values()])
    return join_queues(general, own)


def queues_split_by(groups: Sequence[str], queues: Mapping[str, QueueConfig]) -> dict[str, str]:
    """Return queues that have one of these groups, which a scheduler serves, and another that it does not; in words, by
    name.
    """
    found = {}
    for name, queue in queues.items():
        missing = [group for group in queue.groups if group not in groups]
        if missing and len(missing) < len(queue.groups):
            found[name] = (
                f"queue {name!r} has groups {', '.join(queue.groups)}, which need one scheduler, and this one serves "
                f"{', '.join(groups)}: add {', '.join(missing)} to its groups ([[scheduler]] groups, or --group)"
            )
    return found


def _check_agreement(specs: Sequence[str]) -> None:
    """Raise InvalidValue for settings of accounts in which policies of ours contradict each other."""
    policies = [policy for policy, _ in map(split_plugins, specs) if policy and not has_plugin(policy)]
    book_for([make(*parse_spec(policy)) for policy in policies], None, str)


def policy_of(queue: str | None, specs: str) -> str:
    """Return the policy of a queue under a scheduler with the policies `SPEC;QUEUE=SPEC;...`."""
    general, own = split_queues(specs)
    spec = general if queue is None else own.get(queue, general)
    return split_plugins(general)[0] + spec if spec.startswith(PLUGIN_SIGN) else spec


# ---- the list of policies

IMPORT_S = 5.0
"""Time limit for importing a policy, after which the list continues without it (seconds); all are imported at once."""

CANNOT = "cannot be loaded: "

POLICY, PLUGIN, USED_PLUGIN = "policy", "plugin", "used-plugin"
"""Kinds of named things: a policy; a plugin, for the list; a plugin with the options with which it is to be used."""


class ListedPolicy(NamedTuple):
    """An available policy (or plugin), its options as `key=default`, and its description, or why it cannot be loaded.

    An option without a default of its own is just `key`: the configuration has it.
    """

    name: str
    options: str
    says: str


def policies(import_s: float = IMPORT_S) -> Iterator[ListedPolicy]:
    """Yield our policies and those of installed packages, by name."""
    return _all(POLICY, known_policies(), OWN, import_s)


def plugins(import_s: float = IMPORT_S) -> Iterator[ListedPolicy]:
    """Yield all plugins, with their descriptions."""
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
    """Return one policy, imported in this process."""
    return _listed(name, lambda: make(*parse_spec(name)))


def listed_plugin(name: str) -> ListedPolicy:
    """Return one plugin, imported in this process; its class is enough, since an option may have no usable default."""
    return _listed(name, lambda: find_plugin(parse_spec(name)[0]))


def used_plugin(spec: str) -> ListedPolicy:
    """Return one plugin, made in this process with its options."""
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
