"""Samples of the machine and its queues, and intervals in which targets could not be used.

Law: samples are sums over the seconds that were observed: two together are a sample of the longer time, whatever their
order, so what is kept is made coarser by addition and the means stay right. A time that was not observed has no sample:
a gap is not zero. A look each minute costs what targets and queues cost, whatever jobs do. Each target that cannot be
used is in one open row of targets that changed together; what a kill leaves open is continued if it is still so, else
it ended when the instance was seen last. A row that is not as it was written is left out; `damaged_history` names such
rows, and an instance asks it once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.protocol.messages.instance import USABLE
from fluxsched.store.integrity import SELECTED, intact, is_intact
from fluxsched.store.jobs import Query
from fluxsched.store.schema import DAY
from fluxsched.store.store import Store
from fluxsched.system.log import logger
from fluxsched.system.loop import WAITS_S, Timer, Turns

CORE_STATES: Final = ("allocated", "free", "drained", "down", "excluded")
"""Each core is in one; those that no job holds are in that of their target."""
RESULTS: Final = ("completed", "failed", "canceled", "timeout")


class JobFlow(NamedTuple):
    """Jobs submitted, started, ended by result, and waits of those that started by `WAITS_S`, since some time."""

    submitted: int
    started: int
    ended: dict[str, int]
    waits: tuple[int, ...]


class Moment(NamedTuple):
    """State of the instance at one time."""

    cores: Mapping[str, int]
    queues: Mapping[str, tuple[int, int]]
    """Pending and running jobs by queue."""
    flow: JobFlow


class MachineSample(msgspec.Struct):
    """Sums over `observed_s` seconds: core-seconds by state, job-seconds by queue, and counts of jobs."""

    observed_s: float = 0.0
    cores: list[float] = msgspec.field(default_factory=lambda: [0.0] * len(CORE_STATES))
    queues: dict[str, list[float]] = msgspec.field(default_factory=dict)
    submitted: int = 0
    started: int = 0
    ended: list[int] = msgspec.field(default_factory=lambda: [0] * len(RESULTS))
    waits: dict[int, int] = msgspec.field(default_factory=dict)

    @classmethod
    def between(cls, begin: Moment, end: Moment, observed_s: float) -> MachineSample:
        """Return the sample of the period between two observations; values that changed count as changed evenly."""
        half_s = observed_s / 2
        queues: dict[str, list[float]] = {}
        for moment in (begin, end):
            for name, (pending, running) in moment.queues.items():
                sums = queues.setdefault(name, [0.0, 0.0])
                sums[0] += pending * half_s
                sums[1] += running * half_s
        return cls(
            observed_s=observed_s,
            cores=[(begin.cores[state] + end.cores[state]) * half_s for state in CORE_STATES],
            queues=queues,
            submitted=end.flow.submitted - begin.flow.submitted,
            started=end.flow.started - begin.flow.started,
            ended=[end.flow.ended[name] - begin.flow.ended[name] for name in RESULTS],
            waits={
                at: now - before
                for at, (before, now) in enumerate(zip(begin.flow.waits, end.flow.waits, strict=True))
                if now > before
            },
        )

    def add(self, other: MachineSample) -> None:
        """Be the sample of both times."""
        self.observed_s += other.observed_s
        self.cores = _sums(self.cores, other.cores)
        for name, sums in other.queues.items():
            self.queues[name] = _sums(self.queues.get(name, (0.0, 0.0)), sums)
        self.submitted += other.submitted
        self.started += other.started
        self.ended = [mine + yours for mine, yours in zip(self.ended, other.ended, strict=True)]
        for at, count in other.waits.items():
            self.waits[at] = self.waits.get(at, 0) + count

    def row(self) -> tuple[Any, ...]:
        """Return the sample as columns of the store."""
        rest = (self.queues, self.submitted, self.started, self.ended, self.waits)
        return (self.observed_s, *self.cores, msgspec.msgpack.encode(rest))

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> MachineSample:
        """Return the sample of a row. Raises ValueError (msgspec's among them) for an invalid one."""
        observed_s, *cores, rest = row
        return cls(observed_s, cores, *_REST.decode(rest))

    def wait_counts(self) -> list[int]:
        """Return the sample's waits by the ranges of `WAITS_S`."""
        return [self.waits.get(at, 0) for at in range(len(WAITS_S) + 1)]


_REST = msgspec.msgpack.Decoder(tuple[dict[str, list[float]], int, int, list[int], dict[int, int]])


def _sums(mine: Sequence[float], yours: Sequence[float]) -> list[float]:
    return [one + other for one, other in zip(mine, yours, strict=True)]


# ---- taking samples

log = logger("history")

MINUTE_S: Final = 60
DAY_S: Final = 86_400
MINUTES_AGE_MAX_S = 2 * DAY_S
"""Samples of minutes become ones of ten when they are older."""
TENS_AGE_MAX_S = 14 * DAY_S
"""Maximum age of samples of ten minutes; older ones are merged into samples of hours."""
HOURS_AGE_MAX_S = 731 * DAY_S
"""Maximum age of samples of hours; older ones are removed: there are some 23,000 rows in all then, of some 150 bytes
each.
"""
COARSER: Final = ((60, 600), (600, 3600))
MERGED_ROWS_MAX = 512
"""Rows that are made coarser in one go, 3 ms; after a long pause the rest follows a minute later."""
SET_S: Final = 2.0
"""Difference between wall time and the monotonic clock above which the clock was set (seconds)."""


class Sampling:
    """Sampling of the instance, from `start` to `stop`."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Moment]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._before: Moment | None = None
        self._before_s = 0.0
        """Time of the last observation, by the monotonic clock."""
        self._run_s = 0.0
        """Start of the run that is observed."""
        self._seen_s = 0.0
        """End of the observed part of the run, by wall time."""
        self._timer: Timer | None = None
        self.on_minute: list[Callable[[float], None]] = []
        """Functions called each minute with the wall time, and at the end."""

    def start(self) -> None:
        """Begin to observe the instance."""
        self._before, self._before_s = self._look(), self._turns.clock.monotonic_s()
        self._begin_run(self._turns.wall_s)
        self._wait()

    def stop(self) -> None:
        """Write the sample of the period since the last one."""
        if self._timer is not None:
            self._timer.cancel()
            self._observe(self._turns.clock.wall_s())

    @property
    def running(self) -> tuple[float, float]:
        """Return the beginning and the end so far of the present run."""
        return self._run_s, max(self._run_s, self._turns.wall_s)

    def unwritten(self) -> MachineSample:
        """Return the sample of the period since the last stored one."""
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
        rows = self._store.read(f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t = ?", (step, t))
        for row in intact(rows):
            sample.add(MachineSample.of_row(row[2:]))

    def _age(self, wall_s: float) -> None:
        for (step, longer), age_max_s in zip(COARSER, (MINUTES_AGE_MAX_S, TENS_AGE_MAX_S), strict=True):
            self._make_coarser(step, longer, int((wall_s - age_max_s) // longer * longer))
        self._store.remove("sample", (COARSER[-1][1], 0, int(wall_s - HOURS_AGE_MAX_S)))
        self._store.remove("run", (wall_s - HOURS_AGE_MAX_S,))

    def _make_coarser(self, step: int, longer: int, until: int) -> None:
        """Put the oldest rows of one length, before `until`, together to rows of the next: never a part of one."""
        wanted = f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t < ? ORDER BY t LIMIT ?"
        rows = self._store.read(wanted, (step, until, MERGED_ROWS_MAX))
        if len(rows) == MERGED_ROWS_MAX:
            until = rows[-1][1] // longer * longer
        found: dict[int, MachineSample] = {}
        for _, t, *row in intact(rows):
            if t < until:
                found.setdefault(t // longer * longer, MachineSample()).add(MachineSample.of_row(row))
        for t, sample in found.items():
            self._add_stored(sample, longer, t)
            self._store.add("sample", (longer, t, *sample.row()))
        if rows:
            self._store.remove("sample", (step, 0, until))


# ---- intervals of target states

INTERVALS_AGE_MAX_S = 731 * DAY
"""Rows that ended longer ago are removed."""
INTERVALS_MAX = 200_000
"""Maximum number of intervals; the oldest ones beyond it are removed: 20 MiB."""
GATHER_S: Final = 1.0
"""Changes within this time are looked at together (seconds); they count from the first."""

Condition = tuple[str, str]
"""A state and its note."""
Conditions = Mapping[Condition, Idset]


class OpenInterval(NamedTuple):
    """Row of an interval that has not ended."""

    id: int
    targets: Idset
    began_s: float


class StateIntervals:
    """Recorder of intervals, from `start` on; `look` returns the targets in each recorded condition."""

    def __init__(self, turns: Turns, store: Store, look: Callable[[], Conditions]) -> None:
        self._turns = turns
        self._store = store
        self._look = look
        self._open: dict[Condition, list[OpenInterval]] = {}
        self._last_id = 0
        self._timer: Timer | None = None
        self._changed_s = 0.0
        self._waits_for_jobs = False
        """True if the end of a job may be a change: some target is draining."""

    def start(self) -> None:
        """Read the open intervals; those whose condition is over ended when the last instance was seen."""
        now_s = self._turns.wall_s
        ((self._last_id,),) = self._store.read("SELECT coalesce(max(id), 0) FROM interval")
        runs = intact(self._store.read(f"SELECT {SELECTED['run']} FROM run"))
        seen_s = max((seen_s for _, seen_s in runs), default=now_s)
        rows = self._store.read(f"SELECT {SELECTED['interval']} FROM interval WHERE ended IS NULL")
        for number, targets, state, note, began_s, _ in intact(rows):
            self._open.setdefault((state, note), []).append(OpenInterval(number, Idset.parse(targets), began_s))
        self._follow(now_s, min(now_s, seen_s))

    def note_change(self) -> None:
        """Note that some target may have changed its state."""
        if self._timer is None or self._timer.call is None:
            self._changed_s = self._turns.wall_s
            self._timer = self._turns.after(GATHER_S, lambda: self._follow(self._changed_s, self._changed_s))

    def held(self, jobid: int, ranks: Idset) -> None:
        """Do nothing: no condition of a target depends on a job's beginning."""

    def unheld(self, jobid: int, ranks: Idset) -> None:
        """Note that a target may have been drained by the end of a job."""
        if self._waits_for_jobs:
            self.note_change()

    def age(self, now_s: float) -> None:
        """Remove intervals that are too old or too many."""
        self._store.remove("interval", (now_s - INTERVALS_AGE_MAX_S, self._last_id - INTERVALS_MAX))

    def _follow(self, now_s: float, ended_s: float) -> None:
        """Bring the rows up to date: new intervals began at `now_s`, those that are over ended at `ended_s`."""
        found = {condition: targets for condition, targets in self._look().items() if targets}
        for condition, rows in [*self._open.items()]:
            there = found.get(condition, EMPTY)
            self._open[condition] = [kept for row in rows if (kept := self._keep(condition, row, there, ended_s))]
        for condition, targets in found.items():
            rows = self._open.setdefault(condition, [])
            new = targets
            for row in rows:
                new -= row.targets
            if new:
                self._last_id += 1
                rows.append(OpenInterval(self._last_id, new, now_s))
                self._put(condition, rows[-1], None)
        self._open = {condition: rows for condition, rows in self._open.items() if rows}
        self._waits_for_jobs = any(state == "draining" for state, _ in self._open)

    def _keep(self, condition: Condition, row: OpenInterval, there: Idset, ended_s: float) -> OpenInterval | None:
        """Return the part of an open row that continues; store the rest as ended."""
        gone = row.targets - there
        if not gone:
            return row
        ended_s = max(row.began_s, ended_s)
        if gone == row.targets:
            self._put(condition, row, ended_s)
            return None
        self._last_id += 1
        self._put(condition, OpenInterval(self._last_id, gone, row.began_s), ended_s)
        kept = row._replace(targets=row.targets - gone)
        self._put(condition, kept, None)
        return kept

    def _put(self, condition: Condition, row: OpenInterval, ended_s: float | None) -> None:
        self._store.add("interval", (row.id, str(row.targets), *condition, row.began_s, ended_s))


def conditions(states: Mapping[str, Idset], drains: Iterable[tuple[Idset, Any]]) -> Conditions:
    """Return the conditions that are kept: all states but those in which jobs may be put on a target; drains by reason.
    """
    found = {(state, ""): ranks for state, ranks in states.items() if state not in USABLE}
    for ranks, line in drains:
        condition = (line.state, line.reason)
        there = ranks & states[line.state]
        if line.reason and there:
            found[line.state, ""] -= there
            found[condition] = found.get(condition, EMPTY) | there
    return found


# ---- samples and intervals in the store

SampleRow = tuple[int, int, Sequence[Any]]
"""Length and beginning (seconds), and what `Sample.of_row` takes."""
IntervalRow = tuple[str, str, float, float | None, str]
"""Targets, state, from when, until when, note."""
INTERVALS_USUAL: Final = 1000
INTERVALS_SHOWN_MAX = 10_000
"""Intervals in one answer: a MiB."""
RUNS_SHOWN_MAX = 1000
"""Runs of instances in one answer, the latest."""
LENGTHS_S: Final = (60, 600, 3600)
"""Lengths of the samples that are kept."""


def read_samples(read: Query, since_s: float, until_s: float) -> list[SampleRow]:
    """Return the samples that overlap this time."""
    sql = f"SELECT {SELECTED['sample']} FROM sample WHERE step = ? AND t > ? AND t < ?"
    rows = [row for step in LENGTHS_S for row in intact(read(sql, (step, since_s - step, until_s)))]
    return [(step, t, row) for step, t, *row in rows]


def read_intervals(
    read: Query, since_s: float, until_s: float, targets: Idset | None, max_entries: int
) -> tuple[list[IntervalRow], int]:
    """Return the intervals that overlap this time, of some targets if given, oldest first; and the number of those left
    out.
    """
    rows = read(
        f"SELECT {SELECTED['interval']} FROM interval WHERE began < ? AND (ended IS NULL OR ended > ?) "
        "ORDER BY began DESC, id DESC",
        (until_s, since_s),
    )
    found: list[IntervalRow] = []
    left_out, wanted = 0, min(max_entries or INTERVALS_USUAL, INTERVALS_SHOWN_MAX)
    for _, text, state, note, *span in intact(rows):
        ranks = Idset.parse(text)
        if targets is not None and targets.isdisjoint(ranks):
            continue
        if len(found) < wanted:
            found.append((str(ranks if targets is None else ranks & targets), state, *span, note))
        else:
            left_out += 1
    return found[::-1], left_out


def read_runs(read: Query, since_s: float, until_s: float) -> list[tuple[float, float]]:
    """Return the periods in which instances ran in this time, oldest first."""
    sql = f"SELECT {SELECTED['run']} FROM run WHERE began < ? AND seen >= ? ORDER BY began DESC LIMIT ?"
    found = intact(read(sql, (until_s, since_s, RUNS_SHOWN_MAX)))
    return [(max(began, since_s), min(seen, until_s)) for began, seen in found][::-1]


def damaged_history(read: Query) -> list[str]:
    """Return names of the rows that are not as they were written."""
    return [
        f"{table} {' '.join(map(str, row[:2]))}"
        for table in ("sample", "run", "interval")
        for row in read(f"SELECT {SELECTED[table]} FROM {table}", ())
        if not is_intact(row)
    ]
