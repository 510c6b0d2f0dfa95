"""Use of GPUs by the jobs of this host, as `nvidia-smi` on PATH says, or without it DCGM's `dcgmi`.

Law: nothing is run unless a job that holds GPUs runs, and then one script each SAMPLE_S, for all of them. A driver or a
file system in PATH that hangs keeps this script waiting and never the keeper: a shell looks for the programs, and if
there is none no other sample is taken. None begins while a process of the last one is left. A GPU counts as busy as a
sample finds it, since the one before or since the job began; of a job without a sample nothing is known.
The id of a GPU in R is its number for the driver, as in CUDA_VISIBLE_DEVICES. The use of a GPU is that of the tasks
whose processes compute on it, in equal parts, since the driver does not say more; `dcgmi` does not name processes.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from fluxsched.executor.cleanup import reap_group
from fluxsched.system.loop import ExitWatch, Timer, Turns
from fluxsched.system.processes import close_output, timed_words

SAMPLE_S = 5.0
"""Interval of samples (seconds): `nvidia-smi` takes a tenth of a second, or more where the driver sleeps."""
LIMIT_S = 30.0
"""Time after which a sample is ended, and killed a second later: a driver that sleeps takes a second or two a GPU."""
QUERY: Final = (
    "command -v nvidia-smi >/dev/null || exec dcgmi dmon --field-id 203,252 --count 1; "
    "nvidia-smi --query-gpu=index,uuid,utilization.gpu,memory.used --format=csv,noheader,nounits; echo; "
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits"
)
"""Shell script of one sample: a line a GPU, an empty one, and a line for each process that computes; of `dcgmi` a table
of the fields DCGM_FI_DEV_GPU_UTIL and DCGM_FI_DEV_FB_USED.
"""
_DCGM_ROW: Final = re.compile(r"^ *GPU +(\d{1,9}) +(\d{1,9}) +(\S+)", re.ASCII | re.MULTILINE)
NOT_FOUND: Final = 127
"""Exit status of a shell that does not find its last command."""
OUTPUT_BYTES_MAX = 1 << 16
"""Bytes of a sample that are read, which a pipe holds: of 256 GPUs, each with several processes. One that has more
waits until LIMIT_S.
"""
_MIB: Final = 1 << 20


class GpuUse(NamedTuple):
    """Part of its time for which a GPU was busy lately, its memory in use, and that of each process on it (bytes)."""

    busy: float
    used_bytes: int
    processes: dict[int, int]


class GpuSampler:
    """Samples the GPUs of this host while `take` returns that somebody wants more."""

    def __init__(self, turns: Turns, spawned: set[int], take: Callable[[Mapping[int, GpuUse]], bool]) -> None:
        """`spawned` are the children of this process that are no strays; `take` gets a sample by the ids of GPUs."""
        self._turns = turns
        self._spawned = spawned
        self._take = take
        self._is_missing = False
        """True once neither program was found."""
        self._group = 0
        """Process group of the last sample; 0 if there was none."""
        self._timer: Timer | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: ExitWatch | None = None

    @property
    def is_idle(self) -> bool:
        """Return whether no sample is under way or due, though one is possible."""
        return self._timer is None and self._process is None and not self._is_missing

    def begin(self) -> None:
        """Begin to sample, unless that is under way or there is no program for it."""
        if self.is_idle:
            self._timer = self._turns.after(SAMPLE_S, self._ask)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.close()
        if self._process is not None:
            self._end(self._process)

    def _ask(self) -> None:
        self._timer = None
        if self._is_left():
            self._timer = self._turns.after(SAMPLE_S, self._ask)
            return
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", 'exec "$0" "$@"', *timed_words(LIMIT_S, 1.0), "/bin/sh", "-c", QUERY],
                start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._spawned.add(self._process.pid)
            answered = partial(self._turns.post, self._answered)
            self._watch = ExitWatch(asyncio.get_running_loop(), self._process.pid, answered)
        except OSError:  # out of processes or descriptors: there is a next time
            if self._process is not None:
                self._end(self._process)
            self._timer = self._turns.after(SAMPLE_S, self._ask)

    def _answered(self) -> None:
        if self._process is None:
            return
        status, printed = self._end(self._process)
        if status == NOT_FOUND:
            self._is_missing = True
        elif self._take(parse(printed.decode(errors="replace"))):
            self._timer = self._turns.after(SAMPLE_S, self._ask)

    def _end(self, process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
        """Kill what is left of a sample; return its status and the whole lines that it has printed."""
        self._process, self._group = None, process.pid
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped, so the number of the group is still its own
        printed = close_output(process, OUTPUT_BYTES_MAX)
        status = process.wait()
        self._spawned.discard(process.pid)
        return status, printed[: printed.rfind(b"\n") + 1]

    def _is_left(self) -> bool:
        """Return whether a process of the last sample is left, which a driver that hangs keeps from being killed."""
        if not self._group or self._group in self._spawned:  # the number is that of a task by now
            return False
        for _ in reap_group(self._group):
            pass
        try:
            os.killpg(self._group, 0)
        except OSError:
            return False
        return True


def parse(text: str) -> dict[int, GpuUse]:
    """Return the sample in what the script prints; GPUs and processes of which it does not know enough are left out."""
    gpus, _, processes = text.partition("\n\n")
    of_uuid: dict[str, GpuUse] = {}
    found: dict[int, GpuUse] = {}
    for words in _rows(gpus, 4):
        if words[0].isdecimal() and words[2].isdecimal():
            use = GpuUse(int(words[2]) / 100, _bytes(words[3]), {})
            found[int(words[0])] = of_uuid[words[1]] = use
    for words in _rows(processes, 3):
        if words[0] in of_uuid and words[1].isdecimal():
            of_uuid[words[0]].processes[int(words[1])] = _bytes(words[2])
    rows = _DCGM_ROW.findall(text)
    return found | {int(gpu): GpuUse(int(percent) / 100, _bytes(mib), {}) for gpu, percent, mib in rows}


def _rows(text: str, columns: int) -> Iterable[list[str]]:
    rows = ([word.strip() for word in line.split(",")] for line in text.splitlines())
    return (row for row in rows if len(row) == columns)


def _bytes(mib: str) -> int:
    """Return a size in MiB; 0 where the driver does not tell, as in `[N/A]`."""
    return int(mib) * _MIB if mib.isdecimal() else 0


class GpuMeter:
    """Adds up the samples of one job's GPUs on this host."""

    __slots__ = ("_busy_s", "_count", "_held_s", "_max_bytes", "_sampled_s", "_tasks")

    def __init__(self) -> None:
        self._sampled_s: float | None = None
        self._count = 0
        self._busy_s = self._held_s = 0.0
        self._max_bytes = 0
        self._tasks: dict[int, dict[str, Any]] = {}

    def add(self, uses: Collection[GpuUse], task_of: Mapping[int, int], begun_s: float, now_s: float) -> None:
        """Add a sample of the job's GPUs, which runs since `begun_s`; `task_of` are its processes with their tasks.

        A sample without any of them says nothing, and changes nothing.
        """
        if not uses:
            return
        passed_s = now_s - (begun_s if self._sampled_s is None else self._sampled_s)
        self._sampled_s, self._count = now_s, len(uses)
        for use in uses:
            self._held_s += passed_s
            self._busy_s += use.busy * passed_s
            self._max_bytes = max(self._max_bytes, use.used_bytes)
            mine = {pid: size for pid, size in use.processes.items() if pid in task_of}
            on_it = {task_of[pid] for pid in mine}
            for task in on_it:
                row = self._tasks.setdefault(task, {"busy_s": 0.0, "max_bytes": 0})
                row["busy_s"] = round(row["busy_s"] + use.busy * passed_s / len(on_it), 6)
                size = sum([size for pid, size in mine.items() if task_of[pid] == task])
                row["max_bytes"] = max(row["max_bytes"], size)

    def total(self) -> dict[str, Any] | None:
        """Return the sums, fit for JSON: GPUs, their seconds that were sampled, and of these busy, and the most memory
        in use on one; None if nothing was sampled.
        """
        if not self._count:
            return None
        times = {"held_s": round(self._held_s, 6), "busy_s": round(self._busy_s, 6)}
        return {"count": self._count, **times, "max_bytes": self._max_bytes}

    def of_task(self, task: int) -> dict[str, Any] | None:
        """Return what a task used; None if none of its processes was seen on a GPU."""
        return self._tasks.get(task)


def merged_gpus(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the sums over the hosts of a job, as of `GpuMeter.total`; None if there are none."""
    found = list(parts)
    if not found:
        return None
    sums = {key: sum([part[key] for part in found]) for key in ("count", "held_s", "busy_s")}
    return {**sums, "max_bytes": max([part["max_bytes"] for part in found])}
