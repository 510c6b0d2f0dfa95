"""Planned outages of targets: what is planned, which are on, and the drains that these make.

Law: at its begin an outage drains its targets, also for its reason if they are drained already, and at its end it lifts
just that reason. A drain that an administrator overwrites is theirs and stays; a target that joins while an outage of
it is on is drained, too. An outage belongs to hosts, like drains, and survives a restart; what should have begun or
ended meanwhile does so at the start, and one that is on does not begin again: a target that an administrator has
undrained meanwhile stays so. One of the configuration is changed there alone, and follows a reload of it; it is stored
from its begin on.

One that is dedicated to a queue drains nothing: at its begin its targets are assigned gracefully to the group of the
queue, and at its end those that are there still go back as gracefully, to the groups from where they came.

A reservation drains nothing, either: schedulers keep all jobs off it but those that name it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import NO_OUTAGES, OUTAGES_MAX, Outage, Outages, checked
from fluxsched.core.quantities import rough_duration
from fluxsched.core.text import printable, there_are
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.changes import check_owners
from fluxsched.resource.drain import Drain, Drains, check_reason
from fluxsched.resource.effects import Outbox, StoredRow
from fluxsched.resource.inventory import DEFAULT, EXCLUDE, Groups, Targets, split
from fluxsched.resource.parts import PartDrains

NAMED_SO: Final = "outage"
"""Begin of the name of an outage that was given none; a number follows."""

Assign: TypeAlias = Callable[[Idset, str, bool, str | None, float], None]
"""Assigns targets to a group, gracefully or not, for a user, at a time."""


@dataclass(frozen=True, slots=True)
class OutageRecord:
    """An outage, who planned it (None: not known), whether it is one of the configuration, and whether it is on.

    `absent` are the keys of targets that have not been seen since the last restart, `homes` the groups from where
    dedicated targets came, by key.
    """

    outage: Outage
    user: str | None = None
    is_configured: bool = False
    is_on: bool = False
    absent: tuple[str, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)


class PlannedOutages:
    """The outages by name; `value` is what acquirers are told."""

    def __init__(
        self,
        targets: Targets,
        groups: Groups,
        drains: Drains,
        parts: PartDrains,
        assign: Assign,
        out: Outbox,
    ) -> None:
        self._assign = assign
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

    def name_for(self, wanted: str | None, kind: str = NAMED_SO) -> str:
        """Return the name that is wanted, else one that none has: of its kind and a number."""
        if wanted is not None:
            return wanted
        number = 1
        while f"{kind}{number}" in self._of:
            number += 1
        return f"{kind}{number}"

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
        self._of[name] = OutageRecord(
            outage, row.get("user"), row.get("configured") is True, row.get("on") is True, tuple(absent),
            row.get("homes", {}),
        )  # fmt: skip

    def configure(self, outages: Iterable[Outage], now_s: float) -> None:
        """Take those of the configuration in place of the ones that it had; one that has not changed goes on."""
        wanted = {outage.name: outage for outage in outages}
        for name, record in list(self._of.items()):
            outage = wanted.get(name)
            if record.is_configured and outage is not None and outage.next(now_s) == record.outage:
                del wanted[name]
            elif record.is_configured or outage is not None:
                del self._of[name]
                self._out.save("outage", name, None)
                self._give_back(record, outage, now_s)
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
                self._keep(record, mine, now_s)
        self.lift_strays(now_s)
        self._renew()

    def add(self, outage: Outage, user: str | None, now_s: float) -> None:
        """Plan an outage. Raises InvalidValue, LimitExceeded, and Refused (EEXIST) if there is one of this name."""
        self._check(outage, now_s)
        if (there := self._of.get(outage.name)) is not None:
            kind = "a reservation" if there.outage.is_reservation else "an outage"
            raise Refused(f"there is {kind} {outage.name!r} already: update or remove it", errno.EEXIST)
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
        self._give_back(before, outage, now_s)
        self.advance(now_s)

    def pick(self, targets: Idset, nodes: int, from_s: float, until_s: float) -> Idset:
        """Return the lowest ranks of these targets, so many, all of one group (`default` if that has enough), that no
        administrator has drained and no outage has at that time. Raises InvalidValue if there are too few.
        """
        free = targets & self._targets.present - self._drains.unplanned - Idset(self.value.barred(from_s, until_s))
        by_group = {name: ranks for name, ranks in split(self._groups.goals, free) if name != EXCLUDE}
        for _, ranks in sorted(by_group.items(), key=lambda each: (each[0] != DEFAULT, each[0])):
            if len(ranks) >= nodes:
                return ranks.first(nodes)
        most = max(map(len, by_group.values()), default=0)
        raise InvalidValue(f"{nodes} targets of one group are not free at that time, only {most}: ask for fewer")

    def get(self, name: str, is_reservation: bool | None = None) -> OutageRecord:
        """Return an outage, of this kind if one is given. Raises Refused (ENOENT; EINVAL if it is of the other)."""
        found, wanted = self._of.get(name), "reservation" if is_reservation else "outage"
        if found is None:
            alike = [each.outage for each in self if is_reservation in (None, each.outage.is_reservation)]
            known = there_are(sorted([each.name for each in alike]))
            raise Refused(f"there is no {wanted} {printable(name)!r}: {known}", errno.ENOENT)
        if is_reservation not in (None, found.outage.is_reservation):
            kind, command = ("an outage", "outage") if is_reservation else ("a reservation", "reserve")
            raise Refused(f"{name!r} is {kind}, no {wanted}: use fluxsched {command}", errno.EINVAL)
        return found

    def remove(self, name: str, user: str | None, now_s: float) -> None:
        """Call an outage off; if it is on, its targets are undrained. Raises Refused (ENOENT, EPERM)."""
        record = self._own(name)
        del self._of[name]
        self._out.save("outage", name, None)
        self._post("outage-remove", record.outage, user, now_s)
        self._give_back(record, None, now_s)
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
        self._drains.end_due(now_s)
        self._parts.end_due(now_s)
        self._renew()

    def lift_strays(self, now_s: float) -> None:
        """Undrain what outages drained that are not planned any more: called at the start."""
        for name in self._drains.outages() - self._of.keys():
            self._lift(name, now_s)

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
        if outage.group:
            check_owners(self._targets, self._groups, outage.targets, outage.group)
        if outage.group and (there := outage.targets & self._groups.configured.get(outage.group, EMPTY)):
            described = self._targets.describe(there)
            raise InvalidValue(
                f"cannot dedicate {described} to queue {outage.queue!r}: in its group {outage.group!r} already; name "
                "targets of other groups, or give the queue a group of its own"
            )
        for other in [each.outage for each in self if outage.is_reservation and each.outage.is_reservation]:
            both = other.targets & outage.targets if other.name != outage.name else EMPTY
            if both and (other.crosses(outage.from_s, outage.until_s) or outage.crosses(other.from_s, other.until_s)):
                described = self._targets.describe(both)
                raise InvalidValue(
                    f"reservation {other.name!r} has {described} at that time: name others, or another time"
                )
        if outage.next(now_s) is None:
            kind, over_s = "reservation" if outage.is_reservation else "outage", now_s - outage.until_s
            raise InvalidValue(f"{kind} {outage.name!r} is over since {rough_duration(over_s)}: give a later end")

    def _put(self, record: OutageRecord) -> None:
        outage = record.outage
        self._of[outage.name] = record
        keys = [self._targets.key(rank) for rank in outage.targets]
        row: dict[str, Any] = {**outage.to_json(), "keys": [*keys, *record.absent], "user": record.user}
        del row["name"], row["targets"]
        row |= {key: True for key, is_so in (("on", record.is_on), ("configured", record.is_configured)) if is_so}
        if record.homes:
            row["homes"] = dict(record.homes)
        self._out.save("outage", outage.name, row)

    def _begin(self, record: OutageRecord, now_s: float) -> None:
        self._put(replace(record, is_on=True))
        self._keep(record, record.outage.targets, now_s)

    def _keep(self, record: OutageRecord, targets: Idset, now_s: float) -> None:
        """Drain targets for an outage that is on, or give them to the group that it is dedicated to."""
        outage, there = record.outage, self._targets.present - self._groups.members[EXCLUDE]
        if outage.group:
            self._dedicate(self._of[outage.name], targets & there, now_s)
        if outage.group or outage.is_reservation:
            return
        reason = outage.reason or f"outage {outage.name}"
        self._drains.add(targets & there, Drain(now_s, reason, record.user, outage=outage.name))

    def _lift(self, name: str, now_s: float, kept: Idset = EMPTY) -> None:
        """Lift the drains of an outage, but of `kept`."""
        targets = self._drains.drained - kept
        self._drains.lift(targets, "the outage is over", None, now_s, which=lambda each: each.outage == name)

    def _dedicate(self, record: OutageRecord, targets: Idset, now_s: float) -> None:
        group, homes = record.outage.group, dict(record.homes)
        for home, some in split(self._groups.goals, targets):
            if home != group:
                homes.update(dict.fromkeys([self._targets.key(rank) for rank in some], home))
        self._put(replace(record, homes=homes))
        self._assign(targets, group, True, record.user, now_s)

    def _give_back(self, record: OutageRecord, after: Outage | None, now_s: float) -> None:
        """Return what an outage has that is over, or is another one from now on, which keeps what both have."""
        name, group = record.outage.name, record.outage.group
        goes_on = after is not None and after.from_s <= now_s and after.group == group
        kept = after.targets if after is not None and goes_on else EMPTY
        if not group:
            self._lift(name, now_s, kept)
        elif record.homes:
            came: dict[str, list[int]] = {}
            for rank in (record.outage.targets & self._groups.goals.get(group, EMPTY)) - kept:
                home = record.homes.get(self._targets.key(rank))
                if home is not None:
                    came.setdefault(home, []).append(rank)
            for home, ranks in came.items():
                self._assign(Idset.of(ranks), home, True, record.user, now_s)

    def _end(self, name: str, record: OutageRecord, there: Outage | None, now_s: float) -> None:
        """End an occurrence; `there` is the next one."""
        if there is None:
            del self._of[name]
            self._out.save("outage", name, None)
        else:
            self._put(replace(record, outage=there, is_on=False, homes={}))
        self._give_back(record, None, now_s)

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
        if outage.queue:
            context["queue"] = outage.queue
        if outage.is_reservation:
            context |= {"reservation": True, "users": list(outage.users)}
        if outage.reason:
            context["reason"] = outage.reason
        self._out.post(now_s, name, context if user is None else context | {"user": user})
