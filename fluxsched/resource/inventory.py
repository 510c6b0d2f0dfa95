"""Inventory: the targets of R, the lost ones, the rank of each host, the owning groups, and properties changed live.

Laws: a target is known by its host and its place among the targets of that host (`host`, `host,1`, ...). Its rank never
changes while the instance lives, not even while it is lost: a host that returns gets its old rank back. Every target
has one *goal*, the group where it belongs by live assignment, configuration or, named by neither, `default`. It is
either settled (a member of one group) or leaving one; a settled target whose goal is another group is waiting for a
graceful move. Lost targets keep their goal and, once they have left, belong to no group.

Properties added and removed live override the source of R, target by target, and follow the host. A request is done
whole or refused whole; what was removed live stays removed when the source, read again, has it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fluxsched.core.idset import EMPTY, ID_MAX, Idset
from fluxsched.core.resources import Properties, ResourceSet
from fluxsched.core.rlite import NO_PARTS, PartsByRank
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.effects import Outbox

METHODS: Final = ("configuration", "dynamic-discovery", "job-info", "reload", "kvs")
"""Origins of R, in RFC 44's words (resource-define)."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """R and where it came from; `dynamic` if targets may be lost and come back (discovered ones)."""

    resources: ResourceSet
    method: str
    dynamic: bool = False
    withheld: PartsByRank = NO_PARTS
    """The system's own cores, which are not in R."""

    def __post_init__(self) -> None:
        if len(self.resources.nodelist) != len(self.resources):
            raise InvalidValue("the inventory needs the host of each target: give R a nodelist (RFC 20)")
        if self.method not in METHODS:
            raise InvalidValue(f"inventory method {self.method!r} is not one of RFC 44's: {', '.join(METHODS)}")


class Admission(NamedTuple):
    """An R from outside in our ranks, and how its ranks became ours (only those that differ)."""

    resources: ResourceSet
    renumbered: Mapping[int, int]

    def ours(self, targets: Idset) -> Idset:
        """Return a set of the outside's ranks as ours."""
        if not self.renumbered:
            return targets
        return Idset.of([self.renumbered.get(rank, rank) for rank in targets])


class Targets:
    """Every target ever seen; the lost ones stay in `resources`, so that they keep host and rank."""

    def __init__(self, inventory: Inventory) -> None:
        self.resources = inventory.resources
        self.method = inventory.method
        self.dynamic = inventory.dynamic
        self.withheld = inventory.withheld
        self.lost = EMPTY
        self._rank_of: dict[str, int] = {}
        self._key_of: dict[int, str] = {}
        self._per_host: dict[str, int] = {}
        self._learn(inventory.resources)

    @property
    def present(self) -> Idset:
        """All targets but the lost ones."""
        return self.resources.ranks - self.lost

    def key(self, rank: int) -> str:
        """Return the key of a target across restarts and renumbering: `host`, or `host,index` from the second on."""
        return self._key_of[rank]

    def rank(self, key: str) -> int | None:
        """Return the rank of the target with this key, lost or not; None if it has never been seen."""
        return self._rank_of.get(key)

    def nodelist(self, targets: Idset) -> str:
        """Return the hosts of these targets as RFC 29 text."""
        return str(self.resources.hosts(targets & self.resources.ranks))

    def describe(self, targets: Idset) -> str:
        """All of these targets for an error text: `ranks 0-1 (node[0-1])`."""
        return describe(self.resources, targets)

    def require(self, targets: Idset, purpose: str) -> None:
        """Raise InvalidValue naming all of `targets` that do not exist or are lost."""
        faults = self.faults(targets)
        if faults:
            raise InvalidValue(f"cannot {purpose}: {'; '.join(faults)}; the targets are {self.present}")

    def faults(self, targets: Idset) -> list[str]:
        """Return the faults for which `require` would raise, one text a kind of fault."""
        unknown, lost = targets - self.resources.ranks, targets & self.lost
        faults = [f"{self.describe(unknown)} {_verb(unknown)} not exist"] if unknown else []
        return [*faults, f"{self.describe(lost)} {are(lost)} lost"] if lost else faults

    def admit(self, resources: ResourceSet) -> Admission:
        """Return the R of an agent or of a reload in our ranks: known targets keep theirs, new ones get free ones.

        Changes nothing. Raises LimitExceeded when there are no ranks left.
        """
        taken = self.resources.ranks
        renumbered: dict[int, int] = {}
        fresh = [(rank, self._rank_of.get(key)) for rank, key in _keys(resources)]
        claimed = Idset.of([rank for rank, known in fresh if known is None and rank not in taken])
        following = max((ids.max() for ids in (taken, claimed) if ids), default=-1) + 1
        for rank, known in fresh:
            if known is None and rank in taken:
                known, following = following, following + 1
            if known is not None and known != rank:
                renumbered[rank] = known
        if following > ID_MAX + 1:
            raise LimitExceeded(f"no rank is left for {resources.nodelist}: the limit is {ID_MAX}; start anew")
        mapped = {rank: renumbered.get(rank, rank) for rank, _ in fresh}
        return Admission(resources.rerank_by(mapped) if renumbered else resources, renumbered)

    def changed(self, admitted: ResourceSet) -> Idset:
        """Return the targets of an admitted R that are known with other children."""
        known = self.resources.ranks & admitted.ranks
        ours, theirs = self.resources, admitted
        if not known or ours.restrict(known).entries == theirs.restrict(known).entries:
            return EMPTY
        return Idset.of([rank for rank in known if ours.children(rank) != theirs.children(rank)])

    def merged(self, admitted: ResourceSet) -> ResourceSet:
        """Return the known resources with an admitted R taken over: it replaces its ranks and leaves the others
        alone.
        """
        kept = self.resources.without(admitted.ranks)
        return admitted | kept if kept else admitted

    def add(self, admitted: ResourceSet) -> None:
        """Add an admitted R of targets that join; times stay as they are."""
        before = self.resources
        merged = self.merged(admitted).with_shared(before.shared)
        self.replace(merged.with_expiration(before.starttime_s, before.expiration_s))

    def replace(self, resources: ResourceSet) -> None:
        """Another R that has at least the ranks we know."""
        known, self.resources = self.resources.ranks, resources
        if resources.ranks != known:
            self._learn(resources)

    def _learn(self, resources: ResourceSet) -> None:
        """Give keys to the ranks that have none; an index counts on from the targets that the host has already."""
        for rank, host in zip(resources.ranks, resources.nodelist, strict=True):
            if rank not in self._key_of:
                index = self._per_host.get(host, 0)
                self._per_host[host] = index + 1
                key = _key(host, index)
                self._rank_of[key], self._key_of[rank] = rank, key


def describe(resources: ResourceSet, targets: Idset) -> str:
    """All of these targets for an error text, with the hosts of those that are in R."""
    hosts = str(resources.hosts(targets & resources.ranks))
    ranks = f"{'rank' if len(targets) == 1 else 'ranks'} {targets}"
    return f"{ranks} ({hosts})" if hosts else ranks


def key_host(key: str) -> str:
    """Return the host of a target's key."""
    return key.partition(",")[0]


def _keys(resources: ResourceSet) -> Iterator[tuple[int, str]]:
    """Each rank with its key, ascending."""
    seen: dict[str, int] = {}
    for rank, host in zip(resources.ranks, resources.nodelist, strict=True):
        index = seen.get(host, 0)
        seen[host] = index + 1
        yield rank, _key(host, index)


def _key(host: str, index: int) -> str:
    return f"{host},{index}" if index else host


def are(targets: Idset) -> str:
    """Return `is` or `are`, as `describe` of these targets needs it."""
    return "is" if len(targets) == 1 else "are"


def _verb(targets: Idset) -> str:
    return "does" if len(targets) == 1 else "do"


# ---- groups

DEFAULT: Final = "default"
"""The group of all targets that no other group names (RFC 28)."""

EXCLUDE: Final = "exclude"
"""The group that cannot be acquired (RFC 28)."""

SPARES: Final = "spares"
"""The group of targets that stand by for others; it cannot be acquired."""

GROUPS_MAX = 256
"""Every event is weighed against each group once; a site has a handful."""

GROUP_NAME_CHARS_MAX = 64
"""A name is typed, listed and repeated in messages."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class GroupView(NamedTuple):
    """One group for people: its targets, those that leave it, those that will come, and who acquired it."""

    name: str
    targets: Idset
    leaving: Idset
    incoming: Idset
    acquirer: object | None
    dialect: str | None


class Groups:
    """Sets by group name; `members`, `leaving` (by the group they leave) and `goals` are each disjoint.

    `mirrors` are the groups that have the targets of other instances.
    """

    def __init__(self, targets: Targets, configured: Mapping[str, Idset], mirrors: Iterable[str] = ()) -> None:
        self._targets = targets
        self.configured = check_configured(targets.resources, configured)
        self.goals = dict(self.configured)
        self.members = dict(self.configured)
        self.leaving = dict.fromkeys(self.configured, EMPTY)
        self.waiting = EMPTY
        self.assigned: dict[int, str] = {}
        self.mirrors = frozenset(mirrors)

    def __contains__(self, name: str) -> bool:
        return name in self.goals

    @property
    def names(self) -> list[str]:
        """All groups, `default` and `exclude` among them."""
        return list(self.goals)

    @property
    def all_leaving(self) -> Idset:
        """Every target that is leaving a group."""
        return _union(self.leaving.values())

    @property
    def moving(self) -> Idset:
        """Return the targets that are leaving or wait to leave."""
        return self.all_leaving | self.waiting

    @property
    def nothing_moves(self) -> bool:
        """Nothing leaves or waits to: the usual case, and cheaper to say than what moves."""
        return not self.waiting and not any(self.leaving.values())

    def check_new(self, *names: str) -> None:
        """Raise InvalidValue if one of these groups does not exist and cannot be made."""
        new = [name for name in names if name not in self]
        for name in new:
            check_group_name(name)
        if len(self.goals) + len(new) > GROUPS_MAX:
            named = ", ".join(map(repr, new))
            raise LimitExceeded(f"with group {named} there are more than the limit of {GROUPS_MAX}: use existing ones")

    def make(self, name: str) -> None:
        """Make an empty group; a group once made stays."""
        for table in (self.configured, self.goals, self.members, self.leaving):
            table.setdefault(name, EMPTY)

    def targets_of(self, name: str) -> Idset:
        """Members of a group. Raises Refused (ENOENT) naming the groups there are."""
        if name not in self:
            there = ", ".join(sorted(self.goals))
            text = f"there is no group {name!r}: the groups are {there}; assign targets to a new one to create it"
            raise Refused(text, errno.ENOENT)
        return self.members[name]

    def group_of(self, rank: int) -> str | None:
        """Return the group that owns a target, also while it is leaving; None for one that is lost and gone."""
        for table in (self.members, self.leaving):
            for name, ranks in table.items():
                if rank in ranks:
                    return name
        return None

    def goal_of(self, rank: int) -> str:
        """Return the group where a target belongs."""
        return next(name for name, ranks in self.goals.items() if rank in ranks)

    def configured_for(self, rank: int) -> str:
        """Return the group where the configuration has a target: `default` if it does not name it."""
        return next((name for name, ranks in self.configured.items() if rank in ranks), DEFAULT)

    def owned(self, name: str) -> Idset:
        """Members and those still leaving."""
        members, leaving = self.members.get(name, EMPTY), self.leaving.get(name)
        return members | leaving if leaving else members  # each grant is checked, and a union copies all members

    def aim(self, targets: Idset, goal: str) -> None:
        """From now on these targets belong to `goal`."""
        for name in self.goals:
            self.goals[name] -= targets
        self.goals[goal] |= targets

    def begin_leaving(self, name: str, targets: Idset) -> None:
        """Members of a group start leaving it."""
        self.members[name] -= targets
        self.leaving[name] |= targets
        self.waiting -= targets

    def arrive(self, source: str, goal: str | None, targets: Idset) -> None:
        """Leaving targets have left `source` and are settled in `goal`, or gone."""
        self.leaving[source] -= targets
        if goal is not None:
            self.members[goal] |= targets

    def join(self, targets: Idset, held: Idset) -> dict[str, Idset]:
        """Settle new or returned targets that no group owns where they belong; return those, by group.

        What a job of before a restart still holds is on its way home instead, and arrives when it is free.
        """
        joined = dict(split(self.goals, targets - held))
        for name, part in joined.items():
            self.members[name] |= part
        for name, part in split(self.goals, targets & held):
            self.leaving[name] |= part
        return joined

    def reconfigure(self, checked: Mapping[str, Idset]) -> None:
        """Another configuration, checked; groups that it does not name any more stay, without configured targets."""
        for name in checked:
            self.make(name)
        self.configured = dict.fromkeys(self.goals, EMPTY) | dict(checked)

    def adopt(self, targets: Idset, configured: Mapping[str, Idset]) -> None:
        """Targets never seen before get the goal that `configured`, checked, has for them."""
        for name, part in split(configured, targets):
            self.make(name)
            self.configured[name] |= part
            self.goals[name] |= part

    def assign(self, targets: Idset, name: str) -> list[tuple[int, str | None]]:
        """Note that `targets` are assigned to a group live; returns what changed: None for assigned back."""
        by_config, changed = self.configured[name], list[tuple[int, str | None]]()
        for rank in targets:
            wanted = None if rank in by_config else name
            if self.assigned.get(rank) != wanted:
                changed.append((rank, wanted))
                if wanted is None:
                    del self.assigned[rank]
                else:
                    self.assigned[rank] = wanted
        return changed

    def view(self, name: str, acquirer: object | None, dialect: str | None) -> GroupView:
        """Return the view of one group for people."""
        present = self._targets.present
        incoming = (self.goals[name] - self.members[name]) & present
        return GroupView(name, self.members[name], self.leaving[name], incoming, acquirer, dialect)

    def check(self) -> None:
        """Assert that a target belongs to one group and has one goal."""
        owned = [*self.members.values(), *self.leaving.values()]
        assert sum(map(len, owned)) == len(_union(owned)), "a target belongs to two groups"
        all_targets, present = self._targets.resources.ranks, self._targets.present
        assert present <= _union(owned) <= all_targets, "a target belongs to no group"
        assert _union(self.members.values()) <= present, "a lost target is settled"
        for table in (self.goals, self.configured):
            assert _union(table.values()) == all_targets, "a target has no goal"
            assert sum(map(len, table.values())) == len(all_targets), "a target has two goals"
        astray = _union(self.members[name] - self.goals[name] for name in self.goals)
        assert astray == self.waiting, "a settled target is where it does not belong and is not waiting to move"


def split(table: Mapping[str, Idset], targets: Idset) -> Iterator[tuple[str, Idset]]:
    """Yield the parts of `targets` that the sets of a table have, empty ones left out."""
    for name, ranks in list(table.items()):
        if part := ranks & targets:
            yield name, part


def check_group_name(name: str) -> None:
    """Raise InvalidValue for what cannot name a group."""
    if len(name) > GROUP_NAME_CHARS_MAX:
        raise LimitExceeded(f"group name of {len(name)} characters is above the limit of {GROUP_NAME_CHARS_MAX}")
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"group name {name!r} must be letters, digits and, behind the first, any of . _ -")


def check_configured(resources: ResourceSet, configured: Mapping[str, Idset]) -> dict[str, Idset]:
    """Return a configuration for these resources with `default` and `exclude` filled in.

    Raises InvalidValue naming all unknown targets, or all targets that two groups have in common, and both groups.
    """
    if DEFAULT in configured:
        raise InvalidValue(f"group {DEFAULT!r} cannot be configured: it owns what no other group names")
    if len(configured.keys() | {DEFAULT, EXCLUDE}) > GROUPS_MAX:
        raise LimitExceeded(f"{len(configured)} groups are above the limit of {GROUPS_MAX}: merge some")
    rest = all_targets = resources.ranks
    checked = {DEFAULT: EMPTY, EXCLUDE: EMPTY}
    for name, ranks in configured.items():
        check_group_name(name)
        if unknown := ranks - all_targets:
            fault = f"{describe(resources, unknown)} {are(unknown)} unknown"
            raise InvalidValue(f"group {name!r}: {fault}; the targets are {all_targets}")
        for other, twice in split(checked, ranks):
            both = describe(resources, twice)
            raise InvalidValue(f"groups {other!r} and {name!r} both name {both}: a target belongs to one group")
        checked[name] = ranks
        rest -= ranks
    return checked | {DEFAULT: rest}


def _union(sets: Iterable[Idset]) -> Idset:
    union = EMPTY
    for ranks in sets:
        union |= ranks
    return union


# ---- properties changed live

PROPERTIES_MAX = 1024
"""Names of properties in one R: every job's R and every constraint walks them."""


class PropertyOverrides:
    """Properties changed live, by target and name: True for added, False for removed."""

    def __init__(self, targets: Targets, out: Outbox) -> None:
        self._targets = targets
        self._out = out
        self._of: dict[int, dict[str, bool]] = {}

    def change(self, properties: Properties, add: bool, now_s: float) -> None:
        """Add properties to targets or remove them.

        Raises InvalidValue for illegal names, for targets that are unknown or lost, all named, and for a removal from
        targets that do not have the property; LimitExceeded above PROPERTIES_MAX names.
        """
        verb = "add" if add else "remove"
        if not any(properties.values()):
            raise InvalidValue(f"cannot {verb} properties: no target is named; give NAME: targets")
        named = EMPTY
        for ranks in properties.values():
            named |= ranks
        self._targets.require(named, f"{verb} properties {', '.join(sorted(properties))}")
        resources = _changed(self._targets.resources, properties, add)
        if len(resources.properties) > PROPERTIES_MAX:
            raise LimitExceeded(f"{len(resources.properties)} properties are above the limit of {PROPERTIES_MAX}")
        self._targets.replace(resources)
        for name, ranks in properties.items():
            for rank in ranks:
                self._of.setdefault(rank, {})[name] = add
        for rank in named:
            self._out.save("property", self._targets.key(rank), self._row(rank))
        context = {"properties": {name: str(ranks) for name, ranks in properties.items()}}
        self._out.post(now_s, f"property-{verb}", context)

    def restore(self, rank: int, row: Mapping[str, Any]) -> None:
        """Take up a stored row; `applied` makes it count."""
        self._of[rank] = dict.fromkeys(row.get("add", ()), True) | dict.fromkeys(row.get("remove", ()), False)

    def applied(self, resources: ResourceSet, targets: Idset) -> ResourceSet:
        """R as its source has it, with what was changed live on these targets."""
        ranks: dict[tuple[str, bool], list[int]] = {}
        for rank in targets & Idset.of(self._of):
            for name, add in self._of[rank].items():
                ranks.setdefault((name, add), []).append(rank)
        for (name, add), found in ranks.items():
            having = resources.properties.get(name, EMPTY)
            changed = Idset.of(found) if add else Idset.of(found) & having
            resources = _changed(resources, {name: changed}, add)
        return resources

    def _row(self, rank: int) -> dict[str, Any]:
        changes = self._of[rank]
        return {
            "add": sorted(name for name, add in changes.items() if add),
            "remove": sorted(name for name, add in changes.items() if not add),
        }


def _changed(resources: ResourceSet, properties: Properties, add: bool) -> ResourceSet:
    for name, ranks in properties.items():
        resources = resources.add_property(name, ranks) if add else resources.remove_property(name, ranks)
    return resources
