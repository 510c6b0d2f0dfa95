"""A world around the job manager for its tests: a store that keeps what is persisted, and a check after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.reasons import Why
from fluxsched.jobs.job import Job
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.query import EVERY_JOB, JobQuery, list_jobs, why
from fluxsched.jobs.states import (
    Effect,
    GrowShells,
    Kill,
    Persist,
    ShrinkShells,
    StartShells,
    State,
    TargetsFreed,
    TargetsGranted,
    ToScheduler,
)
from fluxsched.jobs.table import JobResult, result
from fluxsched.protocol.messages.jobs import AllocRequest, FreeRequest
from tests.r import r_of as r_of_hosts

USER = 1000


def make_spec(**options: Any) -> Jobspec:
    return Jobspec.from_command(["true"], **options)


def make_r(ranks: str = "0", cores: str = "0", **times: float) -> dict[str, Any]:
    return r_of_hosts(ranks, cores, host="node", **{"starttime_s": 10.0} | times)


class World:
    """The manager, its clock, and everything that its effects have done so far."""

    def __init__(self, queues: dict[str, Any] | None = None, **options: Any) -> None:
        self.last_id = 1000
        self.manager = manager = JobManager(self.new_id, queues, **options)
        self.parts = (manager.requests, manager.execution, manager.allocation, manager.queue_control, manager)
        self.parts += (self, manager.requests.reservations)
        self.now_s = 100.0
        self.stored: dict[int, dict[str, Any]] = {}
        self.held: dict[int, Idset] = {}
        self.last: list[Effect] = []

    def new_id(self, now_s: float) -> int:
        """The id of a job that is submitted again: four digits, and greater than all in the store."""
        self.last_id = max(self.last_id, *self.stored) + 1
        return self.last_id

    def do(self, method: str, *args: Any, **options: Any) -> list[Effect]:
        """Call the manager a second later, apply its effects, and check everything."""
        self.now_s += 1.0
        part = next(part for part in self.parts if hasattr(part, method))
        return self.perform(getattr(part, method)(*args, **options, now_s=self.now_s))

    def perform(self, effects: list[Effect]) -> list[Effect]:
        persisted: set[int] = set()
        for effect in effects:
            if isinstance(effect, Persist):
                assert effect.jobid not in persisted, "two rows for one stretch"
                persisted.add(effect.jobid)
                self._store(effect)
            elif isinstance(effect, StartShells | GrowShells | ShrinkShells | Kill | TargetsFreed):
                assert effect.jobid in persisted or isinstance(effect, Kill), "an effect before its reason is stored"
            self._hold(effect)
        self.manager.check()
        for jobid, ranks in self.held.items():
            assert self.manager.jobs.get(jobid).held == ranks
        self.last = effects
        return effects

    def _store(self, effect: Persist) -> None:
        row = self.stored.setdefault(effect.jobid, {"events": [], "jobspec": None, "R": None})
        row["events"] += effect.events
        row["jobspec"] = effect.jobspec or row["jobspec"]
        row["R"] = effect.R or row["R"]

    def _hold(self, effect: Effect) -> None:
        if isinstance(effect, TargetsGranted):
            self.held[effect.jobid] = self.held.get(effect.jobid, EMPTY) | effect.ranks
        elif isinstance(effect, TargetsFreed):
            self.held[effect.jobid] -= effect.ranks
            if not self.held[effect.jobid]:
                del self.held[effect.jobid]

    def submit(self, jobid: int = 1, spec: Jobspec | None = None, **options: Any) -> list[Effect]:
        return self.do("submit", jobid, spec or make_spec(), **{"userid": USER, **options})

    def scheduler(self, name: str = "sched", groups: tuple[str, ...] = ("default",), limit: int | None = None) -> Any:
        hello = self.manager.allocation.hello(name, groups)
        self.now_s += 1.0
        count, effects = self.manager.allocation.ready(name, limit, self.now_s)
        self.perform(effects)
        return hello, count, effects

    def grant(self, jobid: int = 1, R: dict[str, Any] | None = None, scheduler: str = "sched") -> list[Effect]:
        return self.do("alloc_granted", scheduler, jobid, R or make_r(str(jobid)), None)

    def run(self, jobid: int = 1, R: dict[str, Any] | None = None, scheduler: str = "sched", **options: Any) -> None:
        """Submit, grant and start a job."""
        self.submit(jobid, **options)
        self.grant(jobid, R, scheduler)
        self.do("started", jobid)

    def end(self, jobid: int = 1, status: int = 0) -> list[Effect]:
        return self.do("finished", jobid, status, release=True)

    def cancel(self, jobid: int, userid: int, note: str, now_s: float) -> list[Effect]:
        return self.manager.requests.raise_exception(jobid, "cancel", 0, note, userid, now_s)

    def annotate(self, scheduler: str, jobid: int, annotations: dict[str, Any], now_s: float) -> list[Effect]:
        self.manager.allocation.alloc_annotated(scheduler, jobid, annotations)
        return []

    def listing(self, query: JobQuery = EVERY_JOB) -> list[dict[str, Any]]:
        return list(chain.from_iterable(list_jobs(self.manager.jobs, query)))

    def result(self, jobid: int = 1) -> JobResult | None:
        return result(self.job(jobid))

    def why(self, jobid: int = 1) -> Why:
        return why(self.manager.links, self.job(jobid))

    def job(self, jobid: int = 1) -> Job:
        return self.manager.jobs.get(jobid)

    def state(self, jobid: int = 1) -> State:
        return self.job(jobid).state

    def names(self, jobid: int = 1) -> list[str]:
        """The names of the job's stored events."""
        return [event["name"] for event in self.stored[jobid]["events"]]

    def contexts(self, jobid: int, name: str) -> list[dict[str, Any]]:
        return [event.get("context", {}) for event in self.stored[jobid]["events"] if event["name"] == name]

    def rows(self) -> list[Any]:
        """What the store would return after a restart, oldest first."""
        stored = sorted(self.stored.items())
        return [(jobid, row["events"], Jobspec.parse(row["jobspec"]), row["R"]) for jobid, row in stored]

    def sent(self) -> list[int]:
        """The jobs whose alloc requests were among the last effects, in order."""
        return [request.id for request in self.requests(AllocRequest)]

    def freed(self) -> list[FreeRequest]:
        return self.requests(FreeRequest)

    def requests(self, kind: type) -> list[Any]:
        """The messages of this class that were among the last effects."""
        return [effect.message for effect in self.of(ToScheduler) if isinstance(effect.message, kind)]

    def of(self, kind: type) -> list[Any]:
        return [effect for effect in self.last if isinstance(effect, kind)]


@pytest.fixture
def spec() -> Callable[..., Jobspec]:
    return make_spec


@pytest.fixture
def r_of() -> Callable[..., dict[str, Any]]:
    return make_r


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(*args: Any, **options: Any) -> World:
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.manager.check()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    """A world with one anonymous queue and a scheduler that is ready for everything."""
    made = new_world()
    made.scheduler()
    return made


@pytest.fixture
def alone(new_world: Callable[..., World]) -> World:
    """A world without a scheduler."""
    return new_world()
