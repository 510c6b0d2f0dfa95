"""Settings of a partition beside its tree of queues: rules of placement, access, templates.

Law: a value of these classes has been checked, so that what uses it cannot fail for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fluxsched.core.amounts import Amounts
from fluxsched.sched.quotas.queue import QueueSettings

ROOT: Final = "root"
FAIR_ORDER: Final = "fair"
BINPACKING_ORDER: Final = "binpacking"
WEIGHTS: Final[Mapping[str, float]] = MappingProxyType({"vcore": 1.0, "memory": 1.0})

FILTERED_NAME_CHARS_MAX = 256
"""No pattern is found in a longer name."""

PROVIDED: Final = "provided"
USER: Final = "user"
FIXED: Final = "fixed"
TAG: Final = "tag"
RULES: Final = (PROVIDED, USER, FIXED, TAG)


@dataclass(frozen=True, slots=True)
class AccessList:
    """List of the users who have access: some users, all in some groups, or anyone."""

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    is_anyone: bool = False

    def allows(self, user: str, groups: frozenset[str]) -> bool:
        """Return whether the user is on the list."""
        return self.is_anyone or user in self.users or not self.groups.isdisjoint(groups)


@dataclass(frozen=True, slots=True)
class NameFilter:
    """Names in a list, or those that a pattern is found in."""

    names: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the filter has neither names nor a pattern."""
        return not self.names and self.pattern is None

    def has(self, name: str) -> bool:
        """Return whether the name passes the filter."""
        if self.pattern is None or len(name) > FILTERED_NAME_CHARS_MAX:
            return name in self.names
        return self.pattern.search(name) is not None


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """Whom a rule is for: those named if `is_allowed`, else all others; without names all, or none."""

    is_allowed: bool = True
    users: NameFilter = field(default_factory=NameFilter)
    groups: NameFilter = field(default_factory=NameFilter)

    def admits(self, user: str, groups: frozenset[str]) -> bool:
        """Return whether the rule is for this user."""
        if self.users.is_empty and self.groups.is_empty:
            return self.is_allowed
        return (self.users.has(user) or any(map(self.groups.has, groups))) == self.is_allowed


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """One rule; `value` is the queue of `fixed`, or the name of a tag."""

    name: str
    is_creating: bool = False
    value: str = ""
    filter: RuleFilter = field(default_factory=RuleFilter)
    parent: PlacementRule | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.value}".rstrip()


@dataclass(frozen=True, slots=True)
class ChildTemplate:
    """Template of queues that are created below; `properties` are those of the template alone."""

    max_applications: int = 0
    guaranteed: Amounts = ()
    maximum: Amounts = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """Of one configured queue what the tree does not need; `properties` are its own and those that it inherits."""

    submit: AccessList
    admin: AccessList
    properties: Mapping[str, str]
    template: ChildTemplate | None = None


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """One partition.

    `access` has the configured queues by path; `is_open`: none of them says who may submit, so that all may. The limits
    of the partition are those of the root.
    """

    name: str
    root: QueueSettings
    access: Mapping[str, QueueAccess]
    rules: tuple[PlacementRule, ...] = ()
    node_order: str = FAIR_ORDER
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    preemption: bool = False
    is_open: bool = False
