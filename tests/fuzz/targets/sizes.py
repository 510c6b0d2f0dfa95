"""What schedulers and executors say of an elastic job, and what is read of it from the store afterwards."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import load_object
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.jobs.manager import JobManager, replayed
from fluxsched.jobs.query import SizeChanges
from fluxsched.jobs.states import Effect, Persist
from tests.fuzz.target import Shape, Target, json_seeds
from tests.jobs.elastic import elastic, parts, r_of

STEPS_MAX = 16


class Told:
    """A job manager with one running job, and what it has stored."""

    def __init__(self, has_parts: bool) -> None:
        self.manager = JobManager(lambda now_s: 2)
        self.events: list[Any] = []
        self.R = r_of("0-2", lead="0", workers="1-2") if has_parts else r_of("0-2")
        self.now_s = 10.0
        allocation = self.manager.allocation
        self.store(self.manager.requests.submit(1, parts() if has_parts else elastic("1+"), userid=1, now_s=1.0))
        allocation.hello("sched")
        allocation.ready("sched", None, 1.0)
        self.store(allocation.alloc_granted("sched", 1, self.R, None, 2.0))

    def store(self, effects: list[Effect]) -> None:
        for one in effects:
            if isinstance(one, Persist):
                self.events += one.events

    def step(self, kind: object, value: Any) -> None:
        self.now_s += 1.0
        allocation, execution = self.manager.allocation, self.manager.execution
        if kind == "grow":
            self.store(allocation.grow("sched", 1, value, self.now_s))
            allocation.grow_answered("sched", 1, ResourceSet.parse(value).ranks)
        elif kind == "shrink":
            self.store(allocation.shrink("sched", 1, Idset.parse(value), "", self.now_s))
        elif kind == "left":
            self.store(execution.released(1, Idset.parse(value), False, self.now_s))


def _sizes(data: bytes) -> None:
    asked = load_object(data, "steps")
    steps = asked.get("steps")
    if not isinstance(steps, list):
        raise InvalidValue("steps must be a list")
    told = Told(bool(asked.get("parts")))
    for one in steps[:STEPS_MAX]:
        kind, value = one if isinstance(one, list) and len(one) == 2 else (None, None)
        if kind == "grow" and not isinstance(value, dict):
            continue  # the message has an object there
        with suppress(FluxschedError):
            told.step(kind, value)
        told.manager.check()
    job = told.manager.jobs.active[1]
    again = replayed(1, told.events, told.R)
    assert (again.R, again.held, again.going, again.sizes) == (job.R, job.held, job.going, job.sizes)
    changes = SizeChanges(lambda: told.R).take(told.events)
    assert changes[-1].left.ranks == job.held - job.going


TARGETS = (
    Target(
        "sizes",
        _sizes,
        lambda: json_seeds(
            [
                {"steps": [["grow", r_of("3-4")], ["shrink", "1,4"], ["left", "4"], ["grow", r_of("4")]]},
                {"parts": 1, "steps": [["grow", r_of("3", workers="3")], ["shrink", "3"], ["left", "3"]]},
                {"steps": [["grow", r_of("5") | {"attributes": {"x": 1}, "scheduling": {"writer": "other"}}]]},
            ]
        ),
        Shape.JSON,
        words=("grow", "shrink", "left", "0-3", "4", "parts", "lead", "workers", "scheduling", "fluxsched", "nslots"),
    ),
)
