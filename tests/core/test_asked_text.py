"""What a job asked for whose size is not fixed, in words."""

from __future__ import annotations

from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.request import asked_text


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"nodes": "1-4", "elastic": True}, "1-4 nodes, elastic"),
        ({"nodes": "2-6:2"}, "2-6:2 nodes"),
        ({"nodes": 3, "max_hops": 2}, "3 nodes, at most 2 hops"),
        ({"nodes": 3}, ""),
        ({"ntasks": 5}, ""),
    ],
)
def test_of_one_part(asked: dict[str, Any], text: str) -> None:
    assert asked_text(Jobspec.from_command(["true"], **asked).request) == text


def test_of_several_parts() -> None:
    nodes = [
        {"type": "node", "count": count, "exclusive": True, "with": [
            {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 1}]}]}
        for label, count in (("lead", 1), ("work", {"min": 4, "max": 10, "operator": "+", "operand": 1}))
    ]  # fmt: skip
    tasks = [{"command": ["x"], "slot": label, "count": {"per_slot": 1}} for label in ("lead", "work")]
    system = {"duration": 0.0, "fluxsched": {"elastic": True}}
    spec = {"version": 999, "resources": nodes, "tasks": tasks, "attributes": {"system": system}}
    assert asked_text(Jobspec.parse(spec).request) == "lead:1 work:4-10 nodes, elastic"
