"""Instances on the hosts of an engine: what a start finds, refuses, keeps and ends. Keepers are real."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fluxsched.doctor import homes
from fluxsched.engine.process import StartedEngine
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.instance.instance import Instance
from fluxsched.instance.launch import StartOptions, check_config, check_start, settings_of
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import ENGINE_NAME
from fluxsched.system.processes import children_of, stat_of
from fluxsched.transport.base import SOCKET_PATH_BYTES_MAX
from tests.engine.fakes import Fakes
from tests.prepared.caller import prepared
from tests.site import WAIT_S, World
from tests.source import ROOT


def engine_of(instance: Instance) -> StartedEngine:
    found = instance.settings.engine
    assert found is not None
    return found


def pids_of(instance: Instance) -> list[int]:
    """Return the processes of the instance's engine."""
    return [process.pid for process in engine_of(instance)._processes]


def is_alive(pid: int) -> bool:
    found = stat_of(pid)
    return found is not None and found.alive


async def online(world: World, instance: Instance, hosts: str) -> None:
    """Wait until the targets on these hosts are online."""
    client = await world.client(instance)
    end_s = SystemClock.monotonic_s() + WAIT_S
    while (found := await client.rpc("resource.status"))["online"] != hosts:
        assert SystemClock.monotonic_s() < end_s, found
        await asyncio.sleep(0.01)


async def test_an_instance_runs_jobs_on_the_hosts_of_its_engine_and_ends_them(world: World) -> None:
    instance = await world.instance(engine="processes:2")
    assert str(instance.resource.module.resources.nodelist) == "p[0-1]"
    await online(world, instance, "0-1")
    pids = pids_of(instance)
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    assert all("tcp://" not in one for one in instance.info().endpoints)
    record = instance.run_directory / ENGINE_NAME
    assert record.exists()
    await world.stop(instance)
    assert not any(map(is_alive, pids))


async def test_properties_and_groups_are_of_the_hosts_that_reported(world: World) -> None:
    text = '[engine]\nkind = "processes"\nhosts = "a,b"\n[resource.groups]\nfast = "b"\n'
    text += '[[resource.config]]\nhosts = "a"\nproperties = ["big"]\n'
    instance = await world.bare(config=text)
    resources = instance.resource.module.resources
    assert {name: str(ranks) for name, ranks in resources.properties.items()} == {"big": "0"}
    assert [instance.resource.module.group_of(rank) for rank in (0, 1)] == ["default", "fast"]
    client = await world.client(instance)
    world.write("site.toml", text.replace('"big"', '"huge"'))
    await client.rpc("resource.reload")
    assert set(instance.resource.module.resources.properties) == {"huge"}
    assert instance.resource.made_up(resources).mask == 0


async def test_the_next_instance_takes_up_the_engine_of_one_that_was_lost(world: World) -> None:
    state = world.directory / "state"
    first = await world.instance(engine="processes:2", statedir=state)
    await online(world, first, "0-1")
    pids = pids_of(first)
    first.ended.set_result(FluxschedError("lost"))
    await first.close()
    world.instances.remove(first)
    assert all(map(is_alive, pids))
    again = await world.instance(engine="processes:2", statedir=state)
    assert engine_of(again).is_resumed
    assert engine_of(again).introduction == engine_of(first).introduction
    await online(world, again, "0-1")
    assert pids_of(again) == pids


async def test_hosts_whose_keepers_do_not_connect_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    monkeypatch.setattr("fluxsched.instance.instance.ABSENT_S", 0.0)
    monkeypatch.setattr(StartedEngine, "introduce", lambda engine, directory, turns: None)
    found = await world.bare(engine="processes:2")
    log = found.run_directory / "log"
    await eventually(lambda: "no job can run on p0, p1: " in log.read_text())
    assert engine_of(found).introduction.endpoint in log.read_text()


async def test_a_state_directory_in_use_is_refused_before_its_keepers_are_touched(world: World) -> None:
    state = world.directory / "state"
    instance = await world.bare(engine="processes:1", statedir=state)
    with pytest.raises(FluxschedError, match="is used by another instance"):
        settings_of(StartOptions(engine="processes:1", statedir=state))
    assert all(map(is_alive, pids_of(instance)))


async def test_a_start_that_fails_leaves_no_process(world: World) -> None:
    settings = settings_of(StartOptions(engine="processes:1"))
    assert settings.engine is not None
    pids = [process.pid for process in settings.engine._processes]
    with pytest.raises(FluxschedError):
        Instance(replace(settings, bind=("tcp://no.such.host.invalid:1",), insecure_tcp=True))
    settings.engine.abandon()
    assert not any(map(is_alive, pids))


async def test_a_host_whose_directories_are_too_long_for_sockets_gets_no_jobs_and_the_log_has_the_remedy(
    world: World, monkeypatch: pytest.MonkeyPatch, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    """Else its jobs would run and not find their instance."""
    long = world.directory / ("x" * SOCKET_PATH_BYTES_MAX)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    instance = await world.bare(engine="processes:1")
    log = instance.run_directory / "log"
    said = f"{long} is too long for a socket in it (limit 107 bytes): set TMPDIR to a shorter directory"
    await eventually(lambda: said in log.read_text())
    client = await world.client(instance)
    assert not (await client.rpc("resource.status"))["online"]


def test_other_faults_of_a_start_end_the_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[StartedEngine] = []
    abandon = StartedEngine.abandon

    def noted(engine: StartedEngine) -> None:
        started.append(engine)
        abandon(engine)

    monkeypatch.setattr(StartedEngine, "abandon", noted)
    text = world.write("site.toml", '[resource.groups]\nfast = "nowhere"\n')
    with pytest.raises(InvalidValue, match="nowhere"):
        settings_of(StartOptions(engine="processes:1", config=text))
    assert len(started) == 1


def test_faults_of_the_configuration_come_before_any_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.instance.launch.start_engine", lambda *args, **options: pytest.fail("started"))
    text = world.write("site.toml", '[engine]\nkind = "ssh"\n')
    with pytest.raises(InvalidValue, match="ssh needs hosts"):
        settings_of(StartOptions(config=text))


@pytest.mark.parametrize("options", [{"fake": "1x1"}, {"test_size": 2}, {"r_path": "R.json"}])
def test_an_engine_and_other_resources_exclude_each_other(world: World, options: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=r"--engine and --.* exclude each other"):
        settings_of(StartOptions(engine="processes:1", **options))  # type: ignore[arg-type]


def test_named_resources_replace_a_configured_engine(world: World) -> None:
    text = world.write("site.toml", '[engine]\nkind = "processes"\nhosts = "a"\n')
    settings = settings_of(StartOptions(config=text, fake="2x1"))
    assert settings.engine is None
    assert settings_of(StartOptions(config=text, engine="none")).engine is None


def test_a_check_of_a_configuration_starts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluxsched.instance.launch.start_engine", lambda *args, **options: pytest.fail("started"))
    text = world.write("site.toml", '[engine]\nkind = "ssh"\nhosts = "a,b"\n[resource.groups]\nfast = "b"\n')
    assert check_config(StartOptions(config=text)).startswith("2 targets")


def test_a_text_that_names_no_engine_is_refused_before_a_start() -> None:
    with pytest.raises(InvalidValue, match="engine 'pbs' is not one of slurm, flux"):
        check_start(None, (), engine="pbs")


async def test_the_example_for_slurm_runs_its_tasks_on_all_nodes(world: World, tmp_path: Path) -> None:
    fakes = Fakes(tmp_path)
    fakes.slurm([f"127.0.0.{number}" for number in range(1, 5)])
    path = f"{prepared().programs}:{fakes.environment['PATH']}"
    variables = {"TASKS": "12", "RANKS": "4", "PROGRAM": "printenv FLUX_TASK_RANK", "PATH": path}
    program = await asyncio.create_subprocess_exec(
        "bash", str(ROOT / "examples/slurm_batch.sh"), env={**fakes.environment, **variables},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await program.communicate()
    assert program.returncode == 0, printed
    assert sorted(printed.decode().split("\n")[:-1]) == sorted(f"{rank}: {rank}" for rank in range(4))


# ---- tasks find their instance, and are instances


async def command(instance: Instance, *words: str) -> tuple[int, str]:
    """Run a command of ours for this instance; return its exit status and what it printed."""
    programs = prepared().programs
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FLUXSCHED_URI": instance.uri}
    program = await asyncio.create_subprocess_exec(
        f"{programs}/fluxsched", *words, env=environment, cwd=instance.run_directory,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await program.communicate()
    assert program.returncode is not None
    return program.returncode, printed.decode()


async def test_a_task_on_another_host_submits_and_attaches_by_its_own_address(world: World) -> None:
    instance = await world.instance(engine="processes:2")
    await online(world, instance, "0-1")
    script = 'echo "$FLUXSCHED_URI"; test "$(fluxsched uri --local)" = "$FLUX_URI" || exit 1; '
    script += 'fluxsched job attach "$(fluxsched submit --requires=host:p0 echo hello)"'
    status, printed = await command(instance, "run", "--requires=host:p1", "sh", "-c", script)
    assert status == 0, printed
    uri, hello = printed.splitlines()
    assert hello == "hello"
    assert uri != instance.uri
    assert Path(uri.removeprefix("ipc://")).parent.name.startswith(f"fluxsched-{os.getuid()}-")


async def test_an_instance_that_is_a_job_over_several_hosts_runs_its_tasks_there(world: World) -> None:
    instance = await world.instance(engine="processes:2")
    await online(world, instance, "0-1")
    tasks = 'echo "$(dirname "$FLUXSCHED_PARENT_URI") $FLUXSCHED_LEVEL"; '
    tasks += 'FLUXSCHED_URI="$FLUXSCHED_PARENT_URI" fluxsched jobs -n'
    script = f"fluxsched run -l -N2 -n2 sh -c '{tasks}'; fluxsched resource list -n -o '{{nodelist}}' -s up"
    status, printed = await command(instance, "alloc", "-N2", "sh", "-c", script)
    assert status == 0, printed
    *lines, hosts = printed.splitlines()
    assert hosts == "p[0-1]", "a job on both has waited until both were online"
    outer = {line.split()[1] for line in lines if line.endswith(" 2") and "ipc://" in line}
    assert len(outer) == 2, "each task has the address of the outermost instance on its own host"
    assert sum(line.endswith("p[0-1]") for line in lines) == 2, "and finds it there"
    assert all(map(is_alive, pids_of(instance)))


async def test_instances_in_jobs_over_hosts_are_nested_at_any_level(world: World) -> None:
    instance = await world.instance(engine="processes:2")
    await online(world, instance, "0-1")
    innermost = "fluxsched run -l -N2 -n2 sh -c 'echo $FLUXSCHED_LEVEL'"
    words = ("alloc", "-N2", "fluxsched", "alloc", "-N2", "sh", "-c", innermost)
    status, printed = await command(instance, *words)
    assert status == 0, printed
    assert sorted(printed.splitlines()) == ["0: 3", "1: 3"]


async def test_an_elastic_job_that_has_grown_reports_each_task_and_gives_back_a_host_on_which_its_tasks_were_killed(
    world: World, tmp_path: Path, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    instance = await world.instance(engine="processes:2")
    await online(world, instance, "0-1")

    async def grown(name: str, script: str) -> str:
        """Have a job grow from p0 to p1, where another one ends."""
        blocking = ("submit", "-N1", "--exclusive", "--requires=host:p1", "sleep", "inf")
        other = (await command(instance, *blocking))[1].strip()
        begun = tmp_path / name
        words = ("submit", "--elastic", "-N1-2", "sh", "-c", f"echo >>{begun}; {script}")
        jobid = (await command(instance, *words))[1].strip()
        await eventually(begun.exists)
        await command(instance, "cancel", other)
        await eventually(lambda: begun.read_text() == "\n\n")
        return jobid

    # The keeper of its first task does not hear of tasks on other hosts
    may_end = tmp_path / "end"
    ends = await grown("ends", f"while ! test -e {may_end}; do sleep 0.1; done; exit $FLUX_TASK_RANK")
    may_end.touch()
    await command(instance, "wait", ends)
    events = (await command(instance, "job", "eventlog", "--format=json", ends))[1]
    (finish,) = [one for one in map(json.loads, events.splitlines()) if one["name"] == "finish"]
    assert [row["status"] for row in finish["context"]["usage"]["tasks"]] == [0, 256], events
    # Its tasks on p0 are older: what a killed keeper has left is sought by the job, and all hosts are this machine
    shrinks = await grown("shrinks", "exec sleep inf")
    (keeper,) = children_of(engine_of(instance)._processes[1].pid)
    os.kill(keeper, signal.SIGKILL)
    status, printed = await command(instance, "run", "-N1", "--requires=host:p1", "echo", "again")
    assert (status, printed) == (0, "again\n")
    events = (await command(instance, "job", "eventlog", shrinks))[1]
    assert 'shrink ranks="1" note="' in events
    assert (await command(instance, "jobs", "-n", "-o", "{nodelist}"))[1].strip() == "p0", events


SSH = """
host, command = sys.argv[-2:]
if os.path.exists(os.environ["FAKES"] + "/down"):
    os.unlink(os.environ["FAKES"] + "/down")
    sys.exit("no route to host")
os.execvp("sh", ["sh", "-c", command])
"""


async def test_a_host_that_reports_late_is_taken_in_with_its_group_and_is_known_to_the_next_instance(
    world: World, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fluxsched.engine.process.OUTPUT_LOOK_S", 0.01)
    fakes.program("ssh", SSH)
    for name in ("PATH", "FAKES"):
        monkeypatch.setenv(name, fakes.environment[name])
    tmp_path.joinpath("down").touch()
    config = '[[resource.config]]\nhosts = "127.0.0.[1-2]"\nproperties = ["cloud"]\n'
    state = world.directory / "state"
    instance = await world.instance(engine="ssh:127.0.0.[1-2]", config=config, statedir=state)
    await online(world, instance, "0-1")
    status, printed = await command(instance, "run", "-N2", "-n2", "--requires=cloud", "echo", "here")
    assert (status, printed) == (0, "here\nhere\n")
    hosts = instance.resource.module.resources.nodelist.hosts
    instance.ended.set_result(FluxschedError("lost"))
    await instance.close()
    world.instances.remove(instance)
    again = await world.instance(engine="ssh:127.0.0.[1-2]", config=config, statedir=state)
    await online(world, again, "0-1")
    assert again.resource.module.resources.nodelist.hosts == hosts


async def test_an_elastic_job_on_hosts_is_no_instance_of_its_own(world: World) -> None:
    instance = await world.instance(engine="processes:2")
    await online(world, instance, "0-1")
    status, printed = await command(instance, "alloc", "--elastic", "-N1-2", "true")
    assert status != 0
    assert "would not follow it to other hosts: submit it without --elastic" in printed


# ---- doctor


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path)


def test_outside_of_an_allocation_the_doctor_is_silent_about_engines(fakes: Fakes) -> None:
    assert list(homes.engine(fakes.environment)) == []


def test_the_doctor_has_each_host_report(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "REACH_S", 60.0)
    fakes.slurm(["127.0.0.1", "127.0.0.2"])
    found = list(homes.engine(fakes.environment))
    states = {check.name: check.state for check in found}
    assert states == {"slurm": "ok", "failed nodes": "none", "hosts": "ok", "address": "ok"}
    assert "2 of 2 have reported" in found[2].found


def test_the_doctor_says_why_an_engine_cannot_be_used(fakes: Fakes) -> None:
    fakes.fails("squeue", "slurm_load_jobs error: Invalid job id specified")
    fakes.prints("srun", "")
    (found,) = homes.engine({**fakes.environment, "SLURM_JOB_ID": "7"})
    assert found.state == "fail"
    assert "Invalid job id specified" in found.found
    assert os.environ.get("SLURM_JOB_ID") is None
