"""How long ended jobs are remembered: the oldest go, with their logs, what they printed, and parts that no job shares.

Law: what is removed was on disk and announced, and is removed in small pieces with pauses between them, so that no
request waits for it: first what a job printed (in no turn), then its rows. So a crash leaves a record without output at
worst, which goes with the next round. The job with the highest id stays: no id is given twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fluxsched.runtime.config.operations import HistorySettings
from fluxsched.runtime.exec.base import spool_directory
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Timer
from fluxsched.runtime.loop.writer import Writer
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.storage.jobs import ended_count, last_jobid, oldest_ended, parts_of_only
from fluxsched.runtime.system.log import logger

log = logger("jobs")

LOOK_S = 10.0
"""How often it is looked whether jobs have become too many or too old (seconds)."""
PAUSE_S = 0.1
"""Between two pieces (seconds)."""
PIECE_JOBS = 256
"""Jobs removed at a time: 8 ms of the writer, and 2,500 jobs a second, or 200 million a day."""


class JobHistory:
    """Removes ended jobs; `background` is where directories are removed."""

    def __init__(self, effects: JobEffects, store: Store, settings: HistorySettings, background: Writer) -> None:
        self._effects = effects
        self._store = store
        self._settings = settings
        self._background = background
        self._turns = effects.turns
        self._next: Timer | None = None
        self._is_looking = False
        """From a look until what it found is to be removed: another one would find and count the same again."""
        self._count = ended_count(store.read)
        """Ended jobs in the store when this began, less those that were removed since."""

    def start(self) -> None:
        """Begin to look from time to time."""
        self._look_in(LOOK_S)

    @property
    def count(self) -> int:
        """Ended jobs that are remembered."""
        return self._count + self._effects.ended_count

    def _look_in(self, delay_s: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self._turns.after(delay_s, self._look)

    def _look(self) -> None:
        self._look_in(LOOK_S)  # first, since what follows may fail to read
        if not self._is_looking:
            self._is_looking = True
            self._store.when_settled(self._choose)  # what has not been announced may be asked for yet

    def _choose(self) -> None:
        gone = list[int]()
        try:
            if self._store.fault is None:
                gone = self._found()
        finally:
            self._is_looking = bool(gone)
        if gone:
            directories = [spool_directory(self._effects.spool, jobid) for jobid in gone]
            self._background.run(partial(_remove, directories), partial(self._forget, gone))

    def _found(self) -> list[int]:
        """The next jobs that are too many or too old."""
        surplus = self.count - self._settings.number_max
        old_s = self._turns.wall_s - self._settings.age_max_s
        last = last_jobid(self._store.read)
        oldest = enumerate(oldest_ended(self._store.read, PIECE_JOBS))
        return [jobid for at, (jobid, ended_s) in oldest if (at < surplus or ended_s < old_s) and jobid != last]

    def _forget(self, jobids: Sequence[int]) -> None:
        self._is_looking = False
        parts = parts_of_only(self._store.read, jobids)
        if parts:
            self._effects.forget_parts(parts)
        for jobid in jobids:
            self._effects.manager.jobs.forget(jobid)
            self._store.remove("job_log", (jobid,))
        for part in parts:
            self._store.remove("part", (part,))
        self._store.change("fewer are counted")
        self._count -= len(jobids)
        log.debug("%d jobs that ended long ago are forgotten", len(jobids))
        self._turns.wake()
        self._look_in(PAUSE_S)


def _remove(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
