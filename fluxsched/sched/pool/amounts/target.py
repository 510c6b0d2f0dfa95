"""One target without cores: what it has of each kind, what of that is free, and its share that is free.

Law: the free amount of a kind is what the target has, less what is occupied by others, less what jobs hold; it is
negative where jobs hold more than there is. The share is exact, in whole numbers: it is worked out anew when what the
target has changes, and follows by addition what jobs take and give.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Final, TypeAlias

from fluxsched.core.amounts import Amounts, less
from fluxsched.sched.pool.bitset import BITS, LOW_BITS, WORD_SHIFT

STEPS: Final = 64
"""Steps of the free share: an idle target is on level 64, one without anything free on level 0."""


ShareScale: TypeAlias = tuple[dict[str, int], int]
"""What one unit of each kind adds to `scaled`, and what of that is a 64th of the whole; equal for equal targets."""


def scale_of(capacity: Amounts, weights: Mapping[str, int]) -> ShareScale:
    """The scale of targets that have so much."""
    weighed = [(kind, amount, weights[kind]) for kind, amount in capacity if kind in weights]
    common = lcm(*[amount for _, amount, _ in weighed])
    factors = {kind: STEPS * weight * (common // amount) for kind, amount, weight in weighed}
    return factors, common * sum([weight for _, _, weight in weighed]) or 1


class AmountTarget:
    """`level` is the free share in steps of 1/64; `usable` means up and not withheld.

    The share is the mean, over the kinds that have a weight and of which the target has some, of free over capacity; 1
    for a target without such kinds. `scaled` is the sum of its terms, whose whole is STEPS times `whole`.
    """

    __slots__ = (
        "at", "bit", "capacity", "factors", "free", "host", "level", "names", "occupied", "rank", "scaled", "up",
        "usable", "whole", "withheld",
    )  # fmt: skip

    def __init__(self, rank: int, capacity: Amounts, host: str, names: tuple[str, ...]) -> None:
        self.rank = rank
        self.at = rank >> WORD_SHIFT
        self.bit = BITS[rank & LOW_BITS]
        self.host = host
        self.names = names
        self.capacity = capacity
        self.occupied: Amounts = ()
        self.free: dict[str, int] = dict(capacity)
        self.factors: dict[str, int] = {}
        self.scaled = 0
        self.whole = 1
        self.level = STEPS
        self.up = False
        self.withheld = False
        self.usable = False

    def weigh(self, scale: ShareScale) -> None:
        """Works out the share anew, by the scale of its capacity."""
        self.factors, self.whole = scale
        free, scaled = self.free, 0
        for kind, factor in self.factors.items():
            scaled += factor * max(free[kind], 0)
        self.scaled = scaled
        self.level = scaled // self.whole if self.factors else STEPS

    def holds(self, amounts: Amounts) -> bool:
        """Whether so much of each kind is free."""
        return all(self.free.get(kind, 0) >= amount for kind, amount in amounts)

    def could_hold(self, amounts: Amounts) -> bool:
        """Whether so much of each kind would be free if no job held anything; what is occupied might go, too."""
        there = dict(self.capacity)
        return all(there.get(kind, 0) >= amount for kind, amount in amounts)

    def free_of(self, amounts: Amounts) -> Amounts:
        """Of each kind as much as is free, up to all of it."""
        free = self.free
        return tuple([(kind, min(free[kind], amount)) for kind, amount in amounts if free.get(kind, 0) > 0])

    def offered(self) -> Amounts:
        """What jobs can have of it when it is idle: all but what is occupied."""
        return less(self.capacity, self.occupied)

    def held(self) -> dict[str, int]:
        """What jobs hold of each kind."""
        found, free, occupied = dict(self.capacity), self.free, dict(self.occupied)
        return {
            kind: amount
            for kind in sorted(found.keys() | free.keys() | occupied.keys())
            if (amount := found.get(kind, 0) - occupied.get(kind, 0) - free.get(kind, 0))
        }

    def set_capacity(self, capacity: Amounts, occupied: Amounts) -> None:
        """What it has, and what of that is occupied, from now on; jobs keep what they hold."""
        held = self.held()
        self.capacity, self.occupied = capacity, occupied
        free = dict(capacity)
        for kind, amount in (*occupied, *held.items()):
            free[kind] = free.get(kind, 0) - amount
        self.free = free
