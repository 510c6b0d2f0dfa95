"""The targets that one part takes, of those that are offered to it.

Law: those first that fewest other parts could use, then in the order of the placement, and never so that a later part
would have too few (`hall`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fluxsched.sched.pool.bitset import lowest
from fluxsched.sched.pool.parts.hall import Hall
from fluxsched.sched.pool.parts.suited import IdleTargets
from fluxsched.sched.pool.target_class import TargetClass

Taken: TypeAlias = list[tuple[TargetClass, int]]
"""What a part takes, class by class, as masks."""


def take_part(
    hall: Hall,
    suited: Mapping[int, int],
    offered: Sequence[IdleTargets],
    number: int,
    early: int,
    taken: int,
    among: int,
) -> Taken | None:
    """The targets of one part, all of them in `among`; all parts that still need some can have theirs.

    None if there are too few. `early` come first, and `taken` are those of the parts before.
    """
    wanted, hall.needs[number] = hall.needs[number], 0
    others = sum([1 << other for other, need in enumerate(hall.needs) if need])
    chosen: Taken = []
    for some, tie in _in_order(suited, offered, number, early, among & ~taken):
        n = min(wanted, hall.takeable(some, others))
        mine = 0
        for _, mask in tie:
            mine |= mask
        if mine.bit_count() > n:
            mine = lowest(mine, n)
        chosen += [(targets, mask & mine) for targets, mask in tie if mask & mine]
        hall.take(some, mine.bit_count())
        wanted -= mine.bit_count()
        if not wanted:
            return chosen
    return None


def _in_order(
    suited: Mapping[int, int], offered: Sequence[IdleTargets], number: int, early: int, among: int
) -> list[tuple[int, list[tuple[TargetClass, int]]]]:
    """What is offered to a part, in order: which parts the targets suit, and such as are equally good, by class."""
    ties: dict[tuple[int, ...], list[tuple[TargetClass, int]]] = {}
    for some, mask in suited.items():
        if not some >> number & 1:
            continue
        for (score, first, second), targets, idle in offered:
            left = idle & mask & among
            for late, part in enumerate((left & early, left & ~early)):
                if part:
                    key = late, score, some.bit_count(), first, second, some
                    ties.setdefault(key, []).append((targets, part))
    return [(key[-1], ties[key]) for key in sorted(ties)]
