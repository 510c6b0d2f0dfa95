"""Differences between two configurations, which of them apply without a restart, and the check of a whole file.

Law: a key that is not named here as live needs a restart, and the answer says so; no change is applied, or left out,
silently. A check looks at the text, the policies' files and the targets in this order, and reports the faults of all
three in one go; only a missing file or one that is not TOML is reported alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fluxsched.config.policies import IMPORT_S, POLICY, USED_PLUGIN, absent_files, fault_of
from fluxsched.config.reader import Config, read_file
from fluxsched.config.submit_filters import filter_fault
from fluxsched.config.toml import KeyPath, TomlFault
from fluxsched.core.text import path_text
from fluxsched.sched.loading import PLUGIN_SIGN, is_file, split_plugins
from fluxsched.sched.registry import has_plugin, split_queues

Keys: TypeAlias = tuple[str, ...]

LIVE: tuple[Keys, ...] = (
    ("resource", "path"),
    ("resource", "config"),
    ("resource", "exclude"),
    ("resource", "withhold"),
    ("resource", "groups"),
    ("resource", "shared"),
    ("outages",),
    ("topology",),
    ("policy", "limits"),
    ("policy", "jobspec"),
    ("queues",),
    ("fair",),
    ("limits",),
    ("access", "allow-root-owner"),
    ("access", "admin-users"),
    ("access", "private-jobs"),
    ("access", "authorized-keys"),
)
"""Keys that a reload applies, with all keys below each."""


class KeyChange(NamedTuple):
    """A key, and what it was and is; None: it was or is not there."""

    key: str
    old: Any
    new: Any
    is_live: bool


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[KeyChange]:
    """Return every key that is different, in the order of the new configuration, then the removed ones; a whole table
    once.
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    found = [
        KeyChange(path_text(keys), before.get(keys), value, _is_live(keys))
        for keys, value in after.items()
        if before.get(keys) != value and not (_is_filled(keys, before) and _is_filled(keys, after))
    ]
    gone = dict.fromkeys(_gone(keys, after) for keys in before if not _is_filled(keys, after) and keys not in after)
    return found + [KeyChange(path_text(keys), _at(old, keys), None, _is_live(keys)) for keys in gone]


def in_force(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in force once `new` was read: its live keys, and the old values of all others."""
    merged: dict[str, Any] = {}
    for source, live in ((new, True), (old, False)):
        for keys, value in _flat(source):
            if _is_live(keys) == live:
                *tables, last = keys
                at = merged
                for table in tables:
                    at = at.setdefault(table, {})
                at[last] = value
    return merged


def _flat(table: Mapping[str, Any], at: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield all keys with values; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*at, key))
        else:
            yield (*at, key), value


def _gone(keys: Keys, after: Mapping[Keys, Any]) -> Keys:
    """Return the outermost table around a key that was removed as a whole, as long as it is as live as the key."""
    for length in range(1, len(keys)):
        table = keys[:length]
        if _is_live(table) == _is_live(keys) and not any(other[:length] == table for other in after):
            return table
    return keys


def _at(table: Any, keys: Keys) -> Any:
    for key in keys:
        table = table[key]
    return table


def _is_live(keys: Keys) -> bool:
    return any(keys[: len(live)] == live for live in LIVE)


def _is_filled(keys: Keys, flat: Mapping[Keys, Any]) -> bool:
    """Return whether the table is present, empty or not."""
    return flat.get(keys) == {} or any(other[: len(keys)] == keys and other != keys for other in flat)


# ---- check of a configuration

def read_site(path: Path | None, *, trying: bool = False) -> tuple[Config, list[TomlFault]]:
    """Return the configuration of a file, and all its faults except those of its targets (`build_inventory`).

    With `trying` its policies are also imported, each in a process of its own, which starting an instance does anyway.
    Without a file everything has its default. Raises InvalidValue for what cannot be read or is not TOML.
    """
    if path is None:
        return Config(), []
    config, faults = read_file(path)
    return config, [*faults, *_faulty_policies(config, trying), *_faulty_filters(config, trying)]


def _faulty_policies(config: Config, trying: bool) -> Iterator[TomlFault]:
    """Yield the faults of policies and plugins in files that do not exist, and of those that cannot be used."""
    for keys, title, specs in _policies(config):
        line, absent = config.line_of(keys), list(absent_files(specs))
        yield from (TomlFault(line, f"{title}: there is no file {name}", keys) for name in absent)
        if trying and not absent:
            yield from (TomlFault(line, f"{title}: {fault}", keys) for fault in import_faults(specs))


def _faulty_filters(config: Config, trying: bool) -> Iterator[TomlFault]:
    """Yield the faults of submit filters in the same way."""
    keys: KeyPath = ("ingest", "filters")
    for spec in config.ingest.filters:
        name, fault = spec.partition(":")[0], None
        if is_file(name) and not Path(name).is_file():
            fault = f"there is no file {name}"
        elif trying:
            fault = filter_fault(spec, IMPORT_S)
        if fault is not None:
            yield TomlFault(config.line_of(keys), f"[ingest] filters: {fault}", keys)


def import_faults(specs: str, import_s: float = IMPORT_S) -> Iterator[str]:
    """Import the policies and plugins of `SPEC;QUEUE=SPEC;...`, each in a process of its own: why some cannot be used.

    A queue may have plugins alone. Each may take `import_s` seconds.
    """
    general, own = split_queues(specs)
    for spec in (general, *own.values()):
        policy, plugins = split_plugins(spec)
        tried = [(policy, POLICY)] if has_plugin(policy) else []
        for each, noun in (*tried, *((plugin, USED_PLUGIN) for plugin in plugins)):
            fault = fault_of(each, noun, import_s)
            if fault is not None:
                yield fault


def _policies(config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield every text that names policies: its position, its title, and the text."""
    for at, scheduler in enumerate(config.schedulers):
        if scheduler.policy:
            yield ("scheduler", at, "policy"), "[[scheduler]] policy", scheduler.policy
        if scheduler.recovery.fallback is not None:
            yield ("scheduler", at, "fallback"), "[[scheduler]] fallback", scheduler.recovery.fallback
    for name, queue in config.queues.items():
        if queue.policy is not None:
            key = "plugins" if queue.policy.startswith(PLUGIN_SIGN) else "policy"
            yield ("queues", name, key), f"[queues.{name}] {key}", queue.policy
