"""How much a plugin keeps: the sizes of the containers that it holds on to, by the way that leads there."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

PARTS_MAX = 100_000
"""Objects that are looked at in one plugin; more are not counted."""

DEPTH_MAX = 12
"""Levels of attributes and containers below a plugin."""


def sizes_in(plugin: object) -> dict[str, int]:
    """Sizes of dicts, lists, sets and deques, added up by the path of attributes that leads to them."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any, int]] = [("", plugin, 0)]
    while left and len(seen) < PARTS_MAX:
        path, thing, depth = left.pop()
        if id(thing) in seen or depth > DEPTH_MAX or isinstance(thing, (str, bytes, int, float, type)):
            continue
        seen.add(id(thing))
        if isinstance(thing, (Mapping, list, tuple, set, frozenset, deque)):
            if not isinstance(thing, (tuple, frozenset)):
                found[path] = found.get(path, 0) + len(thing)
            parts = [*thing.keys(), *thing.values()] if isinstance(thing, Mapping) else [*thing]
            left += [(path, part, depth + 1) for part in parts]
        else:
            left += [(f"{path}.{name}".lstrip("."), part, depth + 1) for name, part in _attributes(thing)]
    return found


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    names = {*getattr(thing, "__dict__", ())}
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    for name in sorted(names):
        value = getattr(thing, name, None)
        if not callable(value):
            yield name, value
