"""Processes by identity: which they are beyond doubt, and whose they are.

Law: a process id alone identifies nothing. A process is (boot id, process id, start time); it belongs to a job if it is
in the process group that the job's first task leads, or if its environment at exec carries the job's path. The path is
the ids of the enclosing jobs, outermost first, so that what a nested instance ran is found too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.core.jobid import format_f58

PATH_VARIABLE = "FLUXSCHED_JOB_PATH"
"""`f58/f58/...`: the job a process belongs to, after all jobs that this one runs in."""
_PROC = Path("/proc")
_DEAD = b"ZX"


class Stat(NamedTuple):
    """What /proc/PID/stat says: state letter, parent, group, session and start time (clock ticks since boot)."""

    state: bytes
    ppid: int
    pgid: int
    sid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """It still runs or could; a zombie does not."""
        return self.state not in _DEAD


def boot_id() -> str:
    """What tells this boot of this machine from every other."""
    return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def stat_of(pid: int | str) -> Stat | None:
    """The state of a process, None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process; none if it has ended, or the kernel does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    return found


def living() -> Iterator[tuple[int, Stat]]:
    """Every process that is alive."""
    for name in os.listdir(_PROC):
        if name.isdecimal():
            stat = stat_of(name)
            if stat is not None and stat.alive:
                yield int(name), stat


def group_living(pgid: int) -> list[int]:
    """The living processes of a group; cheap when the group has no process, not even a zombie."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    return [pid for pid, stat in living() if stat.pgid == pgid]


def job_path(jobid: int, enclosing: str = "") -> str:
    """The path of a job inside the job of path `enclosing`."""
    name = format_f58(jobid, ascii=True)
    return f"{enclosing}/{name}" if enclosing else name


def path_of(pid: int) -> str | None:
    """The job path that a process was started with, None if it has none or we may not read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    mark = PATH_VARIABLE.encode() + b"="
    return next((one[len(mark) :].decode(errors="replace") for one in variables if one.startswith(mark)), None)


def is_within(path: str | None, outer: str) -> bool:
    """Whether a process of this path belongs to the job of path `outer` or to a job inside it."""
    return path is not None and (path == outer or path.startswith(f"{outer}/"))


def identity(pid: int, boot: str, path: str) -> dict[str, Any] | None:
    """The record of a job whose first task is `pid`, fit for JSON; None if that process is gone."""
    stat = stat_of(pid)
    if stat is None:
        return None
    return {"pid": pid, "start_ticks": stat.start_ticks, "sid": stat.sid, "boot_id": boot, "path": path}


def signal_exactly(pid: int, start_ticks: int, *signums: int) -> None:
    """Signal this very process: a pidfd pins it before its start time is looked at."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = stat_of(pid)
        if stat is not None and stat.start_ticks == start_ticks:
            for signum in signums:
                signal.pidfd_send_signal(fd, signum)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(fd)
