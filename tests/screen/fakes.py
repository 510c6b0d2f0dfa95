"""A follower that says what a test tells it to, and notes what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError
from fluxsched.views.follower import MessageKind, Subscription, ViewMessage

THERE = {"instance": "there", "uri": "ipc:///run/x/instance.sock", "role": "owner", "starttime": 1000.0}


def machine_body(count: int, cores: int = 8, **parts: str) -> dict[str, Any]:
    """A whole of the topic `machine`: `count` targets, of which some are in other states than free."""
    taken = Idset()
    for ranks in parts.values():
        taken |= Idset.parse(ranks)
    everything = Idset.span(0, count - 1)
    states = {**parts, "free": str(everything - taken)}
    return {
        "R": {"version": 1, "execution": {
            "R_lite": [{"rank": str(everything), "children": {"core": f"0-{cores - 1}"}}],
            "nodelist": [f"node[0-{count - 1}]"], "starttime": 0.0, "expiration": 0.0}},
        "states": {state: ranks for state, ranks in states.items() if ranks},
        "busy": {str(cores): parts["allocated"]} if parts.get("allocated") else {}, "busy_gpus": {},
        "groups": [
            {"name": "default", "targets": str(everything), "leaving": "", "incoming": "", "acquired": True,
             "dialect": "typed", "acquirer": "sched-easy"},
            {"name": "exclude", "targets": "", "leaving": "", "incoming": "", "acquired": False}],
        "drains": {}, "made_up": "",
    }  # fmt: skip


def job(jobid: int, state: str = "RUN", **more: Any) -> dict[str, Any]:
    """A row of the topic `jobs`."""
    running = {"t_run": 1000.0, "nnodes": 2, "ncores": 16, "ranks": "0-1", "nodelist": "node[0-1]", "expiration": 0.0}
    return {
        "jobid": format_f58(jobid), "state": state, "name": "solver", "userid": 0, "urgency": 16, "priority": 16,
        "t_submit": 990.0,
        "ntasks": 16, "duration": 600.0, "annotations": {}, "dependencies": [], "command": ["sleep", "1"],
        **(running if state == "RUN" else {}), **more,
    }  # fmt: skip


def jobs_body(*rows: dict[str, Any], left_out: int = 0) -> dict[str, Any]:
    """A whole of the topic `jobs`."""
    return {"jobs": [*rows], "order": [row["jobid"] for row in rows], "left_out": left_out}


class FakeFollower:
    """Wholes by topic; `tell` sends more; `answers[topic]` is what `ask` gives, or raises."""

    def __init__(self, wholes: Mapping[str, Mapping[str, Any]], answers: Mapping[str, Any] | None = None) -> None:
        self.wholes = dict(wholes)
        self.answers = {"job-manager.queue-list": {"queues": []},
                        "job-manager.queue-status": {"enable": True, "start": True}, **(answers or {})}  # fmt: skip
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.subscribed: list[tuple[str, dict[str, Any]]] = []
        self.open: list[tuple[str, Subscription]] = []
        self.instance: dict[str, Any] = THERE

    async def __aenter__(self) -> FakeFollower:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, viewer in [*self.open]:
            viewer.close()

    def subscribe(self, topic: str, params: Mapping[str, Any] | None = None) -> Subscription:
        self.subscribed.append((topic, dict(params or {})))
        viewer = Subscription(self._left)
        self.open.append((topic, viewer))
        viewer.put(ViewMessage("instance", self.instance))
        if topic in self.wholes:
            viewer.put(ViewMessage("whole", self.wholes[topic]))
        return viewer

    def _left(self, viewer: Subscription) -> None:
        self.open = [one for one in self.open if one[1] is not viewer]

    def tell(self, topic: str, kind: MessageKind, body: Mapping[str, Any]) -> None:
        for one, viewer in self.open:
            if topic in (one, "*"):
                viewer.put(ViewMessage(kind, body))

    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        """What was asked that changes something."""
        return [one for one in self.asked if one[0].split(".")[1] in ("cancel", "urgency", "drain", "undrain")]

    async def ask(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        self.asked.append((topic, payload or {}))
        answer = self.answers.get(topic, {})
        answer = answer(payload) if callable(answer) else answer
        if isinstance(answer, FluxschedError):
            raise answer
        return answer
