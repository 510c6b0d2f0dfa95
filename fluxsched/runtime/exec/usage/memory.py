"""Memory that jobs have asked for is memory that they may use, and no more (`--request memory=4GiB`).

Law: a job that never asked for memory is never looked at, and while none that did runs nothing is done at all. One that
uses more than it was given is ended, at once, by a fatal exception of type `memory` that says how much it used. Where
the kernel does not do it (`cgroups`), the job's processes are looked at every SAMPLE_S: all descendants of its tasks,
and those that have left them. Their resident sets are added up; only if that is too much, shared pages are shared out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from fluxsched.core.amounts import MEMORY
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.runtime.exec.usage.cgroups import Cgroups
from fluxsched.runtime.loop.turns import Timer, Turns, Work
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.logs.format import of_job
from fluxsched.runtime.system.processes import children_of

log = logger("memory")

SAMPLE_S = 1.0
"""How often the processes of jobs that asked for memory are looked at (seconds)."""
PIECE = 64
"""Processes looked at in one go: about a millisecond."""
PROCESSES_MAX = 1 << 16
"""Processes of one job that are looked at: a fork bomb is not followed without end."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024
_UNITS = ("KiB", "MiB", "GiB", "TiB")
WATCHED = f"watched: sampled every {SAMPLE_S:g} s"


class Guarded(NamedTuple):
    """A running job that asked for memory."""

    pids: Collection[int]
    """Its tasks."""
    limit_bytes: int
    left: Callable[[], Iterable[int]]
    """Processes of the job that no longer descend from its tasks."""


def asks_for_memory(jobspec: Jobspec) -> bool:
    """Whether a job has asked for memory, and is kept to it."""
    for request in jobspec.request.each_part:
        asked = request.amounts + request.node_amounts + request.shared
        if asked and any(kind == MEMORY for kind, _ in asked):
            return True
    return False


def limit_of(jobspec: Jobspec, resources: ResourceSet) -> int | None:
    """The memory that a job may use in all (bytes): what R gives it, if it asked for memory."""
    return resources.count(MEMORY) or None if asks_for_memory(jobspec) else None


class MemoryGuard:
    """Keeps the jobs that asked for memory to it, each in the way that is possible for it."""

    def __init__(self, turns: Turns, exceeded: Callable[[int, str], None]) -> None:
        """`exceeded` is called with (jobid, note) of a running job that uses more."""
        self._watch = MemoryWatch(turns, exceeded)
        self._grouped: dict[int, int] = {}
        self._cgroups = Cgroups.find()
        log.info("memory that jobs ask for is enforced, %s", self.way)

    @property
    def way(self) -> str:
        """Which of the two it is, for people."""
        return way_of_enforcing(self._cgroups)

    def begin(self, jobid: int, job: Guarded) -> None:
        """Guard a job whose tasks are there and do not run yet."""
        if self._cgroups is not None:
            try:
                self._cgroups.limit(jobid, job.pids, job.limit_bytes)
            except OSError as fault:
                text = "job %s is watched: no control group for it: %s"
                log.warning(text, format_f58(jobid), fault, extra=of_job(jobid))
            else:
                self._grouped[jobid] = job.limit_bytes
                return
        self._watch.add(jobid, job)

    def change(self, jobid: int, job: Guarded, pids: Collection[int]) -> None:
        """A job has got or given back targets, and with them memory; `pids` are tasks that do not run yet."""
        if jobid in self._grouped and self._cgroups is not None:
            self._grouped[jobid] = job.limit_bytes
            try:
                self._cgroups.change(jobid, pids, job.limit_bytes)
            except OSError as fault:
                log.warning("job %s: %s", format_f58(jobid), fault, extra=of_job(jobid))
        else:
            self._watch.add(jobid, job)

    def end(self, jobid: int) -> str | None:
        """The job has ended; a note if that was for its memory and has not been reported yet."""
        limit_bytes = self._grouped.pop(jobid, None)
        if limit_bytes is None or self._cgroups is None:
            self._watch.remove(jobid)
            return None
        peak = self._cgroups.end(jobid)
        return None if peak is None else note(max(peak, limit_bytes), limit_bytes)

    def close(self) -> None:
        """Look no more."""
        self._watch.close()


def way_of_enforcing(cgroups: Cgroups | None = None) -> str:
    """Which of the two it is, for people: that of these control groups, else that of this process."""
    found = cgroups or Cgroups.find()
    return WATCHED if found is None else f"cgroup: {found.group}"


class MemoryWatch:
    """Looks at the memory of jobs that asked for some; calls `exceeded` with (jobid, note) of one that uses more."""

    def __init__(self, turns: Turns, exceeded: Callable[[int, str], None]) -> None:
        self._turns = turns
        self._exceeded = exceeded
        self._jobs: dict[int, Guarded] = {}
        self._timer: Timer | None = None

    def add(self, jobid: int, job: Guarded) -> None:
        """The job's tasks run from now on."""
        self._jobs[jobid] = job
        if self._timer is None:
            self._timer = self._turns.after(SAMPLE_S, self._look)

    def remove(self, jobid: int) -> None:
        """The job has ended."""
        self._jobs.pop(jobid, None)
        if not self._jobs and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Look no more."""
        for jobid in list(self._jobs):
            self.remove(jobid)

    def _look(self) -> None:
        self._timer = None
        self._turns.spread(self._sample())

    def _sample(self) -> Work:
        for jobid, job in list(self._jobs.items()):
            used = 0
            found: list[int] = []
            for some in _pieces(processes([*job.pids, *job.left()])):
                found += some
                used += sum(map(resident_bytes, some))
                yield
            if used > job.limit_bytes:
                used = 0
                for some in _pieces(found):
                    used += sum(map(proportional_bytes, some))
                    yield
            if used > job.limit_bytes and self._jobs.get(jobid) is job:
                self.remove(jobid)
                self._exceeded(jobid, note(used, job.limit_bytes))
        if self._jobs and self._timer is None:
            self._timer = self._turns.after(SAMPLE_S, self._look)


def note(used_bytes: int, limit_bytes: int) -> str:
    """The note for the user of a job that used too much."""
    host = os.uname().nodename
    return f"used {size_text(used_bytes)} of the {size_text(limit_bytes)} of memory that it asked for, on {host}"


def size_text(size_bytes: float) -> str:
    """`5.1 GiB`, `4 GiB`."""
    unit = "bytes"
    for larger in _UNITS:
        if size_bytes < _KIB:
            break
        size_bytes, unit = size_bytes / _KIB, larger
    return f"{size_bytes:.4g} {unit}"


def processes(roots: Iterable[int]) -> Iterator[int]:
    """These processes and all their descendants, as far as they are there."""
    waiting, count = list(roots), 0
    while waiting and count < PROCESSES_MAX:
        pid = waiting.pop()
        count += 1
        yield pid
        waiting += children_of(pid)


def resident_bytes(pid: int) -> int:
    """The resident set of a process, 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """The same, with pages that several processes share divided among them; where that is hidden, all of it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * _KIB
    except OSError:
        pass
    return resident_bytes(pid)


def _pieces(pids: Iterable[int]) -> Iterator[list[int]]:
    piece: list[int] = []
    for pid in pids:
        piece.append(pid)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece
