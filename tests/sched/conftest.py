"""Factories for the scheduler's tests; session-wide, since they hold nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.effects import Effect, Granted
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policy import Policy
from fluxsched.sched.scheduler import Scheduler


@pytest.fixture(scope="session")
def make_r() -> Callable[..., ResourceSet]:
    """make_r("0-3", cores=4, gpus=1, properties={"ssd": "0-1"}): equal targets on hosts n0, n1, ..."""

    def build(ranks: str, cores: int = 4, gpus: int = 0, expiration: float = 0.0, **properties: str) -> ResourceSet:
        children = {"core": f"0-{cores - 1}" if cores > 1 else "0"}
        if gpus:
            children["gpu"] = f"0-{gpus - 1}" if gpus > 1 else "0"
        execution: dict[str, Any] = {
            "R_lite": [{"rank": ranks, "children": children}],
            "starttime": 0.0,
            "expiration": expiration,
            "nodelist": [f"n[{ranks}]"],
        }
        if properties:
            execution["properties"] = properties
        return ResourceSet.parse({"version": 1, "execution": execution})

    return build


@pytest.fixture(scope="session")
def request_of() -> Callable[..., Request]:
    """request_of(nodes=2, slots=1, cores=4): counts are ints or Counts; a constraint is its RFC 31 object."""

    def build(
        nodes: int | Count | None = None,
        slots: int | Count = 1,
        cores: int = 1,
        gpus: int = 0,
        exclusive: bool = False,
        constraint: object = None,
    ) -> Request:
        def count(value: int | Count) -> Count:
            return value if isinstance(value, Count) else Count.fixed(value)

        return Request(
            nodes=None if nodes is None else count(nodes),
            slots=count(slots),
            cores=cores,
            gpus=gpus,
            exclusive=exclusive,
            constraint=EVERYTHING if constraint is None else Constraint.parse(constraint),
        )

    return build


@pytest.fixture(scope="session")
def spec() -> Callable[..., dict[str, Any]]:
    """A jobspec as it comes over the wire: slots of cores and GPUs, on so many nodes or anywhere."""

    def build(
        nslots: int = 1,
        cores: int = 1,
        gpus: int = 0,
        nodes: int | None = None,
        exclusive: bool = False,
        duration: float = 0.0,
        constraint: object = None,
        queue: str | None = None,
    ) -> dict[str, Any]:
        children = [{"type": "core", "count": cores}] + ([{"type": "gpu", "count": gpus}] if gpus else [])
        slot: dict[str, Any] = {"type": "slot", "count": nslots, "label": "task", "with": children}
        node: dict[str, Any] = {"type": "node", "count": nodes, "with": [slot]}
        if exclusive:
            node["exclusive"] = True
        system: dict[str, Any] = {"duration": duration}
        if constraint is not None:
            system["constraints"] = constraint
        if queue is not None:
            system["queue"] = queue
        return {
            "version": 1,
            "resources": [slot if nodes is None else node],
            "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": system},
        }

    return build


class Bench:
    """A scheduler on the bench: checked after each event, its grants kept to be freed."""

    def __init__(self, policy: Policy, *groups: str, queues: dict[str, str] | None = None) -> None:
        self.scheduler = Scheduler(policy, groups or ("default",), queues)
        self.granted: dict[int, ResourceSet] = {}
        self.now_s = 100.0

    def grow(self, resources: ResourceSet, offline: str = "", group: str = "default") -> list[Effect]:
        down = Idset.parse(offline)
        return self.did(self.scheduler.grown(group, resources, resources.ranks - down, down))

    def submit(self, jobid: int, spec: dict[str, Any], priority: int = 16) -> list[Effect]:
        return self.did(self.scheduler.alloc(jobid, priority, 1000, float(jobid), spec))

    def run(self) -> list[Effect]:
        return self.did(list(self.scheduler.schedule(self.now_s)))

    def free(self, jobid: int, ranks: str | None = None) -> list[Effect]:
        """The job's whole R, or these ranks of it; final when nothing is left."""
        held = self.granted.pop(jobid)
        part = held if ranks is None else held.restrict(Idset.parse(ranks))
        if rest := held.ranks - part.ranks:
            self.granted[jobid] = held.restrict(rest)
        return self.did(self.scheduler.free(jobid, part, not rest))

    def did(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Granted):
                assert effect.jobid not in self.granted, "granted twice"
                self.granted[effect.jobid] = ResourceSet.parse(effect.R)
        self.scheduler.check()
        return effects

    @property
    def allocated(self) -> ResourceSet:
        return self.scheduler.resource_status()[2]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(Fifo())
    yield made
    made.scheduler.check()


@pytest.fixture(scope="session")
def bench_of() -> Callable[..., Bench]:
    """bench_of(policy, *groups, queues=...)"""
    return Bench

