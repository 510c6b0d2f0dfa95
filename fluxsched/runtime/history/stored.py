"""What is read of the history in the store, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fluxsched.runtime.storage.jobs import Query

SampleRow = tuple[int, int, Sequence[Any]]
"""Length and beginning (seconds), and what `Sample.of_row` takes."""
LENGTHS_S: Final = (60, 600, 3600)
"""Of samples that are kept."""
SAMPLE_COLUMNS: Final = "observed, allocated, free, drained, down, excluded, rest"


def read_samples(read: Query, since_s: float, until_s: float) -> list[SampleRow]:
    """The samples that overlap this time."""
    sql = f"SELECT step, t, {SAMPLE_COLUMNS} FROM sample WHERE step = ? AND t > ? AND t < ?"
    rows = [row for step in LENGTHS_S for row in read(sql, (step, since_s - step, until_s))]
    return [(step, t, row) for step, t, *row in rows]
