"""Bounds between a queue and those above and below it.

Law: no maximum is above that of a queue above it, and guarantees fit: a queue's own and those below it together, within
its guarantee and within its maximum. A kind that a queue does not name is bounded by those above alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxsched.adapters.si.config.faults import ConfigFaults
from fluxsched.adapters.si.config.quantities import quantity_text
from fluxsched.adapters.si.config.queues import QueueSection
from fluxsched.adapters.si.config.settings import ROOT


def check_root(root: QueueSection, faults: ConfigFaults) -> None:
    """Notes all that does not hold in the tree below the root, whose maximum is what nodes have."""
    for key, amounts in (("guaranteed", root.quotas.guaranteed), ("max", root.quotas.maximum)):
        if amounts:
            faults.add((*root.path, "resources", key), "the root has what nodes have: set it for queues below")
    _check(root, ROOT, {}, faults)


def _check(queue: QueueSection, name: str, above: Mapping[str, int], faults: ConfigFaults) -> dict[str, int]:
    """Returns what the queue and those below it are guaranteed; `above` is the maximum of the queues above."""
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
