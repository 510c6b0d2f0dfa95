"""Usage of a job's tasks as the kernel accounts for it, and the memory limits of jobs that asked for memory.

Law: figures are those of wait4(2): of a task and of all descendants that their own parents waited for; also of what is
killed with the group of a task. A process starts with the peak of the one that spawned it, which is this one: a peak
that is not above ours is only known to be no more than that, and says so. Memory that a job has asked for is memory
that it may use, and no more: one that uses more is ended, at once, by a fatal exception of type `memory`; a job that
never asked is never looked at. Where systemd has delegated a control group (v2) to us, the kernel does it, and only
below that group anything is made or moved; else the processes of such jobs are looked at every SAMPLE_S, and shared
pages are shared out only where the sum of resident sets is too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec, asks_for_memory
from fluxsched.core.quantities import MEMORY
from fluxsched.core.resources import ResourceSet
from fluxsched.executor.gpus import GpuMeter, GpuUse, merged_gpus
from fluxsched.system.clock import Clock
from fluxsched.system.log import logger, of_job
from fluxsched.system.loop import ExitWatch, Timer, Turns, Work
from fluxsched.system.processes import children_of, read_proc

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
INSTANCE_NAME = "instance"
DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd marks a group that it has delegated."""


class Cgroups:
    """The groups of jobs below one delegated group."""

    def __init__(self, group: Path) -> None:
        self.group = group
        self._begun = False

    @classmethod
    def find(cls, root: Path = ROOT, own: Path = OWN) -> Cgroups | None:
        """Return the control groups of this process; None if no group with the memory controller is delegated to it."""
        group = group_of(root, own)
        return cls(group) if group is not None and shortcoming(group) is None else None

    def limit(self, jobid: int, pids: Iterable[int], limit_bytes: int) -> None:
        """Limit the total memory of these processes and their descendants. Raises OSError, with nothing limited."""
        self._begin()
        group = self._of(jobid)
        group.mkdir()
        try:
            (group / "memory.max").write_text(str(limit_bytes))
            (group / "memory.oom.group").write_text("1")
            with contextlib.suppress(OSError):  # there is no swap
                (group / "memory.swap.max").write_text("0")
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        except OSError:
            with contextlib.suppress(OSError):
                for pid in pids:
                    (self.group / INSTANCE_NAME / "cgroup.procs").write_text(str(pid))
                group.rmdir()
            raise

    def change(self, jobid: int, pids: Iterable[int], limit_bytes: int) -> None:
        """Change the memory limit of a job that has one, and add these processes. Raises OSError."""
        group = self._of(jobid)
        (group / "memory.max").write_text(str(limit_bytes))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))

    def remove_group(self, jobid: int) -> int | None:
        """Remove the group of a job that has ended; its peak (bytes) if the kernel has ended it, else None."""
        group, peak = self._of(jobid), None
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
            if int(events.get("oom_kill", 0)) or int(events.get("oom_group_kill", 0)):
                peak = _number(group / "memory.peak") or _number(group / "memory.max") or 0
        with contextlib.suppress(OSError):
            group.rmdir()
        return peak

    def _of(self, jobid: int) -> Path:
        return self.group / f"job-{format_f58(jobid, ascii=True)}"

    def _begin(self) -> None:
        if self._begun:
            return
        inside = self.group / INSTANCE_NAME
        inside.mkdir(exist_ok=True)
        for pid in (self.group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (inside / "cgroup.procs").write_text(pid)
        (self.group / "cgroup.subtree_control").write_text("+memory")
        self._begun = True


def group_of(root: Path = ROOT, own: Path = OWN) -> Path | None:
    """Return the control group (v2) of this process; None where there are none."""
    try:
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    group = root / path.strip("/")
    if group.name == INSTANCE_NAME and _is_delegated(group.parent):  # where a process of ours has put us all
        group = group.parent
    return group if (group / "cgroup.controllers").exists() else None


def shortcoming(group: Path) -> str | None:
    """Why no job's memory can be limited below a group; None if it can."""
    if not _is_delegated(group):
        return "not delegated to us"
    if not all(os.access(file, os.W_OK) for file in (group, group / "cgroup.procs", group / "cgroup.subtree_control")):
        return "delegated, but not writable"
    try:
        controllers = (group / "cgroup.controllers").read_text().split()
    except OSError as fault:
        return f"delegated, but not readable: {fault.strerror}"
    return None if "memory" in controllers else "delegated without the memory controller"


def _is_delegated(group: Path) -> bool:
    for name in DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


# ---- memory by control groups

log = logger("memory")

SAMPLE_S = 1.0
"""Interval of sampling the processes of jobs that asked for memory (seconds)."""
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
    """Process ids of the job's tasks."""
    limit_bytes: int
    left: Callable[[], Iterable[int]]
    """Processes of the job that no longer descend from its tasks."""


def limit_of(jobspec: Jobspec, resources: ResourceSet) -> int | None:
    """Return the memory that a job may use in all (bytes): the amount in R, if the job asked for memory."""
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
        """Return the way in which memory limits are enforced, for people."""
        return way_of_enforcing(self._cgroups)

    def guard_job(self, jobid: int, job: Guarded) -> None:
        """Guard a job whose tasks exist and do not run yet."""
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
        """Adapt to targets, and their memory, that a job has got or given back; `pids` are tasks that do not run
        yet.
        """
        if jobid in self._grouped and self._cgroups is not None:
            self._grouped[jobid] = job.limit_bytes
            try:
                self._cgroups.change(jobid, pids, job.limit_bytes)
            except OSError as fault:
                log.warning("job %s: %s", format_f58(jobid), fault, extra=of_job(jobid))
        else:
            self._watch.add(jobid, job)

    def release_job(self, jobid: int) -> str | None:
        """Remove a job that has ended; return a note if it exceeded its memory and that has not been reported yet."""
        limit_bytes = self._grouped.pop(jobid, None)
        if limit_bytes is None or self._cgroups is None:
            self._watch.remove(jobid)
            return None
        peak = self._cgroups.remove_group(jobid)
        return None if peak is None else note(max(peak, limit_bytes), limit_bytes)

    def close(self) -> None:
        """Stop watching the memory of jobs."""
        self._watch.close()


def way_of_enforcing(cgroups: Cgroups | None = None) -> str:
    """Return the way in which memory limits are enforced, for people: that of these control groups, else that of this
    process.
    """
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
        """Add a job whose tasks run from now on."""
        self._jobs[jobid] = job
        if self._timer is None:
            self._timer = self._turns.after(SAMPLE_S, self._look)

    def remove(self, jobid: int) -> None:
        """Remove a job that has ended."""
        self._jobs.pop(jobid, None)
        if not self._jobs and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Remove all jobs and stop sampling."""
        for jobid in list(self._jobs):
            self.remove(jobid)

    def _look(self) -> None:
        self._timer = None
        self._turns.spread(self._sample())

    def _sample(self) -> Work:
        for jobid, job in list(self._jobs.items()):
            used = 0
            found: list[int] = []
            for some in pieces(processes([*job.pids, *job.left()])):
                found += some
                used += sum(map(resident_bytes, some))
                yield
            if used > job.limit_bytes:
                used = 0
                for some in pieces(found):
                    used += sum(map(proportional_bytes, some))
                    yield
            if used > job.limit_bytes and self._jobs.get(jobid) is job:
                self.remove(jobid)
                self._exceeded(jobid, note(used, job.limit_bytes))
        if self._jobs and self._timer is None:
            self._timer = self._turns.after(SAMPLE_S, self._look)


def note(used_bytes: int, limit_bytes: int) -> str:
    """Return the note for the user of a job that used too much memory."""
    host = os.uname().nodename
    return f"used {size_text(used_bytes)} of the {size_text(limit_bytes)} of memory that it asked for, on {host}"


def size_text(size_bytes: float) -> str:
    """Return a size for people, as in `5.1 GiB`, `4 GiB`."""
    unit = "bytes"
    for larger in _UNITS:
        if size_bytes < _KIB:
            break
        size_bytes, unit = size_bytes / _KIB, larger
    return f"{size_bytes:.4g} {unit}"


def processes(roots: Iterable[int]) -> Iterator[int]:
    """Yield these processes and all their descendants, as far as they are there."""
    waiting, count = list(roots), 0
    while waiting and count < PROCESSES_MAX:
        pid = waiting.pop()
        count += 1
        yield pid
        waiting += children_of(pid)


def resident_bytes(pid: int) -> int:
    """Return the resident set of a process, 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, with shared pages divided among the processes that share them; where that is
    hidden, all of it.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * _KIB
    except OSError:
        pass
    return resident_bytes(pid)


def pieces(pids: Iterable[int]) -> Iterator[list[int]]:
    """Yield processes in lists that are looked at in one go each."""
    piece: list[int] = []
    for pid in pids:
        piece.append(pid)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


# ---- the meter of a job

_TICKS_S = os.sysconf("SC_CLK_TCK")


class UsedSoFar(NamedTuple):
    """Usage of processes so far: their times are those of wait4(2), their peak that of the largest one."""

    user_s: float = 0.0
    system_s: float = 0.0
    peak_kib: int = 0

    def plus(self, pid: int) -> UsedSoFar:
        """Add a process, with the descendants that it has waited for; one that has gone adds nothing."""
        try:
            stat, status = read_proc(f"/proc/{pid}/stat"), read_proc(f"/proc/{pid}/status")
            user, system, ended_user, ended_system = map(int, stat.rpartition(b")")[2].split(None, 15)[11:15])
            peak = int(status.partition(b"VmHWM:")[2].split(None, 1)[0]) if b"VmHWM:" in status else 0
        except (OSError, ValueError):
            return self
        user_s, system_s = (user + ended_user) / _TICKS_S, (system + ended_system) / _TICKS_S
        return UsedSoFar(self.user_s + user_s, self.system_s + system_s, max(self.peak_kib, peak))


def measured_so_far(roots: Mapping[int, int]) -> Generator[None, None, dict[int, UsedSoFar]]:
    """Return what each task has used with all its descendants, from its process id by its number, in pieces of work."""
    found: dict[int, UsedSoFar] = {}
    for task, root in roots.items():
        used = UsedSoFar()
        for some in pieces(processes([root])):
            for pid in some:
                used = used.plus(pid)
            yield
        found[task] = used
    return found


TASK_ROWS_MAX = 128
"""Tasks of a job with a row each, in the order of their ranks: some 15 KiB of its record. The rest is in the sums."""


class Meter:
    """Adds up what one job's tasks use. Told when they run, when each is reaped, and asked at the end."""

    __slots__ = (
        "_begun_s", "_clock", "_ended_s", "_floor", "_gpus", "_has_others", "_opened_s", "_rows", "_sums", "_watches",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gpus: GpuMeter | None = None
        self._floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._opened_s: float | None = None
        self._begun_s: dict[int, float] = {}
        """Start times of tasks that did not begin with the job."""
        self._ended_s: dict[int, float] = {}
        self._watches: list[ExitWatch] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._sums = [0.0, 0.0, 0]
        self._has_others = False
        """True if the sums have a process of which it is not known of which task it was."""

    def opened(self, pids: Sequence[int], first: int = 0) -> None:
        """Note that these tasks, numbered from `first` on, run from now on.

        The end of each is noted, where there are several and each has a row.
        """
        now_s = self._clock.monotonic_s()
        if self._opened_s is None:
            self._opened_s = now_s
        else:
            self._begun_s |= dict.fromkeys(range(first, min(first + len(pids), TASK_ROWS_MAX)), now_s)
        if 1 < first + len(pids) <= TASK_ROWS_MAX:
            loop = asyncio.get_running_loop()
            for task, pid in enumerate(pids, first):
                try:
                    self._watches.append(ExitWatch(loop, pid, partial(self._ended, task)))
                except OSError:  # out of descriptors, so its wall time is the job's
                    return

    def _ended(self, task: int) -> None:
        self._ended_s[task] = self._clock.monotonic_s()

    def sampled(self, uses: Collection[GpuUse], task_of: Mapping[int, int]) -> None:
        """Add a sample of the job's GPUs; `task_of` are its processes with their tasks."""
        if self._opened_s is None:
            return
        if self._gpus is None:
            self._gpus = GpuMeter()
        self._gpus.add(uses, task_of, self._opened_s, self._clock.monotonic_s())

    def reaped(self, task: int, status: int, used: resource.struct_rusage) -> None:
        """Add the result of wait4 for a task."""
        self._add(used)
        if task < TASK_ROWS_MAX:
            self._rows[task] = {"status": status, **self._figures(task, used.ru_utime, used.ru_stime, used.ru_maxrss)}

    def left_behind(self, task: int | None, used: resource.struct_rusage) -> None:
        """Add the result of wait4 for a process of a task that had not waited for it; None if it may be of several."""
        self._add(used)
        row = None if task is None else self._rows.get(task)
        self._has_others |= task is None
        if row is not None:
            row["user_s"] = round(row["user_s"] + used.ru_utime, 6)
            row["system_s"] = round(row["system_s"] + used.ru_stime, 6)
            if used.ru_maxrss * _KIB > row["max_rss_bytes"]:
                row["max_rss_bytes"] = used.ru_maxrss * _KIB
                row.pop("max_rss_is_bound", None)

    def _add(self, used: resource.struct_rusage) -> None:
        sums = self._sums
        sums[0] += used.ru_utime
        sums[1] += used.ru_stime
        sums[2] = max(sums[2], used.ru_maxrss)

    def _figures(self, task: int | None, user_s: float, system_s: float, peak: float) -> dict[str, Any]:
        now_s = self._clock.monotonic_s()
        ended_s = now_s if task is None else self._ended_s.get(task, now_s)
        begun_s = self._opened_s if task is None else self._begun_s.get(task, self._opened_s)
        figures: dict[str, Any] = {
            "wall_s": round(max(0.0, ended_s - (begun_s or ended_s)), 6),
            "user_s": round(user_s, 6),
            "system_s": round(system_s, 6),
            "max_rss_bytes": max(int(peak), self._floor) * _KIB,
        }
        if peak <= self._floor:
            figures["max_rss_is_bound"] = True
        return figures

    def total(
        self, ntasks: int, *, is_part: bool = False, running: Mapping[int, UsedSoFar] = MappingProxyType({}),
        others: Collection[UsedSoFar] = (),
    ) -> dict[str, Any] | None:  # fmt: skip
        """Return all figures, fit for JSON; None if the tasks never ran. Several tasks have a row each, and so has a
        single one whose job may have others on other hosts (`is_part`). `running` tasks are not reaped, and
        `others` descend from one of them no more.
        """
        if self._opened_s is None:
            return None
        user_s, system_s, peak = self._sums
        rows = self._rows | {task: self._figures(task, *used) for task, used in running.items() if task < TASK_ROWS_MAX}
        for used in (*running.values(), *others):
            user_s, system_s, peak = user_s + used.user_s, system_s + used.system_s, max(peak, used.peak_kib)
        total = self._figures(None, user_s, system_s, peak)
        if ntasks > 1 or is_part:
            total["tasks"] = [self._with_gpus(task, rows[task]) for task in sorted(rows)]
        if self._gpus is not None and (gpus := self._gpus.total()) is not None:
            total["gpus"] = gpus
        if self._has_others or (others and ntasks > 1):
            total["has_others"] = True
        if ntasks > TASK_ROWS_MAX:
            total["tasks_left_out"] = ntasks - TASK_ROWS_MAX
        return total

    def _with_gpus(self, task: int, row: dict[str, Any]) -> dict[str, Any]:
        gpus = None if self._gpus is None else self._gpus.of_task(task)
        return row if gpus is None else {**row, "gpus": gpus}

    def close(self) -> None:
        """Close all watches of processes."""
        for watch in self._watches:
            watch.close()
        self._watches.clear()


def merged(parts: Sequence[tuple[Idset, Mapping[str, Any] | None]]) -> dict[str, Any] | None:
    """Return what a job has used, of the tasks of its parts on several hosts and what these have used, as of `Meter`.

    Processor time is a sum. The wall time is the longest and `max_rss_bytes` the largest, since parts run at the same
    time and the peak is that of one process: a bound of it, unless a part that knows its peak has reached it. Rows are
    those of the first tasks, up to one whose host was lost. None if no part ran.
    """
    known = [(tasks, part) for tasks, part in parts if part is not None]
    found = [part for _, part in known]
    if not found:
        return None
    peak = max(part["max_rss_bytes"] for part in found)
    total: dict[str, Any] = {
        "wall_s": max(part["wall_s"] for part in found),
        "user_s": round(sum(part["user_s"] for part in found), 6),
        "system_s": round(sum(part["system_s"] for part in found), 6),
        "max_rss_bytes": peak,
    }
    if all(part.get("max_rss_is_bound") for part in found if part["max_rss_bytes"] == peak):
        total["max_rss_is_bound"] = True
    if any(part.get("has_others") for part in found):
        total["has_others"] = True
    if (gpus := merged_gpus([part["gpus"] for part in found if part.get("gpus")])) is not None:
        total["gpus"] = gpus
    rows = {task: row for tasks, part in known for task, row in zip(tasks, part.get("tasks", ()), strict=False)}
    first = [rows[task] for task in takewhile(rows.__contains__, range(TASK_ROWS_MAX))]
    if first and sum(len(tasks) for tasks, _ in parts) > 1:
        total["tasks"] = first
        if left_out := sum(len(tasks) for tasks, _ in known) - len(first):
            total["tasks_left_out"] = left_out
    return total
