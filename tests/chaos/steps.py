"""What faults and actions may wait for, as it is seen from outside: steps of a running job to another size, and what
administrators ask for.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.observations import Observation, Received, Sent, TaskGrew, TaskShrank

RESIZES = "grow", "grow-answered", "tasks-came", "shrink", "shrink-answered", "tasks-left"
ORDERS = "drain", "move", "stop", "ask", "plan"
_TOPICS = {"job-manager.sched-grow": "grow", "job-manager.sched-shrink": "shrink"}
_ORDERS = {
    "resource.drain": "drain",
    "resource.assign": "move",
    "job-manager.queue-start": "stop",
    "module.stats": "ask",
    "resource.outage-add": "plan",
}


def step_of(one: Observation) -> str | None:
    """The step that this is, if it is one."""
    match one:
        case Sent():
            return _TOPICS.get(one.topic) or _ORDERS.get(one.topic)
        case Received(errnum=int()) if one.topic in _TOPICS:
            return f"{_TOPICS[one.topic]}-answered"
        case TaskGrew():
            return "tasks-came"
        case TaskShrank():
            return "tasks-left"
    return None


class Awaited:
    """What is to be done at the next step of a kind, once."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, Callable[[], object]]] = []

    def add(self, step: str, call: Callable[[], object]) -> None:
        """Have `call` run at the next such step."""
        assert step in RESIZES + ORDERS, step
        self._calls.append((step, call))

    def see(self, one: Observation) -> None:
        """Something has happened."""
        step = step_of(one) if self._calls else None
        if step is not None:
            due = [call for awaited, call in self._calls if awaited == step]
            self._calls = [each for each in self._calls if each[0] != step]
            for call in due:
                call()

    def forget(self) -> None:
        """Nothing is awaited any more."""
        self._calls.clear()
