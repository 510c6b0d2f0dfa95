"""Reader of a configuration as YuniKorn 1.2 writes it, and its report for people: faults, or the tree of queues.

Laws: a configuration is read whole or refused with all its faults; what is returned is complete and holds together. No
maximum is above that of a queue above it, and guarantees fit: a queue's own and those below it together, within its
guarantee and within its maximum. A kind that a queue does not name is bounded by those above alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from fluxsched.core.quantities import Amounts
from fluxsched.core.text import shown
from fluxsched.errors import InvalidParts, InvalidValue
from fluxsched.yunikorn.config.faults import CONFIG_CHARS_MAX, ConfigFaults, Section, load_yaml
from fluxsched.yunikorn.config.queues import (  # fmt: skip
    BINPACKING_ORDER,
    FAIR_ORDER,
    QUEUE_NAME,
    ROOT,
    WEIGHTS,
    ChildTemplate,
    PartitionSettings,
    QueueAccess,
    QueueSection,
    Quotas,
    access_of,
    check_names,
    inherit,
    quantity_text,
    read_limits,
    read_queue,
    read_rules,
    settings_of,
)
from fluxsched.yunikorn.tree.queue import QueueSettings


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
