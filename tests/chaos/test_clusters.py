"""Two simulated instances with the real services, one the cluster of the other: each job runs there once, whichever of
the two is killed, at whatever effect, and whatever becomes of the connection between them.

Judged by what outsiders see: which tasks began there, and what clients of both are told of the jobs.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest

from fluxsched.transport.base import Disconnected
from tests.chaos.observations import Observation, TaskBegan
from tests.chaos.wire import RESPONSE, messages, request
from tests.chaos.world.world import HOLDER, INSTANCE, World

CONFIG = """
[queues.far]
group = "east"
[[scheduler]]
policy = "fifo"
groups = ["default", "east"]
[[cluster]]
name = "east"
uri = "ipc:///east"
return-after = "4s"
"""
JOBS = 8
BUSY_S = 30.0
CALM_S = 120.0
SEEDS = 4, 11, 20, 22
"""Those that notice most of what can be broken."""


def spec(name: str, run_s: float, cores: int) -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
    task = {"command": ["task", str(run_s), "0"], "slot": "task", "count": {"per_slot": 1}}
    system = {"duration": 0.0, "job": {"name": name}}
    return {"version": 1, "resources": [slot], "tasks": [task], "attributes": {"system": system}}


class Caller:
    """Sends requests to a world's instance, each on a connection of its own, and keeps the answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: dict[str, Any] = {}

    def ask(self, key: str, topic: str, payload: Any) -> None:
        """Ask; `answers[key]` is the payload of a success, if one comes."""
        try:
            client = self.world.connect("ann")
        except Disconnected:  # it is down
            return

        def take() -> None:
            for frames in client.receive(100):
                for message in messages(frames):
                    if message.type == RESPONSE and not message.errnum:
                        self.answers[key] = message.payload

        client.start(None, take)
        client.send(request(topic, payload, 1))


class TwoWorlds:
    """`here` submits, `there` runs; `begun` counts the tasks that began there, by job id."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"two worlds {seed}")
        self.there = World(seed, targets="3x4")
        self.here = World(seed + 1, CONFIG, "1x1", elsewhere=self.there)
        self.begun: Counter[int] = Counter()
        self.there.observe(self._saw)

    def _saw(self, one: Observation) -> None:
        if isinstance(one, TaskBegan):
            self.begun[one.jobid] += 1

    def plan(self) -> None:
        """Jobs, and faults of both worlds."""
        chance, here, there = self.chance, Caller(self.here), Caller(self.there)
        self.caller, self.other = here, there
        for number in range(JOBS):
            job = spec(f"job{number}", chance.choice((0.1, 2.0, 8.0)), chance.choice((1, 4)))
            at_s = chance.uniform(3.0, BUSY_S - 5.0)
            self.here.at(at_s, partial(here.ask, f"job{number}", "job-manager.submit", {"jobspec": job}))
        for number in range(2):  # others' jobs there
            job = spec(f"other{number}", 5.0, 4)
            submit = partial(there.ask, f"o{number}", "job-manager.submit", {"jobspec": job})
            self.there.at(chance.uniform(3.0, BUSY_S), submit)
        for _ in range(chance.randint(1, 5)):
            self.here.at(chance.uniform(4.0, BUSY_S), self._fault())

    def _fault(self) -> Any:
        chance = self.chance
        world = chance.choice((self.here, self.there))
        return chance.choice(
            (
                partial(world.kill, INSTANCE),
                partial(world.kill_at_effect, INSTANCE, chance.randint(1, 60)),
                partial(world.hang, INSTANCE, BUSY_S),
                partial(self.there.cut, HOLDER),
                partial(self.there.delay, HOLDER, 0.2, 2.0),
            )
        )

    def run(self) -> None:
        """The bad time, then a good one."""
        self.plan()
        self.here.run_until(BUSY_S, self.check)
        for world in (self.here, self.there):
            world.calm()
        self.here.run_until(BUSY_S + CALM_S, self.check)
        for caller in (self.caller, self.other):
            caller.ask("list", "job-manager.list", {})
            caller.ask("clusters", "cluster.list", None)
        self.here.run_until(BUSY_S + CALM_S + 5.0, self.check)

    def check(self) -> None:
        """The instances' own laws."""
        self.here.check()
        self.there.check()

    def judge(self) -> None:
        """Every job that was accepted has run once there, and is told to have ended well here."""
        listed, others = ([*caller.answers["list"]["jobs"]] for caller in (self.caller, self.other))
        assert all(one["state"] == "INACTIVE" for one in [*listed, *others])
        (cluster,) = self.caller.answers["clusters"]["clusters"]
        assert cluster["state"] == "connected"
        assert not any(cluster["leases"].values())
        for name in {one["name"] for one in listed}:
            attempts = [one for one in listed if one["name"] == name]
            runs = [self.begun[one["id"]] for one in others if one["name"] == name]
            assert sum(runs) == 1, f"{name} began {sum(runs)} times"
            assert [one.get("result") for one in attempts if "requeued_as" not in one] == ["COMPLETED"]
        accepted = {name for name in self.caller.answers if name.startswith("job")}
        assert accepted <= {one["name"] for one in listed}, "what was accepted is known"


@pytest.mark.parametrize("seed", SEEDS)
def test_each_lease_runs_exactly_once_whichever_is_killed(seed: int) -> None:
    worlds = TwoWorlds(seed)
    with worlds.there, worlds.here:
        worlds.run()
        worlds.judge()
