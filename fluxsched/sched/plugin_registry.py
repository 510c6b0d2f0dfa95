"""Finding a plugin by the text that a user wrote, and checking it before it is used.

A plugin is named by one of ours, by an entry point of group `fluxsched.plugins`, or by the file that holds it.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, Final

from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import POINTS, Plugin
from fluxsched.sched.hooks.chain import check_points
from fluxsched.sched.hooks.labels import check_reads
from fluxsched.sched.loading import check_name, in_file, in_packages, is_file, offered, option_values, parse_spec

PLUGIN_GROUP: Final = "fluxsched.plugins"

OWN_PLUGINS: Final = {"quota": "fluxsched.adapters.si.quota:Quota"}
"""Ours, as MODULE:CLASS: they belong to layers above this one, and are imported when they are named."""

ARGUMENTS: Final = {
    "pre_enqueue": 1, "queue_sort": 1, "pre_filter": 2, "filter": 2, "look": 2, "post_filter": 2, "pre_score": 1,
    "score": 2, "reserve": 2, "unreserve": 2, "permit": 3, "pre_bind": 2, "bind": 2, "post_bind": 2, "on_free": 2,
}  # fmt: skip
"""How many arguments each of the POINTS is called with."""


def make_plugin(spec: str) -> Plugin:
    """A plugin ready to use, from `NAME:key=value,...`. Raises InvalidValue naming plugin and option."""
    name, options = parse_spec(spec, "plugin")
    cls = find_plugin(name)
    check_plugin_class(cls)
    values = {key.replace("-", "_"): value for key, value in option_values("plugin", cls, options).items()}
    plugin: Plugin = cls(**values)
    return plugin


def find_plugin(name: str) -> type[Any]:
    """The class: one of ours, else one in a file, else an entry point."""
    if name in OWN_PLUGINS:
        module, _, attribute = OWN_PLUGINS[name].partition(":")
        try:
            own: type[Any] = getattr(import_module(module), attribute)
        except ModuleNotFoundError as fault:
            raise InvalidValue(f"plugin {name!r} needs {fault.name}: pip install 'fluxsched[si]'") from fault
        return own
    if is_file(name):
        return in_file("plugin", name, _is_plugin, "`name` and at least one hook, such as `look`")
    found = in_packages("plugin", PLUGIN_GROUP, name)
    if found is None:
        raise unknown_plugin(name)
    return found


def known_plugins() -> list[str]:
    """Names of plugins: ours and those of packages."""
    return sorted({*OWN_PLUGINS, *(point.name for point in offered(PLUGIN_GROUP))})


def unknown_plugin(name: str) -> InvalidValue:
    """That there is no plugin of this name, and which there are."""
    there = ", ".join(known_plugins()) or "none"
    return InvalidValue(f"no plugin {name!r}: there are {there}; a file is named with its '.py'")


def check_plugin(spec: str) -> None:
    """Raises InvalidValue for a plugin that is not known; its code is not run."""
    name, _ = parse_spec(spec, "plugin")
    if not is_file(name) and name not in known_plugins():
        raise unknown_plugin(name)


def check_plugin_class(cls: object) -> None:
    """Raises InvalidValue with what the plugin has and what it should have."""
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
