"""Planned outages of targets: what is planned, which are on, and the drains that these make.

Law: at its begin an outage drains those of its targets that are not drained, with its reason, and at its end it
undrains just those. A drain that an administrator overwrites is theirs and stays; a target that another outage keeps
from then on stays drained for that one, and one that joins while an outage of it is on is drained, too. An outage
belongs to hosts, like drains, and survives a restart; what should have begun or ended meanwhile does so at the start.
One of the configuration is changed there alone, and follows a reload of it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import NO_OUTAGES, OUTAGES_MAX, Outage, Outages, checked
from fluxsched.core.text import printable, there_are
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.drain import Drains, check_reason
from fluxsched.resource.effects import Outbox, StoredRow
from fluxsched.resource.inventory import EXCLUDE, Groups, Targets
from fluxsched.resource.parts import PartDrains

NAMED_SO: Final = "outage"
"""Begin of the name of an outage that was given none; a number follows."""


@dataclass(frozen=True, slots=True)
class OutageRecord:
    """An outage, who planned it (None: not known), whether it is one of the configuration, and whether it is on.

    `absent` are the keys of targets that have not been seen since the last restart.
    """

    outage: Outage
    user: str | None = None
    is_configured: bool = False
    is_on: bool = False
    absent: tuple[str, ...] = ()


class PlannedOutages:
    """The outages by name; `value` is what acquirers are told."""

    def __init__(self, targets: Targets, groups: Groups, drains: Drains, parts: PartDrains, out: Outbox) -> None:
        self._targets = targets
        self._groups = groups
        self._drains = drains
        self._parts = parts
        self._out = out
        self._of: dict[str, OutageRecord] = {}
        self.value = NO_OUTAGES

    def __iter__(self) -> Iterator[OutageRecord]:
        return iter(self._of.values())

    @property
    def next_s(self) -> float:
        """Return when the next outage begins or ends, or a drain ends by itself; `inf` if none does."""
        turns = [each.outage.until_s if each.is_on else each.outage.from_s for each in self._of.values()]
        return min([*turns, self._drains.next_s, self._parts.next_s])

    def name_for(self, wanted: str | None) -> str:
        """Return the name that is wanted, else one that none has."""
        if wanted is not None:
            return wanted
        number = 1
        while f"{NAMED_SO}{number}" in self._of:
            number += 1
        return f"{NAMED_SO}{number}"

    def restore(self, name: str, row: StoredRow) -> None:
        """Take up a stored outage; its targets are known by their keys."""
        ranks, absent = list[int](), list[str]()
        for key in row["keys"]:
            rank = self._targets.rank(key)
            if rank is None:
                absent.append(key)
            else:
                ranks.append(rank)
        outage = Outage.parse({**row, "name": name, "targets": ""})._replace(targets=Idset.of(ranks))
        self._of[name] = OutageRecord(outage, row.get("user"), absent=tuple(absent))

    def configure(self, outages: Iterable[Outage], now_s: float) -> None:
        """Take those of the configuration in place of the ones that it had; one that has not changed goes on."""
        wanted = {outage.name: outage for outage in outages}
        for name, record in list(self._of.items()):
            outage = wanted.get(name)
            if record.is_configured and outage is not None and outage.next(now_s) == record.outage:
                del wanted[name]
            elif record.is_configured or outage is not None:
                del self._of[name]
                if not record.is_configured:
                    self._out.save("outage", name, None)
                kept = EMPTY if outage is None or outage.from_s > now_s else outage.targets
                self._lift(self._drains.made_by(name) - kept, now_s)
        for outage in wanted.values():
            self._of[outage.name] = OutageRecord(outage, is_configured=True)

    def joined(self, targets: Idset, now_s: float) -> None:
        """Drain targets that have joined, or come back, while an outage of theirs is on."""
        for record in list(self._of.values()):
            ranks = {key: self._targets.rank(key) for key in record.absent}
            if back := Idset.of([rank for rank in ranks.values() if rank is not None]):
                outage = record.outage._replace(targets=record.outage.targets | back)
                absent = tuple([key for key, rank in ranks.items() if rank is None])
                record = replace(record, outage=outage, absent=absent)
                self._put(record)
            if record.is_on and (mine := record.outage.targets & targets):
                self._drain(record, mine, now_s)
        self._renew()

    def add(self, outage: Outage, user: str | None, now_s: float) -> None:
        """Plan an outage. Raises InvalidValue, LimitExceeded, and Refused (EEXIST) if there is one of this name."""
        self._check(outage, now_s)
        if outage.name in self._of:
            raise Refused(f"there is an outage {outage.name!r} already: update or remove it", errno.EEXIST)
        if len(self._of) >= OUTAGES_MAX:
            raise LimitExceeded(f"{len(self._of)} outages are planned, which is the limit: remove some")
        self._put(OutageRecord(outage, user))
        self._post("outage-add", outage, user, now_s)
        self.advance(now_s)

    def update(self, outage: Outage, user: str | None, now_s: float) -> None:
        """Replace the outage of this name. Raises like `add`, and Refused (ENOENT) if there is none."""
        before = self._own(outage.name)
        self._check(outage, now_s)
        self._put(replace(before, outage=outage, user=user, is_on=False))
        self._post("outage-update", outage, user, now_s)
        kept = outage.targets if outage.from_s <= now_s else EMPTY
        self._lift(self._drains.made_by(outage.name) - kept, now_s)
        self.advance(now_s)

    def get(self, name: str) -> OutageRecord:
        """Return an outage. Raises Refused (ENOENT)."""
        found = self._of.get(name)
        if found is None:
            known = there_are(sorted(self._of))
            raise Refused(f"there is no outage {printable(name)!r}: {known}", errno.ENOENT)
        return found

    def remove(self, name: str, user: str | None, now_s: float) -> None:
        """Call an outage off; if it is on, its targets are undrained. Raises Refused (ENOENT, EPERM)."""
        outage = self._own(name).outage
        del self._of[name]
        self._out.save("outage", name, None)
        self._post("outage-remove", outage, user, now_s)
        self._lift(self._drains.made_by(name), now_s)
        self._renew()

    def advance(self, now_s: float) -> None:
        """Begin and end what is due, drains that end by themselves among it: with no effect if nothing is."""
        for name, record in list(self._of.items()):
            there = record.outage.next(now_s)
            if there != record.outage:
                self._end(name, record, there, now_s)
        for record in list(self._of.values()):
            if not record.is_on and record.outage.from_s <= now_s:
                self._begin(record, now_s)
        if due := self._drains.due(now_s):
            self._lift(due, now_s, "its time is over")
        self._parts.end_due(now_s)
        self._renew()

    def lift_strays(self, now_s: float) -> None:
        """Undrain what outages drained that are not planned any more: called at the start."""
        for name in self._drains.outages() - self._of.keys():
            self._lift(self._drains.made_by(name), now_s)

    # ---- within

    def _own(self, name: str) -> OutageRecord:
        record = self.get(name)
        if record.is_configured:
            raise Refused(f"outage {name!r} is in [[outages]] of the configuration: change it there", errno.EPERM)
        return record

    def _check(self, outage: Outage, now_s: float) -> None:
        checked(outage)
        check_reason(outage.reason)
        if not outage.targets:
            raise InvalidValue("an outage has targets: name at least one")
        self._targets.require(outage.targets, "plan an outage")
        if outage.next(now_s) is None:
            raise InvalidValue(f"outage {outage.name!r} is over since {now_s - outage.until_s:g} s: give a later end")

    def _put(self, record: OutageRecord) -> None:
        outage = record.outage
        self._of[outage.name] = record
        if not record.is_configured:
            keys = [self._targets.key(rank) for rank in outage.targets]
            row: dict[str, Any] = {**outage.to_json(), "keys": [*keys, *record.absent], "user": record.user}
            del row["name"], row["targets"]
            self._out.save("outage", outage.name, row)

    def _begin(self, record: OutageRecord, now_s: float) -> None:
        self._of[record.outage.name] = replace(record, is_on=True)
        self._drain(record, record.outage.targets, now_s)

    def _drain(self, record: OutageRecord, targets: Idset, now_s: float) -> None:
        outage, there = record.outage, self._targets.present - self._groups.members[EXCLUDE]
        reason = outage.reason or f"outage {outage.name}"
        self._drains.drain_for_outage(targets & there, outage.name, reason, record.user, now_s)

    def _end(self, name: str, record: OutageRecord, there: Outage | None, now_s: float) -> None:
        """End an occurrence; `there` is the next one."""
        if there is None:
            del self._of[name]
            if not record.is_configured:
                self._out.save("outage", name, None)
        else:
            self._put(replace(record, outage=there, is_on=False))
        self._lift(self._drains.made_by(name), now_s)

    def _lift(self, targets: Idset, now_s: float, why: str = "the outage is over") -> None:
        """Undrain targets whose outage, or drain, is over; the next outage that is on keeps them drained."""
        for record in self._of.values():
            outage = record.outage
            if record.is_on and (mine := outage.targets & targets):
                reason = outage.reason or f"outage {outage.name}"
                self._drains.drain_for_outage(mine, outage.name, reason, record.user, now_s, takes_over=True)
                targets -= mine
        self._drains.lift(targets, why, None, now_s)

    def _renew(self) -> None:
        value = Outages([record.outage for record in self._of.values()])
        if value != self.value:
            self.value = value

    def _post(self, name: str, outage: Outage, user: str | None, now_s: float) -> None:
        targets = outage.targets
        context: dict[str, Any] = {
            "idset": str(targets), "nodelist": self._targets.nodelist(targets), "name": outage.name,
            "from": outage.from_s, "until": outage.until_s,
        }  # fmt: skip
        if outage.every_s:
            context["every"] = outage.every_s
        if outage.reason:
            context["reason"] = outage.reason
        self._out.post(now_s, name, context if user is None else context | {"user": user})
