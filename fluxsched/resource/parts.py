"""Drains of parts of targets: cores and GPUs that no new job gets, while their target is in use.

Laws: like a drain, one of parts belongs to the host, survives a restart and stays with a lost target; a request is
refused whole, naming all offenders, or done whole. Each id of a target has its reasons, mostly one; one that is added
is kept beside those that are there, and an id is drained until all of them are lifted. What a job holds it keeps.
Acquirers that understand parts are told all of them (`value`); the others that a target is offline when it has no core
left (`exhausted`). Whether a request could ever run does not depend on drains, of parts neither. Journal: `parts-drain`
and `parts-undrain`, since RFC 44's `drain` is one of whole targets.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import NO_PARTS, Children, PartsByRank
from fluxsched.errors import InvalidValue, Refused
from fluxsched.resource.drain import (
    ADD,
    OVERWRITE,
    REASONS_MAX,
    check_added,
    check_reason,
    check_reasons,
    checked_mode,
    drained_text,
)
from fluxsched.resource.effects import Outbox, StoredRow
from fluxsched.resource.inventory import Targets


class PartDrain(NamedTuple):
    """Parts of one target that are drained together: why, since when (seconds since the epoch) and by whom."""

    parts: Children
    timestamp_s: float
    reason: str | None = None
    user: str | None = None
    until_s: float = inf

    def to_row(self) -> dict[str, Any]:
        """Return the drain as it is stored."""
        row: dict[str, Any] = {"children": self.parts.to_json(), "timestamp": self.timestamp_s}
        if self.until_s < inf:
            row["until"] = self.until_s
        return row | {"reason": self.reason, "user": self.user}

    @classmethod
    def from_row(cls, row: StoredRow) -> PartDrain:
        """Return the drain that `to_row` stored."""
        parts, until_s = Children.parse(row["children"]), float(row.get("until", inf))
        return cls(parts, float(row["timestamp"]), row.get("reason"), row.get("user"), until_s)


@dataclass(frozen=True, slots=True)
class PartsRequest:
    """Request to drain or undrain `parts` of each of the `targets`: why, in which mode of a drain, by whom and when."""

    targets: Idset
    parts: Children
    reason: str | None
    mode: str | None
    user: str | None
    now_s: float
    until_s: float = inf
    only: str | None = None
    """Of an undrain: the reason that is lifted, None for all."""

    def concerns(self, drain: PartDrain) -> bool:
        """Return whether an undrain lifts this one, if it has such parts."""
        return self.only is None or self.only == (drain.reason or "")

    def context(self, targets: Targets) -> dict[str, Any]:
        """Return the context of the event."""
        nodelist, mode = targets.nodelist(self.targets), checked_mode(self.mode)
        context: dict[str, Any] = {"idset": str(self.targets), "nodelist": nodelist, "children": self.parts.to_json()}
        context |= {"overwrite": OVERWRITE[mode]}
        optional = (("reason", self.reason), ("user", self.user), ("only", self.only))
        return context | {key: value for key, value in optional if value is not None}


class PartDrains:
    """The drained parts by target, lost ones among them."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self._targets = targets
        self._out = out
        self._of: dict[int, tuple[PartDrain, ...]] = {}
        self._timed: set[int] = set()  # targets with some that end by themselves
        self.value: PartsByRank = NO_PARTS
        self._exhausted = EMPTY
        self._as_of: ResourceSet | None = None

    def restore(self, rank: int, row: StoredRow) -> None:
        """Take up the stored drains of a target."""
        self._set(rank, tuple([PartDrain.from_row(each) for each in row["drains"]]))
        self.value, self._as_of = self.value.replaced({rank: _drained(self._of[rank])}), None

    @property
    def exhausted(self) -> Idset:
        """Return the targets all of whose cores are drained."""
        if self._as_of is not self._targets.resources:
            self._as_of, self._exhausted = self._targets.resources, EMPTY
            self._note_exhausted(Idset.of(self.value.of) & self._as_of.ranks)
        return self._exhausted

    def drain(self, wanted: PartsRequest) -> None:
        """Drain parts. Those that are drained already are refused (Refused, EEXIST); in mode `update` they are passed
        over, in mode `add` they have both reasons, else their reason and time are replaced.

        Raises InvalidValue naming all targets that are unknown, lost or do not have these parts.
        """
        mode = checked_mode(wanted.mode)
        self._check(wanted, "drain")
        twice = self._ranks(wanted, lambda parts: bool(parts & wanted.parts))
        if twice and mode == "none":
            described = f"{self._targets.describe(twice)}: {wanted.parts & self._some(twice)} already drained"
            raise Refused(f"cannot drain {described}", errno.EEXIST)
        if mode == ADD:
            self._check_room(wanted)
        before = self.value
        for rank in wanted.targets:
            rows, fresh = self._of.get(rank, ()), wanted.parts
            if mode in ("none", "update"):
                fresh = fresh - self._parts(rank) if rank in self.value.of else fresh
            else:
                rows = _without(rows, fresh, lambda each: mode != ADD or each.reason == wanted.reason)
            if fresh:
                self._put(rank, (*rows, PartDrain(fresh, wanted.now_s, wanted.reason, wanted.user, wanted.until_s)))
        self._end(wanted, before, "parts-drain", mode not in ("none", "update"))

    def undrain(self, wanted: PartsRequest) -> None:
        """Undrain parts, or lift one reason (`only`) of them. Without a mode all must be drained, for that reason:
        Refused (EEXIST) names the targets where some are not.

        Raises like `drain`.
        """
        mode = checked_mode(wanted.mode, "undrain")
        self._check(wanted, "undrain")
        mine = {rank: _drained(tuple(filter(wanted.concerns, self._of.get(rank, ())))) for rank in wanted.targets}
        idle = Idset.of([rank for rank, parts in mine.items() if wanted.parts - parts])
        if idle and mode == "none":
            lacking = wanted.parts - mine[idle.min()]
            described = f"{self._targets.describe(idle)}: {lacking} not {drained_text(wanted.only)}"
            raise Refused(f"cannot undrain {described}", errno.EEXIST)
        before = self.value
        lifted = [rank for rank, parts in mine.items() if parts & wanted.parts]
        for rank in lifted:
            self._put(rank, _without(self._of[rank], wanted.parts, wanted.concerns))
        self._end(wanted, before, "parts-undrain", bool(lifted))

    @property
    def next_s(self) -> float:
        """Return when the next drain ends by itself; `inf` if none does."""
        return min([each.until_s for rank in self._timed for each in self._of[rank]], default=inf)

    def end_due(self, now_s: float) -> None:
        """Undrain what ends by itself, and should have by now."""
        due: dict[tuple[Children, str | None], list[int]] = {}
        for rank in sorted(self._timed):
            for key in dict.fromkeys([(each.parts, each.reason) for each in self._of[rank] if each.until_s <= now_s]):
                due.setdefault(key, []).append(rank)
        for key, ranks in due.items():
            before, (parts, reason) = self.value, key
            for rank in ranks:
                left = [each for each in self._of[rank] if each.until_s > now_s or (each.parts, each.reason) != key]
                self._put(rank, tuple(left))
            wanted = PartsRequest(Idset.of(ranks), parts, "its time is over", None, None, now_s, only=reason or "")
            self._end(wanted, before, "parts-undrain", True)

    def report(self) -> list[tuple[Idset, PartDrain]]:
        """Return the drains of all targets that are present, equal ones merged, by lowest rank."""
        merged: dict[PartDrain, list[int]] = {}
        for rank in Idset.of(self._of) & self._targets.present:
            for each in self._of[rank]:
                merged.setdefault(each, []).append(rank)
        return [(Idset.of(ranks), each) for each, ranks in merged.items()]

    def on(self, resources: ResourceSet) -> Iterator[tuple[int, Children]]:
        """Yield the drained parts of the targets of some resources that these have."""
        for rank, parts in self.value.of.items():
            if rank in resources.ranks and (mine := resources.children(rank) & parts):
                yield rank, mine

    # ---- within

    def _parts(self, rank: int) -> Children:
        return self.value.of.get(rank, _NONE)

    def _ranks(self, wanted: PartsRequest, is_so: Callable[[Children], bool]) -> Idset:
        return Idset.of([rank for rank in wanted.targets if is_so(self._parts(rank))])

    def _some(self, ranks: Idset) -> Children:
        """Return what is drained of the first of these targets."""
        return self._parts(ranks.min())

    def _check(self, wanted: PartsRequest, verb: str) -> None:
        check_reason(wanted.reason)
        if not wanted.targets or not wanted.parts:
            raise InvalidValue(f"cannot {verb} parts: name at least one target, and cores or GPUs of it")
        self._targets.require(wanted.targets, verb)
        resources, lacking = self._targets.resources, dict[Children, list[int]]()
        for rank in wanted.targets:
            if missing := wanted.parts - resources.children(rank):
                lacking.setdefault(missing, []).append(rank)
        if lacking:
            each = [f"{self._targets.describe(Idset.of(ranks))} without {ids}" for ids, ranks in lacking.items()]
            raise InvalidValue(f"cannot {verb} {wanted.parts}: {'; '.join(each)}; name ids that they have")

    def _check_room(self, wanted: PartsRequest) -> None:
        check_added(wanted.reason)
        full = list[int]()
        for rank in wanted.targets:
            others = [each.parts & wanted.parts for each in self._of.get(rank, ()) if each.reason != wanted.reason]
            reasons = Counter([("core", one) for each in others for one in each.cores])
            reasons.update([("gpu", one) for each in others for one in each.gpus])
            if max(reasons.values(), default=0) >= REASONS_MAX:
                full.append(rank)
        check_reasons(self._targets, full)

    def _note_exhausted(self, changed: Idset) -> None:
        resources, of = self._targets.resources, self.value.of
        self._exhausted -= changed
        self._exhausted |= Idset.of([
            rank for rank in changed if rank in of and _has_none(resources.children(rank), of[rank])
        ])  # fmt: skip

    def _put(self, rank: int, rows: tuple[PartDrain, ...]) -> None:
        self._set(rank, rows)
        row = {"drains": [each.to_row() for each in rows]} if rows else None
        self._out.save("parts", self._targets.key(rank), row)

    def _set(self, rank: int, rows: tuple[PartDrain, ...]) -> None:
        self._timed.discard(rank)
        if rows:
            self._of[rank] = rows
            if any(each.until_s < inf for each in rows):
                self._timed.add(rank)
        else:
            del self._of[rank]

    def _end(self, wanted: PartsRequest, before: PartsByRank, event: str, is_always: bool) -> None:
        """Renew what acquirers are told, and journal the event if there was a change."""
        self.value = before.replaced({rank: _drained(self._of.get(rank, ())) for rank in wanted.targets})
        self._note_exhausted(wanted.targets)
        if is_always or self.value != before:
            self._out.post(wanted.now_s, event, wanted.context(self._targets))


_NONE = Children()


def _drained(rows: tuple[PartDrain, ...]) -> Children:
    found = rows[0].parts if rows else _NONE
    for each in rows[1:]:
        found |= each.parts
    return found


def _without(rows: tuple[PartDrain, ...], parts: Children, which: Callable[[PartDrain], bool]) -> tuple[PartDrain, ...]:
    left = [each._replace(parts=each.parts - parts) if which(each) else each for each in rows]
    return tuple([each for each in left if each.parts])


def _has_none(children: Children, drained: Children) -> bool:
    return bool(children.cores) and children.cores <= drained.cores


def down_parts(resources: ResourceSet, drains: PartDrains) -> ResourceSet:
    """Return the drained parts of resources, as resources."""
    return of_parts(resources, PartsByRank(dict(drains.on(resources))))


def of_parts(resources: ResourceSet, parts: PartsByRank) -> ResourceSet:
    """Return parts of these resources' targets, as resources."""
    parts = PartsByRank({rank: some for rank, some in parts.of.items() if rank in resources.ranks})
    return replace(resources.restrict(Idset.of(parts.of)), entries=parts.entries()).with_shared(())
