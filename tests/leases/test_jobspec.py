"""The jobspec that goes to another instance asks for what was granted here."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.leases.jobspec import jobspec_for


def part(label: str, count: int | str, constraints: Any = None) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 2}]}
    node = {"type": "node", "count": count, "exclusive": True, "with": [slot]}
    return node | ({} if constraints is None else {"constraints": constraints})


def sent(*nodes: dict[str, Any], parts: dict[str, str] | None = None) -> Jobspec:
    """What is sent of an elastic job that was granted ranks 2-6."""
    tasks = [{"command": ["true"], "slot": node["with"][0]["label"], "count": {"per_slot": 1}} for node in nodes]
    system = {"duration": 60.0, "queue": "far", "fluxsched": {"elastic": True, "requeue": 2, "max-hops": 4}}
    spec: dict[str, Any] = {"version": 999 if parts else 1, "resources": list(nodes), "tasks": tasks}
    jobspec = Jobspec.parse(spec | {"attributes": {"system": system}})
    hosts = [f"east:n{rank}" for rank in range(2, 7)]
    execution = {"R_lite": [{"rank": "2-6", "children": {"core": "0-1"}}], "starttime": 0, "expiration": 0}
    granted: dict[str, Any] = {"version": 1, "execution": execution | {"nodelist": hosts}}
    if parts:
        granted["scheduling"] = {"writer": "fluxsched", "parts": parts}
    return Jobspec.parse(jobspec_for(jobspec, 7, "east", None, 60.0, ResourceSet.parse(granted)))


def test_a_range_is_settled() -> None:
    found = sent(part("task", "1-8"))
    assert str(found.request.nodes) == "5"
    assert (found.request.elastic, found.request.max_hops, found.queue) == (False, 4, None)


def test_each_part_has_its_own_count_and_hosts_as_they_are_called_there() -> None:
    on_hosts = {"hostlist": ["east:n[2-3]"]}
    found = sent(part("lead", 1), part("work", "1-10", on_hosts), parts={"lead": "4", "work": "2-3,5-6"})
    assert [str(each.nodes) for each in found.request.parts] == ["1", "4"]
    assert found.raw["resources"][1]["constraints"] == {"hostlist": ["n[2-3]"]}


def test_a_part_that_names_ranks_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the constraint names ranks, which are others in cluster east"):
        sent(part("lead", 1, {"ranks": ["2"]}), part("work", "1-4"), parts={"lead": "2", "work": "3-6"})
