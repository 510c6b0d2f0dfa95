"""Policies and plugins by the text that a user wrote, found and checked before they are used.

Law: what is wrong with one is said before it decides anything, by name: what it has and what it should have. Each is
named by one of ours, by an entry point of group `fluxsched.policies` or `fluxsched.plugins`, or by the file that holds
it.

    >>> make(*parse_spec("fifo:placement=best-fit")).name
    'fifo'
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks import POINTS, Plugin, check_points, check_reads
from fluxsched.sched.loading import (
    check_name,
    in_file,
    in_packages,
    is_file,
    offered,
    option_values,
    parse_spec,
    split_plugins,
)
from fluxsched.sched.policy import Policy

ENTRY_POINT_GROUP: Final = "fluxsched.policies"

OWN: Final[Mapping[str, str]] = {
    "conservative": "fluxsched.sched.policies.backfill:Conservative",
    "easy": "fluxsched.sched.policies.backfill:Easy",
    "fair": "fluxsched.sched.policies.fair:Fair",
    "fifo": "fluxsched.sched.policies.backfill:Fifo",
    "firstfit": "fluxsched.sched.policies.backfill:FirstFit",
    "hybrid": "fluxsched.sched.policies.backfill:Hybrid",
    "tree": "fluxsched.yunikorn.tree.policy:Tree",
}
"""Our policies, as MODULE:CLASS: they belong to layers above this one, and are imported when they are named."""


def split_queues(specs: str) -> tuple[str, dict[str, str]]:
    """`SPEC;QUEUE=SPEC;...` -> the policy of most queues, and those of queues that have one of their own, as texts.

    The order is that in which queues are served. Raises InvalidValue naming the part.
    """
    general, *others = specs.split(";")
    own: dict[str, str] = {}
    for part in others:
        queue, equals, spec = part.partition("=")
        if not queue or not equals or ":" in queue:
            raise InvalidValue(f"{part!r} is not QUEUE=POLICY, as in 'easy;debug=fifo'")
        if queue in own:
            raise InvalidValue(f"queue {queue!r} is given two policies")
        own[queue] = spec
    return general, own


def join_queues(general: str, own: Mapping[str, str]) -> str:
    """Return the text that `split_queues` takes apart."""
    return ";".join([general, *[f"{queue}={spec}" for queue, spec in own.items()]])


def names_in(spec: str) -> list[str]:
    """Return the policies that a text names: one, and the one that it runs itself, if it is ours and does so."""
    name, options = parse_spec(split_plugins(spec)[0])
    key = inner_option(name)
    return [name] if key is None else [name, options.get(key, str(find(name).OPTIONS[key].default))]


def inner_option(name: str) -> str | None:
    """Return the option of one of our policies that names another, which it runs; None if it runs none."""
    inner: str | None = getattr(_own(OWN[name]), "INNER", None) if name in OWN else None
    return inner


def is_own(policy: Policy) -> bool:
    """Return whether a policy is one of ours."""
    cls: Any = type(policy)
    return f"{cls.__module__}:{cls.__qualname__}" in OWN.values()


def _own(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    found: type[Any] = getattr(import_module(module), name)
    return found


def has_plugin(spec: str) -> bool:
    """Return whether the spec names a foreign policy, or any plugin: their code is to run in a process of its own."""
    policy, plugins = split_plugins(spec)
    return bool(plugins) or (bool(policy) and any(name not in OWN for name in names_in(policy)))


class Loaded(NamedTuple):
    """The policy of most queues, those of queues with one of their own, and the plugins by queue (empty: of others)."""

    policy: Policy
    own: dict[str, Policy]
    plugins: dict[str, list[Plugin]]


def load(specs: str) -> Loaded:
    """Load the policies and plugins that `SPEC;QUEUE=SPEC;...` names. Raise InvalidValue naming the queue at fault.

    Each SPEC is `POLICY|PLUGIN|...`; that of a queue without a policy of its own is just `|PLUGIN`.
    """
    general, own = split_queues(specs)
    policy, plugins = split_plugins(general)
    found = Loaded(make(*parse_spec(policy)), {}, {"": [make_plugin(each) for each in plugins]})
    for queue, spec in own.items():
        try:
            policy, plugins = split_plugins(spec)
            if policy or not plugins:
                found.own[queue] = make(*parse_spec(policy))
            found.plugins[queue] = [make_plugin(each) for each in plugins]
        except InvalidValue as fault:
            raise type(fault)(f"queue {queue!r}: {fault}") from fault
    return found._replace(plugins={queue: each for queue, each in found.plugins.items() if each})


def make(name: str, options: Mapping[str, str]) -> Policy:
    """Make a policy ready to use. Raise InvalidValue naming the policy, the option and what is allowed."""
    cls = find(name)
    check_class(cls)
    inner: str | None = getattr(cls, "INNER", None)
    own = options if inner is None else {key: value for key, value in options.items() if key in cls.OPTIONS}
    values = {key.replace("-", "_"): value for key, value in option_values("policy", cls, own).items()}
    if inner is not None:
        values[inner] = _inner(cls, str(values[inner]), {key: options[key] for key in options if key not in own})
    policy: Policy = cls(**values)
    return policy


def _inner(cls: type[Any], name: str, options: Mapping[str, str]) -> Policy:
    """Return the policy inside of another, with the options that the other does not have."""
    found = find(name)
    if getattr(found, "INNER", None) is not None:
        raise InvalidValue(f"policy {cls.name!r}: {cls.INNER}={name!r} runs another policy itself: name that one")
    try:
        return make(name, options)
    except InvalidValue as fault:
        own = ", ".join(sorted(cls.OPTIONS))
        raise type(fault)(f"policy {cls.name!r}: {fault}; its own options are {own}") from fault


def find(name: str) -> type[Any]:
    """Return the class: one of ours, else one in a file (`is_file`), else an entry point."""
    if name in OWN:
        return _own(OWN[name])
    if is_file(name):
        return in_file("policy", name, _is_policy, "`name` and `schedule`")
    found = in_packages("policy", ENTRY_POINT_GROUP, name)
    if found is None:
        raise unknown_policy(name)
    return found


def unknown_policy(name: str) -> InvalidValue:
    """Return an error that there is no policy of this name, and which there are."""
    return InvalidValue(f"no policy {name!r}: there are {', '.join(known_policies())}; a file is named with its '.py'")


def known_policies() -> list[str]:
    """Names of policies: ours and those of packages."""
    return sorted({*OWN, *(point.name for point in offered(ENTRY_POINT_GROUP))})


def says(policy: object) -> str:
    """Return the purpose of a policy or its class in one line, the first of its docstring, without marks of code; with
    the name of the policy that it runs (`inner`) in place of that of the option.
    """
    lines = (inspect.getdoc(policy if isinstance(policy, type) else type(policy)) or "").splitlines()
    first, option = lines[0] if lines else "", getattr(policy, "INNER", "")
    if option and isinstance(inner := getattr(getattr(policy, "inner", None), "name", None), str):
        first = first.replace(f"`{option}`", inner)
    return first.replace("`", "")


def check_class(cls: object) -> None:
    """Check a policy's class. Raise InvalidValue with what it has and what it should have."""
    check_name("policy", cls, "fifo")
    name = getattr(cls, "name", "")
    schedule = getattr(cls, "schedule", None)
    if not callable(schedule):
        raise InvalidValue(f"policy {name!r} has no method schedule; it should have schedule(self, view, now_s)")
    has = [parameter.name for parameter in inspect.signature(schedule).parameters.values()]
    if has[1:] != ["view", "now_s"]:
        raise InvalidValue(f"policy {name!r}: schedule({', '.join(has)}) should be schedule(self, view, now_s)")


def _is_policy(cls: type[Any]) -> bool:
    return hasattr(cls, "name") and hasattr(cls, "schedule")


# ---- plugins

PLUGIN_GROUP: Final = "fluxsched.plugins"

OWN_PLUGINS: Final = {"quota": "fluxsched.yunikorn.quota:Quota"}
"""Our plugins, in the same way."""

ARGUMENTS: Final = {
    "pre_enqueue": 1, "queue_sort": 1, "pre_filter": 2, "filter": 2, "look": 2, "post_filter": 2, "pre_score": 1,
    "score": 2, "reserve": 2, "unreserve": 2, "permit": 3, "pre_bind": 2, "bind": 2, "post_bind": 2, "on_free": 2,
}  # fmt: skip
"""Number of arguments of each of the POINTS."""


def make_plugin(spec: str) -> Plugin:
    """Return a plugin ready to use, from `NAME:key=value,...`. Raises InvalidValue naming plugin and option."""
    name, options = parse_spec(spec, "plugin")
    cls = find_plugin(name)
    check_plugin_class(cls)
    values = {key.replace("-", "_"): value for key, value in option_values("plugin", cls, options).items()}
    plugin: Plugin = cls(**values)
    return plugin


def find_plugin(name: str) -> type[Any]:
    """Return the class: one of ours, else one in a file, else an entry point."""
    if name in OWN_PLUGINS:
        try:
            return _own(OWN_PLUGINS[name])
        except ModuleNotFoundError as fault:
            raise InvalidValue(f"plugin {name!r} needs {fault.name}: pip install 'fluxsched[si]'") from fault
    if is_file(name):
        return in_file("plugin", name, _is_plugin, f"`name` and at least one hook of {', '.join(POINTS)}")
    found = in_packages("plugin", PLUGIN_GROUP, name)
    if found is None:
        raise unknown_plugin(name)
    return found


def known_plugins() -> list[str]:
    """Names of plugins: ours and those of packages."""
    return sorted({*OWN_PLUGINS, *(point.name for point in offered(PLUGIN_GROUP))})


def unknown_plugin(name: str) -> InvalidValue:
    """Return an error that there is no plugin of this name, and which there are."""
    there = ", ".join(known_plugins()) or "none"
    return InvalidValue(f"no plugin {name!r}: there are {there}; a file is named with its '.py'")


def check_plugin(spec: str) -> None:
    """Raise InvalidValue for a plugin that is not known; its code is not run."""
    name, _ = parse_spec(spec, "plugin")
    if not is_file(name) and name not in known_plugins():
        raise unknown_plugin(name)


def check_plugin_class(cls: object) -> None:
    """Check a plugin's class. Raise InvalidValue with what it has and what it should have."""
    check_name("plugin", cls, "night")
    check_points(cls)
    name: str = getattr(cls, "name", "")
    check_reads(name, getattr(cls, "READS", ()))
    for point in POINTS:
        method = getattr(cls, point, None)
        if not callable(method):
            continue
        try:
            inspect.signature(method).bind(*[None] * (1 + ARGUMENTS[point]))
        except TypeError:
            has = ", ".join(inspect.signature(method).parameters)
            raise InvalidValue(
                f"plugin {name!r}: {point}({has}) should take self and {ARGUMENTS[point]} more (see rfc/plugins.md)"
            ) from None


def _is_plugin(cls: type[Any]) -> bool:
    return hasattr(cls, "name") and any(callable(getattr(cls, point, None)) for point in POINTS)
