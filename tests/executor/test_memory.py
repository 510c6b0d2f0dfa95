"""`memory=` is enforced: who uses more than it asked for is ended and told, and nobody else is looked at."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.doctor import installed
from fluxsched.executor import usage
from fluxsched.executor.base import JobLaunch, TaskSettings
from fluxsched.executor.usage import Cgroups, Guarded, MemoryGuard, group_of

MIB = 1 << 20
LIMIT_BYTES = 64 * MIB
USE = f"b = b'x' * {96 * MIB}; import time; time.sleep(60)"


def launch(shop, program, asked=None):
    jobspec = Jobspec.from_command(
        [sys.executable, "-S", "-c", program], amounts_per_task=asked, environment=dict(os.environ)
    )
    entry = {"rank": "0", "children": {"core": "0"}, "amounts": {"memory": LIMIT_BYTES}}
    execution = {"R_lite": [entry], "nodelist": ["a0"], "starttime": 0, "expiration": 0, "nslots": 1}
    return JobLaunch(1, jobspec, {"version": 1, "execution": execution}, TaskSettings({}, shop.spool))


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(usage, "SAMPLE_S", 0.05)
    monkeypatch.setattr(Cgroups, "find", lambda: None)


ASKED = {"memory": "64MiB"}
STRAY = f"import os; os.fork() or (os.setsid(), os.fork() and os._exit(0), exec({USE!r})); import time; time.sleep(60)"


@pytest.mark.parametrize("program", [USE, f"import os; os.fork() or exec({USE!r}); os.wait()", STRAY])
async def test_a_job_that_uses_more_than_it_asked_for_is_ended_and_told(shop, program):
    shop.executor.start(launch(shop, program, ASKED))
    await shop.until(lambda: shop.said[-1:] and shop.said[-1][0] == "finished")
    raised, finished = shop.said[1:]
    assert raised[:3] == ("raised", 1, "memory")
    assert raised[3].endswith(f" MiB of the 64 MiB of memory that it asked for, on {os.uname().nodename}")
    assert finished[2] == signal.SIGKILL


async def test_memory_that_processes_share_counts_once(shop):
    share = (
        f"import mmap, os, time; b = mmap.mmap(-1, {32 * MIB}); [b.write(b'x' * 4096) for _ in range({32 * 256})]\n"
        "for _ in range(3): os.fork() or (sum(b[::4096]), time.sleep(0.4), os._exit(0))\n"
        "for _ in range(3): os.wait()"
    )
    shop.executor.start(launch(shop, share, ASKED))
    assert await shop.finished() == 0


async def test_a_job_that_did_not_ask_for_memory_is_not_sampled(shop):
    shop.executor.start(launch(shop, "pass"))
    assert shop.executor.memory._watch._timer is None
    assert await shop.finished() == 0
    shop.said.clear()
    shop.executor.start(launch(shop, "pass", ASKED))
    assert shop.executor.memory._watch._timer is not None
    assert await shop.finished() == 0
    assert shop.executor.memory._watch._timer is None


def test_the_limit_is_what_r_gives_to_who_asked(shop):
    asked, not_asked = launch(shop, "pass", ASKED), launch(shop, "pass")
    resources = ResourceSet.parse(asked.R)
    assert usage.limit_of(asked.jobspec, resources) == LIMIT_BYTES
    assert usage.limit_of(not_asked.jobspec, resources) is None


def test_processes_that_fork_without_end_are_not_followed_for_ever(monkeypatch):
    monkeypatch.setattr(usage, "PROCESSES_MAX", 3)
    assert len(list(usage.processes([os.getpid()] * 5))) == 3


# -- control groups: a directory that looks like one


@pytest.fixture
def delegated(tmp_path):
    group = tmp_path / "fs" / "user.slice" / "a.service"
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.procs").write_text("11\n12\n")
    (group / "cgroup.subtree_control").write_text("")
    (tmp_path / "own").write_text("1:name=systemd:/\n0::/user.slice/a.service\n")
    try:
        os.setxattr(group, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    return group


@pytest.fixture
def cgroups(tmp_path, delegated, monkeypatch):
    monkeypatch.undo()
    found = Cgroups.find(tmp_path / "fs", tmp_path / "own")
    assert found is not None
    return found


def test_doctor_and_executor_judge_a_group_alike(tmp_path, cgroups, delegated, monkeypatch):
    """doctor called whatever root may write to delegated."""
    monkeypatch.setattr("fluxsched.executor.usage.group_of", lambda: delegated)
    assert installed._cgroup().state == "ok"
    (delegated / "cgroup.controllers").write_text("cpu pids\n")
    assert "without the memory controller" in installed._cgroup().found
    os.removexattr(delegated, "user.delegate")
    check = installed._cgroup()
    assert (check.state, check.found.partition(" (")[0]) == ("none", "not delegated to us")


def test_a_process_that_was_moved_below_the_delegated_group_finds_it(tmp_path, delegated):
    """Another keeper of the same instance, or the next instance of the same unit."""
    inside = delegated / "instance"
    inside.mkdir(exist_ok=True)
    (inside / "cgroup.controllers").write_text("")
    (tmp_path / "own").write_text("0::/user.slice/a.service/instance\n")
    assert group_of(tmp_path / "fs", tmp_path / "own") == delegated


def test_only_a_delegated_group_with_memory_is_used(tmp_path, cgroups, delegated):
    def found():
        return Cgroups.find(tmp_path / "fs", tmp_path / "own")

    assert found() is not None
    (delegated / "cgroup.controllers").write_text("cpu pids\n")
    assert found() is None
    (delegated / "cgroup.controllers").write_text("memory\n")
    os.removexattr(delegated, "user.delegate")
    assert found() is None
    assert Cgroups.find(tmp_path / "fs", tmp_path / "none") is None


@pytest.mark.plain_only("replaces a method")
def test_a_job_gets_a_group_with_its_limit_and_its_tasks(shop, cgroups, delegated, monkeypatch):
    monkeypatch.setattr(Cgroups, "find", lambda: cgroups)
    guard = MemoryGuard(shop.turns, lambda jobid, note: None)
    assert guard.way == f"cgroup: {delegated}"
    guard.guard_job(1, Guarded([4711], LIMIT_BYTES, list))
    assert (delegated / "instance" / "cgroup.procs").read_text() == "12", "the instance has moved"
    assert (delegated / "cgroup.subtree_control").read_text() == "+memory"
    group = delegated / "job-f2"
    assert (group / "memory.max").read_text() == str(LIMIT_BYTES)
    assert (group / "memory.oom.group").read_text() == "1"
    assert (group / "cgroup.procs").read_text() == "4711"
    (group / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 2\n")
    note = guard.release_job(1)
    assert note is not None
    assert note.startswith("used 64 MiB of the 64 MiB of memory")
    assert guard._watch._timer is None


@pytest.mark.plain_only("replaces a method")
def test_a_job_whose_group_cannot_be_made_is_watched(shop, cgroups, delegated, monkeypatch):
    monkeypatch.setattr(Cgroups, "find", lambda: cgroups)
    (delegated / "job-f2").mkdir()
    guard = MemoryGuard(shop.turns, lambda jobid, note: None)
    guard.guard_job(1, Guarded([4711], LIMIT_BYTES, list))
    assert guard._watch._timer is not None
    assert guard.release_job(1) is None
    assert guard._watch._timer is None
