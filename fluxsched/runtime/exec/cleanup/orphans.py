"""What a killed instance left running: found beyond doubt, asked to end, and killed.

Law: no other process is touched. A process belongs to a job by the rules of `system/processes.py`, or because it
descends from one that does; once found it stays the job's, even when its parents end before it.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeGuard

from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.clock import Clock, SystemClock, sleep
from fluxsched.runtime.system.paths import DATABASE_NAME
from fluxsched.runtime.system.processes import Stat, boot_id, is_within, living, path_of, signal_exactly

POLL_S = 0.005
"""How often the death of killed processes is looked for (seconds): the kernel needs about this long."""
PIDS_NAMED_MAX = 8
"""Process ids that one note names."""
ASKING = (signal.SIGTERM, signal.SIGCONT)
"""What asks a process to end, also one that is stopped."""
DISOWNED: Mapping[str, bool] = {"disowned": True}
"""Instead of a record: the processes are those of the instance of which this one has a backup."""
_RECORD: Mapping[str, type] = {"pid": int, "start_ticks": int, "sid": int, "boot_id": str, "path": str}

ProcessTable = Mapping[int, tuple[Stat, str | None]]
"""Every living process with its job path."""


def stored_records(directory: Path) -> dict[int, object]:
    """The processes that an instance put on record in its state or run directory, by job id; none if it has no store.

    Raises sqlite3.Error when there is one that cannot be read.
    """
    path = directory / DATABASE_NAME
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        return {jobid: json.loads(value) for jobid, value in connection.execute("SELECT jobid, value FROM process")}


def clear_orphans(records: Mapping[int, object], timeout_s: float, grace_s: float = 0.0) -> dict[int, str]:
    """Kill what a killed instance left running and wait until it is dead; blocks, up to `grace_s + timeout_s` in all.

    `records` are those of `procs.identity`, by job id. With a grace time processes are asked first, and killed when it
    is over. Answers what was found, in words for an exception's note; every job is named. A process that cannot be
    confirmed dead in time is named with its process id.
    """
    clearing = Clearing(records, SystemClock(), timeout_s, grace_s)
    while not clearing.step():
        sleep(POLL_S)
    return clearing.notes


def clear_in_turns(
    turns: Turns, records: Mapping[int, object], timeout_s: float, done: Callable[[dict[int, str]], None]
) -> None:
    """The same beside other work; `done` is called with what was found."""
    clearing = Clearing(records, turns.clock, timeout_s)

    def step() -> None:
        if clearing.step():
            done(clearing.notes)
        else:
            turns.after(POLL_S, step)

    step()


class Clearing:
    """Ends what is on record, a look at all processes a step."""

    def __init__(
        self, records: Mapping[int, object], clock: Clock, timeout_s: float, grace_s: float = 0.0
    ) -> None:
        self.notes: dict[int, str] = {}
        """What was found, of the jobs that are done with."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._kill_s = clock.monotonic_s() + grace_s
        self._left: dict[int, _Leftover] = {}
        self._asked: set[tuple[int, int]] = set()
        boot = boot_id()
        for jobid, record in records.items():
            if record == DISOWNED:
                self.notes[jobid] = "the state is a backup made while the job ran; what became of it since is not known"
            elif not _is_record(record):
                self.notes[jobid] = "the record of its processes cannot be read, so none could be looked for"
            elif record["boot_id"] != boot:
                self.notes[jobid] = "the machine was booted since, so no process of the job can be left"
            else:
                self._left[jobid] = _Leftover(record)

    def step(self) -> bool:
        """Look once, ask or kill what is found; whether all is done."""
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
    """What is known of one job's processes: each by process id and start time."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record
        self.known: dict[int, int] = {}
        self.killed: set[int] = set()
        """Those that were sent SIGKILL."""

    def alive(self, table: ProcessTable) -> list[int]:
        """The job's processes beyond doubt, and whatever descends from them."""
        record = self._record
        pgid, start_ticks, outer = record["pid"], record["start_ticks"], record["path"]
        later = {pid: (stat, path) for pid, (stat, path) in table.items() if stat.start_ticks >= start_ticks}
        found = {pid for pid, (_, path) in later.items() if outer and is_within(path, outer)}
        found |= {pid for pid, ticks in self.known.items() if pid in later and later[pid][0].start_ticks == ticks}
        for number, ticks in [(pgid, start_ticks), *_groups(record)]:
            leader = later.get(number)
            if leader is not None and leader[0].start_ticks == ticks:
                found.add(number)
            group = {pid for pid, (stat, _) in later.items() if stat.pgid == number and stat.sid == record["sid"]}
            if group & found:
                found |= group
        found = with_descendants(later, found)
        self.known |= {pid: later[pid][0].start_ticks for pid in found}
        return sorted(found)


def _groups(record: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The process groups of an elastic job beside the first: number and start time of the first process of each."""
    found = record.get("groups")
    groups = found if isinstance(found, list) else []
    return [(one[0], one[1]) for one in groups if isinstance(one, list) and [*map(type, one)] == [int, int]]


def with_descendants(table: ProcessTable, found: set[int]) -> set[int]:
    """The processes and all that descend from them."""
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
    """Every living process but this one."""
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
