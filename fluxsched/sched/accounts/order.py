"""Progressive filling: the next job is always the first of the account with the least key.

Down the tree, level by level, each inner account stands for the job that it would offer. Keys of an account of weight
w that uses U, whose next job would add u:

- flow F: `max(U + u, F) / w`, then `F / w`
- decayed usage D: `(U + D) / w`, then `U / w`

What a pass only plans (reservations) counts in U until `forget_plans`.
"""

from __future__ import annotations

from math import inf

from fluxsched.sched.accounts.tournament import Contender, Tournament
from fluxsched.sched.accounts.tree import Account, Accounts


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
        """The line of the flow as long as it is above what is constant, from then on that."""
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
    """Who comes next among the leaves that offer a job."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._root = _Place(accounts.root, None, Tournament())
        self._root.below = Tournament()
        self._places: dict[Account, _Place] = {accounts.root: self._root}
        self._planned: list[Account] = []
        self._origin_s = accounts.decay.origin_s

    def offer(self, account: Account, usage: float) -> None:
        """The next job of a leaf would add so much usage."""
        place = self._place(account)
        place.offered_usage = usage
        self._enter(place)
        self.changed(account)

    def withdraw(self, account: Account) -> None:
        """A leaf has no job to offer. An account with others below it offers what they do, and is left as it is."""
        place = self._places.get(account)
        if place is None or place.below is not None:
            return
        while place.top is not None and place.slot >= 0:
            place.among.leave(place)
            if place.among.size:
                self.changed(place.top.account)
                break
            place = place.top

    def changed(self, account: Account) -> None:
        """The usage of an account was booked, its weight or its offer has changed: here and in all above it."""
        at: Account | None = account
        while at is not None:
            place = self._places.get(at)
            if place is not None and place.slot >= 0:
                place.among.changed(place)
            at = at.parent

    def first(self, now_s: float) -> Account | None:
        """The leaf whose job comes next."""
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
        """The first key of an account that offers a job, or has one below it that does."""
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

    def forget_plans(self) -> None:
        """The end of a pass."""
        for account in self._planned:
            account.planned_usage = 0.0
            self.changed(account)
        self._planned.clear()

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
