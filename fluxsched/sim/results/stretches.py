"""What targets jobs had when: where the size of a job changes while it runs, each stretch of time in which it does not.

Law: the stretches of an attempt follow each other without a gap; a job whose size never changes has one an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.sim.results.table import Columns, Preemption, Resizing


class Stretch(NamedTuple):
    """The job of a row had so many cores, on these targets; `end_s` is None while it does (virtual times, seconds)."""

    row: int
    start_s: float
    end_s: float | None
    procs: int
    ranks: str


def stretches(jobs: Columns, rows: Iterable[int]) -> Iterator[Stretch]:
    """Those of some rows, in their order and that of time; none of an attempt whose targets were not recorded."""
    earlier: dict[int, list[Preemption]] = {}
    changes: dict[int, list[Resizing]] = {}
    for attempt in jobs.earlier_attempts():
        earlier.setdefault(attempt.row, []).append(attempt)
    for change in jobs.resizes:
        changes.setdefault(change.row, []).append(change)
    for row in rows:
        whole = [Stretch(row, each.start_s, each.end_s, each.procs, each.ranks) for each in earlier.get(row, ())
                 if each.ranks is not None]  # fmt: skip
        start_s, ranks = jobs.start[row], None if jobs.ranks is None else jobs.ranks[row]
        if start_s is not None and ranks is not None:
            whole.append(Stretch(row, start_s, jobs.end[row], jobs.procs[row], ranks))
        if row not in changes:
            yield from whole
            continue
        for each in whole:
            yield from _cut(each, [change for change in changes[row] if change.until_s == each.end_s])


def _cut(whole: Stretch, changes: Iterable[Resizing]) -> Iterator[Stretch]:
    """An attempt, at its changes, in order of time; several of one instant are one."""
    row, start_s, end_s, procs, ranks = whole
    held = Idset.parse(ranks)
    for change in changes:
        if change.when_s > start_s:
            yield Stretch(row, start_s, change.when_s, procs, str(held))
            start_s = change.when_s
        targets = Idset.parse(change.ranks)
        held = held | targets if change.change > 0 else held - targets
        procs += change.change
    if end_s is None or end_s > start_s or start_s == whole.start_s:
        yield Stretch(row, start_s, end_s, procs, str(held))
