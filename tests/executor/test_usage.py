"""What tasks use and leave behind, and jobs that only let time pass."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.executor.base import JobLaunch, Reports, TaskSettings
from fluxsched.executor.cleanup import AHEAD, clear_orphans
from fluxsched.executor.timed import TimedExecutor
from fluxsched.executor.usage import TASK_ROWS_MAX, Meter, merged
from fluxsched.system import processes
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from tests.site import alive

# What tasks used, measured on real processes: `usage` of the job and of each task.


MORE_BYTES = 24 << 20


def big():
    """A peak above our own, and a command that reaches it and exits 3."""
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + MORE_BYTES
    return peak, f"{sys.executable} -c 'b = b\"x\" * {peak}; raise SystemExit(3)'"


async def test_cpu_time_and_peak_are_those_of_the_task_and_its_children(shop):
    peak, command = big()
    assert await shop.run(f"exec {command}") == 3 << 8
    used = shop.usage()
    assert used["max_rss_bytes"] > peak
    assert "max_rss_is_bound" not in used
    assert used["user_s"] + used["system_s"] > 0
    assert used["wall_s"] > 0
    assert "tasks" not in used
    shop.start(f"{command}; exit 0", jobid=2)
    assert await shop.finished(2) == 0
    assert shop.usage(2)["max_rss_bytes"] > peak


async def test_a_peak_below_that_of_the_instance_is_a_bound(shop):
    await shop.run("true")
    assert shop.usage()["max_rss_is_bound"]


async def test_each_task_has_a_row_with_its_own_status_and_time(shop):
    await shop.run("if [ $FLUX_TASK_RANK = 1 ]; then kill -SEGV $$; fi; sleep 1", ntasks=3)
    tasks = shop.usage()["tasks"]
    assert [task["status"] & 0x7F for task in tasks] == [0, 11, 0]
    assert tasks[1]["wall_s"] < min(tasks[0]["wall_s"], tasks[2]["wall_s"])


async def so_far(shop, jobid=1):
    """What a running job has used so far; None if that is not known."""
    answers = asyncio.Queue()
    shop.executor.measure(jobid, answers.put_nowait)
    return await asyncio.wait_for(answers.get(), 60)


async def test_a_running_job_is_measured_with_all_processes_of_its_tasks(shop):
    peak, _ = big()
    burn = f"{sys.executable} -c 'b = b\"x\" * {peak}\nwhile True: pass'"
    shop.start(f"if [ $FLUX_TASK_RANK = 1 ]; then ({burn}) & wait; else read line; fi", ntasks=2)

    async def used_enough():
        used = await so_far(shop)
        return used if used and used["max_rss_bytes"] > peak and used["user_s"] > 0.2 else None

    async with asyncio.timeout(60):
        while (used := await used_enough()) is None:
            await asyncio.sleep(0.01)
    idle, busy = used["tasks"]
    assert "max_rss_is_bound" not in used
    assert busy["max_rss_bytes"] == used["max_rss_bytes"]
    assert idle["max_rss_is_bound"]
    assert idle["user_s"] < busy["user_s"] <= used["user_s"]
    shop.executor.kill(1, signal.SIGKILL)
    await shop.finished(1)
    at_end = shop.usage()
    assert at_end["user_s"] >= busy["user_s"], "although the shell that was killed had not waited for it"
    assert (at_end["max_rss_bytes"] > peak, at_end["has_others"]) == (True, True)
    assert await so_far(shop) is None


async def test_all_who_ask_for_a_job_meanwhile_are_given_one_measurement(shop):
    shop.start("read line")
    async with asyncio.timeout(60):
        while await so_far(shop) is None:
            await asyncio.sleep(0.01)
    found = []
    for _ in range(1000):
        shop.executor.measure(1, found.append)
    await shop.until(lambda: len(found) == 1000)
    assert len({id(one) for one in found}) <= 2
    shop.executor.kill(1, signal.SIGKILL)
    await shop.finished(1)


async def test_what_a_killed_script_has_left_behind_counts(shop):
    peak, _ = big()
    shop.start(f"{sys.executable} -c 'b = b\"x\" * {peak}; print(1, flush=True); import signal; signal.pause()' & wait")
    await shop.until(lambda: shop.text() == "1\n")
    shop.executor.kill(1, signal.SIGKILL)
    await shop.finished()
    assert shop.usage()["max_rss_bytes"] > peak
    assert "has_others" not in shop.usage()


async def test_what_is_left_behind_counts_in_the_row_of_the_only_task_that_can_have_left_it():
    meter = Meter(SystemClock())
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(2)]
    meter.opened(pids)
    for task, pid in enumerate(pids):
        meter.reaped(task, *os.wait4(pid, 0)[1:])
    before = deepcopy(meter.total(2))
    left = resource.struct_rusage([3.0, 4.0, 1 << 30, *[0] * 13])
    meter.left_behind(1, left)
    after = deepcopy(meter.total(2))
    meter.left_behind(None, left)
    last = meter.total(2)
    meter.close()
    assert after["tasks"][0] == before["tasks"][0]
    assert after["tasks"][1]["user_s"] == pytest.approx(before["tasks"][1]["user_s"] + 3.0)
    assert after["tasks"][1]["max_rss_bytes"] == after["max_rss_bytes"] == 1 << 40
    assert "max_rss_is_bound" not in after["tasks"][1]
    assert ("has_others" in after, last["has_others"], last["tasks"]) == (False, True, after["tasks"])
    assert last["system_s"] == pytest.approx(before["system_s"] + 8.0)


async def test_rows_of_tasks_are_bounded():
    meter = Meter(SystemClock())
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(2)]
    meter.opened(pids)
    used = [os.wait4(pid, 0) for pid in pids]
    for task in range(TASK_ROWS_MAX + 2):
        meter.reaped(task, *used[task % 2][1:])
    total = meter.total(TASK_ROWS_MAX + 2)
    meter.close()
    assert total is not None
    assert len(total["tasks"]) == TASK_ROWS_MAX
    assert total["tasks_left_out"] == 2


def test_tasks_that_never_ran_used_nothing():
    assert Meter(SystemClock()).total(1) is None


# A job over several hosts: the sum of what its parts have used.


def used(wall_s=1.0, user_s=0.5, system_s=0.25, peak=100, *, bound=False, rows=0, left_out=0, first=0):
    found = {"wall_s": wall_s, "user_s": user_s, "system_s": system_s, "max_rss_bytes": peak}
    found |= {"max_rss_is_bound": True} if bound else {}
    found |= {"tasks": [{"status": first + row} for row in range(rows)]} if rows else {}
    return found | ({"tasks_left_out": left_out} if left_out else {})


def of(tasks):
    return Idset.parse(tasks)


def test_processor_time_is_a_sum_and_wall_time_and_peak_are_the_highest():
    parts = [(of("0"), used(2.0, 0.1, 0.2, 70)), (of("1"), used(1.0, 0.2, 0.1, 90)), (of("2"), None)]
    assert merged(parts) == used(2.0, 0.3, 0.3, 90)
    assert merged([(of("0"), None)]) is None


@pytest.mark.parametrize(
    ("parts", "is_bound"),
    [
        ([(70, True), (90, True)], True),
        ([(70, True), (90, False)], False),
        ([(70, False), (90, True)], True),
        ([(90, False), (90, True)], False),
    ],
)
def test_a_peak_is_a_bound_unless_a_part_is_known_to_have_reached_it(parts, is_bound):
    found = merged([(of("0"), used(peak=peak, bound=bound)) for peak, bound in parts])
    assert found["max_rss_bytes"] == 90
    assert found.get("max_rss_is_bound", False) is is_bound


def test_rows_are_in_the_order_of_the_tasks_wherever_these_ran():
    even = used(rows=2) | {"tasks": [{"status": 0}, {"status": 2}]}
    odd = used(rows=2) | {"tasks": [{"status": 1}, {"status": 3}]}
    assert [row["status"] for row in merged([(of("1,3"), odd), (of("0,2"), even)])["tasks"]] == [0, 1, 2, 3]


def test_the_only_task_of_a_host_has_a_row_if_the_job_has_others_elsewhere():
    meter = Meter(SystemClock())
    pid = os.posix_spawn("/bin/true", ["true"], {})
    meter.opened([pid])
    meter.reaped(0, *os.wait4(pid, 0)[1:])
    alone = meter.total(1, is_part=True)
    meter.close()
    assert "tasks" not in merged([(of("0"), alone)])
    assert len(merged([(of("0"), alone), (of("1-2"), used(rows=2, first=1))])["tasks"]) == 3


def test_rows_end_before_the_tasks_of_a_host_that_was_lost():
    parts = [(of("0-1"), used(rows=2)), (of("2-3"), None), (of("4-5"), used(rows=2, first=4))]
    found = merged(parts)
    assert ([row["status"] for row in found["tasks"]], found["tasks_left_out"]) == ([0, 1], 2)


def test_so_many_tasks_of_all_hosts_have_a_row():
    half = TASK_ROWS_MAX // 2
    parts = [(of(f"0-{half - 1}"), used(rows=half, left_out=half)),
             (of(f"{half}-{3 * half - 1}"), used(rows=half, left_out=half, first=half))]  # fmt: skip
    found = merged(parts)
    assert [row["status"] for row in found["tasks"]] == list(range(TASK_ROWS_MAX))
    assert found["tasks_left_out"] == half


# After kill -9 of an instance: what it left is found beyond doubt and killed, and nobody else is touched.


WAIT_S = 60.0
JOBID = int.from_bytes(os.urandom(7))
"""Another one in each process: what runs these tests at the same time must not take our job for its own."""

INSTANCE = """
import asyncio, json, sys
from pathlib import Path
from fluxsched.core.jobspec import Jobspec
from fluxsched.system.clock import SystemClock
from fluxsched.executor.base import JobLaunch, Reports, TaskSettings
from fluxsched.executor.local import LocalExecutor
from fluxsched.system.loop import Turns

mode, jobid, spool, command = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]

async def main():
    turns = Turns(SystemClock())
    def record(jobid, what, then):
        print(json.dumps(what), flush=True)
        if mode == "open" and then is not None:
            turns.post(then)
    nothing = lambda *_: None
    executor = LocalExecutor(turns, Reports(nothing, nothing, nothing, record, nothing), 5.0)
    turns.start(asyncio.get_running_loop())
    lite = [{"rank": "0", "children": {"core": "0-1"}}]
    execution = {"R_lite": lite, "nodelist": ["a"], "starttime": 0, "expiration": 0, "nslots": 2}
    jobspec = Jobspec.from_command(["sh", "-c", command], ntasks=2)
    executor.start(JobLaunch(jobid, jobspec, {"version": 1, "execution": execution}, TaskSettings({}, spool)))
    await asyncio.sleep(60)

asyncio.run(main())
"""


class Killed:
    """A job that an instance started, and the instance killed with SIGKILL once `file` is there."""

    def __init__(self, mode, directory, command, file=None):
        words = [sys.executable, "-c", INSTANCE, mode, str(JOBID), str(directory), command]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as instance:
            assert instance.stdout is not None
            self.record = json.loads(instance.stdout.readline())
            if file is not None:
                until(lambda: (directory / file).exists())
            instance.kill()


def until(condition):
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "did not come to pass in time"
        time.sleep(0.005)


@pytest.fixture
def innocent():
    with subprocess.Popen(["sleep", "300"], process_group=0) as process:
        yield process
        process.kill()


def test_tasks_at_the_gate_leave_unrun_when_their_instance_is_killed(tmp_path):
    killed = Killed("gated", tmp_path, f"touch {tmp_path}/ran")
    until(lambda: not processes.group_living(killed.record["pid"]))
    assert not (tmp_path / "ran").exists()
    assert clear_orphans({JOBID: killed.record}, 5.0) == {JOBID: "no process of the job was left"}


def test_tasks_that_outlived_their_instance_are_killed(tmp_path):
    killed = Killed("open", tmp_path, f"trap '' TERM HUP; : > {tmp_path}/$FLUX_TASK_RANK; exec sleep 300", "1")
    until((tmp_path / "0").exists)
    notes = clear_orphans({JOBID: killed.record}, 5.0)
    assert "2 processes" in notes[JOBID]
    assert "had to be killed" in notes[JOBID]
    assert not processes.group_living(killed.record["pid"])


def test_the_note_tells_who_ended_on_sigterm_from_who_had_to_be_killed(tmp_path):
    killed = Killed("open", tmp_path, f"trap '' HUP; : > {tmp_path}/$FLUX_TASK_RANK; exec sleep 300", "1")
    until((tmp_path / "0").exists)
    note = clear_orphans({JOBID: killed.record}, 60.0, 60.0)[JOBID]
    assert note.endswith("of the job outlived it and ended on SIGTERM")
    stubborn = f"[ $FLUX_TASK_RANK = 0 ] && trap '' TERM; : > {tmp_path}/b$FLUX_TASK_RANK; exec sleep 300"
    killed = Killed("open", tmp_path, stubborn, "b1")
    until((tmp_path / "b0").exists)
    want = rf"2 processes \(.*\) of the job outlived it; of these process {killed.record['pid']} had to be killed"
    assert re.fullmatch(want, clear_orphans({JOBID: killed.record}, 60.0, 2.0)[JOBID])


def test_members_are_found_when_the_leader_is_gone(tmp_path):
    command = f"[ $FLUX_TASK_RANK = 0 ] && exit; echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 300"
    killed = Killed("open", tmp_path, command, "pid")
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not alive(killed.record["pid"]))
    assert alive(pid)
    clear_orphans({JOBID: killed.record}, 5.0)
    assert not alive(pid)


def test_strays_are_found_by_their_environment(tmp_path):
    say = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid"
    command = f"[ $FLUX_TASK_RANK = 0 ] && exit; setsid sh -c '{say}; exec sleep 300' & wait"
    killed = Killed("open", tmp_path, command, "pid")
    pid = int((tmp_path / "pid").read_text())
    clear_orphans({JOBID: killed.record}, 5.0)
    assert not alive(pid)


def test_what_cannot_be_confirmed_dead_in_time_is_named(tmp_path):
    killed = Killed("open", tmp_path, f"touch {tmp_path}/run; exec sleep 300", "run")
    notes = clear_orphans({JOBID: killed.record}, 0.0)
    assert "could not be killed within 0 s" in notes[JOBID]
    clear_orphans({JOBID: killed.record}, 5.0)


def test_a_process_number_that_was_given_to_another_is_left_alone(innocent):
    record = processes.identity(innocent.pid, processes.boot_id(), "fOther")
    assert record is not None
    record["start_ticks"] -= 1
    assert clear_orphans({7: record}, 5.0) == {7: "no process of the job was left"}
    assert innocent.poll() is None


STARTER = """
import os, sys
def spawn(**variables):
    return os.posix_spawn("/bin/sleep", ["sleep", "300"], variables, setpgroup=0)
print(spawn(), spawn(FLUXSCHED_JOB_PATH="fOther"), spawn(FLUXSCHED_JOB_PATH="fOwn"), flush=True)
sys.stdin.read()
"""


def test_what_a_dead_starter_has_begun_is_found_by_its_session():
    words = [sys.executable, "-c", STARTER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as starter:
        assert starter.stdout is not None
        pids = unnamed, other, own = [int(word) for word in starter.stdout.readline().split()]
        record = processes.identity(starter.pid, processes.boot_id(), "fOwn")
        assert record is not None
        ahead = {**record, AHEAD: True}
        while (processes.path_of(other), processes.path_of(own)) != ("fOther", "fOwn"):
            time.sleep(0.001)  # a spawn may return before the kernel shows the environment of the new program
        assert f"process {own} of" in clear_orphans({7: ahead}, 5.0)[7]
        assert [*map(alive, [*pids, starter.pid])] == [True, True, False, True]
        starter.kill()
    assert f"process {unnamed} of" in clear_orphans({7: ahead}, 5.0)[7]
    assert [*map(alive, pids)] == [False, True, False]
    os.kill(other, signal.SIGKILL)


LOOKS_ITSELF = """
import os, subprocess
from fluxsched.executor.cleanup import AHEAD, clear_orphans
from fluxsched.system import processes
own = processes.identity(os.getpid(), processes.boot_id(), "fOwn")
with subprocess.Popen(["sleep", "300"], env={}) as of_another_job:
    print(clear_orphans({7: {**own, AHEAD: True}}, 5.0)[7], of_another_job.poll())
    of_another_job.kill()
"""


def test_a_starter_that_looks_itself_leaves_the_others_of_its_session_alone():
    words = [sys.executable, "-c", LOOKS_ITSELF]
    said = subprocess.run(words, start_new_session=True, capture_output=True, text=True, check=True).stdout
    assert said == "no process of the job was left None\n"


def test_after_a_boot_nothing_is_looked_for(innocent):
    record = processes.identity(innocent.pid, "another boot", "fOther")
    assert "booted since" in clear_orphans({7: record}, 5.0)[7]
    assert innocent.poll() is None


@pytest.mark.parametrize("record", [None, 3, {}, {"pid": "1"}, {"pid": True, "start_ticks": 0}])
def test_a_record_that_is_none_is_said_to_be_unreadable(record):
    assert "cannot be read" in clear_orphans({7: record}, 5.0)[7]


def test_no_records_no_notes():
    assert clear_orphans({}, 5.0) == {}


def test_a_record_outlives_json(innocent):
    record = processes.identity(innocent.pid, processes.boot_id(), "fOther")
    assert json.loads(json.dumps(record)) == record
    assert "had to be killed" in clear_orphans({7: json.loads(json.dumps(record))}, 5.0)[7]
    assert innocent.wait(WAIT_S) == -signal.SIGKILL


def test_a_process_that_is_gone_has_no_identity():
    with subprocess.Popen(["true"]) as process:
        process.wait(WAIT_S)
    assert processes.stat_of(process.pid) is None
    assert processes.identity(process.pid, "boot", "path") is None
    assert processes.group_living(process.pid) == []


def test_a_job_is_within_its_enclosing_jobs():
    outer = processes.job_path(1)
    inner = processes.job_path(2, outer)
    assert inner == "f2/f3"
    assert processes.is_within(inner, outer)
    assert processes.is_within(inner, inner)
    assert not processes.is_within(outer, inner)
    assert not processes.is_within("f22", outer)
    assert not processes.is_within(None, outer)


def test_a_command_name_with_parentheses_does_not_confuse(tmp_path):
    odd = tmp_path / "a) Z 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "300"]) as process:
        stat = processes.stat_of(process.pid)
        process.kill()
    assert stat is not None
    assert (stat.ppid, stat.sid, stat.alive) == (os.getpid(), os.getsid(0), True)


# Test execution: only time passes, and a signal ends it as it would end a process.


TIMED_WAIT_S = 60.0


class Timed:
    def __init__(self):
        self.turns = Turns(SystemClock())
        self.said = []
        self.recorded = []
        self.executor = TimedExecutor(
            self.turns,
            Reports(
                lambda jobid: self.said.append(("started", jobid)),
                lambda jobid, status, usage: self.said.append(("finished", jobid, status)),
                lambda jobid, note: self.said.append(("failed", jobid, note)),
                lambda jobid, record, then: self.recorded.append(jobid),
                lambda jobid, kind, note: self.said.append(("raised", jobid, kind, note)),
            ),
        )
        self.turns.start(asyncio.get_running_loop())

    def start(self, jobid, duration_s):
        jobspec = Jobspec.from_command(["true"], test_run_duration_s=duration_s)
        self.executor.start(JobLaunch(jobid, jobspec, {}, TaskSettings({}, Path("unused"))))

    async def until(self, *expected):
        async with asyncio.timeout(TIMED_WAIT_S):
            while len(self.said) < len(expected):
                await asyncio.sleep(0.001)
        assert self.said == list(expected)


@pytest.fixture
async def timed():
    return Timed()


async def test_jobs_end_in_the_order_of_their_durations(timed):
    timed.start(1, 0.5)
    timed.start(2, 0.001)
    await timed.until(("started", 1), ("started", 2), ("finished", 2, 0), ("finished", 1, 0))
    assert not timed.recorded, "no process, nothing to keep"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
async def test_a_terminating_signal_ends_a_job_at_once_and_once(timed, signum):
    timed.start(1, 60.0)
    timed.executor.kill(1, signum)
    timed.executor.kill(1, signum)
    await timed.until(("started", 1), ("finished", 1, signum))
    await asyncio.sleep(0)
    assert len(timed.said) == 2


async def test_a_harmless_signal_changes_nothing(timed):
    timed.start(1, 0.01)
    timed.executor.kill(1, signal.SIGUSR1)
    timed.executor.kill(99, signal.SIGKILL)
    await timed.until(("started", 1), ("finished", 1, 0))


async def test_after_close_nothing_is_reported(timed):
    timed.start(1, 0.005)
    timed.start(2, 60.0)
    timed.executor.close()
    timed.executor.kill(2, signal.SIGKILL)
    await asyncio.sleep(0.01)
    assert timed.said == [("started", 1), ("started", 2)]


async def test_a_job_without_a_run_duration_is_refused(timed):
    with pytest.raises(InvalidValue, match="run_duration"):
        timed.start(1, None)
    assert timed.said == []
