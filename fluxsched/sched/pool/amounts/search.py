"""Finds the target for a request of amounts: in the order of the free share, lowest rank first.

Law: the first targets in order are looked at one by one, since one of them mostly fits; where they do not, those that
have too little of a kind are left out, in words of 512, before the search goes on.
"""

from __future__ import annotations

from typing import Final

from fluxsched.core.amounts import Amounts
from fluxsched.sched.pool.amounts.kind_index import LongWords, cut
from fluxsched.sched.pool.amounts.target import AmountTarget
from fluxsched.sched.pool.amounts.targets import AmountTargets
from fluxsched.sched.pool.bitset import WORD_SHIFT, Bits

PROBES: Final = 8
"""Targets that are looked at before magnitudes are, which costs as much as twenty of them."""

ENDLESS: Final = -1

NONE: Final = -1
UNKNOWN: Final = -2
"""Instead of a rank: there is no target, or the tries were used up before one was found."""


def find_target(
    targets: AmountTargets, need: Amounts, levels: int, descending: bool, only: Bits | None
) -> AmountTarget | None:
    """The usable target with the largest (or the smallest) free share that holds the need; it is on one of `levels`."""
    rank = _first(targets, need, levels, descending, only, None, PROBES)
    if rank == UNKNOWN:
        rank = _first(targets, need, levels, descending, only, targets.free_kinds.able(need), ENDLESS)
    return None if rank == NONE else targets.by_rank[rank]


def _first(
    targets: AmountTargets,
    need: Amounts,
    levels: int,
    descending: bool,
    only: Bits | None,
    able: LongWords | None,
    tries: int,
) -> int:
    """The first rank in order that holds the need, of those in all the masks; NONE, or UNKNOWN after so many tries."""
    by_rank, shares = targets.by_rank, targets.shares
    used = shares.used & levels
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
            if able is not None:
                word &= cut(able, at)
            base = at << WORD_SHIFT
            while word:
                low = word & -word
                word ^= low
                rank = base + low.bit_length() - 1
                free = by_rank[rank].free
                for kind, amount in need:
                    if free.get(kind, 0) < amount:
                        break
                else:
                    return rank
                tries -= 1
                if not tries:
                    return UNKNOWN
    return NONE


def find_lowest(targets: AmountTargets, need: Amounts, only: Bits | None) -> AmountTarget | None:
    """The usable target of the lowest rank that holds the need."""
    for rank in targets.free_kinds.ranks(need, targets.members if only is None else only):
        target = targets.by_rank.get(rank)
        if target is not None and target.usable and target.holds(need):
            return target
    return None
