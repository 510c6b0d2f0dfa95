"""Settings of a partition: its tree of queues, rules of placement, access, templates, quantities.

A quantity is as Kubernetes writes it: `2`, `500m`, `4Gi`, `1.5G`, `1e3`; vcore in thousandths, others in their unit. It
is a whole number of units within 0 and AMOUNT_MAX; nothing is rounded.

Laws: a value of these classes has been checked, so that what uses it cannot fail for it. Properties are inherited as
YuniKorn does it: orders and the delay of preemption go down, of `preemption.policy` only `disabled`, offsets and fences
not at all. The pattern of a rule's filter costs little whatever name it is applied to: it comes over the wire, and
Python's matcher goes back, so no group may repeat, and repetitions are few. What YuniKorn's own matcher cannot do
(references, looking around) is refused.

Reader of a configuration as YuniKorn 1.2 writes it, and its report for people: faults, or the tree of queues.

Laws: a configuration is read whole or refused with all its faults; what is returned is complete and holds together. No
maximum is above that of a queue above it, and guarantees fit: a queue's own and those below it together, within its
guarantee and within its maximum. A kind that a queue does not name is bounded by those above alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from fluxsched.core.quantities import AMOUNT_MAX, Amounts
from fluxsched.core.text import shown, some_of
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded
from fluxsched.yunikorn.sections import CONFIG_CHARS_MAX, ConfigFaults, Section, SectionPath, load_yaml
from fluxsched.yunikorn.tree import queues as quotas
from fluxsched.yunikorn.tree.queues import QUEUE_DEPTH_MAX, Limit, QueueSettings

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


# ---- quantities

VCORE: Final = "vcore"
MEMORY: Final = "memory"
VCORE_UNITS: Final = 1000
"""Number of units of one vcore."""

_QUANTITY: Final = re.compile(r"([0-9]{1,25})(?:\.([0-9]{0,25}))?(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))", re.ASCII)

_SUFFIXES: Final[Mapping[str, int]] = (
    {"": 1}
    | {suffix: 1000**power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)}
    | {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
)


def parse_quantity(kind: str, text: str) -> int:
    """Units of a kind. Raises InvalidValue for what is not a quantity or not whole, LimitExceeded above AMOUNT_MAX."""
    match = _QUANTITY.fullmatch(text.strip())
    suffix = "" if match is None else match[4] or ""
    if match is None or (suffix not in _SUFFIXES and suffix != "m"):
        raise InvalidValue(f"{shown(text)} is not a quantity such as 2, 500m or 4Gi")
    whole, decimals, exponent = match[1], match[2] or "", int(match[3] or 0)
    units = int(whole + decimals) * _SUFFIXES.get(suffix, 1) * (VCORE_UNITS if kind == VCORE else 1)
    tens = exponent - len(decimals) - (3 if suffix == "m" else 0)
    found, rest = divmod(units * _ten_to(tens), _ten_to(-tens))
    if rest:
        raise InvalidValue(f"{shown(text)} is not a whole number of {'thousandths' if kind == VCORE else 'units'}")
    if found > AMOUNT_MAX:
        raise LimitExceeded(f"{shown(text)} is above the limit of {AMOUNT_MAX}")
    return found


def _ten_to(power: int) -> int:
    """1 for a negative power."""
    return int(10 ** max(0, power))


def quantity_text(kind: str, amount: int) -> str:
    """`2`, `500m`, `4Gi`: as it is written in a configuration."""
    if kind == VCORE:
        return f"{amount}m" if amount % VCORE_UNITS else str(amount // VCORE_UNITS)
    suffix = ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi") if kind == MEMORY and amount else ():
        if amount % 1024:
            break
        amount, suffix = amount // 1024, larger
    return f"{amount}{suffix}"


# ---- one queue as it is written

CONFIG_KINDS_MAX = 32
"""Kinds of resources in one list of amounts, as of one Resource."""

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)

COUNT_MAX: Final = (1 << 31) - 1
"""Of applications, and of offsets on either side of 0: 32 bits, as the interface's priorities."""

SORT_POLICY: Final = "application.sort.policy"
SORT_PRIORITY: Final = "application.sort.priority"
PRIORITY_OFFSET: Final = "priority.offset"
PRIORITY_POLICY: Final = "priority.policy"
PREEMPTION_POLICY: Final = "preemption.policy"
PREEMPTION_DELAY: Final = "preemption.delay"

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    SORT_POLICY: quotas.SORTS,
    SORT_PRIORITY: ("enabled", "disabled"),
    PRIORITY_POLICY: ("default", "fence"),
    PREEMPTION_POLICY: quotas.PREEMPTION_POLICIES,
}
PROPERTIES: Final = (*_CHOICES, PRIORITY_OFFSET, PREEMPTION_DELAY)
_INHERITED: Final = (SORT_POLICY, SORT_PRIORITY, PREEMPTION_DELAY)

_OFFSET: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", re.ASCII)
_DURATION_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Quotas(NamedTuple):
    """Amounts in the section `resources` of a queue."""

    guaranteed: Amounts
    maximum: Amounts


@dataclass(slots=True)
class QueueSection:
    """A queue as it was read, with the path where that was; `properties` are its own."""

    path: SectionPath
    name: str
    is_parent: bool
    quotas: Quotas
    max_applications: int
    limits: tuple[Limit, ...]
    submit: AccessList | None
    admin: AccessList | None
    properties: dict[str, str]
    template: ChildTemplate | None
    children: list[QueueSection] = field(default_factory=list)


def read_queue(section: Section, depth: int) -> QueueSection:
    """Return a queue and those below it; `depth` is 0 for the root."""
    if depth > QUEUE_DEPTH_MAX:
        section.faults.add(
            section.path, f"it is {depth} levels deep, the limit is {QUEUE_DEPTH_MAX}: give it another parent"
        )
    name = section.text("name")
    if QUEUE_NAME.fullmatch(name) is None and section.is_mapping:
        section.fault("name", f"{shown(name)} cannot be a queue's name: use 1 to 64 letters, digits, `_` and `-`")
    found = QueueSection(
        path=section.path,
        name=name,
        is_parent=section.flag("parent"),
        submit=_access(section, "submitacl"),
        admin=_access(section, "adminacl"),
        quotas=_quotas(section.section("resources")),
        max_applications=section.whole("maxapplications", 0, COUNT_MAX),
        properties=_properties(section.section("properties")),
        limits=read_limits(section),
        template=_template(section.section("childtemplate")),
        children=[read_queue(below, depth + 1) for below in section.sections("queues")],
    )
    found.is_parent = found.is_parent or bool(found.children)
    section.end()
    check_names(found.children, section.faults)
    return found


def check_names(queues: Sequence[QueueSection], faults: ConfigFaults) -> None:
    """Note which have the name of one before."""
    names = set()
    for queue in queues:
        if queue.name and queue.name in names:
            faults.add((*queue.path, "name"), f"there is another queue {shown(queue.name)} beside it")
        names.add(queue.name)


def read_limits(section: Section) -> tuple[Limit, ...]:
    """Return the list `limits` of a queue or a partition."""
    return tuple([_limit(each) for each in section.sections("limits")])


def settings_of(queue: QueueSection, inherited: Mapping[str, str]) -> QueueSettings:
    """Return the queue and those below it, as the tree takes them."""
    properties = inherit(inherited, queue.properties)
    return queue_settings(
        queue.name,
        properties,
        is_parent=queue.is_parent,
        guaranteed=queue.quotas.guaranteed,
        maximum=queue.quotas.maximum,
        max_applications=queue.max_applications,
        limits=queue.limits,
        children=tuple([settings_of(child, properties) for child in queue.children]),
    )


def queue_settings(
    name: str, properties: Mapping[str, str], *, is_parent: bool, guaranteed: Amounts, maximum: Amounts,
    max_applications: int, limits: tuple[Limit, ...] = (), children: tuple[QueueSettings, ...] = (),
) -> QueueSettings:  # fmt: skip
    """Return the settings of a queue of checked properties."""
    return QueueSettings(
        name=name,
        is_parent=is_parent,
        guaranteed=guaranteed,
        maximum=maximum,
        max_applications=max_applications,
        sort=properties.get(SORT_POLICY, quotas.FIFO),
        by_priority=properties.get(SORT_PRIORITY, "enabled") == "enabled",
        priority_offset=int(properties.get(PRIORITY_OFFSET, "0")),
        priority_fence=properties.get(PRIORITY_POLICY) == "fence",
        preemption=properties.get(PREEMPTION_POLICY, quotas.PREEMPT_DEFAULT),
        preemption_delay_s=_duration_s(properties.get(PREEMPTION_DELAY, "")) or quotas.PREEMPTION_DELAY_S,
        limits=limits,
        children=children,
    )


def inherit(above: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a queue below one with those `above`."""
    found = {key: above[key] for key in _INHERITED if key in above}
    if above.get(PREEMPTION_POLICY) == quotas.PREEMPT_DISABLED:
        found[PREEMPTION_POLICY] = quotas.PREEMPT_DISABLED
    return {**found, **own}


def access_of(queue: QueueSection, properties: Mapping[str, str], template: ChildTemplate | None) -> QueueAccess:
    """Return the settings of a queue that the tree does not need, with the template of the queues above where it has
    none.
    """
    none = AccessList()
    return QueueAccess(queue.submit or none, queue.admin or none, properties, queue.template or template)


def read_amounts(section: Section) -> Amounts:
    """Quantities by kind; those of 0 stay, for a maximum of 0 allows nothing."""
    items = section.items()
    if len(items) > CONFIG_KINDS_MAX:
        section.faults.add(section.path, f"{len(items)} kinds of resources: the limit is {CONFIG_KINDS_MAX}")
    found = []
    for kind, text in items:
        try:
            found.append((kind, parse_quantity(kind, text)))
        except InvalidValue as fault:
            section.fault(kind, str(fault))
    return tuple(sorted(found))


def _quotas(section: Section) -> Quotas:
    guaranteed = read_amounts(section.section("guaranteed"))
    found = Quotas(tuple([each for each in guaranteed if each[1]]), read_amounts(section.section("max")))
    section.end()
    return found


def _properties(section: Section) -> dict[str, str]:
    found = {}
    for key, value in section.items():
        if key not in PROPERTIES:
            section.fault(key, f"this property is not known, only {some_of(sorted(PROPERTIES))}")
        elif key in _CHOICES and value not in _CHOICES[key]:
            section.fault(key, f"{shown(value)} is not one of {', '.join(_CHOICES[key])}")
        elif key == PRIORITY_OFFSET and (_OFFSET.fullmatch(value) is None or abs(int(value)) > COUNT_MAX):
            section.fault(key, f"{shown(value)} is not a whole number within -{COUNT_MAX} and {COUNT_MAX}")
        elif key == PREEMPTION_DELAY and not _duration_s(value):
            section.fault(key, f"{shown(value)} is not a time above 0 such as 30s or 1m30s")
        else:
            found[key] = value
    return found


def _duration_s(text: str) -> float:
    """Of a duration as Go writes it, `1m30s`; 0.0 if it is none."""
    parts = _DURATION.findall(text)
    if "".join([number + unit for number, unit in parts]) != text:
        return 0.0
    return sum([float(number) * _DURATION_UNITS_S[unit] for number, unit in parts])


def _limit(section: Section) -> Limit:
    before = len(section.faults.found)
    section.text("limit")  # what people call it
    found = Limit(
        users=frozenset(section.texts("users")),
        groups=frozenset(section.texts("groups")),
        maximum=read_amounts(section.section("maxresources")),
        max_applications=section.whole("maxapplications", 0, COUNT_MAX),
    )
    section.end()
    if len(section.faults.found) > before:
        return found  # what is missing may be what was wrong
    if not found.users and not found.groups:
        section.faults.add(section.path, "it names no users and no groups: give either, `*` for anyone")
    if not found.maximum and not found.max_applications:
        section.faults.add(section.path, "it limits nothing: give maxresources or maxapplications")
    return found


def _template(section: Section) -> ChildTemplate | None:
    if not section.is_given:
        return None
    applications = section.whole("maxapplications", 0, COUNT_MAX)
    properties = _properties(section.section("properties"))
    resources = section.section("resources")
    found = _quotas(resources)
    section.end()
    maximum = dict(found.maximum)
    for kind, amount in found.guaranteed:
        if amount > maximum.get(kind, amount):
            resources.faults.add((*resources.path, "guaranteed", kind), "it is above the max of the same template")
    return ChildTemplate(applications, found.guaranteed, found.maximum, properties)


def _access(section: Section, key: str) -> AccessList | None:
    """`user,user group,group`, or `*`; None where it is not given."""
    text = section.text(key)
    if not text.strip():
        return None
    lists = text.rstrip().split(" ")
    if len(lists) > 2:
        section.fault(key, f"{shown(text)} has more than one blank: write `user,user group,group`, or `*`")
        return None
    users, groups = [frozenset(filter(None, names.split(","))) for names in (*lists, "")[:2]]
    return AccessList(users, groups, quotas.ANYONE in users or quotas.ANYONE in groups)


# ---- placement rules

PATTERN_CHARS_MAX = 256
"""Maximum number of characters of one pattern."""

PATTERN_REPEATS_MAX = 2
"""Repetitions in one pattern: the steps of a search grow with the name's length to one more than this power."""

RULE_DEPTH_MAX = 8
"""Parents of parents of a rule."""

_SPECIAL: Final = re.compile(r"[\\^$*+?()\[{}|]")
"""Characters that make a single entry a pattern."""

_PATTERN_PARTS: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[a-zA-Z]+[:)]|:|P?<[A-Za-z_]\w*>)?|[(){|*+?]|.", re.DOTALL
)

_SET_IN_SET: Final = re.compile(r"(?<!\\)\[|--|&&|~~|\|\|")
"""Means different things to different matchers."""


def read_rules(section: Section) -> tuple[PlacementRule, ...]:
    """Return the list `placementrules` of a partition."""
    return tuple([_rule(each, 0) for each in section.sections("placementrules")])


def check_pattern(text: str) -> re.Pattern[str]:
    """Raise InvalidValue for what is no pattern, or may cost much; LimitExceeded for a long one."""
    if len(text) > PATTERN_CHARS_MAX:
        raise LimitExceeded(f"a pattern of {len(text)} characters is above the limit of {PATTERN_CHARS_MAX}")
    repeats = 0
    before = ""
    for part in _PATTERN_PARTS.findall(text):
        if part == "(?" or (part[0] == "\\" and part[1:].isdigit()):
            raise InvalidValue(f"{shown(text)} uses lookaround or a back-reference, which are not supported")
        if part[0] == "[" and _SET_IN_SET.search(part[1:]):
            raise InvalidValue(f"{shown(text)} has a nested set, such as [[:alpha:]]: write [A-Za-z]")
        if part in ("*", "+", "?", "{"):
            if before == ")":
                raise InvalidValue(f"{shown(text)} repeats a group, which may take for ever: repeat single characters")
            repeats += before not in ("*", "+", "?", "{")
        before = part
    if repeats > PATTERN_REPEATS_MAX:
        raise LimitExceeded(f"{shown(text)} repeats {repeats} parts, the limit is {PATTERN_REPEATS_MAX}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as fault:
        raise InvalidValue(f"{shown(text)} is no regular expression: {fault}") from None


def _rule(section: Section, depth: int) -> PlacementRule:
    name = section.choice("name", RULES, "")
    value = section.text("value")
    if name in (FIXED, TAG) and not value:
        section.fault("value", f"rule {name} needs the {'queue' if name == FIXED else 'name of a tag'}")
    if name == FIXED and value and not all(map(QUEUE_NAME.fullmatch, value.split("."))):
        section.fault("value", f"{shown(value)} is no path of a queue such as root.a")
    is_creating = section.flag("create")
    found_filter = _filter(section.section("filter"))
    above = section.section("parent")
    parent = None
    if above.is_given and depth + 1 >= RULE_DEPTH_MAX:
        section.fault("parent", f"rules within rules: the limit is {RULE_DEPTH_MAX}")
    elif above.is_given:
        parent = _rule(above, depth + 1)
        if name == FIXED and value.startswith("root."):
            section.fault("parent", f"the queue {shown(value)} is named in full, and has no other parent")
    section.end()
    return PlacementRule(name, is_creating, value, found_filter, parent)


def _filter(section: Section) -> RuleFilter:
    kind = section.choice("type", ("allow", "deny"), "allow")
    found = RuleFilter(kind == "allow", _names(section, "users"), _names(section, "groups"))
    section.end()
    return found


def _names(section: Section, key: str) -> NameFilter:
    """Return a list of names, or one pattern."""
    names = section.texts(key)
    if len(names) == 1 and _SPECIAL.search(names[0]):
        try:
            return NameFilter(pattern=check_pattern(names[0]))
        except InvalidValue as fault:
            section.faults.add((*section.path, key, 0), str(fault))
    return NameFilter(frozenset(names))


# ---- reader


def check_root(root: QueueSection, faults: ConfigFaults) -> None:
    """Note all that does not hold in the tree below the root, whose maximum is what nodes have."""
    for key, amounts in (("guaranteed", root.quotas.guaranteed), ("max", root.quotas.maximum)):
        if amounts:
            faults.add((*root.path, "resources", key), "the root has what nodes have: set it for queues below")
    _check(root, ROOT, {}, faults)


def _check(queue: QueueSection, name: str, above: Mapping[str, int], faults: ConfigFaults) -> dict[str, int]:
    """Return what the queue and those below it are guaranteed; `above` is the maximum of the queues above."""
    own = dict(queue.quotas.maximum)
    guaranteed = dict(queue.quotas.guaranteed)
    resources = (*queue.path, "resources")
    for kind in own.keys() & above.keys():
        if own[kind] > above[kind]:
            text = f"{_text(kind, own[kind])} is above the {_text(kind, above[kind])} of a queue above"
            faults.add((*resources, "max", kind), text)
    maximum = {**above, **own, **{kind: min(own[kind], above[kind]) for kind in own.keys() & above.keys()}}
    for kind in guaranteed.keys() & maximum.keys():
        if guaranteed[kind] > maximum[kind]:
            text = f"{_text(kind, guaranteed[kind])} is above the max of {_text(kind, maximum[kind])}"
            faults.add((*resources, "guaranteed", kind), text)
    below: dict[str, int] = {}
    for child in queue.children:
        if queue.max_applications and child.max_applications > queue.max_applications:
            text = f"{child.max_applications} is above the {queue.max_applications} of {name}"
            faults.add((*child.path, "maxapplications"), text)
        for kind, amount in _check(child, f"{name}.{child.name}", maximum, faults).items():
            below[kind] = below.get(kind, 0) + amount
    for what, bounds in (("guaranteed", guaranteed), ("max", maximum)):
        for kind in below.keys() & bounds.keys():
            if below[kind] > bounds[kind]:
                text = (
                    f"queues below {name} are guaranteed {_text(kind, below[kind])}, it has {_text(kind, bounds[kind])}"
                )
                faults.add((*resources, what, kind), text)
    return {kind: max(guaranteed.get(kind, 0), below.get(kind, 0)) for kind in {**guaranteed, **below}}


def _text(kind: str, amount: int) -> str:
    return f"{quantity_text(kind, amount)} {kind}"


# ---- the whole configuration

PARTITIONS_MAX = 64
"""Partitions of one configuration: passes alternate between them."""

DEFAULT_PARTITION: Final = "default"

DEFAULT_CONFIG: Final = """\
partitions:
  - name: default
    placementrules:
      - name: provided
        create: true
      - name: tag
        value: namespace
        create: true
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: default
"""
"""For a resource manager that gives no configuration and whose policy group has none."""

_WEIGHT: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def read_config(text: str) -> tuple[PartitionSettings, ...]:
    """Return the partitions of a configuration; of an empty one those of DEFAULT_CONFIG.

    Raises InvalidParts with all faults, each with its path; InvalidValue with the line of what is not YAML;
    LimitExceeded.
    """
    value = load_yaml(text if text.strip() else DEFAULT_CONFIG)
    if value is None:
        value = load_yaml(DEFAULT_CONFIG)
    faults = ConfigFaults()
    config = Section(value, (), faults)
    sections = config.sections("partitions")
    config.end()
    if not sections and not faults.found:
        faults.add(("partitions",), "give at least one")
    if len(sections) > PARTITIONS_MAX:
        faults.add(("partitions",), f"{len(sections)} partitions: the limit is {PARTITIONS_MAX}")
    found = [_partition(section) for section in sections[:PARTITIONS_MAX]]
    for at, partition in enumerate(found):
        if partition.name in [before.name for before in found[:at]]:
            faults.add(("partitions", at, "name"), f"there is another partition {shown(partition.name)}")
    faults.check()
    return tuple(found)


def _partition(section: Section) -> PartitionSettings:
    name = section.text("name", DEFAULT_PARTITION)
    if QUEUE_NAME.fullmatch(name) is None:
        section.fault("name", f"{shown(name)} is no name of a partition: 1 to 64 letters, digits, `_` and `-`")
    root = _root(section)
    preemption = section.section("preemption")
    is_preempting = preemption.flag("enabled")
    preemption.end()
    order = section.section("nodesortpolicy")
    node_order = order.choice("type", (FAIR_ORDER, BINPACKING_ORDER), FAIR_ORDER)
    weights = _weights(order.section("resourceweights"))
    order.end()
    rules = read_rules(section)
    section.end()
    check_root(root, section.faults)
    access: dict[str, QueueAccess] = {}
    _collect(root, ROOT, {}, None, access)
    return PartitionSettings(
        name=name,
        root=settings_of(root, {}),
        access=access,
        rules=rules,
        node_order=node_order,
        weights=weights,
        preemption=is_preempting,
        is_open=not _has_access_list(root),
    )


def _root(section: Section) -> QueueSection:
    """Return the root as it is given, or one above the queues that are."""
    before = len(section.faults.found)
    given = section.sections("queues")
    if not given and len(section.faults.found) == before:
        section.fault("queues", "give at least one")
    queues = [read_queue(each, 0 if len(given) == 1 else 1) for each in given]
    limits = read_limits(section)
    if len(queues) == 1 and queues[0].name == ROOT:
        root = queues[0]
        root.is_parent = True
        root.limits = limits + root.limits
        return root
    check_names(queues, section.faults)
    return QueueSection(
        path=section.path, name=ROOT, is_parent=True, quotas=Quotas((), ()), max_applications=0, limits=limits,
        submit=None, admin=None, properties={}, template=None, children=queues,
    )  # fmt: skip


def _weights(section: Section) -> Mapping[str, float]:
    found = {}
    for kind, text in section.items():
        if _WEIGHT.fullmatch(text) is None:
            section.fault(kind, f"{shown(text)} is not a weight: a number of at least 0")
        else:
            found[kind] = float(text)
    if found and not 0.0 < sum(found.values()) < inf:
        section.faults.add(section.path, "all weights are 0: give one above 0")
    return found or WEIGHTS


def _has_access_list(queue: QueueSection) -> bool:
    return queue.submit is not None or queue.admin is not None or any(map(_has_access_list, queue.children))


def _collect(
    queue: QueueSection, path: str, above: Mapping[str, str], template: ChildTemplate | None,
    into: dict[str, QueueAccess],
) -> None:  # fmt: skip
    properties = inherit(above, queue.properties)
    found = into[path] = access_of(queue, properties, template)
    for child in queue.children:
        _collect(child, f"{path}.{child.name}", properties, found.template, into)


# ---- the report


class ConfigReport(NamedTuple):
    """Either `faults`, a line each, or the `lines` of a summary."""

    faults: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def check_config_file(file: Path) -> ConfigReport:
    """Read a configuration as a resource manager would send it. Raises OSError if the file cannot be read."""
    with file.open("rb") as opened:
        content = opened.read(4 * CONFIG_CHARS_MAX + 1)  # so many bytes are too many characters, whatever they are
    try:
        partitions = read_config(content.decode())
    except UnicodeDecodeError as fault:
        return ConfigReport(faults=(f"not UTF-8: look at byte {fault.start}",))
    except InvalidParts as fault:
        return ConfigReport(faults=tuple([f"{path}: {text}" if path else text for (path,), text in fault.faults]))
    except InvalidValue as fault:
        return ConfigReport(faults=(str(fault),))
    return ConfigReport(lines=tuple([line for partition in partitions for line in _summary(partition)]))


def _summary(partition: PartitionSettings) -> Iterator[str]:
    rules = ", ".join([f"{rule}{' (creating)' if rule.is_creating else ''}" for rule in partition.rules])
    preemption = "on" if partition.preemption else "off"
    yield f"partition {partition.name}: node order {partition.node_order}, preemption {preemption}"
    yield f"placement rules: {rules or 'none: applications name their queue'}"
    is_open = partition.is_open or partition.access[ROOT].submit.is_anyone
    yield "submission: " + ("open to everyone" if is_open else "as the queues' access lists say")
    rows = list(_rows(partition.root, 0))
    width = max([len(name) for name, _ in rows])
    for name, text in rows:
        yield f"{name:{width}}  {text}".rstrip()


def _rows(queue: QueueSettings, depth: int) -> Iterator[tuple[str, str]]:
    parts = [
        f"guaranteed {_amounts_text(queue.guaranteed)}" if queue.guaranteed else "",
        f"max {_amounts_text(queue.maximum)}" if queue.maximum else "",
        f"max applications {queue.max_applications}" if queue.max_applications else "",
        f"limits {len(queue.limits)}" if queue.limits else "",
        "" if queue.is_parent else queue.sort,
    ]
    yield "  " * depth + queue.name, "; ".join(filter(None, parts))
    for child in queue.children:
        yield from _rows(child, depth + 1)


def _amounts_text(amounts: Amounts) -> str:
    return ", ".join([f"{kind} {quantity_text(kind, amount)}" for kind, amount in amounts])
