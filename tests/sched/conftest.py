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
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policy import Policy


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
        parts: tuple[tuple[int | str, object], ...] = (),
    ) -> dict[str, Any]:
        """With `parts`, pairs of nodes and a constraint or None, one of several parts."""
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
        several = [
            {**node, "count": count, "exclusive": True, "with": [{**slot, "label": f"p{at}"}], "constraints": own or {}}
            for at, (count, own) in enumerate(parts)
        ]
        labels = [f"p{at}" for at in range(len(parts))] or ["task"]
        return {
            "version": 999 if parts else 1,
            "resources": several or [slot if nodes is None else node],
            "tasks": [{"command": ["true"], "slot": label, "count": {"per_slot": 1}} for label in labels],
            "attributes": {"system": system},
        }

    return build


class Bench:
    """A scheduler on the bench: checked after each event, its grants kept to be freed."""

    def __init__(self, policy: Policy, *groups: str, queues: dict[str, str] | None = None, **options: Any) -> None:
        self.scheduler = Scheduler(policy, groups or ("default",), queues, **options)
        self.granted: dict[int, ResourceSet] = {}
        self.now_s = 100.0

    def grow(self, resources: ResourceSet, offline: str = "", group: str = "default") -> list[Effect]:
        down = Idset.parse(offline)
        return self.did(self.scheduler.grown(group, resources, resources.ranks - down, down))

    def submit(self, jobid: int, spec: dict[str, Any], priority: int = 16) -> list[Effect]:
        return self.did(self.scheduler.alloc(jobid, priority, 1000, float(jobid), spec, self.now_s))

    def run(self) -> list[Effect]:
        return self.did(list(self.scheduler.schedule(self.now_s)))

    def why(self, jobid: int) -> str:
        """Only the reason."""
        return self.scheduler.why(jobid, self.now_s).reason

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



class Study:
    """What became of a workload: when each job started, and every estimate that was made for it, with its time."""

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}
        self.estimates: dict[int, list[tuple[float, float]]] = {}
        self.selections: dict[int, str] = {}


@pytest.fixture(scope="session")
def simulate() -> Callable[..., Study]:
    """simulate(policy, resources, jobs, ...): jobs are (submit, run, spec); all events of an instant, then a pass.

    A job ends after `run`, or its limit if that is shorter. With `fresh` every pass looks at all who wait; `meanwhile`
    maps times to what else happens then.
    """

    def run(
        policy: Policy,
        resources: ResourceSet,
        jobs: list[tuple[float, float, dict[str, Any]]],
        fresh: bool = False,
        meanwhile: dict[float, Callable[[Scheduler], object]] | None = None,
    ) -> Study:
        scheduler, study = Scheduler(policy), Study()
        scheduler.grown("default", resources, resources.ranks, Idset())
        happens = {at: [] for at, _, _ in jobs} | {at: [] for at in meanwhile or ()}
        ends: dict[float, list[int]] = {}
        for jobid, (at, _, _) in enumerate(jobs):
            happens[at].append(jobid)
        times = sorted(happens)
        (group,) = scheduler._groups.values()
        while times:
            now_s = times.pop(0)
            for jobid in ends.pop(now_s, ()):
                scheduler.free_all(jobid)
            for jobid in happens.pop(now_s, ()):
                scheduler.alloc(jobid, 16, 1, now_s, jobs[jobid][2])
            if meanwhile and now_s in meanwhile:
                meanwhile[now_s](scheduler)
            if fresh:
                group.invalidate_pass()
                for queue in group.queues.values():
                    queue.replans = False
            for effect in scheduler.schedule(now_s):
                if isinstance(effect, Granted):
                    study.starts[effect.jobid] = now_s
                    study.selections[effect.jobid] = effect.selection
                    limit_s = jobs[effect.jobid][2]["attributes"]["system"]["duration"]
                    end_s = now_s + min(jobs[effect.jobid][1], limit_s or float("inf"))
                    ends.setdefault(end_s, []).append(effect.jobid)
                    if end_s not in times:
                        times = sorted([*times, end_s])
            scheduler.check()
            for queue in group.queues.values():
                for kept in queue.planned.values():
                    study.estimates.setdefault(kept.jobid, []).append((now_s, kept.start_s))
        return study

    return run
