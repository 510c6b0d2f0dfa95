"""Processes and directories that outlive their job or their instance: found beyond doubt, ended, removed.

Law: no other process is touched. A process belongs to a job by the rules of `system.processes`, or because it descends
from one that does; once found it stays the job's, even when its parents end before it. Where a keeper that was to start
the job is on record instead (AHEAD) and is gone, those of its session that name no job are the job's, too. Both the
instance's keeper and the next instance that starts look for what a killed instance has left: a keeper may have been
killed, too. A directory of ours has a file `owner`, which says whose it is, and that process holds a lock on it until
it ends; the file appears in one step, written and locked, so a directory whose owner can be locked by another process
has outlived its own.

Strays have left their job's process group (setsid, daemons). This process is the reaper of its orphaned descendants, so
they become children of ours; the job path in their environment says which job they belong to. One that has cleared its
environment belongs to the job into whose output it writes, else to the last to end of the jobs that ran when it
started. (Only in a keeper, whose children are all of jobs.)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import logging
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from resource import struct_rusage
from typing import Any, Final, NamedTuple, TypeGuard

from fluxsched.core.jobid import format_f58
from fluxsched.errors import FluxschedError
from fluxsched.system import processes
from fluxsched.system.clock import Clock, SystemClock
from fluxsched.system.files import (
    DATABASE_NAME,
    LOG_NAME,
    OWNER_NAME,
    PREFIX,
    SOCKET_NAME,
    base_directory,
    temporary_directory,
)
from fluxsched.system.log import logger, set_up_logging
from fluxsched.system.loop import Turns
from fluxsched.system.processes import Stat, boot_id, is_within, living, path_of, signal_exactly, stat_of
from fluxsched.transport.base import SOCKET_PATH_BYTES_MAX

RANDOM_CHARS = 8
"""Number of characters that tempfile adds to the name of a directory."""
OWNER_BYTES_MAX = 4096
"""Maximum size of an owner file that is read; ours has some 150 bytes."""
SWEEP_S = 1.0
"""A start begins to remove no further directory after this time (seconds); the next start continues."""
KILLED_S = 5.0
"""Maximum time until killed processes must be gone (seconds)."""
PROGRAM = 0
"""The instance's initial program among the ids of jobs."""
SPARED = "no process of the job was left"
HOSTS, LEFT = "hosts", "left"
"""Keys of the records by host of a job whose tasks are at the keepers of other hosts: of its parts, and of those that
were given up with their host, until a keeper there has looked for them.
"""
ELSEWHERE = "its tasks are at the keepers of other hosts, which end them"


def end_leftovers(run_directory: str, grace_s: float) -> None:
    """Clear the run directory and log that in the instance's own log; for a keeper, which is alone in its process."""
    path = Path(run_directory)
    set_up_logging(path / LOG_NAME if (path / LOG_NAME).exists() else None, 0)
    log = logger("keeper")
    log.warning("the instance was killed: its remaining processes are ended")
    clear(path, grace_s, log)


def clear(path: Path, grace_s: float, log: logging.Logger) -> None:
    """End the processes on record in a run directory whose instance is dead, and remove it.

    Blocks for `grace_s` at most before processes that do not end are killed.
    """
    try:
        notes = clear_orphans(stored_records(path), KILLED_S, grace_s)
    except (sqlite3.Error, ValueError) as fault:
        log.error("the processes left by %s are unknown: %s", path, fault)
        notes = {}
    for jobid, note in notes.items():
        whose = "the initial program" if jobid == PROGRAM else f"job {format_f58(jobid)}"
        log.log(logging.DEBUG if note in (SPARED, ELSEWHERE) else logging.WARNING, "%s: %s", whose, note)
    remove(path)


def remove(path: Path) -> None:
    """Remove a run directory, the owner file last, so that an interrupted removal is resumed by the next sweep."""
    for name in os.listdir(path):
        inside = path / name
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside, ignore_errors=True)
        elif name != OWNER_NAME:
            inside.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


# ---- processes that outlived an instance

POLL_S = 0.005
"""Interval of checking whether killed processes are gone (seconds): the kernel needs about this long."""
PIDS_NAMED_MAX = 8
"""Process ids that one note names."""
ASKING = (signal.SIGTERM, signal.SIGCONT)
"""Signals that ask a process to end, even if it is stopped."""
BOOTED: Final = "the machine was booted since, so no process of the job can be left"
"""Note on a job of a machine that has gone down."""
AHEAD = "ahead"
"""Key of a record that names the process which is about to start the job, not yet a process of it."""
DISOWNED: Mapping[str, bool] = {"disowned": True}
"""Instead of a record: the processes are those of the instance of which this one has a backup."""
_RECORD: Mapping[str, type] = {"pid": int, "start_ticks": int, "sid": int, "boot_id": str, "path": str}

ProcessTable = Mapping[int, tuple[Stat, str | None]]
"""Every living process with its job path."""


def stored_records(directory: Path) -> dict[int, object]:
    """Return the processes that an instance put on record in its state or run directory, by job id; none if it has no
    store.

    Raises sqlite3.Error when there is one that cannot be read.
    """
    path = directory / DATABASE_NAME
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        return {jobid: json.loads(value) for jobid, value in connection.execute("SELECT jobid, value FROM process")}


def clear_orphans(records: Mapping[int, object], timeout_s: float, grace_s: float = 0.0) -> dict[int, str]:
    """Kill the processes that a killed instance left and wait until they are dead; block up to `grace_s + timeout_s` in
    all.

    `records` are those of `procs.identity`, by job id. With a grace time processes are asked first, and killed when it
    is over. Returns the findings by job, in words for an exception's note; every job is named. A process that cannot be
    confirmed dead in time is named with its process id.
    """
    clearing = Clearing(records, SystemClock(), timeout_s, grace_s)
    while not clearing.step():
        SystemClock.sleep(POLL_S)
    return clearing.notes


def clear_in_turns(
    turns: Turns, records: Mapping[int, object], timeout_s: float, done: Callable[[dict[int, str]], None]
) -> None:
    """Clear the leftovers of jobs in turns beside other work; `done` is called with the notes."""
    clearing = Clearing(records, turns.clock, timeout_s)

    def step() -> None:
        if clearing.step():
            done(clearing.notes)
        else:
            turns.after(POLL_S, step)

    step()


class Clearing:
    """Ends the processes on record; each step looks once at all processes."""

    def __init__(self, records: Mapping[int, object], clock: Clock, timeout_s: float, grace_s: float = 0.0) -> None:
        self.notes: dict[int, str] = {}
        """Notes on the jobs whose clearing is complete, by job id."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._kill_s = clock.monotonic_s() + grace_s
        self._left: dict[int, _Leftover] = {}
        self._asked: set[tuple[int, int]] = set()
        boot = boot_id()
        for jobid, record in records.items():
            if record == DISOWNED:
                self.notes[jobid] = "the state is a backup made while the job ran; its fate since is unknown"
            elif isinstance(record, dict) and HOSTS in record:
                self.notes[jobid] = ELSEWHERE
            elif not _is_record(record):
                self.notes[jobid] = "the record of its processes cannot be read, so none could be searched for"
            elif record["boot_id"] != boot:
                self.notes[jobid] = BOOTED
            else:
                self._left[jobid] = _Leftover(record)

    def step(self) -> bool:
        """Search for processes once, ask or kill those found; return whether all are gone."""
        if not self._left:
            return True
        table = all_living()
        now_s = self._clock.monotonic_s()
        for jobid, one in list(self._left.items()):
            found = one.alive(table)
            for pid in found:
                self._end(one, pid, table[pid][0].start_ticks, now_s)
            if not found or now_s >= self._kill_s + self._timeout_s:
                self.notes[jobid] = _note(one, found, self._timeout_s)
                del self._left[jobid]
        return not self._left

    def _end(self, one: _Leftover, pid: int, start_ticks: int, now_s: float) -> None:
        if now_s >= self._kill_s:
            one.killed.add(pid)
            signal_exactly(pid, start_ticks, signal.SIGKILL)
        elif (pid, start_ticks) not in self._asked:
            self._asked.add((pid, start_ticks))
            signal_exactly(pid, start_ticks, *ASKING)


def _is_record(record: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(record, Mapping) and _RECORD.items() <= {k: type(v) for k, v in record.items()}.items()


class _Leftover:
    """Known processes of one job, each by process id and start time."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record
        self.known: dict[int, int] = {}
        self.killed: set[int] = set()
        """Processes that were sent SIGKILL."""

    def alive(self, table: ProcessTable) -> list[int]:
        """Return the processes that are the job's beyond doubt, and all their descendants."""
        record = self._record
        pgid, start_ticks, outer = record["pid"], record["start_ticks"], record["path"]
        later = {pid: (stat, path) for pid, (stat, path) in table.items() if stat.start_ticks >= start_ticks}
        found = {pid for pid, (_, path) in later.items() if outer and is_within(path, outer)}
        found |= {pid for pid, ticks in self.known.items() if pid in later and later[pid][0].start_ticks == ticks}
        if record.get(AHEAD):
            is_gone = pgid not in table and pgid != os.getpid()  # a table is without the process that reads it
            if pgid == record["sid"] and is_gone:  # the rest of its session is what it had begun
                unnamed = (None, outer.rpartition("/")[0])
                found |= {pid for pid, (stat, path) in later.items() if stat.sid == pgid and path in unnamed}
            return self._known(later, found)
        for number, ticks in [(pgid, start_ticks), *_groups(record)]:
            leader = later.get(number)
            if leader is not None and leader[0].start_ticks == ticks:
                found.add(number)
            group = {pid for pid, (stat, _) in later.items() if stat.pgid == number and stat.sid == record["sid"]}
            if group & found:
                found |= group
        return self._known(later, found)

    def _known(self, later: ProcessTable, found: set[int]) -> list[int]:
        found = with_descendants(later, found)
        self.known |= {pid: later[pid][0].start_ticks for pid in found}
        return sorted(found)


def _groups(record: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the process groups of an elastic job beside the first: number and start time of the first process of
    each.
    """
    found = record.get("groups")
    groups = found if isinstance(found, list) else []
    return [(one[0], one[1]) for one in groups if isinstance(one, list) and [*map(type, one)] == [int, int]]


def with_descendants(table: ProcessTable, found: set[int]) -> set[int]:
    """Return the processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for pid, (stat, _) in table.items():
        children.setdefault(stat.ppid, []).append(pid)
    todo, seen = list(found), set(found)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return seen


def all_living() -> ProcessTable:
    """Return all living processes but this one."""
    return {pid: (stat, path_of(pid)) for pid, stat in living() if pid != os.getpid()}


def _note(one: _Leftover, found: list[int], timeout_s: float) -> str:
    if found:
        return f"{_named(found)} of the job could not be killed within {timeout_s:g} s"
    if not one.known:
        return "no process of the job was left"
    outlived = f"{_named(sorted(one.known))} of the job outlived it"
    if not one.killed:
        return f"{outlived} and ended on SIGTERM"
    if one.killed >= one.known.keys():
        return f"{outlived} and had to be killed"
    return f"{outlived}; of these {_named(sorted(one.killed))} had to be killed"


def _named(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:PIDS_NAMED_MAX])) + (", ..." if len(pids) > PIDS_NAMED_MAX else "")
    return f"process {shown}" if len(pids) == 1 else f"{len(pids)} processes ({shown})"


# ---- directories of ours


def owned_prefix() -> str:
    """Return the prefix of the names of this user's directories."""
    return f"{PREFIX}{os.getuid()}-"


def check_socket_room(base: Path, variable: str) -> None:
    """Check that a socket may be in an owned directory below this one, which a variable names. Raises
    FluxschedError.
    """
    longest = base / (owned_prefix() + "x" * RANDOM_CHARS) / SOCKET_NAME
    if len(os.fsencode(longest)) > SOCKET_PATH_BYTES_MAX:
        text = f"{base} is too long for a socket in it (limit {SOCKET_PATH_BYTES_MAX} bytes)"
        raise FluxschedError(f"{text}: set {variable} to a shorter directory")


def own(path: Path) -> int:
    """Make this process the owner of a new directory; return the descriptor whose closing ends the ownership."""
    draft = path / f".{OWNER_NAME}"
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        stat = stat_of(os.getpid())
        assert stat is not None, "this process exists"
        process = {"pid": os.getpid(), "start_ticks": stat.start_ticks}
        os.write(fd, json.dumps({**process, "boot_id": boot_id(), "host": os.uname().nodename}).encode())
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path / OWNER_NAME)
    except BaseException:
        os.close(fd)
        raise
    return fd


def scratch_directory() -> tuple[Path, int]:
    """Return a new directory of this process, and the descriptor whose closing ends the ownership.

    It is below TMPDIR, since a run directory may be in memory, and be small; inside a job below that of the outermost
    instance: TMPDIR would go with the job, and paths of sockets would grow with each level.
    """
    path = Path(tempfile.mkdtemp(prefix=owned_prefix(), dir=temporary_directory()))
    return path, own(path)


def remove_dead(clock: Clock) -> None:
    """Remove this user's directories whose owners, instances and keepers, were killed."""
    until_s = clock.monotonic_s() + SWEEP_S
    for base in dict.fromkeys((base_directory(), Path(temporary_directory()))):
        with contextlib.suppress(OSError), os.scandir(base) as entries:
            for entry in entries:
                if clock.monotonic_s() > until_s:
                    return
                if entry.name.startswith(owned_prefix()) and _is_ours(entry):
                    remove_if_dead(Path(entry.path))


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == os.getuid()


def remove_if_dead(path: Path) -> None:
    """Remove a directory of ours whose owner was killed, and end the processes that it has on record."""
    log = logger("instance")
    try:
        fd = os.open(path / OWNER_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # being made, or gone, or not an instance's
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        was_removed = os.fstat(fd).st_nlink == 0
        if not was_removed and _is_dead(os.read(fd, OWNER_BYTES_MAX)):
            log.info("%s is removed: its owner was killed", path)
            clear(path, 0.0, log)
    except OSError:  # it is alive, or another process sweeps it
        return
    finally:
        os.close(fd)


def _is_dead(owner: bytes) -> bool:
    """Return whether the owner's process is gone.

    A lock alone would do, but for file systems where it binds one host only.
    """
    try:
        record = json.loads(owner)
        pid, start_ticks, boot, host = (record[key] for key in ("pid", "start_ticks", "boot_id", "host"))
    except (ValueError, KeyError, TypeError):
        return False
    if boot != boot_id():
        return bool(host == os.uname().nodename)  # this machine before its last boot; another one may be up
    process = stat_of(pid)
    return process is None or not process.alive or process.start_ticks != start_ticks


# ---- processes that left their group

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2); since Linux 3.4."""
UNCLAIMED_S = 10.0
"""A dead child that has not been reaped for so long (seconds) is an orphan: a parent that waits reaps at once."""


class Other:
    """A child of this process that no executor spawned."""

    __slots__ = ("dead", "due_s", "owners", "path")

    def __init__(self, path: str | None, due_s: float, owners: set[str]) -> None:
        self.path = path
        self.due_s = due_s
        self.dead = False
        self.owners = owners
        """Paths of the jobs that it may belong to, if it does not say."""

    def is_of(self, path: str) -> bool:
        """Return whether the process belongs to the job of this path, beyond doubt."""
        return processes.is_within(self.path, path) or self.owners == {path}


class RunningJob(NamedTuple):
    """Facts that distinguish the processes of a job without an environment from others."""

    start_ticks: int
    spool: str


class Strays:
    """The children of this process that it did not spawn."""

    def __init__(self, clock: Clock, *, alone: bool = False) -> None:
        """`alone`: all children of this process are tasks, or descend from them."""
        self._clock = clock
        self._alone = alone
        self._others: dict[int, Other] = {}
        self._jobs: dict[str, RunningJob] = {}

    def add_job(self, path: str, start_ticks: int, spool: str) -> None:
        """Add the job of this path, which has its first task; its tasks write into files below `spool`."""
        self._jobs[path] = RunningJob(start_ticks, spool)

    def remove_job(self, path: str) -> None:
        """Remove a job of which no process is left that is known to be its own."""
        self._jobs.pop(path, None)
        for other in self._others.values():
            other.owners.discard(path)

    def kill(self, path: str, spawned: Container[int]) -> bool:
        """Kill the processes of the job of this path, except children that were `spawned`; return False if none is
        alive. Orphans of the killed processes are found by calling again, until False is returned.
        """
        others = self.others(spawned)
        now_s = self._clock.monotonic_s()
        self._others = {pid: self._others.get(pid) or self._new(pid, now_s) for pid in others}
        alive = False
        for pid, other in self._others.items():
            if other.is_of(path):
                alive |= _kill(pid)
            elif now_s >= other.due_s:
                _reap_unclaimed(pid, other, now_s)
        return alive

    def _new(self, pid: int, now_s: float) -> Other:
        path = processes.path_of(pid)
        owners = self._owners(pid) if self._alone and path is None else set()
        return Other(path, now_s + UNCLAIMED_S, owners)

    def _owners(self, pid: int) -> set[str]:
        stat = processes.stat_of(pid)
        if stat is None:
            return set()
        found = {path for path, job in self._jobs.items() if job.start_ticks <= stat.start_ticks}
        written = [path for path in found if _writes_below(pid, self._jobs[path].spool)] if len(found) > 1 else []
        return set(written) if len(written) == 1 else found

    @property
    def are_any(self) -> bool:
        """Return whether the last call of `kill` left a child of this process that may be of a job that has ended."""
        return bool(self._others)

    def members(self, path: str, spawned: Container[int]) -> list[int]:
        """Return the children of this process that belong to the job of this path, except those that were `spawned`."""
        return [pid for pid in self.others(spawned) if processes.is_within(processes.path_of(pid), path)]

    def others(self, spawned: Container[int]) -> list[int]:
        """Return the children of this process except those that were `spawned`."""
        return [pid for pid in processes.own_children() if pid not in spawned]

    def kill_all(self) -> None:
        """Kill every child of a process that is alone."""
        if self._alone:
            for pid in processes.own_children():
                _kill(pid)


def _writes_below(pid: int, directory: str) -> bool:
    """Return whether the standard output or standard error of a process is a file below this directory."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(f"{directory}/"):
                return True
    return False


def adopt_orphans() -> None:
    """Make this process the reaper of orphaned descendants; where the kernel refuses, strays are not found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: wait statuses would be lost
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def reap_group(pgid: int) -> Iterator[struct_rusage]:
    """Reap the dead members of a process group that have become children of ours; yield what each has used."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.wait4(-pgid, os.WNOHANG))[0]:
            yield ended[2]


def _kill(pid: int) -> bool:
    """Kill a child, or reap it if it is dead; return whether it was alive."""
    stat = processes.stat_of(pid)
    if stat is not None and stat.alive:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
        return True
    _reap(pid)
    return False


def _reap_unclaimed(pid: int, other: Other, now_s: float) -> None:
    stat = processes.stat_of(pid)
    dead = stat is not None and not stat.alive
    if dead and other.dead:
        _reap(pid)
    other.dead, other.due_s = dead, now_s + UNCLAIMED_S


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
