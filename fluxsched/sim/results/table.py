"""The table of jobs that a simulation fills in, column by column, and the states of a job in it.

Law: a job keeps its row whatever became of it; what did not happen is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field

WAITING, RUNNING, COMPLETED, TIMEOUT, FAILED, DENIED = "waiting", "running", "completed", "timeout", "failed", "denied"
"""`state`: not started, not ended by then, ran to its end, cut at its limit, ended with its targets, never possible."""

UNSUBMITTED = "unsubmitted"
"""`state`: not even waiting, as its time had not come by then, or, with feedback, the preceding job was not over."""

LEFT = frozenset({WAITING, RUNNING, UNSUBMITTED})
"""States of jobs that are not over."""


@dataclass(slots=True, repr=False)
class Columns:
    """One list a column, one entry a job, in order of submission."""

    job: list[int | str]
    submit: list[float]
    start: list[float | None]
    end: list[float | None]
    procs: list[int]
    user: list[int | str | None]
    queue: list[int | str | None]
    state: list[str]
    ranks: list[str | None] | None = None
    notes: dict[int, str] = field(default_factory=dict)
    """Why a job was denied, or waits set aside, by row: several jobs may have one name."""

    def __len__(self) -> int:
        return len(self.job)

    def __repr__(self) -> str:
        """In a line: the names of the columns, which may have a million rows."""
        return f"<Columns of {len(self)} jobs: {', '.join(self.__slots__)}>"
