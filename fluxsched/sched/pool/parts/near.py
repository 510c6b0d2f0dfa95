"""Which targets the parts of a request take where hops count: each part under the lowest switch with room for it.

Law: parts choose one after the other, those that need most first. Without a bound that always succeeds, since a part
may be anywhere in the end; with one, a choice that leaves a later part no switch is undone, TRIES_MAX times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.bitset import words_of
from fluxsched.sched.pool.hops.room import Room, Rooms
from fluxsched.sched.pool.parts.hall import Hall
from fluxsched.sched.pool.parts.suited import ANY_RANK, IdleTargets
from fluxsched.sched.pool.parts.taking import Taken, take_part

TRIES_MAX = 256
"""Switches tried for all parts of a request at one time; each try costs what placing a part does."""


class NearParts:
    """One search, in what each part is offered; `early` are the targets that come before all others."""

    __slots__ = ("_early", "_offers", "_request", "_rooms", "_suited", "_tries")

    def __init__(
        self,
        rooms: Rooms,
        request: Request,
        suited: Mapping[int, int],
        offers: Sequence[Sequence[IdleTargets]],
        early: int,
    ) -> None:
        self._rooms = rooms
        self._request = request
        self._suited = suited
        self._offers = offers
        self._early = early
        self._tries = 0

    def most(self, number: int) -> int:
        """The most that a part could have within the bound, if it were alone."""
        room = self.room(number)
        return max(room.most(self._request.max_hops), min(room.total, 1))

    def all_parts(self, hall: Hall) -> list[Taken] | None:
        """What each part takes; None if there is not room for all within the bound."""
        self._tries = 0
        found: dict[int, Taken] = {}
        order = sorted(range(len(self._offers)), key=lambda number: -hall.needs[number])
        if not self._from(order, 0, hall, found):
            return None
        return [found[number] for number in range(len(self._offers))]

    def _from(self, order: list[int], taken: int, hall: Hall, found: dict[int, Taken]) -> bool:
        """Has the parts in this order take theirs."""
        if not order:
            return True
        number = order[0]
        for among in self._switches(number, hall.needs[number], taken):
            self._tries += 1
            left = hall.copy()
            chosen = take_part(left, self._suited, self._offers[number], number, self._early, taken, among)
            if chosen is not None:
                mine = 0
                for _, mask in chosen:
                    mine |= mask
                found[number] = chosen
                if self._from(order[1:], taken | mine, left, found):
                    return True
            if self._tries >= TRIES_MAX:
                return False
        return False

    def _switches(self, number: int, wanted: int, taken: int) -> Iterator[int]:
        """Where a part may go, as masks of targets, the best first."""
        bound = self._request.max_hops
        if wanted > 1:
            for place in self.room(number, taken).in_order(wanted, bound):
                yield self._rooms.network.under(place).mask()
        if wanted == 1 or bound is None:
            yield ANY_RANK

    def room(self, number: int, taken: int = 0) -> Room:
        """Under each switch, the targets that a part is offered, without those that are taken."""
        mask = 0
        for offered in self._offers[number]:
            mask |= offered.mask
        room = Room(self._rooms.network)
        room.refresh({0: (1, dict(words_of(mask & ~taken)))})
        return room
