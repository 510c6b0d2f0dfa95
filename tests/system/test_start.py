"""The life of an instance as its user sees it: with a command, a shell, as a daemon, inside a job; and its state."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fluxsched.jobs.table import result

from .conftest import left_behind


@pytest.mark.parametrize("status", [0, 7])
def test_the_commands_status_is_ours_and_the_temporary_state_goes(user: Any, status: int) -> None:
    script = f"test -S ${{FLUXSCHED_URI#ipc://}} && echo inside; exit {status}"
    found = user.shell(script, "--fake", "2x2", status=status)
    assert (found.out, found.err) == ("inside\n", "")
    assert left_behind(user) == []


def test_a_command_ended_by_a_signal_ends_us_as_in_a_shell(user: Any) -> None:
    user.shell("kill -9 $$", "--fake", "1x1", status=128 + signal.SIGKILL)


def test_a_command_that_is_not_there(user: Any) -> None:
    found = user.process("start", "--fake", "1x1", "--", "no-such-command", status=127)
    assert found.err == "fluxsched: start: cannot run no-such-command: No such file or directory\n"
    found = user.process("start", "--fake", "1x1", "--", "/etc/passwd", status=126)
    assert found.err == "fluxsched: start: cannot run /etc/passwd: Permission denied\n"
    assert left_behind(user) == []


@pytest.mark.parametrize(
    ("options", "want"),
    [
        (["--bind", "tcp://192.0.2.1:1"], "tcp://192.0.2.1:1"),
        (["--scheduler", "fifo", "--scheduler", "firstfit"], "group 'default' is served by module 'sched-fifo'"),
        (["--statedir", "/proc/1/nothing"], "/proc/1/nothing"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(user: Any, options: list[str], want: str) -> None:
    found = user.process("start", "--fake", "1x1", *options, "--", "true", status=1)
    assert found.err.startswith("fluxsched: start: ")
    assert want in found.err
    assert found.err.count("\n") == 1
    assert left_behind(user) == []


@pytest.mark.parametrize("command", ["start", "doctor"])
def test_an_empty_name_is_no_state_directory(user: Any, command: str) -> None:
    """`--statedir "$D"` without D took, and closed to others, the directory that one was in."""
    found = user.process(command, "--statedir", "", status=2)
    assert "Invalid value for '--statedir': the name is empty: is a variable unset?" in found.err
    assert list(user.directory.glob("state.sqlite")) == []


def test_made_up_hosts_have_the_properties_and_amounts_of_their_names(user: Any) -> None:
    (user.directory / "site.toml").write_text(
        "[[resource.config]]\nhosts = 'fake[1-3]'\ncores = '0'\nproperties = ['ssd']\namounts = { memory = '1GiB' }\n"
    )
    script = "fluxsched run --requires ssd --request memory=1GiB echo ran"
    found = user.shell(script, "--fake", "2x2", "--config", "site.toml")
    assert found.out == "ran\n"
    assert found.err == (
        "fluxsched.config: site.toml:1: [[resource.config]]: properties and amounts of hosts fake[2-3] are dropped: "
        "the hosts here are fake[0-1]\n"
    )
    found = user.shell(script, "--fake", "1x2", "--config", "site.toml", status=1)
    assert "no node of the group matches" in found.err


def test_without_a_command_there_is_a_shell_on_the_terminal(user: Any) -> None:
    """Interrupts go to the shell, job control works, and the instance ends with it, with its status."""
    user.environ |= {"SHELL": "/bin/sh", "PS1": "$ ", "ENV": ""}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(user.directory)
        os.execve(str(Path(sys.executable).with_name("fluxsched")), ["fluxsched", "start", "--fake", "2x2"],
                  user.environment)  # fmt: skip
    screen = ""

    def read_until(text: str) -> str:
        nonlocal screen
        end_s = time.monotonic() + 60
        while text not in screen:
            assert time.monotonic() < end_s, screen
            if select.select([terminal], [], [], 0.1)[0]:
                screen += os.read(terminal, 4096).decode()
        before, screen = screen.split(text, 1)
        return before

    read_until("$ ")
    os.write(terminal, b"fluxsched run echo it-$((40+2))\n")
    read_until("it-42\r\n")
    read_until("$ ")
    os.write(terminal, b"sleep 100\n")
    read_until("sleep 100\r\n")
    time.sleep(0.3)
    os.write(terminal, b"\x03")
    read_until("$ ")
    os.write(terminal, b"tty >/dev/null && exit 9\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9
    assert left_behind(user) == []


@pytest.mark.usefixtures("real")
def test_a_daemon_prints_its_uri_is_found_without_it_and_ends_by_stop(user: Any, alive: Any) -> None:
    uri = user.process("start", "--daemon", "--fake", "2x2").word
    assert re.fullmatch(r"ipc:///\S+/instance\.sock", uri)
    assert user.process("uri").word == uri
    info = user("uri", "--json").json
    assert (info["uri"], info["ready"], info["size"]) == (uri, True, 2)
    jobid = user.running("sleep", "100")
    assert user("jobs", "-n", "-o", "{id.f58} {state}").word == f"{jobid} RUN"
    assert user.process("stop").out == f"stopped {uri}\n"
    assert left_behind(user) == []
    found = user("jobs", status=1)
    assert found.err.startswith("fluxsched: jobs: no fluxsched instance found: start one with `fluxsched start`")
    assert not alive(info["pid"])


@pytest.mark.parametrize("end", ["stop", "term", "kill"])
def test_no_kind_of_end_leaves_a_lock_or_a_run_directory(
    user: Any, daemon: Any, alive: Any, until: Any, kill_hard: Any, end: str
) -> None:
    here = daemon("--fake", "1x1", "--statedir", "state")
    here("run", "true")
    pid = here.pid()
    if end == "stop":
        here("stop")
    elif end == "term":
        os.kill(pid, signal.SIGTERM)
        until(lambda: not alive(pid))
    else:
        kill_hard(pid)
        user.shell("true", "--fake", "1x1", "--statedir", "state")
    assert left_behind(user) == []
    kept = {"state.sqlite", "state.sqlite-commit", "jobs", "logs", "address"}
    assert {path.name for path in (user.directory / "state").iterdir()} <= kept


def test_stop_guesses_none_of_several(user: Any, daemon: Any) -> None:
    first, second = daemon("--fake", "1x1"), daemon("--fake", "1x1")
    found = user("stop", status=1)
    assert found.err == (
        "fluxsched: stop: 2 instances of yours are running: name one with --uri or FLUXSCHED_URI\n"
        f"  {second.uri}\n  {first.uri}\n"
    )
    assert user("uri").word == second.uri
    assert user.at(second.uri)("stop").out == f"stopped {second.uri}\n"
    assert user("stop").out == f"stopped {first.uri}\n"


def test_what_a_killed_instance_left_goes_with_the_next_start(user: Any, daemon: Any, kill_hard: Any) -> None:
    killed, other = daemon("--fake", "1x1"), daemon("--fake", "1x1")
    kill_hard(killed.pid())  # it has run no job: else its keeper may clear the directory before it is seen
    assert len(left_behind(user)) == 2
    user.shell("true", "--fake", "1x1")
    assert left_behind(user) == [Path(other.uri).parent.name]
    other("run", "true")


def test_sigterm_ends_an_instance_its_jobs_and_its_modules(user: Any, alive: Any, until: Any) -> None:
    script = "fluxsched module list --json; fluxsched submit sleep 321 >/dev/null; echo ready; exec sleep 100"
    with user.popen("start", "--fake", "1x1", "--", "sh", "-c", script) as process:
        mods = json.loads(process.stdout.readline())["mods"]
        scheduler = next(mod["pid"] for mod in mods if mod["name"] == "sched-fifo")
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        process.communicate(timeout=60)
    until(lambda: not alive(scheduler))
    assert subprocess.run(["pgrep", "-fx", "sleep 321"], capture_output=True).stdout == b""
    assert left_behind(user) == []


def test_statedir_keeps_jobs_drains_queues_and_ids_and_is_locked(user: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = user.shell(
        "fluxsched run true; fluxsched submit --urgency hold true; fluxsched resource drain 1 broken; fluxsched uri;"
        f"fluxsched queue disable -m 'resting a while'; fluxsched start --fake 1x1 --statedir {state} -- true",
        "--fake", "2x2", "--statedir", state, status=1,
    )  # fmt: skip
    held, uri = first.out.split()
    said = f"state directory {state} is used by another instance, at {uri}: stop it or name another"
    assert first.err == f"fluxsched: start: {said}\n"
    again = user.shell(
        "fluxsched jobs -a -n -o '{id.f58} {status}'; fluxsched resource drain -n -o '{ranks} {reason}';"
        f"fluxsched submit true; fluxsched queue enable; fluxsched urgency {held} 16; fluxsched wait -v {held};"
        "fluxsched submit true",
        "--fake", "2x2", "--statedir", state,
    )  # fmt: skip
    waiting, ended, drained, waited, new = again.out.splitlines()
    assert waiting.split()[0] == held
    assert ended.endswith(" COMPLETED")
    assert drained == "1 broken"
    assert waited == f"{held}: completed"
    assert new not in (held, ended.split()[0])
    assert "resting a while" in again.err
    assert left_behind(user) == []


def test_a_nested_instance_has_the_jobs_resources_re_ranked(user: Any, tmp_path: Path) -> None:
    inner = tmp_path / "inner.sh"
    run = "fluxsched run -N2 -n2 sh -c 'echo $FLUX_JOB_NNODES'"
    inner.write_text(f"fluxsched resource R; fluxsched resource info; {run}")
    outer = tmp_path / "outer.sh"
    outer.write_text(f"[ $FLUX_TASK_RANK != 0 ] || exec fluxsched start -- sh {inner}")
    found = user.shell(
        f"fluxsched submit -N2 -n2 sleep 100 >/dev/null; fluxsched run -N2 -n2 -c3 sh {outer}", "--fake", "4x4"
    )
    lines = found.out.splitlines()
    resources = json.loads(lines[0])
    assert resources["execution"]["R_lite"] == [{"rank": "0-1", "children": {"core": "0-2"}}]
    assert resources["execution"]["nodelist"] == ["fake[2-3]"]
    assert lines[1:] == ["2 Nodes, 6 Cores, 0 GPUs, all made-up", "2", "2"]


async def test_what_waits_when_the_instance_ends_is_not_started_meanwhile(
    world: Any, timed: Any, tmp_path: Path
) -> None:
    """The end of a running job frees its cores, and that must not start the next one."""
    state = tmp_path / "state"
    instance = await world.instance(fake="1x1", statedir=state)
    client = await world.client(instance)
    running, waiting = [await client.submit(timed("100s")) for _ in range(2)]
    await world.until(lambda: instance.effects.manager.jobs.get(running).state.name == "RUN")
    await instance.close()
    world.instances.clear()
    again = await world.instance(fake="1x1", statedir=state)
    await world.until(lambda: again.effects.manager.jobs.get(waiting).state.name == "RUN")
    assert result(again.effects.manager.jobs.get(running)).errstr == "exception exec: the instance is shutting down"


def test_a_command_that_heeds_no_signal_does_not_keep_an_instance_from_ending(user: Any) -> None:
    script = "trap '' TERM HUP; echo up; while :; do sleep .2; done"
    with user.popen("start", "--fake", "1x1", "--", "sh", "-c", script) as it:
        assert it.stdout.readline() == "up\n"
        user.process("stop")
        assert it.wait(20) == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("text", "words", "why"),
    [
        ("1 +\n", ["--scheduler", "./bad.py"], "policy file ./bad.py cannot be loaded: invalid"),
        ("import sys; sys.exit(3)\n", ["--scheduler", "./bad.py"], "policy ./bad.py ended the process while it was "),
        ("import time\nwhile True: time.sleep(1)\n", ["--config", "site.toml"], "was still importing after 0.5 s"),
    ],
)
def test_start_fails_with_a_broken_scheduler(user: Any, text: str, words: list[str], why: str) -> None:
    (user.directory / "bad.py").write_text(text)
    (user.directory / "site.toml").write_text('[[scheduler]]\npolicy = "bad.py"\nhung-after = "0.5s"\n')
    for rest in (["--daemon"], ["--", "true"]):
        found = user.process("start", "--fake", "1x1", *words, *rest, status=1)
        assert found.err.splitlines()[-1].startswith(f"fluxsched: start: module sched-bad: {why}")
        assert found.out == ""
    assert left_behind(user) == []


def test_a_daemon_that_cannot_listen_says_so(user: Any, daemon: Any) -> None:
    found = user.process("start", "--daemon", "--fake", "1x1", "--bind", "tcp://192.0.2.1:1", status=1)
    assert found.err.startswith("fluxsched: start: ")
    assert left_behind(user) == []
