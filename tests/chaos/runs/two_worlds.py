"""Two simulated instances with the real services, one the cluster of the other: each job runs there once, whichever of
the two is killed, at whatever effect, and whatever becomes of the connection between them.

Judged by what outsiders see: which tasks began there, and what clients of both are told of the jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fluxsched.errors import Disconnected
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
CRASH_FROM_S = 4.0
"""When the effects at which one of the two dies begin to count: both have come up by then."""


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


class Crash(NamedTuple):
    """One of the two instances dies at one of its effects while each kind of lease is on its way."""

    is_here: bool
    effect: int

    def __str__(self) -> str:
        return f"the one {'here' if self.is_here else 'there'} dies at effect {self.effect}"


class TwoWorlds:
    """`here` submits, `there` runs; `begun` counts the tasks that began there, by job id.

    What clients do and what goes wrong is chance, or made by hand around one `crash`.
    """

    def __init__(self, seed: int, crash: Crash | None = None) -> None:
        self.crash = crash
        self.canceled: set[str] = set()
        self.chance = Random(f"two worlds {seed}")
        self.there = World(seed, targets="3x4")
        self.here = World(seed + 1, CONFIG, "1x1", elsewhere=self.there)
        self.begun: Counter[int] = Counter()
        self.there.observe(self._saw)

    def _saw(self, one: Observation) -> None:
        if isinstance(one, TaskBegan):
            self.begun[one.jobid] += 1

    def _plan_crash(self, crash: Crash) -> None:
        """Jobs that end soon, late, are canceled, and are returned since others are there; and the crash."""
        for number, (at_s, run_s) in enumerate(((4.0, 0.1), (4.1, 2.0), (4.2, 60.0), (8.0, 1.0))):
            job = spec(f"job{number}", run_s, 4)
            self.here.at(at_s, partial(self.caller.ask, f"job{number}", "job-manager.submit", {"jobspec": job}))
        for number in range(3):
            job = spec(f"other{number}", 7.0, 4)
            self.there.at(7.5, partial(self.other.ask, f"o{number}", "job-manager.submit", {"jobspec": job}))
        self.canceled.add("job2")
        self.here.at(6.5, self._cancel)
        world = self.here if crash.is_here else self.there
        world.at(CRASH_FROM_S, partial(world.kill_at_effect, INSTANCE, crash.effect))

    def _cancel(self) -> None:
        """Again, where it is not known whether that was heard."""
        submitted = self.caller.answers.get("job2")
        if submitted is not None and "cancel" not in self.caller.answers:
            self.caller.ask("cancel", "job-manager.cancel", {"id": submitted["id"]})
            self.here.at(self.here.now_s + 3.0, self._cancel)

    def _plan_chance(self) -> None:
        chance, here, there = self.chance, self.caller, self.other
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

    def plan(self) -> None:
        """What clients will do, and what will go wrong."""
        self.caller, self.other = Caller(self.here), Caller(self.there)
        if self.crash is None:
            self._plan_chance()
        else:
            self._plan_crash(self.crash)

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
            if name in self.canceled:
                assert sum(runs) <= 1, f"{name} began {sum(runs)} times"
                continue
            assert sum(runs) == 1, f"{name} began {sum(runs)} times"
            assert [one.get("result") for one in attempts if "requeued_as" not in one] == ["COMPLETED"]
        accepted = {name for name in self.caller.answers if name.startswith("job")}
        assert accepted <= {one["name"] for one in listed}, "what was accepted is known"


def judged(seed: int, crash: Crash | None = None) -> TwoWorlds:
    """A run that is over. Raises AssertionError where a lease has not run exactly once."""
    worlds = TwoWorlds(seed, crash)
    with worlds.there, worlds.here:
        worlds.run()
        worlds.judge()
    return worlds


def crashes() -> Iterator[Crash]:
    """One for each effect that either of the two has, from the first job to the end of the last one."""
    worlds = TwoWorlds(0, Crash(True, 1 << 30))
    with worlds.there, worlds.here:
        worlds.plan()
        worlds.here.run_until(CRASH_FROM_S - 0.01)
        before = [world.processes[INSTANCE].effects for world in (worlds.here, worlds.there)]
        worlds.here.run_until(BUSY_S)
        after = [world.processes[INSTANCE].effects for world in (worlds.here, worlds.there)]
    for is_here, first, last in zip((True, False), before, after, strict=True):
        yield from [Crash(is_here, effect) for effect in range(1, last - first + 1)]
