"""Drains of parts of targets: cores and GPUs that no new job gets, while their target is in use.

Laws: like a drain, one of parts belongs to the host, survives a restart and stays with a lost target; a request is
refused whole, naming all offenders, or done whole. Each id of a target is drained once, with its reason; several
reasons on one target are kept. What a job holds it keeps. Acquirers that understand parts are told all of them
(`value`); the others that a target is offline when it has no core left (`exhausted`). Whether a request could ever run
does not depend on drains, of parts neither. Journal: `parts-drain` and `parts-undrain`, since RFC 44's `drain` is one
of whole targets.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.parts import NO_PARTS, PartsByRank
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children
from fluxsched.errors import InvalidValue, Refused
from fluxsched.resource.drain import OVERWRITE, check_reason, checked_mode
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

    def context(self, targets: Targets) -> dict[str, Any]:
        """Return the context of the event."""
        nodelist, mode = targets.nodelist(self.targets), checked_mode(self.mode)
        context: dict[str, Any] = {"idset": str(self.targets), "nodelist": nodelist, "children": self.parts.to_json()}
        context |= {"overwrite": OVERWRITE[mode]}
        optional = (("reason", self.reason), ("user", self.user))
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
        over, else their reason and time are replaced.

        Raises InvalidValue naming all targets that are unknown, lost or do not have these parts.
        """
        mode = checked_mode(wanted.mode)
        self._check(wanted, "drain")
        twice = self._ranks(wanted, lambda parts: bool(parts & wanted.parts))
        if twice and mode == "none":
            described = f"{self._targets.describe(twice)}: {wanted.parts & self._some(twice)} already drained"
            raise Refused(f"cannot drain {described}; `--update` drains the others", errno.EEXIST)
        before = self.value
        for rank in wanted.targets:
            rows, fresh = self._of.get(rank, ()), wanted.parts
            if mode in ("none", "update"):
                fresh = fresh - self._parts(rank) if rank in self.value.of else fresh
            else:
                rows = _without(rows, fresh)
            if fresh:
                self._put(rank, (*rows, PartDrain(fresh, wanted.now_s, wanted.reason, wanted.user, wanted.until_s)))
        self._end(wanted, before, "parts-drain", mode not in ("none", "update"))

    def undrain(self, wanted: PartsRequest) -> None:
        """Undrain parts. Without a mode all must be drained: Refused (EEXIST) names the targets where some are not.

        Raises like `drain`.
        """
        self._check(wanted, "undrain")
        idle = self._ranks(wanted, lambda parts: bool(wanted.parts - parts))
        if idle and checked_mode(wanted.mode) == "none":
            described = f"{self._targets.describe(idle)}: {wanted.parts - self._some(idle)} not drained"
            raise Refused(f"cannot undrain {described}; `--force` undrains the others", errno.EEXIST)
        before = self.value
        for rank in wanted.targets & Idset.of(self._of):
            self._put(rank, _without(self._of[rank], wanted.parts))
        self._end(wanted, before, "parts-undrain", False)

    @property
    def next_s(self) -> float:
        """Return when the next drain ends by itself; `inf` if none does."""
        return min([each.until_s for rank in self._timed for each in self._of[rank]], default=inf)

    def end_due(self, now_s: float) -> None:
        """Undrain what ends by itself, and should have by now."""
        due: dict[Children, list[int]] = {}
        for rank in sorted(self._timed):
            for each in self._of[rank]:
                if each.until_s <= now_s:
                    due.setdefault(each.parts, []).append(rank)
        for parts, ranks in due.items():
            before = self.value
            for rank in ranks:
                self._put(rank, _without(self._of[rank], parts))
            wanted = PartsRequest(Idset.of(ranks), parts, "its time is over", None, None, now_s)
            self._end(wanted, before, "parts-undrain", False)

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


def _without(rows: tuple[PartDrain, ...], parts: Children) -> tuple[PartDrain, ...]:
    left = [each._replace(parts=each.parts - parts) for each in rows]
    return tuple([each for each in left if each.parts])


def _has_none(children: Children, drained: Children) -> bool:
    return bool(children.cores) and children.cores <= drained.cores


def down_parts(resources: ResourceSet, drains: PartDrains) -> ResourceSet:
    """Return the drained parts of resources, as resources."""
    parts = PartsByRank(dict(drains.on(resources)))
    ranks = Idset.of(parts.of)
    return replace(resources.restrict(ranks), entries=parts.entries()).with_shared(())
