"""The simulated world: jobs run in it, the same seed gives the same run, and what it kills is dead."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.build import BUILD
from tests.chaos.observations import Observation, ProcessEnded, Received, TaskBegan, TaskEnded
from tests.chaos.runs.plan import make_plan
from tests.chaos.runs.run import run as run_plan
from tests.chaos.wire import request
from tests.chaos.world.network import SimClient
from tests.chaos.world.world import World

ROOT = Path(__file__).parents[2]


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


def accepted(seen: list[Observation]) -> set[int]:
    """The jobs whose submits were answered."""
    answers = (one for one in seen if isinstance(one, Received) and one.topic == "job-manager.submit")
    return {one.payload["id"] for one in answers if not one.errnum}


def digest(seen: list[Observation]) -> str:
    said = "\n".join(map(repr, seen)).replace(f"'build': {BUILD!r}", "'build': any")  # both builds decide alike
    return hashlib.sha256(said.encode()).hexdigest()


def test_jobs_run_and_end_on_virtual_time() -> None:
    seen = run(1)
    submitted = accepted(seen)
    began = [one.jobid for one in seen if isinstance(one, TaskBegan)]
    ended = [one.jobid for one in seen if isinstance(one, TaskEnded)]
    assert len(submitted) == 10
    assert sorted(began) == sorted(ended) == sorted(submitted)


def test_nothing_is_left_of_an_instance_that_has_ended() -> None:
    """The last effects of its job manager named a scheduler, and were kept: worlds of 1 MiB each were never freed."""
    with World(1) as world:
        client = Client(world)
        world.run_until(5.0)
        parts = world.parts
        assert parts is not None
        client.send("job-manager.submit", {"jobspec": spec()})
        jobs = parts.effects.manager.jobs
        while not jobs.active:
            world.run_until(world.now_s + 0.0001)
        left = weakref.ref(parts)
    del client, jobs, parts, world
    gc.collect()
    assert left() is None


def test_a_keeper_that_lives_on_keeps_nothing_of_a_killed_instance() -> None:
    """Its end of their connection kept all of it: a year of `benchmarks/soak.py` grew with each kill."""
    with World(1) as world:
        client = Client(world)
        world.run_until(5.0)
        assert world.parts is not None
        left = weakref.ref(world.parts)
        client.send("job-manager.submit", {"jobspec": spec(run_s=1000.0)})
        world.run_until(world.now_s + 5.0)
        keeper = world.processes["keeper"]
        del client
        world.kill("instance")
        world.run_until(world.now_s + 60.0)
        gc.collect()
        assert keeper.is_alive
        assert world.processes["keeper"] is keeper
        assert left() is None


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    assert digest(run(1)) == digest(run(1)) != digest(run(2))


def test_a_killed_instance_comes_back_with_the_jobs_that_it_had_promised() -> None:
    seen = run(3, kill_at=40)
    assert next(one.reason for one in seen if isinstance(one, ProcessEnded)) == "killed at an effect"
    submitted = accepted(seen)
    assert submitted <= {one.jobid for one in seen if isinstance(one, TaskBegan)}


HOSTS = """
[resource]
heartbeat = "1s"
[[resource.config]]
hosts = "n[0-3]"
cores = "0-3"
[[scheduler]]
policy = "fifo"
groups = ["default"]
"""


def faulty(seed: int) -> list[Observation]:
    """A run with every kind of fault."""
    seen: list[Observation] = []
    with World(seed, HOSTS) as world:
        world.observe(seen.append)
        client = Client(world)
        world.at(2.0, lambda: client.send("job-manager.submit", {"jobspec": spec()}))
        world.at(3.0, lambda: world.hang("sched-fifo", 4.0))
        world.at(3.0, lambda: world.silence("n1", 20.0))
        world.at(4.0, lambda: world.disk_full(True))
        world.at(5.0, lambda: world.disk_full(False))
        world.at(5.0, lambda: world.disk_failing(True))
        world.at(6.0, lambda: world.step_clock(None, -30.0))
        world.at(7.0, lambda: world.delay(None, 0.0, 0.5))
        world.at(8.0, lambda: world.cut("agent-n2"))
        world.at(9.0, lambda: world.slow("ann", 11.0))
        world.at(12.0, world.calm)
        world.at(13.0, lambda: world.disk_torn(True))
        world.at(13.0, lambda: client.send("job-manager.submit", {"jobspec": spec()}))
        world.at(13.0, lambda: world.kill_at_effect("instance", 7))
        world.at(16.0, lambda: world.kill("sched-fifo"))
        world.run_until(30.0, world.check)
    return seen


def disasters(seed: int) -> list[Observation]:
    """What is seen of a whole disaster; of this one that the disk is full, in a text that names the file."""
    seen: list[Observation] = []
    run_plan(make_plan(seed), seen.append)
    return seen


def test_agents_report_their_hosts_until_they_are_silent() -> None:
    seen: list[Observation] = []
    with World(1, HOSTS) as world:
        world.observe(seen.append)
        client = Client(world)
        for at_s in (3.0, 25.0):
            world.at(at_s, lambda: client.send("resource.status", None))
        world.at(4.0, lambda: world.silence("n1", 60.0))
        world.run_until(26.0, world.check)
    early, late = (one.payload for one in seen if isinstance(one, Received) and one.topic == "resource.status")
    assert (early["online"], late["online"]) == ("0-3", "0,2-3")


def test_a_run_with_every_fault_is_the_same_under_another_hash_seed_and_python() -> None:
    """And what is seen of it does not depend on the directory of the world."""
    program = "from tests.chaos.test_world import *; print(digest(faulty(5) + disasters(0)))"
    here = disasters(0)
    assert any("disk is full" in str(one) for one in here)
    found = {digest(faulty(5) + here)}  # of this process the hash seed is a random number
    for hash_seed, python in (("1", sys.executable), *(("2", each) for each in other_pythons())):
        done = subprocess.run(
            [python, "-c", program], env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert len(found) == 1


def other_pythons() -> list[str]:
    """Interpreters of other versions that have what the simulation needs."""
    needed = ["-c", "import msgpack, msgspec, pytest, zmq"]
    paths = filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 15)))
    return [path for path in paths if subprocess.run([path, *needed], capture_output=True).returncode == 0]


@pytest.mark.parametrize("seed", range(5))
def test_what_was_answered_survives_a_crash_that_tears_the_next_write(seed: int) -> None:
    seen: list[Observation] = []
    with World(seed) as world:
        world.observe(seen.append)
        world.disk_torn(True)
        client = Client(world)
        for number in range(20):
            world.at(1.0 + number / 50, lambda: client.send("job-manager.submit", {"jobspec": spec(0.1)}))
        world.at(1.0, lambda: world.kill_at_effect("instance", 60))
        world.run_until(15.0, world.check)
        assert world.parts is not None
        jobs = world.parts.effects.manager.jobs
        assert accepted(seen) <= {*jobs.active, *jobs.inactive}
    assert sum(isinstance(one, ProcessEnded) and one.reason == "killed at an effect" for one in seen) == 1


FOREIGN = ROOT / "tests" / "chaos" / "world" / "foreign"


@pytest.mark.parametrize(
    "policy", [f"{FOREIGN}/faulty_policy.py:rate=0.1", f"easy|{FOREIGN}/faulty_plugin.py:rate=0.2"]
)
def test_foreign_code_that_fails_delays_jobs_and_loses_none(policy: str) -> None:
    seen: list[Observation] = []
    with World(
        1, HOSTS.replace('policy = "fifo"', f'policy = "{policy}"\nname = "sched-faulty"\nrestart = 1000')
    ) as world:
        world.observe(seen.append)
        client = Client(world)
        for number in range(20):
            world.at(2.0 + number / 10, lambda: client.send("job-manager.submit", {"jobspec": spec()}))
        world.run_until(60.0, world.check)
        assert not world.tasks.running
    assert len(accepted(seen)) == 20
    assert accepted(seen) == {one.jobid for one in seen if isinstance(one, TaskEnded)}
    reasons = [one.reason for one in seen if isinstance(one, ProcessEnded) and one.process == "sched-faulty"]
    assert any("a fault of the policy" in reason for reason in reasons) == ("policy.py" in policy)


@pytest.mark.parametrize(("victim", "status"), [("instance", 0), ("keeper", 9)])
def test_tasks_outlive_the_instance_and_are_ended_when_their_keeper_is_gone(victim: str, status: int) -> None:
    seen: list[Observation] = []
    with World(1) as world:
        world.observe(seen.append)
        client = Client(world)
        world.at(1.0, lambda: client.send("job-manager.submit", {"jobspec": spec(10.0)}))
        world.at(5.0, lambda: world.kill(victim))
        world.run_until(20.0, world.check)
        assert world.parts is not None
        assert not world.parts.effects.manager.jobs.active
    (jobid,) = accepted(seen)
    assert [one.jobid for one in seen if isinstance(one, TaskBegan)] == [jobid]
    assert [(one.jobid, one.status) for one in seen if isinstance(one, TaskEnded)] == [(jobid, status)]
