"""What a request of amounts asks for, and of which targets without cores.

Law: nothing here depends on what is free, so it is worked out once in a generation of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fluxsched.core.amounts import total
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.amounts.search import find_lowest, find_target
from fluxsched.sched.pool.amounts.target import AmountTarget
from fluxsched.sched.pool.amounts.targets import AmountTargets
from fluxsched.sched.pool.bitset import Bits
from fluxsched.sched.pool.placement import FAIR, FIRST_FIT, WORST_FIT

DESCENDING: Final = (FAIR, WORST_FIT)
"""Placements that try the largest free share first."""


class AskedAmounts:
    """What a request of amounts asks for, and of which targets, as of a generation of the pool.

    `allowed` are those that its constraint allows, up or down, None for all. `tiers` are what plugins leave of them now
    (no tiers: all), each before the next, and `ever` what they leave at any time (None: all); both are masks.
    """

    __slots__ = ("_among", "_levels", "_narrowed", "_targets", "_tiers", "allowed", "need", "request")

    def __init__(self, targets: AmountTargets, request: Request, tiers: Sequence[int], ever: int | None) -> None:
        self.request = request
        self.need = total(request.amounts, request.node_amounts) if request.node_amounts else request.amounts
        allowed = targets.allowed(request.constraint)
        self._targets = targets
        self._levels = -1 << targets.least_level(self.need)
        self._tiers = [_common(allowed, mask) for mask in tiers] if ever is not None else [allowed]
        self.allowed = allowed if ever is None else _common(allowed, ever)
        self._among: Idset | None = None
        self._narrowed: list[Bits] = []  # to the last `among`, since a pass asks for the same one again and again

    def find(self, placement: str, among: Idset | None) -> AmountTarget | None:
        """The target where it fits now, or None."""
        if among is None:
            if len(self._tiers) == 1:
                return self._find(placement, self._tiers[0])
            tiers = self._tiers
        else:
            if self._among is not among:
                self._among, self._narrowed = among, [_common(tier, among.mask) for tier in self._tiers]
            tiers = [*self._narrowed]
        for tier in tiers:
            target = self._find(placement, tier)
            if target is not None:
                return target
        return None

    def _find(self, placement: str, only: Bits | None) -> AmountTarget | None:
        if placement == FIRST_FIT:
            return find_lowest(self._targets, self.need, only)
        return find_target(self._targets, self.need, self._levels, placement in DESCENDING, only)

    def find_on(self, rank: int) -> AmountTarget | None:
        """The same on a named target, withheld or not."""
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or not any(tier is None or rank in tier for tier in self._tiers):
            return None
        return target if target.holds(self.need) else None

    def lacking_on(self, rank: int, withheld: bool) -> dict[str, int] | None:
        """How much of each kind would have to come free on a target, nothing if it fits there.

        None if it is down, not allowed, or too small even if idle; or withheld, unless `withheld` ones count.
        """
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or (target.withheld and not withheld):
            return None
        if not any(tier is None or rank in tier for tier in self._tiers):
            return None
        there, free = dict(target.offered()), target.free
        lacking = {}
        for kind, amount in self.need:
            if there.get(kind, 0) < amount:
                return None
            if free.get(kind, 0) < amount:
                lacking[kind] = amount - free.get(kind, 0)
        return lacking

    def could_ever(self) -> bool:
        """Whether one of the targets could hold it if it were idle and up."""
        return any(target.could_hold(self.need) for target in self._candidates())

    def _candidates(self) -> Iterator[AmountTarget]:
        """Those allowed that may have so much of each kind, held or not."""
        targets = self._targets
        for rank in targets.all_kinds.ranks(self.need, targets.members if self.allowed is None else self.allowed):
            target = targets.by_rank.get(rank)
            if target is not None:
                yield target

    def largest(self) -> dict[str, int] | None:
        """The most that any of the targets has of each kind, None if there is no target; linear, for people."""
        found: dict[str, int] | None = None
        for rank in self.allowed or self._targets.members:
            target = self._targets.by_rank.get(rank)
            if target is not None:
                if found is None:
                    found = {}
                for kind, amount in target.capacity:
                    found[kind] = max(found.get(kind, 0), amount)
        return found

    def count(self) -> tuple[int, int, int]:
        """How many of the targets hold it now, could hold it ever, and could but are down; linear, for people."""
        now = ever = down = 0
        for target in self._candidates():
            if target.could_hold(self.need):
                ever += 1
                down += not target.up
                now += target.usable and target.holds(self.need)
        return now, ever, down


def is_single(request: Request) -> bool:
    """Whether a request without cores is one slot on one node, as it has to be."""
    one_node = request.nodes is None or request.nodes.min == 1
    return request.slots.min == 1 and one_node and not request.exclusive


def _common(bits: Bits | None, mask: int) -> Bits:
    return Bits.of(mask) if bits is None else bits.common(Bits.of(mask))
