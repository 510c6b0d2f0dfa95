"""A temporary directory a job: there before its tasks, theirs alone, and gone with them.

Law: what is removed is what was made here, by name below one directory of ours; no symbolic link is followed, and a
large tree does not block the keeper: rm(1) removes it in the background. What a killed keeper has left is removed by
the next start of an instance (`instance.run_directory`). TMPDIR is the job's own unless the job says otherwise: a
TMPDIR that is neither the instance's nor that of the job which submitted it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from fluxsched.core.jobid import format_f58
from fluxsched.errors import Refused
from fluxsched.runtime.system.exit_watch import ExitWatch
from fluxsched.runtime.system.processes import PATH_VARIABLE

MODE = 0o700
INLINE_MAX = 16
"""Files of a directory without directories that are removed at once; for more a process is worth its cost."""
REMOVE = 'rm -rf -- "$1" || { [ -L "$1" ] || chmod -R u+rwx -- "$1"; exec rm -rf -- "$1"; }'
"""Directories that their owner may not enter are made enterable; chmod -R follows no links either."""
OWN, TMPDIR = "FLUX_JOB_TMPDIR", "TMPDIR"


def make(scratch: Path, jobid: int) -> str:
    """A new, empty directory for the job. Raises Refused."""
    path = f"{scratch}/{format_f58(jobid, ascii=True)}"
    try:
        try:
            _check(scratch)
        except FileNotFoundError:  # a cleaner of /tmp was here
            os.mkdir(scratch, MODE)
        os.mkdir(path, MODE)
    except OSError as exc:
        raise Refused(f"cannot make the job's temporary directory {path}: {os.strerror(exc.errno or 0)}") from exc
    return path


def _check(scratch: Path) -> None:
    found = os.lstat(scratch)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(1, "not ours")


def variables(path: str, given: Mapping[str, str | None]) -> dict[str, str]:
    """What tells a job about its directory; `given` is the environment that the job brings along."""
    wanted = given.get(TMPDIR)
    is_own = wanted is not None and wanted not in (tempfile.gettempdir(), given.get(OWN))
    return {OWN: path} if is_own else {OWN: path, TMPDIR: path}


def remove(path: str) -> None:
    """Remove the directory of a job without processes; a large one in the background."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError:
        if not _remove_files(path):
            _remove_in_background(path)


def _remove_files(path: str) -> bool:
    """Remove a directory that holds a few files and no directory; whether it was such."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        with os.scandir(directory) as entries:
            few = list(islice(entries, INLINE_MAX + 1))
            if len(few) > INLINE_MAX or any(entry.is_dir(follow_symlinks=False) for entry in few):
                return False
            for entry in few:
                os.unlink(entry.name, dir_fd=directory)
        os.rmdir(path)
        return True
    except OSError:
        return False
    finally:
        os.close(directory)


def _remove_in_background(path: str) -> None:
    """By another process; if none can be started, the directory is removed with the keeper."""
    with contextlib.suppress(OSError):
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), PATH_VARIABLE: os.environ.get(PATH_VARIABLE, "")}
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", REMOVE, "sh", path], environment, file_actions=nothing)
        ExitWatch(asyncio.get_running_loop(), pid, lambda: _reap(pid))


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
