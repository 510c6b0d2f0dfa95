"""Run directories: the dead go, and nothing else does, whoever starts at the same time."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluxsched.errors import FluxschedError
from fluxsched.runtime.instance import run_directory
from fluxsched.runtime.instance.run_directory import (
    OWNER_NAME,
    StateLock,
    kept_run_directory,
    make_run_directory,
    remove_dead,
)
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.live_instances import find_uri
from fluxsched.runtime.system.paths import PREFIX

CLOCK = SystemClock()


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_directory, "UNIX_PATH_BYTES_MAX", 4096)  # pytest's own directories are long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FLUXSCHED_URI", raising=False)
    return tmp_path


@pytest.fixture
def left(base: Path) -> Callable[..., Path]:
    """A run directory with what an instance has in it, whose owner is described by ours but for what is given."""

    def make(**given: Any) -> Path:
        path, fd = make_run_directory()
        os.close(fd)
        record = json.loads((path / OWNER_NAME).read_bytes())
        (path / OWNER_NAME).write_text(json.dumps(record | given))
        (path / "jobs" / "f2").mkdir(parents=True)
        (path / "jobs" / "f2" / "stdout").write_text("x")
        (path / "log").write_text("x")
        (path / "link").symlink_to(base / "elsewhere")
        return path

    return make


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_a_killed_instances_directory_goes(left: Callable[..., Path], dead_pid: int, base: Path) -> None:
    (base / "elsewhere").mkdir()
    (base / "elsewhere" / "kept").touch()
    paths = [left(pid=dead_pid), left(start_ticks=1), left(boot_id="an earlier one")]
    remove_dead(CLOCK)
    assert [path.exists() for path in paths] == [False] * 3
    assert [path.name for path in base.rglob("*")] == ["elsewhere", "kept"], "links are not followed"


def test_a_zombie_is_dead(left: Callable[..., Path]) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        path = left(pid=process.pid)
        remove_dead(CLOCK)
    assert not path.exists()


def test_the_directory_of_a_process_that_may_live_is_kept(left: Callable[..., Path], base: Path, dead_pid: int) -> None:
    mine, fd = make_run_directory()
    locked = left(pid=dead_pid)  # a process that this one cannot see, in another container say
    lock = os.open(locked / OWNER_NAME, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    alive = left()  # no lock, but the process is there
    other_host = left(boot_id="another", host="another")
    unreadable = left()
    (unreadable / OWNER_NAME).write_text("[]")
    being_made = base / f"{PREFIX}{os.getuid()}-new"
    being_made.mkdir()
    before_its_name = base / f"{PREFIX}{os.getuid()}-newer"
    before_its_name.mkdir()
    (before_its_name / f".{OWNER_NAME}").write_text("{}")
    other_user = left(pid=dead_pid).rename(base / f"{PREFIX}{os.getuid() + 1}-x")
    remove_dead(CLOCK)
    kept = (mine, locked, alive, other_host, unreadable, being_made, before_its_name, other_user)
    assert [path for path in kept if not path.exists()] == []
    os.close(lock)
    os.close(fd)
    remove_dead(CLOCK)
    assert not locked.exists()


def test_links_are_left_alone(left: Callable[..., Path], base: Path, dead_pid: int) -> None:
    directory, owner = left(pid=dead_pid), left(pid=dead_pid)
    directory.rename(base / "elsewhere")
    directory.symlink_to(base / "elsewhere")
    (owner / OWNER_NAME).rename(base / OWNER_NAME)
    (owner / OWNER_NAME).symlink_to(base / OWNER_NAME)
    remove_dead(CLOCK)
    assert (directory / "log").exists()
    assert (owner / "log").exists()


def test_a_sweep_that_takes_long_leaves_the_rest_to_the_next(left: Callable[..., Path], dead_pid: int) -> None:
    paths = [left(pid=dead_pid) for _ in range(3)]

    class Slow:
        now_s = 0.0

        def monotonic_s(self) -> float:
            self.now_s += run_directory.SWEEP_S
            return self.now_s

    remove_dead(Slow())  # type: ignore[arg-type]
    assert sum(path.exists() for path in paths) == 2
    remove_dead(CLOCK)
    assert sum(path.exists() for path in paths) == 0


def test_an_interrupted_sweep_is_finished_by_the_next(
    left: Callable[..., Path], dead_pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = left(pid=dead_pid)

    def fail(*args: object, **more: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fail)
        remove_dead(CLOCK)
    assert (path / OWNER_NAME).exists()
    remove_dead(CLOCK)
    assert not path.exists()


def test_a_directory_that_is_too_long_for_a_socket_is_refused_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / ("x" * run_directory.UNIX_PATH_BYTES_MAX)
    base.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    with pytest.raises(FluxschedError, match=r"too long for a socket \(limit 107 bytes\): set XDG_RUNTIME_DIR"):
        make_run_directory()
    assert list(base.iterdir()) == []


def _start_and_hold(ready: Any, leave: Any) -> None:
    """What an instance does: make its directory, sweep those of others, and be killed."""
    ready.wait()
    for _ in range(20):
        path, _ = make_run_directory()
        remove_dead(CLOCK)
        assert (path / OWNER_NAME).exists()
    leave.wait()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def starters() -> Iterator[list[Any]]:
    found: list[Any] = []
    yield found
    for process in found:
        process.kill()
        process.join()
        process.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_instances_that_start_together_sweep_only_the_dead(
    left: Callable[..., Path], base: Path, dead_pid: int, starters: list[Any]
) -> None:
    dead = [left(pid=dead_pid) for _ in range(100)]
    context = multiprocessing.get_context("fork")
    ready, leave = context.Barrier(4), context.Barrier(5)
    for _ in range(4):
        starters.append(context.Process(target=_start_and_hold, args=(ready, leave)))
        starters[-1].start()
    leave.wait(timeout=20)
    for process in starters:
        process.join()
    assert [process.exitcode for process in starters] == [-signal.SIGKILL] * 4
    assert [path for path in dead if path.exists()] == []
    assert len(list(base.iterdir())) == 4 * 20
    remove_dead(CLOCK)
    assert list(base.iterdir()) == []


def test_who_looks_for_an_instance_minds_no_directory_that_goes_meanwhile(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = base / f"{PREFIX}{os.getuid()}-gone"
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter([gone]))
    with pytest.raises(FluxschedError, match="no fluxsched instance found"):
        find_uri()


def test_an_owner_file_that_is_longer_than_ours_is_not_ours(left: Callable[..., Path], dead_pid: int) -> None:
    dead, long = left(pid=dead_pid), left(pid=dead_pid, more="x" * run_directory.OWNER_BYTES_MAX)
    remove_dead(CLOCK)
    assert (dead.exists(), long.exists()) == (False, True)


async def test_no_other_instance_takes_the_state_of_one_that_restarts(world: Any) -> None:
    """The lock was released before the next program took it anew."""
    state = world.directory / "state"
    site = await world.bare(statedir=state)
    site.restart()
    await world.stop(site)
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(state)
    handed = site.handed_over()
    assert handed.state_lock is not None
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(state)
    lock = StateLock(state, handed.state_lock)
    lock.release()
    StateLock(state).release()
    os.close(handed.owner)
    shutil.rmtree(handed.run_directory)


async def test_a_lock_that_was_removed_meanwhile_excludes_others_all_the_same(tmp_path: Path) -> None:
    held = StateLock(tmp_path)
    (tmp_path / "lock").unlink()
    lock = StateLock(tmp_path, held.fd)
    with pytest.raises(FluxschedError, match="is used by another instance"):
        StateLock(tmp_path)
    lock.release()


def test_a_state_directory_keeps_its_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop, after a kill, where the environment has another base; never a directory of another user."""
    base, other, state = tmp_path / "run", tmp_path / "other", tmp_path / "state"
    for path in (base, other, state):
        path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    path, fd = kept_run_directory(state)
    assert path.parent == base
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    os.close(fd)
    path.joinpath("instance.sock").touch()
    text = (path / OWNER_NAME).read_text()  # of a process that was killed
    (path / OWNER_NAME).write_text(json.dumps({**json.loads(text), "start_ticks": 1}))
    again, fd = kept_run_directory(state)
    assert (again, os.listdir(again), stat.S_IMODE(again.stat().st_mode)) == (path, [OWNER_NAME], 0o700)
    monkeypatch.setattr(run_directory, "SWEEP_S", 0.0)
    taken, taken_fd = kept_run_directory(state)  # the owner lives: as in a copy that kept the inode
    assert taken.parent == other
    os.close(fd)
    os.close(taken_fd)
    shutil.rmtree(taken)
    taken.symlink_to(tmp_path)
    theirs, theirs_fd = kept_run_directory(state)
    assert theirs != taken
    os.close(theirs_fd)
    shutil.copytree(state, tmp_path / "copy")
    assert kept_run_directory(tmp_path / "copy")[0] != theirs
    (state / "address").write_text('{"run_directory": "/etc", "inode": 0}')
    assert kept_run_directory(state)[0].parent == other
