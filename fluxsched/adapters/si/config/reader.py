"""A configuration as YuniKorn 1.2 writes it, read whole or refused with all its faults.

Law: what is returned is complete and holds together; a configuration with one fault changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Final

from fluxsched.adapters.si.config.faults import ConfigFaults, Section
from fluxsched.adapters.si.config.hierarchy import check_root
from fluxsched.adapters.si.config.queues import (
    QUEUE_NAME,
    QueueSection,
    Quotas,
    access_of,
    check_names,
    inherit,
    read_limits,
    read_queue,
    settings_of,
)  # fmt: skip
from fluxsched.adapters.si.config.rules import read_rules
from fluxsched.adapters.si.config.settings import (
    BINPACKING_ORDER,
    FAIR_ORDER,
    ROOT,
    WEIGHTS,
    ChildTemplate,
    PartitionSettings,
    QueueAccess,
)  # fmt: skip
from fluxsched.adapters.si.config.yaml_tree import load_yaml
from fluxsched.core.jsontext import shown

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
    """The partitions of a configuration; of an empty one those of DEFAULT_CONFIG.

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
    """The root as it is given, or one above the queues that are."""
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
