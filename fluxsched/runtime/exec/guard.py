"""Who keeps jobs to the memory that they asked for: the kernel where it can, else we look (`cgroups`, `memory`)."""

from __future__ import annotations

from collections.abc import Callable

from fluxsched.core.jobid import format_f58
from fluxsched.runtime.exec.cgroups import Cgroups
from fluxsched.runtime.exec.memory import WATCHED, Guarded, MemoryWatch, note
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.system.log import logger

log = logger("memory")


class MemoryGuard:
    """Keeps the jobs that asked for memory to it, each in the way that is possible for it."""

    def __init__(self, turns: Turns, exceeded: Callable[[int, str], None]) -> None:
        """`exceeded` is told (jobid, note) of a running job that uses more."""
        self._watch = MemoryWatch(turns, exceeded)
        self._grouped: dict[int, int] = {}
        self._cgroups = Cgroups.find()
        log.info("memory that jobs ask for is enforced, %s", self.way)

    @property
    def way(self) -> str:
        """Which of the two it is, for people."""
        return WATCHED if self._cgroups is None else f"cgroup: {self._cgroups.group}"

    def begin(self, jobid: int, job: Guarded) -> None:
        """Guard a job whose tasks are there and do not run yet."""
        if self._cgroups is not None:
            try:
                self._cgroups.limit(jobid, job.pids, job.limit_bytes)
            except OSError as fault:
                log.warning("job %s is watched: no control group for it: %s", format_f58(jobid), fault)
            else:
                self._grouped[jobid] = job.limit_bytes
                return
        self._watch.add(jobid, job)

    def end(self, jobid: int) -> str | None:
        """The job has ended; a note if that was for its memory and nobody was told yet."""
        limit_bytes = self._grouped.pop(jobid, None)
        if limit_bytes is None or self._cgroups is None:
            self._watch.remove(jobid)
            return None
        peak = self._cgroups.end(jobid)
        return None if peak is None else note(max(peak, limit_bytes), limit_bytes)

    def close(self) -> None:
        """Look no more."""
        self._watch.close()
