"""Prologs, epilogs and health checks in real instances: programs that run, fail, hang, and are left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobid import parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.programs import OUTPUT_BYTES_MAX
from fluxsched.errors import FluxschedError
from fluxsched.instance.instance import Instance
from fluxsched.services.health import TIMEOUTS_MAX
from fluxsched.system.processes import children_of, stat_of
from tests.site import WAIT_S, World

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


class Site:
    """An instance with programs that are shell scripts, and what they have noted in a file."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.notes = world.directory / "notes"
        self.config = ""

    def script(self, name: str, text: str) -> Path:
        """Return a program that executes this text; `note WORDS` adds a line to the notes."""
        path = self._world.directory / name
        path.write_text(f'#!/bin/sh\nnote() {{ echo "$FLUXSCHED_HOST $*" >> {self.notes}; }}\n{text}\n')
        path.chmod(0o755)
        return path

    def program(self, table: str, text: str, **keys: str) -> None:
        """Configure a script as the program of a table."""
        path = self.script(table, text)
        rows = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
        self.config += f'[{table}]\nprogram = "{path}"\n{rows}'

    async def start(self, **options: Any) -> Instance:
        return await self._world.instance(config=self.config, **options)

    @property
    def noted(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def site(world: World) -> Site:
    return Site(world)


async def run(world: World, instance: Instance, words: list[str], **options: Any) -> int:
    """Submit a job; its id."""
    client = await world.client(instance)
    found = await client.submit(Jobspec.from_command(words, **options))
    return found if isinstance(found, int) else parse_jobid(str(found))


async def last(world: World, instance: Instance, jobid: int) -> Any:
    """Wait for the end of a job and of all attempts after it; the last one."""
    jobs = instance.effects.manager.jobs
    async with asyncio.timeout(WAIT_S):
        while jobs.last(jobid).state.name != "INACTIVE":
            await asyncio.sleep(0.01)
    return jobs.last(jobid)


async def log(world: World, instance: Instance, jobid: int) -> list[dict[str, Any]]:
    found = await (await world.client(instance)).rpc("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})
    events: list[dict[str, Any]] = found["eventlog"]
    return events


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in events]


async def test_a_prolog_runs_on_each_host_before_the_tasks_and_an_epilog_after_them(world: World, site: Site) -> None:
    site.program("prolog", 'note prolog $FLUXSCHED_JOBID $FLUXSCHED_RANKS $FLUXSCHED_USER ${HOME-none}')
    site.program("epilog", "note epilog $FLUXSCHED_JOBID")
    instance = await site.start(fake="2x2")
    words = ["sh", "-c", f"echo task >> {site.notes}"]
    jobid = await run(world, instance, words, nodes=2, cwd="/tmp", environment={"HOME": "/home", "PATH": "/bin"})
    job = await last(world, instance, jobid)
    assert job.success
    told = [line.split() for line in site.noted]
    assert sorted(line[:2] for line in told[:2]) == [["fake0", "prolog"], ["fake1", "prolog"]]
    assert all(line[3] == "0-1" and line[5] == "none" for line in told[:2])
    assert told[2:4] == [["task"], ["task"]]
    assert sorted(line[:2] for line in told[4:]) == [["fake0", "epilog"], ["fake1", "epilog"]]
    happened = await log(world, instance, jobid)
    assert names(happened)[-10:] == [
        "alloc", "prolog-start", "prolog-finish", "start", "finish", "epilog-start", "epilog-finish", "release",
        "free", "clean",
    ]  # fmt: skip
    finished = happened[-8]["context"]
    assert finished == {"description": str(world.directory / "prolog"), "status": 0}


async def test_per_job_runs_on_the_first_host_alone(world: World, site: Site) -> None:
    site.program("prolog", "note prolog", per="job")
    instance = await site.start(fake="2x2")
    assert (await last(world, instance, await run(world, instance, ["true"], nodes=2))).success
    assert site.noted == ["fake0 prolog"]


async def test_a_failing_prolog_drains_its_host_and_the_job_waits_again(world: World, site: Site) -> None:
    site.program("prolog", '[ $FLUXSCHED_HOST != fake0 ] || { echo; echo "disk 3 is read-only"; echo more; exit 1; }')
    site.program("epilog", "note epilog")
    instance = await site.start(fake="2x2")
    jobid = await run(world, instance, ["sh", "-c", f"echo task >> {site.notes}"])
    job = await last(world, instance, jobid)
    assert job.success
    assert job.attempt.of == jobid
    assert (job.attempt.number, job.attempt.prologs) == (0, 1)
    assert site.noted == ["fake0 epilog", "task", "fake1 epilog"]
    module = instance.resource.module
    assert str(module.drained) == "0"
    assert [line.reason for line in module.status()["drain"].values()] == ["disk 3 is read-only"]
    happened = await log(world, instance, jobid)
    assert "start" not in names(happened)
    raised = next(event["context"] for event in happened if event["name"] == "exception")
    assert (raised["type"], raised["note"]) == ("prolog", "fake0: disk 3 is read-only")


async def test_a_job_whose_prolog_fails_on_three_hosts_ends_with_that_reason(world: World, site: Site) -> None:
    site.program("prolog", "echo no licence server; exit 3")
    instance = await site.start(fake="4x1")
    jobid = await run(world, instance, ["touch", str(site.notes)])
    job = await last(world, instance, jobid)
    assert job.attempt.prologs == 2
    assert job.fatal["note"].endswith(": no licence server")
    assert len(instance.resource.module.drained) == 3
    assert not site.notes.exists()


async def test_a_prolog_over_its_time_is_ended_with_all_that_it_started(world: World, site: Site) -> None:
    site.program("prolog", "[ $FLUXSCHED_HOST != fake0 ] || sleep 600", timeout="10s")
    instance = await site.start(fake="2x1")
    assert (await last(world, instance, await run(world, instance, ["true"]))).success
    reason = next(iter(instance.resource.module.status()["drain"].values())).reason
    assert reason == f"{world.directory}/prolog did not end within 10s"


async def test_a_failing_epilog_drains_and_the_job_has_ended_well(world: World, site: Site) -> None:
    site.program("epilog", "echo scratch is not empty; exit 1")
    instance = await site.start(fake="1x1")
    job = await last(world, instance, await run(world, instance, ["true"]))
    assert job.success
    assert [line.reason for line in instance.resource.module.status()["drain"].values()] == ["scratch is not empty"]


async def test_output_beyond_the_limit_is_dropped_and_the_program_ends_by_itself(world: World, site: Site) -> None:
    lines = 20 * OUTPUT_BYTES_MAX // len("too much of it\n")
    site.program("prolog", f"yes too much of it | head -n {lines}; note done; exit 1")
    instance = await site.start(fake="1x1")
    jobid = await run(world, instance, ["true"])
    async with asyncio.timeout(WAIT_S):
        while not instance.resource.module.drained:
            await asyncio.sleep(0.01)
    assert site.noted == ["fake0 done"]
    assert next(iter(instance.resource.module.status()["drain"].values())).reason == "too much of it"
    assert instance.effects.manager.jobs.last(jobid).state.name in ("SCHED", "PRIORITY")


async def test_a_job_that_is_canceled_in_its_prolog_runs_no_task(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("prolog", "note prolog; sleep 600")
    site.program("epilog", "note epilog")
    instance = await site.start(fake="1x1")
    jobid = await run(world, instance, ["sh", "-c", f"echo task >> {site.notes}"])
    await eventually(lambda: bool(site.noted))
    client = await world.client(instance)
    await client.cancel(jobid)
    job = await last(world, instance, jobid)
    assert job.fatal["type"] == "cancel"
    assert not job.next_id
    assert site.noted == ["fake0 prolog", "fake0 epilog"]
    assert not instance.resource.module.drained


def keepers_of(instance: Instance) -> list[int]:
    """Return the processes of the keepers of this host."""
    return [pid for pid in children_of(os.getpid()) if _is_keeper(pid, instance)]


def _is_keeper(pid: int, instance: Instance) -> bool:
    return pid in {pid for pid, _ in instance._local._host._pidfds.values()}  # type: ignore[attr-defined]


async def test_a_keeper_that_is_killed_in_a_prolog_has_the_job_prepared_again_and_run_once(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("prolog", f"note prolog; [ -e {site.notes}.go ] || sleep 600")
    instance = await site.start(fake="1x1")
    jobid = await run(world, instance, ["sh", "-c", f"echo task >> {site.notes}"])
    await eventually(lambda: bool(site.noted))
    Path(f"{site.notes}.go").touch()
    (keeper,) = keepers_of(instance)
    os.kill(keeper, signal.SIGKILL)
    job = await last(world, instance, jobid)
    assert job.success
    assert site.noted.count("task") == 1
    assert not instance.resource.module.drained


@pytest.mark.parametrize("table", ["prolog", "epilog"])
async def test_an_instance_that_is_killed_in_a_program_runs_it_again_and_the_job_once(
    world: World, site: Site, eventually: Eventually, table: str
) -> None:
    site.program(table, f"note {table} $$; [ -e {site.notes}.go ] || sleep 600")
    state = world.directory / "state"
    first = await site.start(fake="1x1", statedir=state)
    jobid = await run(world, first, ["sh", "-c", f"echo task >> {site.notes}"])
    await eventually(lambda: any(table in line for line in site.noted))
    left = int(next(line for line in site.noted if table in line).split()[-1])
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    Path(f"{site.notes}.go").touch()
    again = await site.start(fake="1x1", statedir=state)
    job = await last(world, again, jobid)
    assert job.success
    assert job.id == jobid
    assert site.noted.count("task") == 1
    assert sum(table in line for line in site.noted) == 2
    found = stat_of(left)
    assert found is None or not found.alive


async def test_programs_run_on_the_hosts_of_an_engine(world: World, site: Site, eventually: Eventually) -> None:
    site.program("prolog", "[ $FLUXSCHED_HOST != p0 ] || { echo p0 is ill; exit 1; }; note prolog")
    site.program("epilog", "note epilog")
    instance = await site.start(engine="processes:3")
    await eventually(lambda: str(instance.resource.module.usable("default")) == "0-2")
    jobid = await run(world, instance, ["true"], nodes=2)
    job = await last(world, instance, jobid)
    assert job.success
    assert str(instance.resource.module.drained) == "0"
    assert sorted(site.noted)[:1] == ["p0 epilog"]
    assert sorted(site.noted)[-2:] == ["p2 epilog", "p2 prolog"]


# -- health checks


async def drains(instance: Instance) -> dict[str, tuple[str | None, str | None]]:
    """Return reason and user of the drains."""
    return {
        str(ranks): (line.reason, line.user) for ranks, line in instance.resource.module.status()["drain"].items()
    }


async def test_a_host_is_checked_before_it_goes_online(world: World, site: Site, eventually: Eventually) -> None:
    site.program("health", f"note health; while [ ! -e {site.notes}.go ]; do sleep 0.01; done", when="start")
    instance = await site.start(fake="2x1")
    await eventually(lambda: len(site.noted) == 2)
    assert not instance.resource.module.usable("default")
    Path(f"{site.notes}.go").touch()
    await eventually(lambda: str(instance.resource.module.usable("default")) == "0-1")
    assert not instance.resource.module.drained


@pytest.mark.parametrize(("code", "is_drained"), [(0, False), (75, False), (1, True)])
async def test_the_exit_status_says_whether_a_host_is_good(
    world: World, site: Site, eventually: Eventually, code: int, is_drained: bool
) -> None:
    site.program("health", f"echo fan 2 stands; exit {code}", when="start")
    instance = await site.start(fake="1x1")
    module = instance.resource.module
    await eventually(lambda: str(module.status()["online"]) == "0")
    assert await drains(instance) == ({"0": ("fan 2 stands", "fluxsched:health")} if is_drained else {})


async def test_a_check_undoes_its_own_drain_and_no_other(world: World, site: Site, eventually: Eventually) -> None:
    ill = Path(f"{site.notes}.ill")
    text = f"[ ! -e {ill} ] || {{ cat {ill}; exit 1; }}; note good"
    site.program("health", text, when="start,idle", interval="100ms")
    ill.write_text("fan 2 stands\n")
    instance = await site.start(fake="3x1")
    module = instance.resource.module
    await eventually(lambda: str(module.drained) == "0-2")
    ill.write_text("disk is full\n")
    await eventually(lambda: all(line.reason == "disk is full" for line in module.status()["drain"].values()))
    client = await world.client(instance)
    await client.rpc("resource.drain", {"targets": "1", "reason": "mine", "mode": "overwrite"})
    await client.rpc("resource.drain", {"targets": "2", "reason": "mine", "mode": "force-overwrite"})
    ill.unlink()
    await eventually(lambda: str(module.drained) == "1-2")
    await eventually(lambda: len([line for line in site.noted if line.startswith(("fake1", "fake2"))]) > 3)
    assert {reason for reason, _ in (await drains(instance)).values()} == {"mine"}
    assert not [user for _, user in (await drains(instance)).values() if user == "fluxsched:health"]


async def test_a_time_out_counts_after_three_in_a_row(world: World, site: Site, eventually: Eventually) -> None:
    assert TIMEOUTS_MAX == 3
    site.program("health", "exec sleep 600", when="start", timeout="200ms")
    instance = await site.start(fake="1x1")
    await eventually(lambda: bool(instance.resource.module.drained))
    checks = instance._parts._health
    assert checks is not None
    assert checks._hosts["fake0"].checks == TIMEOUTS_MAX
    reason = next(iter((await drains(instance)).values()))[0]
    assert reason == f"{world.directory}/health did not end within 0.2s"


async def test_a_host_is_checked_after_a_job_and_not_while_one_runs(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("health", "note health", when="end,idle", interval="200ms")
    instance = await site.start(fake="1x1")
    await eventually(lambda: bool(site.noted))
    until = f"{site.notes}.go"
    text = f"while [ ! -e {until} ]; do sleep 0.01; done; echo t >> {site.notes}"
    jobid = await run(world, instance, ["sh", "-c", text])
    await eventually(lambda: str(instance.resource.module.held) == "0")
    checks = instance._parts._health
    assert checks is not None
    await eventually(lambda: checks._hosts["fake0"].number == 0)
    before, seen = site.noted, checks._hosts["fake0"].checks
    await eventually(lambda: checks._hosts["fake0"].checks > seen + 2)
    assert site.noted == before
    Path(until).touch()
    assert (await last(world, instance, jobid)).success
    await eventually(lambda: len(site.noted) > len(before) + 1)
    assert site.noted[len(before)] == "t"


async def test_the_hosts_of_an_engine_are_checked_by_their_keepers(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("health", "[ $FLUXSCHED_HOST != p1 ] || { echo p1 is ill; exit 1; }; note good", when="start")
    instance = await site.start(engine="processes:2")
    await eventually(lambda: str(instance.resource.module.status()["online"]) == "0-1")
    assert await drains(instance) == {"1": ("p1 is ill", "fluxsched:health")}
    assert site.noted == ["p0 good"]
    os.kill(pids_of_engine(instance)[0], signal.SIGKILL)
    await eventually(lambda: str(instance.resource.module.status()["online"]) != "0-1")


def pids_of_engine(instance: Instance) -> list[int]:
    """Return the processes of the instance's engine."""
    assert instance.settings.engine is not None
    return [process.pid for process in instance.settings.engine._processes]
