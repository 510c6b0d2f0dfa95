"""Finds the target for a request of amounts: in the order of the free share, lowest rank first.

Law: the first targets in order are looked at one by one, since one of them mostly fits; where they do not, those that
have too little of a kind are left out, in words of 512, before the search goes on.
"""

from __future__ import annotations

from typing import Final

from fluxsched.core.amounts import Amounts, total
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.amounts.target import AmountTarget
from fluxsched.sched.pool.amounts.targets import AmountTargets
from fluxsched.sched.pool.bitset import WORD_SHIFT, Bits
from fluxsched.sched.pool.placement import FAIR, FIRST_FIT, WORST_FIT

DESCENDING: Final = (FAIR, WORST_FIT)
"""Placements that try the largest free share first."""

PROBES: Final = 8
"""Targets that are looked at before magnitudes are: that costs as much as some hundred of them."""

ENDLESS: Final = -1


class _Search:
    """One search; `tries` counts down, and `ended` says whether nothing is left to look at."""

    __slots__ = ("_need", "_targets", "ended")

    def __init__(self, targets: AmountTargets, need: Amounts) -> None:
        self._targets = targets
        self._need = need
        self.ended = True

    def first(self, descending: bool, only: Bits | None, tries: int) -> AmountTarget | None:
        """The first target in order that holds the need, or None after so many tries."""
        need, by_rank, shares = self._need, self._targets.by_rank, self._targets.shares
        used = shares.used
        while used:
            low = 1 << used.bit_length() - 1 if descending else used & -used
            used ^= low
            level = shares.levels[low.bit_length() - 1]
            top = level.top if only is None else level.top & only.top
            while top:
                low = top & -top
                top ^= low
                at = low.bit_length() - 1
                word = level.words[at] if only is None else level.words[at] & only.words[at]
                base = at << WORD_SHIFT
                while word:
                    low = word & -word
                    word ^= low
                    target = by_rank[base + low.bit_length() - 1]
                    free = target.free
                    for kind, amount in need:
                        if free.get(kind, 0) < amount:
                            break
                    else:
                        return target
                    tries -= 1
                    if not tries:
                        self.ended = False
                        return None
        self.ended = True
        return None


class AskedAmounts:
    """What a request of amounts asks for, and of which targets; as of a generation of the pool.

    `among` remembers the last narrowing, since a pass asks for the same one again and again.
    """

    __slots__ = ("_among", "_narrowed", "_targets", "allowed", "need", "request")

    def __init__(self, targets: AmountTargets, request: Request) -> None:
        self.request = request
        self.need = total(request.amounts, request.node_amounts)
        self.allowed = targets.allowed(request.constraint)
        self._targets = targets
        self._among: Idset | None = None
        self._narrowed: Bits | None = None

    def find(self, placement: str, among: Idset | None) -> AmountTarget | None:
        """The target where it fits now, or None."""
        only = self.allowed if among is None else self.narrowed(among)
        if placement in DESCENDING:
            return find_target(self._targets, self.need, True, only)
        if placement == FIRST_FIT:
            return find_lowest(self._targets, self.need, only)
        return find_target(self._targets, self.need, False, only)

    def find_on(self, rank: int) -> AmountTarget | None:
        """The same on a named target, withheld or not."""
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or (self.allowed is not None and rank not in self.allowed):
            return None
        return target if target.holds(self.need) else None

    def narrowed(self, among: Idset) -> Bits:
        """Those allowed that are among these ranks."""
        if self._narrowed is None or self._among is not among:
            ranks = Bits.of(among.mask)
            self._among, self._narrowed = among, ranks if self.allowed is None else ranks.common(self.allowed)
        return self._narrowed

    def could_ever(self) -> bool:
        """Whether one of the targets could hold it if it were idle and up."""
        able = self._targets.all_kinds.able(self.need, self.allowed) or self._targets.members
        return any(self._targets.by_rank[rank].could_hold(self.need) for rank in able)

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
        for rank in self._targets.all_kinds.able(self.need, self.allowed) or self._targets.members:
            target = self._targets.by_rank[rank]
            if target.could_hold(self.need):
                ever += 1
                down += not target.up
                now += target.usable and target.holds(self.need)
        return now, ever, down


def is_single(request: Request) -> bool:
    """Whether a request without cores is one slot on one node, as it has to be."""
    one_node = request.nodes is None or 1 in request.nodes
    return 1 in request.slots and one_node and not request.exclusive


def find_target(targets: AmountTargets, need: Amounts, descending: bool, only: Bits | None) -> AmountTarget | None:
    """The usable target with the largest (or the smallest) free share that holds the need."""
    search = _Search(targets, need)
    found = search.first(descending, only, PROBES)
    if found is not None or search.ended:
        return found
    return search.first(descending, targets.free_kinds.able(need, only), ENDLESS)


def find_lowest(targets: AmountTargets, need: Amounts, only: Bits | None) -> AmountTarget | None:
    """The usable target of the lowest rank that holds the need."""
    able = targets.free_kinds.able(need, only) or targets.members
    for rank in able:
        target = targets.by_rank[rank]
        if target.usable and target.holds(need):
            return target
    return None
