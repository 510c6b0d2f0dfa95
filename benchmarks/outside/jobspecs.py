"""Jobspecs as plain objects."""

from __future__ import annotations

from typing import Any


def asking(command: list[str], cores: int = 1, **system: Any) -> dict[str, Any]:
    """One task of a command."""
    slot = {"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": cores}]}
    tasks = [{"command": command, "slot": "task", "count": {"per_slot": 1}}]
    given = {"duration": 0, "cwd": "/", "environment": {}, **system}
    return {"version": 1, "resources": [slot], "tasks": tasks, "attributes": {"system": given}}


def elastic(command: list[str], most: int, **system: Any) -> dict[str, Any]:
    """A task on each of 1 to `most` whole nodes, as many as there are at the time."""
    found = asking(command, fluxsched={"elastic": True}, **system)
    count = {"min": 1, "max": most, "operator": "+", "operand": 1}
    found["resources"] = [{"type": "node", "count": count, "exclusive": True, "with": found["resources"]}]
    return found


def passing(run_s: float, cores: int = 1) -> dict[str, Any]:
    """A job that only lets time pass."""
    return asking(["true"], cores, exec={"test": {"run_duration": f"{run_s}s"}})
