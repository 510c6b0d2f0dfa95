"""One queue of a configuration, as it is written: resources, limits, access, properties, template.

Law: properties are inherited as YuniKorn does it: orders and the delay of preemption go down, of `preemption.policy`
only `disabled`, offsets and fences not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fluxsched.adapters.si.config.faults import ConfigFaults, Section, SectionPath
from fluxsched.adapters.si.config.quantities import parse_quantity
from fluxsched.adapters.si.config.settings import AccessList, ChildTemplate, QueueAccess
from fluxsched.core.amounts import Amounts
from fluxsched.core.jsontext import shown
from fluxsched.core.text import some_of
from fluxsched.errors import InvalidValue
from fluxsched.sched.quotas import queue as quotas
from fluxsched.sched.quotas.queue import Limit, QueueSettings
from fluxsched.sched.quotas.tree import QUEUE_DEPTH_MAX

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
    """A queue and those below it; `depth` is 0 for the root."""
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
    """Notes which have the name of one before."""
    names = set()
    for queue in queues:
        if queue.name and queue.name in names:
            faults.add((*queue.path, "name"), f"there is another queue {shown(queue.name)} beside it")
        names.add(queue.name)


def read_limits(section: Section) -> tuple[Limit, ...]:
    """The list `limits` of a queue or a partition."""
    return tuple([_limit(each) for each in section.sections("limits")])


def settings_of(queue: QueueSection, inherited: Mapping[str, str]) -> QueueSettings:
    """The queue and those below it, as the tree takes them."""
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
    """The properties of a queue below one with those `above`."""
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
