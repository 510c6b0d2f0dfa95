"""The differences between two configurations, and which of them apply without a restart.

Law: a key that is not named here as live needs a restart, and the answer says so; no change is applied, or left out,
silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from fluxsched.core.tomltext import path_text

Keys: TypeAlias = tuple[str, ...]

LIVE: tuple[Keys, ...] = (
    ("resource", "path"),
    ("resource", "config"),
    ("resource", "exclude"),
    ("resource", "groups"),
    ("resource", "shared"),
    ("topology",),
    ("policy", "limits"),
    ("policy", "jobspec"),
    ("queues",),
    ("fair",),
    ("access", "allow-root-owner"),
    ("access", "admin-users"),
    ("access", "private-jobs"),
    ("access", "authorized-keys"),
)
"""What a reload applies, with all below it."""


class KeyChange(NamedTuple):
    """A key, and what it was and is; None: it was or is not there."""

    key: str
    old: Any
    new: Any
    is_live: bool


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[KeyChange]:
    """Every key that is different, in the order of the new configuration, then what is gone; a whole table once."""
    before, after = dict(_flat(old)), dict(_flat(new))
    found = [
        KeyChange(path_text(keys), before.get(keys), value, _is_live(keys))
        for keys, value in after.items()
        if before.get(keys) != value and not (_is_filled(keys, before) and _is_filled(keys, after))
    ]
    gone = dict.fromkeys(_gone(keys, after) for keys in before if not _is_filled(keys, after) and keys not in after)
    return found + [KeyChange(path_text(keys), _at(old, keys), None, _is_live(keys)) for keys in gone]


def in_force(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in force once `new` was read: its live keys, and the old values of all others."""
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
    """All keys with values; a table that is empty is one."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*at, key))
        else:
            yield (*at, key), value


def _gone(keys: Keys, after: Mapping[Keys, Any]) -> Keys:
    """The outermost table around a key that was removed as a whole, as long as it is as live as the key."""
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
    """Whether there is such a table, empty or not."""
    return flat.get(keys) == {} or any(other[: len(keys)] == keys and other != keys for other in flat)
