"""State machines as data: one step through a table, and the table as a picture.

Law: a table lists every state; what it does not list for a state is not allowed there. Tests walk states x events, and
the diagrams in `rfc/` are printed from the same tables by `diagram`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from fluxsched.errors import InvalidTransition

S = TypeVar("S", bound=Enum)


def step(table: Mapping[S, Mapping[str, S]], state: S, event: str) -> S:
    """The state after `event`. Raises InvalidTransition naming the events that the state takes."""
    try:
        return table[state][event]
    except KeyError:
        allowed = ", ".join(sorted(table[state])) or "nothing"
        raise InvalidTransition(f"{event} is not allowed in state {state.name}, only {allowed}") from None


def diagram(table: Mapping[S, Mapping[str, S]], start: S) -> str:
    """The table as a Mermaid state diagram; events with the same way share an arrow, states without any get an end."""
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    for state, row in table.items():
        ways: dict[S, list[str]] = {}
        for event, after in row.items():
            ways.setdefault(after, []).append(event)
        lines += [f"    {state.name} --> {after.name}: {', '.join(events)}" for after, events in ways.items()]
        if all(after is state for after in ways):
            lines.append(f"    {state.name} --> [*]")
    return "\n".join(lines) + "\n"
