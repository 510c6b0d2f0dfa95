"""An instance whose state directory is on a full disk: what it could not store it refuses, and jobs run on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20


class Tmpfs:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, leave_bytes: int) -> None:
        found = os.statvfs(self.path)
        size = found.f_frsize * found.f_bfree - leave_bytes
        with (self.path / "full").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        (self.path / "full").unlink()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Tmpfs]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", path], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mount.stderr.strip()}")
    yield Tmpfs(path)
    subprocess.run(["umount", "-l", path], check=True)


def test_on_a_disk_with_little_room_new_work_is_refused_and_what_runs_ends(
    user: Any, daemon: Any, until: Any, tmpfs: Tmpfs
) -> None:
    here = daemon("--fake", "2x2", "--statedir", tmpfs.path / "state")
    first, second = here.running("sh", "-c", "while [ ! -e go ]; do sleep .02; done"), here.running("sleep", "100")
    tmpfs.fill(3 * MIB)
    found = here("submit", "true", status=1)
    assert found.err == (
        f"fluxsched: submit: only 3.0 MiB are free on the file system of {tmpfs.path}/state, where the state is kept, "
        "and the last 4 MiB are for jobs that run: make room there\n"
    )
    for words in (("resource", "drain", "1", "fan"), ("queue", "stop"), ("urgency", first, "3")):
        assert "make room there" in here(*words, status=1).err
    (user.directory / "go").touch()
    here("wait", first)
    here("cancel", second)
    here("wait", second, status=None)
    assert here.info(second)["result"] == "CANCELED"
    tmpfs.empty()
    here("run", "true")
    here("resource", "drain", "1", "fan")


def test_on_a_full_disk_jobs_run_on_and_their_ends_are_stored_later(
    user: Any, daemon: Any, kill_hard: Any, tmpfs: Tmpfs
) -> None:
    here = daemon("--fake", "2x2", "--statedir", tmpfs.path / "state")
    first = here.running("sh", "-c", "while [ ! -e go ]; do sleep .02; done; echo done > done")
    second = here.running("sleep", "100")
    tmpfs.fill(0)
    assert "only 0.0 MiB are free" in here("submit", "true", status=1).err
    (user.directory / "go").touch()
    here("kill", "-s", "KILL", second)
    with here.popen("wait", first) as waiting:
        with here.connect() as handle:
            while handle.rpc("instance.stats-get")["store_fault"] is None:
                handle.rest(0.02)
        found = here("cancel", "--all", status=None)
        assert "nothing new is accepted until it can be written again; running jobs continue" in (
            found.err + here("submit", "true", status=1).err
        )
        assert "changes that are not written yet would be lost by a restart" in here("restart", status=1).err
        assert here("job", "eventlog", first).out
        assert waiting.poll() is None
        tmpfs.empty()
        assert waiting.wait(20) == 0
    assert here("wait", second, status=None).status == 128 + 9
    here("run", "true")
    pid = here.pid()
    kill_hard(pid)
    again = daemon("--fake", "2x2", "--statedir", tmpfs.path / "state")
    assert again.info(first)["result"] == "COMPLETED"


def test_an_instance_that_starts_on_a_full_disk_says_so(user: Any, tmpfs: Tmpfs) -> None:
    (tmpfs.path / "state").mkdir(mode=0o700)
    tmpfs.fill(0)
    found = user.process("start", "--fake", "1x1", "--statedir", tmpfs.path / "state", "--", "true", status=1)
    assert found.err.startswith("fluxsched: start: ")
    assert found.err.count("\n") == 1
    assert "full" in found.err or "No space left on device" in found.err
