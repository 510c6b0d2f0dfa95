"""After kill -9 of an instance: what it left is found beyond doubt and killed, and nobody else is touched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxsched.runtime.exec.cleanup.orphans import clear_orphans
from fluxsched.runtime.system import processes as procs

WAIT_S = 15.0
JOBID = int.from_bytes(os.urandom(7))
"""Another one in each process: what runs these tests at the same time must not take our job for its own."""

INSTANCE = """
import asyncio, json, sys
from pathlib import Path
from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.exec.base import JobLaunch, Reports
from fluxsched.runtime.exec.local import LocalExecutor
from fluxsched.runtime.loop.turns import Turns

mode, jobid, spool, command = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

async def main():
    turns = Turns(SystemClock())
    def record(jobid, what, then):
        print(json.dumps(what), flush=True)
        if mode == "open":
            turns.post(then)
    nothing = lambda *_: None
    executor = LocalExecutor(turns, Reports(nothing, nothing, nothing, record, nothing), 5.0)
    turns.start(asyncio.get_running_loop())
    lite = [{"rank": "0", "children": {"core": "0-1"}}]
    execution = {"R_lite": lite, "nodelist": ["a"], "starttime": 0, "expiration": 0, "nslots": 2}
    jobspec = Jobspec.from_command(["sh", "-c", command], ntasks=2)
    executor.start(JobLaunch(jobid, jobspec, {"version": 1, "execution": execution}, {}, spool, None))
    await asyncio.sleep(60)

asyncio.run(main())
"""


class Killed:
    """A job that an instance started, and the instance killed with SIGKILL once `file` is there."""

    def __init__(self, mode: str, directory: Path, command: str, file: str | None = None) -> None:
        words = [sys.executable, "-c", INSTANCE, mode, str(JOBID), str(directory), command]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as instance:
            assert instance.stdout is not None
            self.record: dict[str, Any] = json.loads(instance.stdout.readline())
            if file is not None:
                until(lambda: (directory / file).exists())
            instance.kill()


def until(condition: Any) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "did not come to pass in time"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    stat = procs.stat_of(pid)
    return stat is not None and stat.alive


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"], process_group=0) as process:
        yield process
        process.kill()


def test_tasks_at_the_gate_leave_unrun_when_their_instance_is_killed(tmp_path: Path) -> None:
    killed = Killed("gated", tmp_path, f"touch {tmp_path}/ran")
    until(lambda: not procs.group_living(killed.record["pid"]))
    assert not (tmp_path / "ran").exists()
    assert clear_orphans({JOBID: killed.record}, 5.0) == {JOBID: "no process of the job was left"}


def test_tasks_that_outlived_their_instance_are_killed(tmp_path: Path) -> None:
    killed = Killed("open", tmp_path, f"trap '' TERM HUP; : > {tmp_path}/$FLUX_TASK_RANK; exec sleep 300", "1")
    until((tmp_path / "0").exists)
    notes = clear_orphans({JOBID: killed.record}, 5.0)
    assert "2 processes" in notes[JOBID]
    assert "had to be killed" in notes[JOBID]
    assert not procs.group_living(killed.record["pid"])


def test_the_note_tells_who_ended_on_sigterm_from_who_had_to_be_killed(tmp_path: Path) -> None:
    killed = Killed("open", tmp_path, f"trap '' HUP; : > {tmp_path}/$FLUX_TASK_RANK; exec sleep 300", "1")
    until((tmp_path / "0").exists)
    note = clear_orphans({JOBID: killed.record}, 5.0, 5.0)[JOBID]
    assert note.endswith("of the job outlived it and ended on SIGTERM")
    stubborn = f"[ $FLUX_TASK_RANK = 0 ] && trap '' TERM; : > {tmp_path}/b$FLUX_TASK_RANK; exec sleep 300"
    killed = Killed("open", tmp_path, stubborn, "b1")
    until((tmp_path / "b0").exists)
    want = rf"2 processes \(.*\) of the job outlived it; of these process {killed.record['pid']} had to be killed"
    assert re.fullmatch(want, clear_orphans({JOBID: killed.record}, 5.0, 0.5)[JOBID])


def test_members_are_found_when_the_leader_is_gone(tmp_path: Path) -> None:
    command = f"[ $FLUX_TASK_RANK = 0 ] && exit; echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 300"
    killed = Killed("open", tmp_path, command, "pid")
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(killed.record["pid"]))
    assert is_alive(pid)
    clear_orphans({JOBID: killed.record}, 5.0)
    assert not is_alive(pid)


def test_strays_are_found_by_their_environment(tmp_path: Path) -> None:
    say = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    command = f"[ $FLUX_TASK_RANK = 0 ] && exit; setsid sh -c '{say}; exec sleep 300' & wait"
    killed = Killed("open", tmp_path, command, "pid")
    pid = int((tmp_path / "pid").read_text())
    clear_orphans({JOBID: killed.record}, 5.0)
    assert not is_alive(pid)


def test_what_cannot_be_confirmed_dead_in_time_is_named(tmp_path: Path) -> None:
    killed = Killed("open", tmp_path, f"touch {tmp_path}/run; exec sleep 300", "run")
    notes = clear_orphans({JOBID: killed.record}, 0.0)
    assert "could not be killed within 0 s" in notes[JOBID]
    clear_orphans({JOBID: killed.record}, 5.0)


def test_a_process_number_that_was_given_to_another_is_left_alone(innocent: subprocess.Popen[bytes]) -> None:
    record = procs.identity(innocent.pid, procs.boot_id(), "fOther")
    assert record is not None
    record["start_ticks"] -= 1
    assert clear_orphans({7: record}, 5.0) == {7: "no process of the job was left"}
    assert innocent.poll() is None


def test_after_a_boot_nothing_is_looked_for(innocent: subprocess.Popen[bytes]) -> None:
    record = procs.identity(innocent.pid, "another boot", "fOther")
    assert "booted since" in clear_orphans({7: record}, 5.0)[7]
    assert innocent.poll() is None


@pytest.mark.parametrize("record", [None, 3, {}, {"pid": "1"}, {"pid": True, "start_ticks": 0}])
def test_a_record_that_is_none_is_said_to_be_unreadable(record: object) -> None:
    assert "cannot be read" in clear_orphans({7: record}, 5.0)[7]


def test_no_records_no_notes() -> None:
    assert clear_orphans({}, 5.0) == {}


def test_a_record_outlives_json(innocent: subprocess.Popen[bytes]) -> None:
    record = procs.identity(innocent.pid, procs.boot_id(), "fOther")
    assert json.loads(json.dumps(record)) == record
    assert "had to be killed" in clear_orphans({7: json.loads(json.dumps(record))}, 5.0)[7]
    assert innocent.wait(WAIT_S) == -signal.SIGKILL


def test_a_process_that_is_gone_has_no_identity() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(WAIT_S)
    assert procs.stat_of(process.pid) is None
    assert procs.identity(process.pid, "boot", "path") is None
    assert procs.group_living(process.pid) == []


def test_a_job_is_within_its_enclosing_jobs() -> None:
    outer = procs.job_path(1)
    inner = procs.job_path(2, outer)
    assert inner == "f2/f3"
    assert procs.is_within(inner, outer)
    assert procs.is_within(inner, inner)
    assert not procs.is_within(outer, inner)
    assert not procs.is_within("f22", outer)
    assert not procs.is_within(None, outer)


def test_a_command_name_with_parentheses_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "300"]) as process:
        stat = procs.stat_of(process.pid)
        process.kill()
    assert stat is not None
    assert (stat.ppid, stat.sid, stat.alive) == (os.getpid(), os.getsid(0), True)
