"""What is read of the history in the store, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fluxsched.core.idset import Idset
from fluxsched.runtime.storage.jobs import Query

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
"""Of samples that are kept."""
SAMPLE_COLUMNS: Final = "observed, allocated, free, drained, down, excluded, rest"


def read_samples(read: Query, since_s: float, until_s: float) -> list[SampleRow]:
    """The samples that overlap this time."""
    sql = f"SELECT step, t, {SAMPLE_COLUMNS} FROM sample WHERE step = ? AND t > ? AND t < ?"
    rows = [row for step in LENGTHS_S for row in read(sql, (step, since_s - step, until_s))]
    return [(step, t, row) for step, t, *row in rows]


def read_intervals(
    read: Query, since_s: float, until_s: float, targets: Idset | None, max_entries: int
) -> tuple[list[IntervalRow], int]:
    """The intervals that overlap this time, of some targets if they are said, oldest first; how many were left out."""
    rows = read(
        "SELECT targets, state, began, ended, note FROM interval WHERE began < ? AND (ended IS NULL OR ended > ?) "
        "ORDER BY began DESC, id DESC",
        (until_s, since_s),
    )
    found: list[IntervalRow] = []
    left_out, wanted = 0, min(max_entries or INTERVALS_USUAL, INTERVALS_SHOWN_MAX)
    for text, *rest in rows:
        ranks = Idset.parse(text)
        if targets is not None and targets.isdisjoint(ranks):
            continue
        if len(found) < wanted:
            found.append((str(ranks if targets is None else ranks & targets), *rest))
        else:
            left_out += 1
    return found[::-1], left_out


def read_runs(read: Query, since_s: float, until_s: float) -> list[tuple[float, float]]:
    """When instances ran in this time, oldest first."""
    sql = "SELECT began, seen FROM run WHERE began < ? AND seen >= ? ORDER BY began DESC LIMIT ?"
    rows = [(max(began, since_s), min(seen, until_s)) for began, seen in read(sql, (until_s, since_s, RUNS_SHOWN_MAX))]
    return rows[::-1]
