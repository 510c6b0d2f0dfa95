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
    parts: dict[str, tuple[int, int]] | None = None,
    gpus: int = 0,
    reservation: str | None = None,
    begin_s: float | None = None,
    deadline_s: float | None = None,
) -> dict[str, Any]:
    """A jobspec (RFC 14); with `nodes` so many with `cores` each, else `cores` anywhere. `parts` makes it an elastic
    one of whole nodes: from so many to so many of each. Begin and deadline are times since the epoch.
    """
    own = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
    slot = {"type": "slot", "label": "task", "count": 1, "with": own}
    system: dict[str, Any] = {"queue": queue, "duration": duration_s}
    if bank is not None:
        system["bank"] = bank
    if preemptible_after_s is not None:
        system["preemptible-after"] = preemptible_after_s
    if requeue:
        system["fluxsched"] = {"requeue": requeue, "retry-on": "exit:1", "retry-pause": 0.5}
    if after is not None:
        scheme, _, value = after.partition(":")
        system["dependencies"] = [{"scheme": scheme, "value": value}]
    elif begin_s is not None:
        system["dependencies"] = [{"scheme": "begin-time", "value": str(begin_s)}]
    bounds = {"reservation": reservation, "deadline": deadline_s}
    if bounds := {key: value for key, value in bounds.items() if value is not None}:
        system["fluxsched"] = {**system.get("fluxsched", {}), **bounds}
    if simulated:
        system["exec"] = {"test": {"run_duration": run_s}}
    if parts is not None:
        system["fluxsched"] = {**system.get("fluxsched", {}), "elastic": True}
    command = ["task", str(run_s), str(status), *(["stubborn"] if stubborn else [])]
    labels = {"task": (nodes, nodes)} if parts is None else parts
    whole = [_part(label, least, most, cores) for label, (least, most) in labels.items()]
    asked: dict[str, Any] = {"cores": cores * (nodes or 1), "nodes": nodes}
    if parts is not None:
        asked = {"cores": 0, "nodes": sum(least for least, _ in parts.values()), "parts": parts}
    plain = [{"type": "node", "count": nodes, "with": [slot]}] if nodes else [slot]
    return {
        "version": 1 if len(labels) == 1 else 999,
        "resources": plain if parts is None else whole,
        "tasks": [{"command": command, "slot": label, "count": {"per_slot": 1}} for label in labels],
        "attributes": {"system": system, "user": {"chaos": asked}},
    }


def _part(label: str, least: int, most: int, cores: int) -> dict[str, Any]:
    """Whole nodes, from `least` to `most`."""
    slot = {"type": "slot", "label": label, "count": 1, "with": [{"type": "core", "count": cores}]}
    return {"type": "node", "count": {"min": least, "max": most}, "exclusive": True, "with": [slot]}
