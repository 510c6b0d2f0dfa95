"""A machine with what this host has: configurations in files, the user database, chance, a clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fluxsched.adapters.si.config.reader import read_config
from fluxsched.adapters.si.config.settings import PartitionSettings
from fluxsched.adapters.si.machine.machine import SIMachine
from fluxsched.adapters.si.user_groups import UserGroups
from fluxsched.adapters.si.uuids import UuidMaker
from fluxsched.core.jsontext import shown
from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.registry import make_plugin
from fluxsched.system.clock import Chance, Clock, SystemClock

CONFIGS_KEPT_MAX = 16
"""Texts of configurations, and what was read of them, that are kept at a time."""

_POLICY_GROUP: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def make_machine(
    groups: Path | None = None,
    chance: Chance | None = None,
    clock: Clock | None = None,
    plugins: Sequence[str] = (),
) -> SIMachine:
    """A machine for this host; configurations of policy groups are files of the directory `groups`.

    Each partition has `plugins` of its own. Raises InvalidValue for one that is not known, or not for asks.
    """
    elapsed_s = (clock or SystemClock()).monotonic_s
    users = UserGroups(elapsed_s)
    make_plugins = partial(_make_plugins, tuple(plugins))
    make_plugins()
    return SIMachine(
        PolicyGroups(groups), users, UuidMaker(chance or Chance()), ConfigReader(), elapsed_s, make_plugins
    )


def _make_plugins(specs: Sequence[str]) -> list[Plugin]:
    """Plugins as they are named: none that asks have nothing for. Raises InvalidValue."""
    found = [make_plugin(spec) for spec in specs]
    for plugin in found:
        reads = ", ".join(getattr(plugin, "READS", ()))
        if reads:
            raise InvalidValue(f"plugin {plugin.name!r} reads {reads}, which asks of resource managers do not have")
        if callable(getattr(plugin, "queue_sort", None)):
            raise InvalidValue(f"plugin {plugin.name!r} has queue_sort: the queues of a resource manager order asks")
    return found


def wall_clock(clock: Clock | None = None) -> Callable[[], float]:
    """The wall time (seconds) as it was at the start, going on evenly: a step of the system's clock moves no timer."""
    clock = clock or SystemClock()
    elapsed_s = clock.monotonic_s
    started_s = clock.wall_s() - elapsed_s()
    return lambda: started_s + elapsed_s()


class ConfigReader:
    """Reads configurations and keeps the last ones: a long one takes a while, and may have been read in a thread."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[PartitionSettings, ...] | InvalidValue] = {}

    def __call__(self, text: str) -> tuple[PartitionSettings, ...]:
        """Raises InvalidValue with all faults."""
        found = self._kept.get(text)
        if found is None:
            found = self._read(text)
            if len(self._kept) >= CONFIGS_KEPT_MAX:
                self._kept.clear()
            self._kept[text] = found
        if isinstance(found, InvalidValue):
            raise found.with_traceback(None)
        return found

    @staticmethod
    def _read(text: str) -> tuple[PartitionSettings, ...] | InvalidValue:
        try:
            return read_config(text)
        except InvalidValue as fault:
            return fault


class PolicyGroups:
    """The configuration of policy group NAME is NAME.yaml, read whenever it is asked for."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def __call__(self, name: str) -> str | None:
        """The text; None if there is no such file. Raises InvalidValue for what cannot be the name of one, or read."""
        if not name or self._directory is None:
            return None
        if _POLICY_GROUP.fullmatch(name) is None:
            raise InvalidValue(f"policyGroup {shown(name)} names a file: use 1 to 64 letters, digits and `_.-`")
        try:
            return (self._directory / f"{name}.yaml").read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as fault:
            why = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
            raise InvalidValue(f"policyGroup {name}: {name}.yaml cannot be read: {why}") from None
