"""Ownership of targets by groups: groups as configured, as changed live, and targets on their way between groups.

Law: every target has one *goal*, the group where it belongs by live assignment, configuration or, named by neither,
`default`. It is either settled (a member of one group) or leaving one; a settled target whose goal is another group is
waiting for a graceful move. Lost targets keep their goal and, once they have left, belong to no group.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.resource.state.inventory import Targets, are, describe

DEFAULT: Final = "default"
"""The group of all targets that no other group names (RFC 28)."""

EXCLUDE: Final = "exclude"
"""The group that cannot be acquired (RFC 28)."""

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
            check_name(name)
        if len(self.goals) + len(new) > GROUPS_MAX:
            named = ", ".join(map(repr, new))
            raise LimitExceeded(f"with group {named} there are more than the limit of {GROUPS_MAX}: use existing ones")

    def make(self, name: str) -> None:
        """An empty group; a group once made stays."""
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
        """The group that owns a target, also while it is leaving; None for one that is lost and gone."""
        for table in (self.members, self.leaving):
            for name, ranks in table.items():
                if rank in ranks:
                    return name
        return None

    def goal_of(self, rank: int) -> str:
        """The group where a target belongs."""
        return next(name for name, ranks in self.goals.items() if rank in ranks)

    def owned(self, name: str) -> Idset:
        """Members and those still leaving."""
        return self.members.get(name, EMPTY) | self.leaving.get(name, EMPTY)

    def aim(self, targets: Idset, goal: str) -> None:
        """From now on these targets belong to `goal`."""
        for name in self.goals:
            self.goals[name] -= targets
        self.goals[goal] |= targets

    def leave(self, name: str, targets: Idset) -> None:
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
        """New or returned targets that no group owns are settled where they belong; returns those, by group.

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
    """The parts of `targets` that the sets of a table have, empty ones left out."""
    for name, ranks in list(table.items()):
        if part := ranks & targets:
            yield name, part


def check_name(name: str) -> None:
    """Raise InvalidValue for what cannot name a group."""
    if len(name) > GROUP_NAME_CHARS_MAX:
        raise LimitExceeded(f"group name of {len(name)} characters is above the limit of {GROUP_NAME_CHARS_MAX}")
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"group name {name!r} must be letters, digits and, behind the first, any of . _ -")


def check_configured(resources: ResourceSet, configured: Mapping[str, Idset]) -> dict[str, Idset]:
    """A configuration for these resources with `default` and `exclude` filled in.

    Raises InvalidValue naming all unknown targets, or all targets that two groups have in common, and both groups.
    """
    if DEFAULT in configured:
        raise InvalidValue(f"group {DEFAULT!r} cannot be configured: it owns what no other group names")
    if len(configured.keys() | {DEFAULT, EXCLUDE}) > GROUPS_MAX:
        raise LimitExceeded(f"{len(configured)} groups are above the limit of {GROUPS_MAX}: merge some")
    rest = all_targets = resources.ranks
    checked = {DEFAULT: EMPTY, EXCLUDE: EMPTY}
    for name, ranks in configured.items():
        check_name(name)
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
