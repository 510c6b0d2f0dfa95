"""What clients do, as values: an action has a time, an actor, a verb and arguments; a plan is a list of them.

Jobs are named by the action that submitted them and a number in its burst, so that an action means the same when
others are left out of the list; if that action is left out or has failed, it does nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Action(NamedTuple):
    """One thing that a client does."""

    at_s: float
    actor: str
    verb: str
    arguments: dict[str, Any]


def jobspec(
    *,
    cores: int,
    nodes: int,
    run_s: float,
    duration_s: float,
    queue: str,
    status: int = 0,
    stubborn: bool = False,
    simulated: bool = False,
    bank: str | None = None,
    preemptible_after_s: float | None = None,
    requeue: int = 0,
    after: str | None = None,
) -> dict[str, Any]:
    """A jobspec (RFC 14); with `nodes` so many with `cores` each, else `cores` anywhere."""
    slot = {"type": "slot", "label": "task", "count": 1, "with": [{"type": "core", "count": cores}]}
    system: dict[str, Any] = {"queue": queue, "duration": duration_s}
    if bank is not None:
        system["bank"] = bank
    if preemptible_after_s is not None:
        system["preemptible-after"] = preemptible_after_s
    if requeue:
        system["fluxsched"] = {"requeue": requeue}
    if after is not None:
        scheme, _, value = after.partition(":")
        system["dependencies"] = [{"scheme": scheme, "value": value}]
    if simulated:
        system["exec"] = {"test": {"run_duration": run_s}}
    command = ["task", str(run_s), str(status), *(["stubborn"] if stubborn else [])]
    return {
        "version": 1,
        "resources": [{"type": "node", "count": nodes, "with": [slot]}] if nodes else [slot],
        "tasks": [{"command": command, "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {
            "system": system,
            "user": {"chaos": {"cores": cores * (nodes or 1), "nodes": nodes}},
        },
    }
