"""Report of a configuration for people: its faults, or the tree of its queues with what each is given.

Nothing is registered or started: the same reader as of the service, applied to a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fluxsched.adapters.si.config.quantities import quantity_text
from fluxsched.adapters.si.config.reader import read_config
from fluxsched.adapters.si.config.settings import ROOT, PartitionSettings
from fluxsched.adapters.si.config.yaml_tree import CONFIG_CHARS_MAX
from fluxsched.core.amounts import Amounts
from fluxsched.errors import InvalidParts, InvalidValue
from fluxsched.sched.quotas.queue import QueueSettings


class ConfigReport(NamedTuple):
    """Either `faults`, a line each, or the `lines` of a summary."""

    faults: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def check_config_file(file: Path) -> ConfigReport:
    """Reads a configuration as a resource manager would send it. Raises OSError if the file cannot be read."""
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
