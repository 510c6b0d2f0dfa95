"""Whether all parts of a request could be within their bound on hops at one time, if all targets were free.

Law: exact, by Hall's theorem once each part has a switch: the parts are given one after the other the switches that
could hold them, and a choice after which some set of them is short is undone. What would take more than TRIES_MAX
choices counts as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluxsched.sched.pool.bitset import words_of
from fluxsched.sched.pool.hops.network import PoolNetwork
from fluxsched.sched.pool.hops.room import Room
from fluxsched.sched.pool.parts.hall import Hall, by_suited

TRIES_MAX = 256
"""Switches that are tried for all parts of a request; each costs what it takes to count the targets of the parts."""


class NearEver:
    """One search: part `i` needs `needs[i]` targets of the mask `suited[i]`, at most `max_hops` from each other."""

    __slots__ = ("_max_hops", "_needs", "_network", "_tries")

    def __init__(self, network: PoolNetwork, needs: Sequence[int], max_hops: int) -> None:
        self._network = network
        self._needs = needs
        self._max_hops = max_hops
        self._tries = 0

    def can_be(self, suited: Sequence[int]) -> bool:
        """Whether all parts could have their targets."""
        order = [part for part, need in enumerate(self._needs) if need > 1]
        return self._can(sorted(order, key=lambda part: -self._needs[part]), suited)

    def _can(self, order: Sequence[int], suited: Sequence[int]) -> bool:
        """Whether the parts in this order could; the others have their switches, or need none."""
        counts = {some: mask.bit_count() for some, mask in by_suited(suited).items()}
        if Hall(counts, self._needs).shortfall() is not None:
            return False
        if not order:
            return True
        part, rest = order[0], order[1:]
        for there in self._under_switches(suited[part], self._needs[part]):
            self._tries += 1
            if self._tries > TRIES_MAX or self._can(rest, [*suited[:part], there, *suited[part + 1 :]]):
                return True
        return False

    def _under_switches(self, mask: int, need: int) -> Iterator[int]:
        """The targets under each switch with room for `need` of the mask, without switches below such a one."""
        room = Room(self._network)
        room.refresh({0: (1, dict(words_of(mask)))})
        seen: list[int] = []
        for place in reversed([*room.in_order(need, self._max_hops)]):
            there = self._network.under(place).mask() & mask
            if not any(there & ~other == 0 for other in seen):
                seen.append(there)
                yield there
