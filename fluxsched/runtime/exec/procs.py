"""Processes by identity: which they are beyond doubt, whose they are, and their certain death after a restart.

Law: a process id alone identifies nothing. A process is (boot id, process id, start time); it belongs to a job if it is
in the process group that the job's first task leads, or if its environment at exec carries the job's path. The path is
the ids of the enclosing jobs, outermost first, so that what a nested instance ran is found too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fluxsched.core.jobid import format_f58
from fluxsched.runtime.clock import SystemClock, sleep

PATH_VARIABLE = "FLUXSCHED_JOB_PATH"
"""`f58/f58/...`: the job a process belongs to, after all jobs that this one runs in."""
POLL_S = 0.005
"""How often the death of killed processes is looked for (seconds): the kernel needs about this long."""
PIDS_NAMED_MAX = 8
"""Process ids that one note names."""
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


def living() -> Iterator[tuple[int, Stat]]:
    """Every process that is alive."""
    for name in os.listdir(_PROC):
        if name.isdecimal():
            stat = stat_of(name)
            if stat is not None and stat.alive:
                yield int(name), stat


def group_living(pgid: int) -> list[int]:
    """The living processes of a group; cheap when the group has nobody, not even a zombie."""
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
    """The job path that a process was started with, None if it has none or is not ours to look into."""
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


def clear_orphans(records: Mapping[int, object], timeout_s: float) -> dict[int, str]:
    """Kill what a killed instance left running and wait until it is dead; blocks, up to `timeout_s` in all.

    `records` are those of `identity`, by job id. Answers what was found, in words for an exception's note; every job
    is named. A process that cannot be confirmed dead in time is named with its process id.
    """
    boot = boot_id()
    notes: dict[int, str] = {}
    left: dict[int, Mapping[str, Any]] = {}
    for jobid, record in records.items():
        if not isinstance(record, Mapping) or not _RECORD.items() <= {k: type(v) for k, v in record.items()}.items():
            notes[jobid] = "the record of its processes cannot be read, so none could be looked for"
        elif record["boot_id"] != boot:
            notes[jobid] = "the machine was booted since, so no process of the job can be left"
        else:
            left[jobid] = record
    return notes | _clear(left, timeout_s)


_RECORD: Mapping[str, type] = {"pid": int, "start_ticks": int, "sid": int, "boot_id": str, "path": str}


def _clear(left: dict[int, Mapping[str, Any]], timeout_s: float) -> dict[int, str]:
    killed: dict[int, set[int]] = {jobid: set() for jobid in left}
    notes: dict[int, str] = {}
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    while left:
        table = {pid: (stat, path_of(pid)) for pid, stat in living() if pid != os.getpid()}
        late = clock.monotonic_s() >= until_s
        for jobid, record in list(left.items()):
            found = _of_job(table, record)
            for pid in found:
                kill_exactly(pid, table[pid][0].start_ticks)
            killed[jobid].update(found)
            if found and not late:
                continue
            notes[jobid] = _note(killed[jobid], found, timeout_s)
            del left[jobid]
        if left:
            sleep(POLL_S)
    return notes


def _of_job(table: Mapping[int, tuple[Stat, str | None]], record: Mapping[str, Any]) -> list[int]:
    """The processes that are the job's beyond doubt."""
    pgid, start_ticks, outer = record["pid"], record["start_ticks"], record["path"]
    later = {pid: (stat, path) for pid, (stat, path) in table.items() if stat.start_ticks >= start_ticks}
    found = {pid for pid, (_, path) in later.items() if is_within(path, outer)}
    group = {pid for pid, (stat, _) in later.items() if stat.pgid == pgid and stat.sid == record["sid"]}
    leader = later.get(pgid)
    if group & found or (leader is not None and leader[0].start_ticks == start_ticks):
        found |= group
    return sorted(found)


def kill_exactly(pid: int, start_ticks: int) -> None:
    """SIGKILL for this very process: a pidfd pins it before its start time is looked at."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = stat_of(pid)
        if stat is not None and stat.start_ticks == start_ticks:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(fd)


def _note(killed: set[int], found: list[int], timeout_s: float) -> str:
    if found:
        return f"{_named(found)} of the job could not be killed within {timeout_s:g} s"
    if killed:
        return f"{_named(sorted(killed))} of the job outlived it and had to be killed"
    return "no process of the job was left"


def _named(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:PIDS_NAMED_MAX])) + (", ..." if len(pids) > PIDS_NAMED_MAX else "")
    return f"process {shown}" if len(pids) == 1 else f"{len(pids)} processes ({shown})"
