"""The simulated world: jobs run in it, the same seed gives the same run, and what it kills is dead."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.chaos.observations import Observation, ProcessEnded, Received, TaskBegan, TaskEnded
from tests.chaos.wire import request
from tests.chaos.world.network import SimClient
from tests.chaos.world.world import World


def spec(run_s: float = 3.0, cores: int = 2) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
    task = {"command": ["task", str(run_s), "0"], "slot": "task", "count": {"per_slot": 1}}
    return {"version": 1, "resources": [slot], "tasks": [task], "attributes": {"system": {"duration": 60.0}}}


class Client:
    """Sends requests, and keeps the answers."""

    def __init__(self, world: World) -> None:
        self._client: SimClient = world.connect("ann")
        self._tag = 0
        self._client.start(None, lambda: self._client.receive(100))

    def send(self, topic: str, payload: Any) -> None:
        self._tag += 1
        self._client.send(request(topic, payload, self._tag))


def run(seed: int, *, kill_at: int | None = None) -> list[Observation]:
    """Ten jobs, and what was seen."""
    seen: list[Observation] = []
    with World(seed) as world:
        world.observe(seen.append)
        client = Client(world)
        for number in range(10):
            world.at(1.0 + number / 10, lambda: client.send("job-manager.submit", {"jobspec": spec()}))
        if kill_at is not None:
            world.at(1.0, lambda: world.kill_at_effect("instance", kill_at))
        world.run_until(20.0, world.check)
    return seen


def digest(seen: list[Observation]) -> str:
    return hashlib.sha256("\n".join(map(repr, seen)).encode()).hexdigest()


def test_jobs_run_and_end_on_virtual_time() -> None:
    seen = run(1)
    submitted = {one.payload["id"] for one in seen if isinstance(one, Received) and one.topic == "job-manager.submit"}
    began = [one.jobid for one in seen if isinstance(one, TaskBegan)]
    ended = [one.jobid for one in seen if isinstance(one, TaskEnded)]
    assert len(submitted) == 10
    assert sorted(began) == sorted(ended) == sorted(submitted)


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    assert digest(run(1)) == digest(run(1)) != digest(run(2))


def test_a_killed_instance_comes_back_with_the_jobs_that_it_had_promised() -> None:
    seen = run(3, kill_at=40)
    assert next(one.reason for one in seen if isinstance(one, ProcessEnded)) == "killed at an effect"
    submitted = {one.payload["id"] for one in seen if isinstance(one, Received) and one.topic == "job-manager.submit"}
    assert submitted <= {one.jobid for one in seen if isinstance(one, TaskBegan)}
