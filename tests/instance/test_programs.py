"""Prologs, epilogs and health checks in real instances: programs that run, fail, hang, and are left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fluxsched.config.discovery import discover
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58, parse_jobid
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.programs import OUTPUT_BYTES_MAX
from fluxsched.errors import FluxschedError
from fluxsched.instance.instance import Instance
from fluxsched.jobs.states import EPILOG_FINISH
from fluxsched.services.health import TIMEOUTS_MAX
from fluxsched.services.history import look_at
from fluxsched.system.processes import children_of, stat_of
from tests.r import r_of
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
    site.program("prolog", "note prolog $FLUXSCHED_JOBID $FLUXSCHED_RANKS $FLUXSCHED_USER ${HOME-none}")
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
    assert [line.reason for line in module.report.status()["drain"].values()] == ["disk 3 is read-only"]
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


@pytest.mark.slow
async def test_a_prolog_over_its_time_is_ended_with_all_that_it_started(world: World, site: Site) -> None:
    site.program("prolog", "[ $FLUXSCHED_HOST != fake0 ] || sleep 600", timeout="10s")
    instance = await site.start(fake="2x1")
    assert (await last(world, instance, await run(world, instance, ["true"]))).success
    reason = next(iter(instance.resource.module.report.status()["drain"].values())).reason
    assert reason == f"{world.directory}/prolog did not end within 10s"


async def test_a_failing_epilog_drains_and_the_job_has_ended_well(world: World, site: Site) -> None:
    site.program("epilog", "echo scratch is not empty; exit 1")
    instance = await site.start(fake="1x1")
    job = await last(world, instance, await run(world, instance, ["true"]))
    assert job.success
    drains = instance.resource.module.report.status()["drain"]
    assert [line.reason for line in drains.values()] == ["scratch is not empty"]


async def test_output_beyond_the_limit_is_dropped_and_the_program_ends_by_itself(world: World, site: Site) -> None:
    lines = 20 * OUTPUT_BYTES_MAX // len("too much of it\n")
    site.program("prolog", f"yes too much of it | head -n {lines}; note done; exit 1")
    instance = await site.start(fake="1x1")
    jobid = await run(world, instance, ["true"])
    async with asyncio.timeout(WAIT_S):
        while not instance.resource.module.drained:
            await asyncio.sleep(0.01)
    assert site.noted == ["fake0 done"]
    assert next(iter(instance.resource.module.report.status()["drain"].values())).reason == "too much of it"
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


async def test_a_failing_epilog_drains_after_a_job_that_was_canceled_in_its_prolog(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("prolog", "note prolog; sleep 600")
    site.program("epilog", "echo cannot clean up; exit 1")
    instance = await site.start(fake="1x1")
    jobid = await run(world, instance, ["true"])
    await eventually(lambda: bool(site.noted))
    await (await world.client(instance)).cancel(jobid)
    assert (await last(world, instance, jobid)).fatal["type"] == "cancel"
    (line,) = instance.resource.module.report.status()["drain"].values()
    assert (line.reason, line.user) == ("cannot clean up", "fluxsched:epilog")


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


@pytest.mark.slow
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


async def test_a_job_in_an_epilog_that_is_configured_no_more_ends(
    world: World, site: Site, eventually: Eventually
) -> None:
    """It held its resources for ever."""
    site.program("epilog", "note epilog; sleep 600")
    state = world.directory / "state"
    first = await site.start(fake="1x1", statedir=state)
    jobid = await run(world, first, ["true"])
    await eventually(lambda: bool(site.noted))
    keepers = keepers_of(first)
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    for keeper in keepers:
        os.kill(keeper, signal.SIGKILL)
    site.config = ""
    again = await site.start(fake="1x1", statedir=state)
    assert (await last(world, again, jobid)).success
    assert not [*again.effects.manager.grants.jobids()]


async def shrunk(world: World, site: Site, instance: Instance, eventually: Eventually) -> tuple[int, int]:
    """Have an elastic job leave a target for another job, whose id is the second; the epilog there runs."""
    command = ["sh", "-c", f"echo task >> {site.notes}; exec sleep 600"]
    jobid = await run(world, instance, command, nodes="1-2", exclusive=True, elastic=True)
    await eventually(lambda: site.noted == ["task", "task"])
    other = await run(world, instance, ["sh", "-c", f"echo other >> {site.notes}"], nodes=1, exclusive=True)
    await eventually(lambda: len(site.noted) == 3)
    return jobid, other


async def test_an_epilog_runs_where_an_elastic_job_leaves_before_that_is_released(
    world: World, site: Site, eventually: Eventually
) -> None:
    until = f"{site.notes}.go"
    waits = f"[ $FLUXSCHED_HOST = fake0 ] || while [ ! -e {until} ]; do sleep 0.05; done"
    site.program("epilog", f"note $FLUXSCHED_JOBID; {waits}")
    instance = await site.start(fake="2x1")
    jobid, other = await shrunk(world, site, instance, eventually)
    job = instance.effects.manager.jobs.get(jobid)
    assert str(job.going) == "1"
    client = await world.client(instance)
    await client.cancel(jobid)
    await eventually(lambda: job.perilog == EPILOG_FINISH)
    assert site.noted[2:] == [f"fake1 {format_f58(jobid)}", f"fake0 {format_f58(jobid)}"]
    assert str(job.held) == "0-1", "it is not free before the epilog of its shrink has ended"
    Path(until).touch()
    assert (await last(world, instance, other)).success
    await last(world, instance, jobid)
    assert [line.split()[-1] for line in site.noted[4:]] == ["other", format_f58(other)]


async def test_an_instance_that_is_killed_in_the_epilog_of_a_shrink_runs_it_again(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("epilog", f"note epilog; [ -e {site.notes}.go ] || sleep 600")
    state = world.directory / "state"
    first = await site.start(fake="2x1", statedir=state)
    jobid, other = await shrunk(world, site, first, eventually)
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    Path(f"{site.notes}.go").touch()
    again = await site.start(fake="2x1", statedir=state)
    assert (await last(world, again, other)).success
    assert site.noted[2:5] == ["fake1 epilog", "fake1 epilog", "other"]
    assert again.effects.manager.jobs.get(jobid).state.name == "RUN"


async def test_an_epilog_that_runs_again_passes_over_what_its_job_has_released(
    world: World, site: Site, eventually: Eventually
) -> None:
    """Another job may be there: it was once told to begin beside the epilog."""
    may = f"{site.notes}.$FLUXSCHED_HOST"
    site.program("epilog", f"note $FLUXSCHED_JOBID; while [ ! -e {may} ]; do sleep 0.05; done")
    state = world.directory / "state"
    first = await site.start(fake="2x1", statedir=state)
    jobid, other = await shrunk(world, site, first, eventually)
    await (await world.client(first)).cancel(jobid)
    await eventually(lambda: site.noted[3:] == [f"fake0 {format_f58(jobid)}"])
    Path(f"{site.notes}.fake1").touch()
    assert (await last(world, first, other)).success
    assert str(first.effects.manager.jobs.get(jobid).freed) == "1"
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    before = len(site.noted)
    Path(f"{site.notes}.fake0").touch()
    again = await site.start(fake="2x1", statedir=state)
    await last(world, again, jobid)
    assert site.noted[before:] == [f"fake0 {format_f58(jobid)}"]


@pytest.mark.slow
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
    drains = instance.resource.module.report.status()["drain"]
    return {str(ranks): (line.reason, line.user) for ranks, line in drains.items()}


async def test_a_host_is_checked_before_it_goes_online(world: World, site: Site, eventually: Eventually) -> None:
    site.program("health", f"note health; while [ ! -e {site.notes}.go ]; do sleep 0.01; done", when="start")
    instance = await site.start(fake="2x1")
    await eventually(lambda: len(site.noted) == 2)
    assert not instance.resource.module.usable("default")
    Path(f"{site.notes}.go").touch()
    await eventually(lambda: str(instance.resource.module.usable("default")) == "0-1")
    assert not instance.resource.module.drained


async def test_hosts_whose_first_check_runs_are_no_failures_in_reports(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("health", f"note health; while [ ! -e {site.notes}.go ]; do sleep 0.01; done", when="start")
    instance = await site.start(fake="2x1")
    client = await world.client(instance)
    await eventually(lambda: len(site.noted) == 2)
    during = await client.report()
    await client.drain("1", "fan")
    module, effects = instance.resource.module, instance.effects
    cores = look_at(module, effects.manager, effects.counts, Idset.parse("0-1")).cores
    assert {state: count for state, count in cores.items() if count} == {"free": 1, "drained": 1}
    await client.undrain("1")
    Path(f"{site.notes}.go").touch()
    await eventually(lambda: str(instance.resource.module.usable("default")) == "0-1")
    for report in (during, await client.report()):
        assert report["capacity"]["free"] > report["capacity"]["down"] == 0


def _r_on(hosts: list[str]) -> dict[str, Any]:
    r = r_of(f"0-{len(hosts) - 1}", cores="0")
    r["execution"]["nodelist"] = hosts
    return r


async def test_a_host_that_a_reload_brings_is_checked_before_it_goes_online(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("health", f"note health; while [ ! -e {site.notes}.go ]; do sleep 0.01; done", when="start")
    others, here = [f"other{rank}" for rank in range(3)], discover().host
    instance = await site.start(r_path=world.write("R.json", json.dumps(_r_on(others[:2]))))
    client, report = await world.client(instance), instance.resource.module.report

    async def reload(hosts: list[str]) -> None:
        await client.rpc("resource.reload", {"R": _r_on(hosts)})

    for times in (1, 2):
        await reload([*others[:2], here])
        await eventually(lambda times=times: site.noted == times * [f"{here} health"])  # type: ignore[misc]
        await reload([*others, here])
        assert not report.online, "its check has not ended"
        Path(f"{site.notes}.go").touch()
        await eventually(lambda: bool(report.online))
        await reload(others[:2])
        assert not report.online
        Path(f"{site.notes}.go").unlink()


@pytest.mark.parametrize(("code", "is_drained"), [(0, False), (75, False), (1, True)])
async def test_the_exit_status_says_whether_a_host_is_good(
    world: World, site: Site, eventually: Eventually, code: int, is_drained: bool
) -> None:
    site.program("health", f"echo fan 2 stands; exit {code}", when="start")
    instance = await site.start(fake="1x1")
    module = instance.resource.module
    await eventually(lambda: str(module.report.online) == "0")
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
    await eventually(lambda: all(line.reason == "disk is full" for line in module.report.status()["drain"].values()))
    client = await world.client(instance)
    await client.rpc("resource.drain", {"targets": "1", "reason": "mine", "mode": "overwrite"})
    await client.rpc("resource.drain", {"targets": "2", "reason": "mine", "mode": "force-overwrite"})
    ill.unlink()
    await eventually(lambda: str(module.drained) == "1-2")
    await eventually(lambda: len([line for line in site.noted if line.startswith(("fake1", "fake2"))]) > 3)
    assert {reason for reason, _ in (await drains(instance)).values()} == {"mine"}
    assert not [user for _, user in (await drains(instance)).values() if user == "fluxsched:health"]


async def test_after_a_restart_a_check_undoes_the_drains_of_those_before_and_no_other(
    world: World, site: Site, eventually: Eventually
) -> None:
    ill = Path(f"{site.notes}.ill")
    site.program("health", f"[ ! -e {ill} ] || {{ echo fan 2 stands; exit 1; }}; note good", when="start")
    ill.touch()
    state = world.directory / "state"
    first = await site.start(fake="3x1", statedir=state)
    await eventually(lambda: str(first.resource.module.drained) == "0-2")
    client = await world.client(first)
    await client.rpc("resource.drain", {"targets": "1", "reason": "mine", "mode": "overwrite"})
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    ill.unlink()
    again = await site.start(fake="3x1", statedir=state)
    await eventually(lambda: len(site.noted) == 3 and str(again.resource.module.drained) == "1")
    assert [reason for reason, _ in (await drains(again)).values()] == ["mine"]


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


@pytest.mark.slow
async def test_the_hosts_of_an_engine_are_checked_by_their_keepers(
    world: World, site: Site, eventually: Eventually
) -> None:
    site.program("health", "[ $FLUXSCHED_HOST != p1 ] || { echo p1 is ill; exit 1; }; note good", when="start")
    instance = await site.start(engine="processes:2")
    await eventually(lambda: str(instance.resource.module.report.online) == "0-1")
    assert await drains(instance) == {"1": ("p1 is ill", "fluxsched:health")}
    assert site.noted == ["p0 good"]
    os.kill(pids_of_engine(instance)[0], signal.SIGKILL)
    await eventually(lambda: str(instance.resource.module.report.online) != "0-1")


def pids_of_engine(instance: Instance) -> list[int]:
    """Return the processes of the instance's engine."""
    assert instance.settings.engine is not None
    return [process.pid for process in instance.settings.engine._processes]


# ---- reloads


async def test_a_reload_takes_other_programs_and_says_what_needs_a_restart(
    world: World, site: Site, eventually: Eventually
) -> None:
    """Each key of the four tables takes effect, or is told to wait for a restart."""
    path = world.write("site.toml", "")

    async def reloaded() -> list[list[str]]:
        path.write_text(site.config)
        answer = await client.rpc("config.reload")
        return [[each["key"].split(".")[0] for each in answer[kind]] for kind in ("changed", "restart")]

    site.program("prolog", "note first")
    path.write_text(site.config)
    instance = await world.instance(config=path, fake="2x2")
    client = await world.client(instance)
    await last(world, instance, await run(world, instance, ["true"]))
    assert site.noted == ["fake0 first"]

    site.config, site.notes = "", world.directory / "later"
    site.program("prolog", "note second", per="job", timeout="5s")
    site.program("epilog", "note epilog")
    site.program("health", "note health", interval="0.1s", timeout="5s", when="idle")
    site.program("notify", f"cat >> {world.directory}/events")
    assert await reloaded() == [[*2 * ["prolog"], "epilog", *4 * ["health"], "notify"], []]
    await eventually(lambda: {"fake0 health", "fake1 health"} <= set(site.noted))
    second = await run(world, instance, ["true"], nodes=2, ntasks=2)
    await last(world, instance, second)
    told = [line for line in site.noted if "health" not in line]
    assert (told[0], sorted(told[1:])) == ("fake0 second", ["fake0 epilog", "fake1 epilog"])
    events = world.directory / "events"
    await eventually(
        lambda: (
            events.exists()
            and any(f'"id":{second},' in line and '"clean"' in line for line in events.read_text().splitlines())
        )
    )

    site.config, before = "", len(events.read_text())
    changed, restart = await reloaded()
    assert (sorted(changed), restart) == (["epilog", "health", "notify", "prolog"], [])
    site.notes = world.directory / "none"
    await last(world, instance, await run(world, instance, ["true"]))
    assert instance._parts.notify is None
    assert len(events.read_text()) == before
    assert not any(state.timer for state in instance._parts._health._hosts.values())  # type: ignore[union-attr]


async def test_programs_for_hosts_that_come_where_there_were_none_need_a_restart(world: World, site: Site) -> None:
    path = world.write("site.toml", "")
    instance = await world.instance(config=path, fake="2x2")
    for table in ("prolog", "epilog", "health", "notify"):
        site.program(table, "note ran")
    path.write_text(site.config)
    answer = await (await world.client(instance)).rpc("config.reload")
    assert [each["key"] for each in answer["changed"]] == ["notify.program"]
    assert [each["key"] for each in answer["restart"]] == ["prolog.program", "epilog.program", "health.program"]
    await last(world, instance, await run(world, instance, ["true"]))
    assert not [line for line in site.noted if line.startswith("fake")], "only the one for notices runs"
