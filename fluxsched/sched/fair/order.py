"""The order in which accounts have their next job, by progressive filling: it is the first of the account with the
least key.

Down the tree, level by level, each inner account stands for the job that it would offer. Keys of an account of weight w
that uses U, whose next job would add u:

- flow F: `max(U + u, F) / w`, then `F / w`
- decayed usage D: `(U + D) / w`, then `U / w`

What a pass only plans (reservations) counts in U until `forget_plans`. A key is a pair of straight lines in a scale
that falls as time passes, so the least of many is found by a kinetic tournament, without looking at all of them.
"""

from __future__ import annotations

from math import inf
from typing import Final

from fluxsched.sched.fair.accounts import Account, Accounts

ORDER_SLACK: Final = 1e-12
"""Crossings this close (relative) to the present are replayed at each question, since rounding may put them behind."""

REBUILT_PART: Final = 4
"""Divisor of the contenders: if more than this part has changed, all matches are replayed, each only once."""


class Contender:
    """Contender of a tournament: a name, two keys, and its slot, below 0 while it does not take part."""

    __slots__ = ("base", "changed", "name", "second_base", "second_slope", "slope", "slot")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slot = -1
        self.changed = False
        self.base = 0.0
        self.slope = 0.0
        self.second_base = 0.0
        self.second_slope = 0.0

    def refresh(self, scale: float) -> float:
        """Bring the keys up to date; from which scale on they must be read again, -inf: not before they change."""
        raise NotImplementedError


class Tournament:
    """Contenders in slots, the leaves of a complete binary tree whose inner places are matches.

    At `certain[i]` or below it, match i must be replayed for itself or one before it; `own[i]` is of itself alone.
    """

    __slots__ = ("_certain", "_changed", "_free", "_leaves", "_own", "_winner")

    def __init__(self) -> None:
        self._leaves = 1
        self._free: list[int] = [0]
        self._winner: list[Contender | None] = [None, None]
        self._own = [-inf, -inf]
        self._certain = [-inf, -inf]
        self._changed: list[int] = []

    def enter(self, contender: Contender) -> None:
        if not self._free:
            self._double()
        contender.slot = self._free.pop()
        self._winner[self._leaves + contender.slot] = contender
        contender.changed = False
        self.changed(contender)

    def remove(self, contender: Contender) -> None:
        slot, contender.slot = contender.slot, -1
        self._winner[self._leaves + slot] = None
        self._free.append(slot)
        self._changed.append(slot)

    def changed(self, contender: Contender) -> None:
        """Record that the keys of one that takes part are to be read again."""
        if not contender.changed:
            contender.changed = True
            self._changed.append(contender.slot)

    def first(self, scale: float) -> Contender | None:
        """Return the contender with the least key at a scale, which does not exceed that of the query before."""
        if self._changed:
            if len(self._changed) * REBUILT_PART > self._leaves:
                self.replay()
            elif self._certain[1] != inf:
                for slot in self._changed:
                    self._replay_above(self._leaves + slot, scale)
            self._changed.clear()
        if self._certain[1] >= scale:
            self._play(1, scale)
        return self._winner[1]

    @property
    def size(self) -> int:
        """Return the number of contenders."""
        return self._leaves - len(self._free)

    @property
    def certain(self) -> float:
        """Return the scale from which on the answer of the last query may be different."""
        return self._certain[1]

    def replay(self) -> None:
        """Read all keys again: the scale begins anew."""
        self._certain = [inf] * len(self._certain)

    # ---- matches

    def _replay_above(self, at: int, scale: float) -> None:
        """Read the keys of one contender again, and replay the matches that they can have changed."""
        winner, own, certain = self._winner, self._own, self._certain
        contender = winner[at]
        certain[at] = self._refresh(contender, scale)
        other = True  # whether another one goes up from here than before, or the same with other keys
        while at > 1:
            until, beside = certain[at], certain[at ^ 1]
            if beside > until:  # comparisons, since a call of max() costs as much as a match
                until = beside
            at >>= 1
            if other:
                before = winner[at]
                self._match(at, scale)
                best = winner[at]
                other = best is not before or best is contender
            if own[at] > until:
                until = own[at]
            if not other and until == certain[at]:
                return
            certain[at] = until

    def _play(self, at: int, scale: float) -> None:
        """Replay a match that is no longer certain."""
        certain = self._certain
        if at >= self._leaves:
            certain[at] = self._refresh(self._winner[at], scale)
            return
        left = 2 * at
        right = left + 1
        if certain[left] >= scale:
            self._play(left, scale)
        if certain[right] >= scale:
            self._play(right, scale)
        self._match(at, scale)
        certain[at] = max(certain[left], certain[right], self._own[at])

    @staticmethod
    def _refresh(contender: Contender | None, scale: float) -> float:
        if contender is None:
            return -inf
        contender.changed = False
        return contender.refresh(scale)

    def _match(self, at: int, scale: float) -> None:
        """Determine which of two contenders is first, and from which scale on that is uncertain.

        Both come from the same differences of the lines, so that rounding cannot set them at odds.
        """
        one, other = self._winner[2 * at], self._winner[2 * at + 1]
        if one is None or other is None:
            self._winner[at] = other if one is None else one
            self._own[at] = -inf
            return
        ahead, gains = other.base - one.base, other.slope - one.slope
        lead = ahead + gains * scale
        if lead == 0.0 and gains == 0.0:
            ahead, gains = other.second_base - one.second_base, other.second_slope - one.second_slope
            lead = ahead + gains * scale
        elif lead == 0.0:
            lead = (other.second_base - one.second_base) + (other.second_slope - one.second_slope) * scale
        if lead == 0.0:
            lead = 1.0 if one.name < other.name else -1.0
        self._winner[at] = one if lead > 0.0 else other
        crossing = -ahead / gains if gains != 0.0 else -inf
        if crossing > scale:
            crossing = scale if crossing <= scale * (1.0 + ORDER_SLACK) else -inf
        self._own[at] = crossing

    def _double(self) -> None:
        leaves = self._leaves
        contenders = self._winner[leaves:]
        self._leaves = 2 * leaves
        self._free = list(range(2 * leaves - 1, leaves - 1, -1))
        self._winner = [None] * (2 * leaves) + contenders + [None] * leaves
        self._own = [-inf] * (4 * leaves)
        self._certain = [inf] * (4 * leaves)


# ---- the order of accounts


class _Place(Contender):
    """An account in the tournament of its parent; below a place that is not a leaf is a tournament of its own."""

    __slots__ = ("account", "among", "below", "offered_usage", "top")

    def __init__(self, account: Account, top: _Place | None, among: Tournament) -> None:
        super().__init__(account.name)
        self.account = account
        self.top = top
        self.among = among
        self.below: Tournament | None = None
        self.offered_usage = 0.0

    def refresh(self, scale: float) -> float:
        """Read the keys from the account, and the usage of the job that it would offer from below."""
        meter = self.account.all_jobs
        if not meter.is_flow:  # what is offered does not matter, so those below need not be asked
            weight = self.account.weight
            usage = meter.usage + self.account.planned_usage
            self.base = (usage + meter.usage) / weight
            self.slope = meter.excess / weight
            self.second_base = usage / weight
            return -inf
        if self.below is None:
            return self._read_flow(scale)
        best = self.below.first(scale)
        assert isinstance(best, _Place)
        self.offered_usage = best.offered_usage
        return max(self.below.certain, self._read_flow(scale))

    def _read_flow(self, scale: float) -> float:
        """Set the line of the flow while it is above the constant, and the constant from then on; return until when it
        holds.
        """
        meter, weight = self.account.all_jobs, self.account.weight
        base, slope = meter.usage / weight, meter.excess / weight
        usage = meter.usage + self.account.planned_usage
        self.base, self.slope, until = _above((usage + self.offered_usage) / weight, base, slope, scale)
        self.second_base, self.second_slope, second_until = _above(usage / weight, base, slope, scale)
        return max(until, second_until)


def _above(floor: float, base: float, slope: float, scale: float) -> tuple[float, float, float]:
    """max(floor, base + slope * scale) as a line, and the scale down to which it is that line."""
    if base + slope * scale > floor:
        return base, slope, (floor - base) / slope
    return floor, 0.0, -inf


class FairOrder:
    """Fair order of the leaf accounts that offer a job."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._root = _Place(accounts.root, None, Tournament())
        self._root.below = Tournament()
        self._places: dict[Account, _Place] = {accounts.root: self._root}
        self._planned: list[Account] = []
        self._origin_s = accounts.decay.origin_s

    def offer(self, account: Account, usage: float) -> None:
        """Offer the next job of a leaf, which would add this usage."""
        place = self._place(account)
        place.offered_usage = usage
        self._enter(place)
        self.changed(account)

    def withdraw(self, account: Account) -> None:
        """Withdraw a leaf that has no job to offer.

        An account with others below it offers their jobs, and is unchanged.
        """
        place = self._places.get(account)
        if place is None or place.below is not None:
            return
        while place.top is not None and place.slot >= 0:
            place.among.remove(place)
            if place.among.size:
                self.changed(place.top.account)
                break
            place = place.top

    def changed(self, account: Account) -> None:
        """Record a change of usage, weight or offer of an account, in it and all above it."""
        at: Account | None = account
        while at is not None:
            place = self._places.get(at)
            if place is not None and place.slot >= 0:
                place.among.changed(place)
            at = at.parent

    def first(self, now_s: float) -> Account | None:
        """Return the leaf with the next job."""
        scale = self._accounts.advance(now_s)
        if self._origin_s != self._accounts.decay.origin_s:
            self._origin_s = self._accounts.decay.origin_s
            for place in self._places.values():
                if place.below is not None:
                    place.below.replay()
        at = self._root
        while at.below is not None:
            best = at.below.first(scale)
            if best is None:
                return None
            assert isinstance(best, _Place)
            at = best
        return at.account

    def key(self, account: Account, now_s: float) -> float:
        """Return the first key of an account that offers a job, or has one below it that does."""
        scale = self._accounts.advance(now_s)
        place = self._places[account]
        place.refresh(scale)
        return place.base + place.slope * scale

    def plan(self, account: Account, usage: float) -> None:
        """Count the usage of a reservation in the account and all above it, until `forget_plans`."""
        for at in account.up():
            if not at.planned_usage:
                self._planned.append(at)
            at.planned_usage += usage
        self.changed(account)

    def forget_plans(self) -> list[Account]:
        """Count no reservations from now on. Return the accounts that had some."""
        planned, self._planned = self._planned, []
        for account in planned:
            account.planned_usage = 0.0
            self.changed(account)
        return planned

    def _place(self, account: Account) -> _Place:
        place = self._places.get(account)
        if place is None:
            assert account.parent is not None, "the root offers what its children offer"
            top = self._place(account.parent)
            if top.below is None:
                top.below = Tournament()
            place = self._places[account] = _Place(account, top, top.below)
        return place

    def _enter(self, place: _Place) -> None:
        while place.top is not None and place.slot < 0:
            place.among.enter(place)
            place = place.top
