"""Jobs of several parts in a trace, as jobspecs: `[{"label": "lead", "nodes": 1}, {"label": "work", "nodes": "4-10"}]`.

Law: what a part may be is for the jobspec to say (`core.parts`); here only keys are checked.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from fluxsched.core.count import Count
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue

PART_KEYS: Final = ("label", "nodes", "cores", "gpus", "constraint")

PARTS_KEPT: Final = 1024
"""Texts of parts that were found right: a trace has a handful."""


def parts_jobspec(text: str) -> dict[str, Any]:
    """The jobspec of parts that are given as JSON text. Raises InvalidValue for keys that there are not."""
    resources, tasks = [], []
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValue(f"parts {text[:40]!r} is not JSON") from None
    for number, part in enumerate(parts, 1):
        if not isinstance(part, dict):
            raise InvalidValue(f"part {number} is not an object")
        if unknown := sorted(part.keys() - set(PART_KEYS)):
            raise InvalidValue(f"part {number} has unknown key {unknown[0][:40]!r}: a part has {', '.join(PART_KEYS)}")
        label = str(part.get("label", f"part{number}"))
        needs: list[dict[str, Any]] = [{"type": "core", "count": part.get("cores", 1)}]
        if part.get("gpus"):
            needs.append({"type": "gpu", "count": part["gpus"]})
        slot = {"type": "slot", "count": 1, "label": label, "with": needs}
        nodes = part.get("nodes", 1)
        count = Count.parse(nodes).to_json() if isinstance(nodes, str) else nodes
        node = {"type": "node", "count": count, "exclusive": True, "with": [slot]}
        if part.get("constraint") is not None:
            node["constraints"] = part["constraint"]
        resources.append(node)
        tasks.append({"command": ["simulated"], "slot": label, "count": {"per_slot": 1}})
    return {"version": 999, "resources": resources, "tasks": tasks, "attributes": {"system": {"duration": 0}}}


@lru_cache(PARTS_KEPT)
def check_parts(text: str) -> None:
    """Raises InvalidValue for parts that no jobspec can have."""
    Jobspec.parse(parts_jobspec(text))


@lru_cache(PARTS_KEPT)
def check_nodes(text: str) -> None:
    """Raises InvalidValue for a text that is no count of nodes."""
    Count.parse(text)
