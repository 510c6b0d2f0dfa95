"""How many cores are in which state, by the states of their targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet

_OF_TARGETS: Final = {
    "drained": ("draining", "drained"),
    "down": ("offline", "torpid", "lost"),
    "excluded": ("excluded",),
}


def cores_by_state(resources: ResourceSet, states: Mapping[str, Idset], busy: Mapping[int, int]) -> dict[str, int]:
    """Cores that jobs hold, and of all others those of targets in each state. `busy` has a mask a target."""
    allocated = sum([mask.bit_count() for mask in busy.values()])
    found, total = {"allocated": allocated}, 0
    ranks = {name: _union(states, names) for name, names in _OF_TARGETS.items()}
    totals = dict.fromkeys(ranks, 0)
    for entry in resources.entries:
        count = entry.children.count("core")
        total += len(entry.ranks) * count
        for name, some in ranks.items():
            totals[name] += len(entry.ranks & some) * count
    for name, some in ranks.items():
        found[name] = totals[name] - sum([busy.get(rank, 0).bit_count() for rank in some])
    found["free"] = max(0, total - sum(found.values()))
    return found


def _union(states: Mapping[str, Idset], names: tuple[str, ...]) -> Idset:
    union = EMPTY
    for name in names:
        union |= states.get(name, EMPTY)
    return union
