"""Planned outages: targets that are not to be used from one time to another, once or again and again.

Law: an outage is a reservation that was there before all jobs. What is to be used from a begin to before an end crosses
it if the two have some instant in common, so a job may end at the very instant at which an outage begins. Targets that
do not exist are no fault here: which there are is known to others, and changes. Times are seconds since the epoch.

An advance reservation is an outage for all but the jobs that name it. For these all other targets and times are one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from itertools import count
from math import floor, inf, isfinite
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import rough_duration
from fluxsched.core.text import kind_of, shown
from fluxsched.errors import InvalidValue, LimitExceeded

OUTAGES_MAX = 1024
"""Outages at once: one a rack of a machine of 100,000 targets, or one a week for twenty years."""

GIVEN_BACK_S = 366 * 86400.0
"""For so long targets that were dedicated to a group are an outage for it: by then they have left it long ago."""

NAME_CHARS_MAX = 64

USERS_MAX = 1024
"""Users that may use a reservation: a large project; all users need no list."""

STRETCHES_MAX = 512
"""Stretches of time that a plan looks at: 50 outages have 100 at most, and one that recurs weekly as many in a year."""


LIMITS_KNOWN_MAX = 8
"""Time limits whose stretches are kept: at worst 8 MiB each, where each stretch has other ones of 131,072 targets."""


class Outage(NamedTuple):
    """An outage of `targets` from `from_s` to before `until_s`, and again `every_s` from there on, if that is not 0.

    `reason` is that of its drain. `ends_jobs`: jobs that run there have their end moved to its begin.
    With a `queue` the targets are that queue's while it lasts: they are in its `group`. If it `is_reservation`, they
    are for the jobs of its `users` (ids; all users where there are none) that name it.
    """

    name: str
    targets: Idset
    from_s: float
    until_s: float
    every_s: float = 0.0
    reason: str = ""
    ends_jobs: bool = False
    queue: str = ""
    group: str = ""
    is_reservation: bool = False
    users: tuple[int, ...] = ()

    def next(self, now_s: float) -> Outage | None:
        """Return the occurrence that is on at `now_s`, else the first one after; None if it is over."""
        if self.until_s > now_s:
            return self
        if not self.every_s:
            return None
        skipped = floor((now_s - self.until_s) / self.every_s) + 1
        later = self._later(skipped)
        return later if later.until_s > now_s else self._later(skipped + 1)  # as doubles round

    def crosses(self, start_s: float, end_s: float) -> bool:
        """Return whether a use from `start_s` to before `end_s` has an instant in common with an occurrence."""
        there = self.next(start_s)
        return there is not None and there.from_s < end_s

    def _later(self, times: int) -> Outage:
        by_s = times * self.every_s
        return self._replace(from_s=self.from_s + by_s, until_s=self.until_s + by_s)

    def occurrences(self, start_s: float) -> Iterator[Outage]:
        """Yield the occurrences that end after `start_s`, in order; without an end if it recurs."""
        first = self.next(start_s)
        if first is not None:
            yield first
            if self.every_s:
                yield from map(first._later, count(1))

    def to_json(self) -> dict[str, Any]:
        """Return the outage as it is sent and stored."""
        row: dict[str, Any] = {
            "name": self.name, "targets": str(self.targets), "from": self.from_s, "until": self.until_s
        }  # fmt: skip
        if self.every_s:
            row["every"] = self.every_s
        if self.ends_jobs:
            row["end_jobs"] = True
        if self.queue:
            row |= {"queue": self.queue, "group": self.group}
        if self.is_reservation:
            row |= {"reservation": True, "users": list(self.users)}
        return row | {"reason": self.reason} if self.reason else row

    @classmethod
    def parse(cls, row: object) -> Outage:
        """Return the outage that `to_json` gave; keys that are unknown are ignored. Raises InvalidValue."""
        if not isinstance(row, Mapping):
            raise InvalidValue(f"an outage is an object with name, targets, from and until, not {kind_of(row)}")
        texts = {key: row.get(key, "") for key in ("name", "targets", "reason", "queue", "group")}
        times = {key: row.get(key, 0.0) for key in ("from", "until", "every")}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise InvalidValue(f"{key} of an outage is a text, not {kind_of(text)}")
        for key, time_s in times.items():
            if isinstance(time_s, bool) or not isinstance(time_s, (int, float)):
                raise InvalidValue(f"{key} of an outage is a number of seconds, not {kind_of(time_s)}")
        users = row.get("users", [])
        if not isinstance(users, list) or not all(type(user) is int for user in users):
            raise InvalidValue(f"users of a reservation are a list of user ids, not {shown(users)}")
        return checked(cls(
            str(texts["name"]), Idset.parse(texts["targets"]), float(times["from"]), float(times["until"]),
            float(times["every"]), str(texts["reason"]), row.get("end_jobs") is True,
            str(texts["queue"]), str(texts["group"]), row.get("reservation") is True, tuple(users),
        ))  # fmt: skip


def checked(outage: Outage) -> Outage:
    """Return the outage if it is one. Raises InvalidValue that names what is wrong with it."""
    name, from_s, until_s, every_s = outage.name, outage.from_s, outage.until_s, outage.every_s
    kind = "reservation" if outage.is_reservation else "outage"
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise InvalidValue(f"the name of an outage has 1 to {NAME_CHARS_MAX} printable characters, not {name[:80]!r}")
    if not (isfinite(from_s) and isfinite(until_s) and isfinite(every_s)):
        raise InvalidValue(f"{kind} {name!r}: begin, end and period are finite times")
    if until_s <= from_s:
        by = "as it begins" if until_s == from_s else f"{rough_duration(from_s - until_s)} before it begins"
        raise InvalidValue(f"{kind} {name!r} ends {by}: give a later end")
    if every_s and every_s < until_s - from_s:
        raise InvalidValue(
            f"{kind} {name!r} recurs every {rough_duration(every_s)} and lasts {rough_duration(until_s - from_s)}: the "
            "targets would never be free; give a longer period"
        )
    if len(outage.users) > USERS_MAX:
        raise LimitExceeded(f"reservation {name!r}: {len(outage.users)} users are above the limit of {USERS_MAX}")
    return outage


def seen_by(outages: Outages, group: str) -> Outages:
    """Return the outages as the scheduler of a group is to know them: what is dedicated to it is no outage for it, and
    ends with another one, until when it is dedicated again.
    """
    if not any(each.group == group for each in outages.all):
        return outages
    found = [each for each in outages.all if each.group != group]
    for each in outages.all:
        if each.group == group:
            until_s = each.from_s + each.every_s if each.every_s else each.until_s + GIVEN_BACK_S
            if until_s > each.until_s:
                found.append(each._replace(from_s=each.until_s, until_s=until_s))
    return Outages(found)


class StartRange(NamedTuple):
    """A stretch of time, ends included, in which a job may start without crossing an outage: not on `barred`
    targets.
    """

    from_s: float
    until_s: float
    barred: int


class Outages:
    """All outages that are known, a value; `barred` answers are prepared for the instant that was asked about last."""

    __slots__ = ("_at_s", "_begins", "_known", "_masks", "_next_end", "_on", "all")

    def __init__(self, outages: Iterable[Outage] = ()) -> None:
        """Prepare no answer yet. Raises LimitExceeded."""
        self.all: tuple[Outage, ...] = tuple(outages)
        if len(self.all) > OUTAGES_MAX:
            raise LimitExceeded(f"{len(self.all)} outages are above the limit of {OUTAGES_MAX}: remove some")
        self._at_s = -inf
        self._begins: list[float] = []
        self._masks: list[int] = []
        self._known: dict[float, tuple[list[StartRange], Iterator[StartRange]]] = {}  # by limit, and what is to come
        self._on = -inf, -inf, EMPTY  # from one instant to before another these targets are in an outage
        self._next_end = -inf, -inf  # from an instant on this is the next end, until it has come

    def __bool__(self) -> bool:
        return bool(self.all)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outages) and self.all == other.all

    def __hash__(self) -> int:
        return hash(self.all)

    def __repr__(self) -> str:
        return f"Outages({list(self.all)!r})"

    def barred(self, start_s: float, end_s: float) -> int:
        """Return the mask of the targets that may not be used from `start_s` to before `end_s` (`inf`: for ever)."""
        if not self.all:
            return 0
        if start_s != self._at_s:
            self._prepare(start_s)
        crossed = bisect_left(self._begins, end_s)
        return self._masks[crossed - 1] if crossed else 0

    def inside(self, name: str, ranks: Idset) -> Outages:
        """Return the outages as they are for jobs that name a reservation: all `ranks` are in one but its targets while
        it lasts; always, if there is none of this name.
        """
        made, around = Outages(), Outage(name, ranks, -inf, inf, is_reservation=True)
        rest = [each for each in self.all if each.name != name or not each.is_reservation]
        for each in self.all:
            if each.is_reservation and each.name == name:
                around = around._replace(targets=ranks - each.targets)
                rest.append(each._replace(from_s=-inf, until_s=each.from_s, every_s=0.0))
                until_s = each.from_s + each.every_s if each.every_s else inf
                if until_s > each.until_s:
                    rest.append(each._replace(from_s=each.until_s, until_s=until_s))
        made.all = (*rest, around)
        return made

    def reservation(self, name: str) -> Outage | None:
        """Return the reservation of this name."""
        found = [each for each in self.all if each.is_reservation and each.name == name]
        return found[0] if found else None

    def on(self, now_s: float) -> Idset:
        """Return the targets that are down in an outage at an instant; those of reservations are not."""
        from_s, until_s, found = self._on
        if not from_s <= now_s < until_s:
            found, until_s = EMPTY, inf
            for outage in self.all:
                if outage.is_reservation:
                    continue
                there = outage.next(now_s)
                if there is not None and there.from_s <= now_s:
                    found |= there.targets
                if there is not None:
                    until_s = min(until_s, there.until_s if there.from_s <= now_s else there.from_s)
            self._on = now_s, until_s, found
        return found

    def crossed(self, start_s: float, end_s: float) -> list[Outage]:
        """Return the first occurrence of each outage that a use from `start_s` to before `end_s` crosses, in order."""
        ahead = [there for outage in self.all if (there := outage.next(start_s)) is not None]
        return sorted([there for there in ahead if there.from_s < end_s], key=_from_s)

    def next_end_s(self, now_s: float) -> float:
        """Return when the next outage ends, of those that are on and those ahead, or reservation begins; `inf` if there
        is none.
        """
        from_s, next_s = self._next_end
        if not from_s <= now_s < next_s:
            ahead = [there for outage in self.all if (there := outage.next(now_s)) is not None]
            begins = [there.from_s for there in ahead if there.is_reservation and there.from_s > now_s]
            next_s = min([*begins, *[there.until_s for there in ahead]], default=inf)
            self._next_end = now_s, next_s
        return next_s

    def stretches(self, limit_s: float, from_s: float, until_s: float) -> Iterator[StartRange]:
        """Yield the stretches of the starts from one instant to another, both included, of a job with a limit (`inf`
        for none); the first STRETCHES_MAX where outages recur without an end. Those of a limit are kept.
        """
        found, rest = self._stretches_of(limit_s, from_s)
        at = bisect_left(found, from_s, key=_until_s)
        while True:
            if at == len(found):
                more = next(rest, None)
                if more is None:
                    return
                found.append(more)
            begin_s, end_s, barred = found[at]
            if begin_s > until_s:
                return
            if end_s >= from_s:
                yield StartRange(max(begin_s, from_s), min(end_s, until_s), barred)
            at += 1

    # ---- within

    def _stretches_of(self, limit_s: float, from_s: float) -> tuple[list[StartRange], Iterator[StartRange]]:
        """Return the stretches of this limit that were asked for before, and those after."""
        known = self._known.get(limit_s)
        if known is not None:
            found = known[0]
            is_old = len(found) == STRETCHES_MAX and found[STRETCHES_MAX // 2].from_s < from_s
            if found and (from_s < found[0].from_s or is_old):
                known = None
        if known is None:
            if len(self._known) >= LIMITS_KNOWN_MAX:
                self._known.clear()
            known = self._known[limit_s] = [], self._work_out(limit_s, from_s)
        return known

    def _work_out(self, limit_s: float, from_s: float) -> Iterator[StartRange]:
        begin_s = from_s
        for number, turn_s in enumerate(merge(*self._turns(limit_s, from_s))):
            if number == STRETCHES_MAX:
                return
            if turn_s == begin_s:  # an instant between two, for a job that just fits
                yield StartRange(turn_s, turn_s, self._barred_at(turn_s, limit_s))
            elif turn_s > begin_s:
                yield StartRange(begin_s, turn_s, self._barred_at((begin_s + turn_s) / 2, limit_s))
                begin_s = turn_s
        yield StartRange(begin_s, inf, self._barred_at(begin_s + 1.0, limit_s))

    def _prepare(self, start_s: float) -> None:
        ahead = self.crossed(start_s, inf)
        self._at_s, self._begins = start_s, [there.from_s for there in ahead]
        self._masks = []
        mask = 0
        for there in ahead:
            mask |= there.targets.mask
            self._masks.append(mask)

    def _turns(self, limit_s: float, from_s: float) -> list[Iterator[float]]:
        """Return the instants after which a start crosses, or no longer crosses, some occurrence; each in order."""
        found: list[Iterator[float]] = []
        for outage in self.all:
            found.append(_ends_s(outage, from_s))
            if limit_s < inf:
                found.append(_last_starts_s(outage, limit_s, from_s))
        return found

    def _barred_at(self, start_s: float, limit_s: float) -> int:
        mask = 0
        for outage in self.all:
            if outage.crosses(start_s, start_s + limit_s):
                mask |= outage.targets.mask
        return mask


def _ends_s(outage: Outage, from_s: float) -> Iterator[float]:
    for there in outage.occurrences(from_s):  # without an end, which mypyc makes a list of in an expression
        if there.until_s < inf:
            yield there.until_s


def _last_starts_s(outage: Outage, limit_s: float, from_s: float) -> Iterator[float]:
    """Yield the last instants at which a job may start so that it is over when an occurrence begins."""
    for there in outage.occurrences(from_s):
        last_s = there.from_s - limit_s
        if last_s >= from_s:
            yield last_s


def _until_s(stretch: StartRange) -> float:
    return stretch.until_s


def _from_s(outage: Outage) -> float:
    return outage.from_s


NO_OUTAGES: Final = Outages()
