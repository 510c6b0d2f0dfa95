"""Takes a sample each minute, and makes samples coarser with age.

Law: a look at the instance costs what its targets and queues cost, whatever its jobs do; between looks nothing is done.
What is written is a row a minute. If the clock is set, samples have the time that it shows afterwards, and one that
comes to a minute that has one already is added to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluxsched.runtime.history.samples import MachineSample, Moment
from fluxsched.runtime.history.stored import SAMPLE_COLUMNS
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.system.log import logger

log = logger("history")

MINUTE_S: Final = 60
DAY_S: Final = 86_400
MINUTES_AGE_MAX_S = 2 * DAY_S
"""Samples of minutes become ones of ten when they are older."""
TENS_AGE_MAX_S = 14 * DAY_S
"""Those of ten minutes become ones of hours."""
HOURS_AGE_MAX_S = 731 * DAY_S
"""Those of hours are removed: there are some 23,000 rows in all then, of some 150 bytes each."""
COARSER: Final = ((60, 600), (600, 3600))
MERGED_ROWS_MAX = 512
"""Rows that are made coarser in one go, 3 ms; after a long pause the rest follows a minute later."""
SET_S: Final = 2.0
"""If wall time runs away from the monotonic clock by more, the clock was set."""


class Sampling:
    """From `start` to `stop`."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Moment]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._before: Moment | None = None
        self._before_s = 0.0
        """By the monotonic clock."""
        self._run_s = 0.0
        """When the run began that is observed."""
        self._seen_s = 0.0
        """Until when it was, by wall time."""
        self._timer: Timer | None = None
        self.on_minute: list[Callable[[float], None]] = []
        """Called each minute with the wall time, and at the end."""

    def start(self) -> None:
        """Begin to observe."""
        self._before, self._before_s = self._look(), self._turns.clock.monotonic_s()
        self._begin_run(self._turns.wall_s)
        self._wait()

    def stop(self) -> None:
        """Write what was observed since the last sample."""
        if self._timer is not None:
            self._timer.cancel()
            self._observe(self._turns.clock.wall_s())

    @property
    def running(self) -> tuple[float, float]:
        """From when until now the present run is observed."""
        return self._run_s, max(self._run_s, self._turns.wall_s)

    def unwritten(self) -> MachineSample:
        """What was observed since the last sample."""
        before = self._before
        if before is None:
            return MachineSample()
        return MachineSample.between(before, self._look(), self._turns.clock.monotonic_s() - self._before_s)

    def _begin_run(self, wall_s: float) -> None:
        self._run_s = self._seen_s = wall_s
        self._store.add("run", (wall_s, wall_s))

    def _wait(self) -> None:
        wall_s = self._turns.clock.wall_s()
        self._timer = self._turns.after(MINUTE_S - wall_s % MINUTE_S, self._minute)

    def _minute(self) -> None:
        self._wait()  # also after a fault in what follows
        self._observe(self._turns.wall_s)

    def _observe(self, wall_s: float) -> None:
        now, now_s = self._look(), self._turns.clock.monotonic_s()
        before, observed_s = self._before, now_s - self._before_s
        self._before, self._before_s = now, now_s
        assert before is not None, "it was started"
        self._follow_clock(wall_s, observed_s)
        self._put(MachineSample.between(before, now, observed_s), wall_s - min(observed_s, MINUTE_S) / 2)
        if self._store.fault is None:
            self._age(wall_s)
        for call in self.on_minute:
            call(wall_s)

    def _follow_clock(self, wall_s: float, observed_s: float) -> None:
        if abs(wall_s - self._seen_s - observed_s) > SET_S:
            log.info("the clock was set by %+.1f s", wall_s - self._seen_s - observed_s)
            self._begin_run(wall_s)
        else:
            self._store.add("run", (self._run_s, wall_s))
        self._seen_s = wall_s

    def _put(self, sample: MachineSample, middle_s: float) -> None:
        t = int(middle_s // MINUTE_S * MINUTE_S)
        self._add_stored(sample, MINUTE_S, t)
        self._store.add("sample", (MINUTE_S, t, *sample.row()))

    def _add_stored(self, sample: MachineSample, step: int, t: int) -> None:
        for row in self._store.read(f"SELECT {SAMPLE_COLUMNS} FROM sample WHERE step = ? AND t = ?", (step, t)):
            sample.add(MachineSample.of_row(row))

    def _age(self, wall_s: float) -> None:
        for (step, longer), age_max_s in zip(COARSER, (MINUTES_AGE_MAX_S, TENS_AGE_MAX_S), strict=True):
            self._make_coarser(step, longer, int((wall_s - age_max_s) // longer * longer))
        self._store.remove("sample", (COARSER[-1][1], 0, int(wall_s - HOURS_AGE_MAX_S)))
        self._store.remove("run", (wall_s - HOURS_AGE_MAX_S,))

    def _make_coarser(self, step: int, longer: int, until: int) -> None:
        """Put the oldest rows of one length, before `until`, together to rows of the next: never a part of one."""
        wanted = f"SELECT t, {SAMPLE_COLUMNS} FROM sample WHERE step = ? AND t < ? ORDER BY t LIMIT ?"
        rows = self._store.read(wanted, (step, until, MERGED_ROWS_MAX))
        if len(rows) == MERGED_ROWS_MAX:
            until = rows[-1][0] // longer * longer
        found: dict[int, MachineSample] = {}
        for t, *row in rows:
            if t < until:
                found.setdefault(t // longer * longer, MachineSample()).add(MachineSample.of_row(row))
        for t, sample in found.items():
            self._add_stored(sample, longer, t)
            self._store.add("sample", (longer, t, *sample.row()))
            self._store.remove("sample", (step, t, t + longer))
