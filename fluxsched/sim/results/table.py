"""The table of jobs that a simulation fills in, column by column, and the states of a job in it.

Law: a job keeps its row whatever became of it; what did not happen is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

WAITING, RUNNING, COMPLETED, TIMEOUT, FAILED, DENIED = "waiting", "running", "completed", "timeout", "failed", "denied"
"""`state`: not started, not ended by then, ran to its end, cut at its limit, ended with its targets, never possible."""

PREEMPTED = "preempted"
"""`state`: ended so that another job could start."""

UNSUBMITTED = "unsubmitted"
"""`state`: not even waiting, as its time had not come by then, or, with feedback, the preceding job was not over."""

LEFT = frozenset({WAITING, RUNNING, UNSUBMITTED})
"""States of jobs that are not over."""


NO_ROW = -1
"""In place of a row: it is not known for which job another was preempted."""


class Preemption(NamedTuple):
    """An attempt of the job in `row` that was ended so that the one in `for_row` (or NO_ROW) could start.

    If it was submitted `again`, the row has a later attempt, else this one. Times are virtual, in seconds.
    """

    row: int
    start_s: float
    end_s: float
    procs: int
    for_row: int
    again: bool
    ranks: str | None = None
    """On which targets it ran, if that was asked for."""

    @property
    def lost_core_s(self) -> float:
        """The work that was lost."""
        return (self.end_s - self.start_s) * self.procs


@dataclass(slots=True, repr=False)
class Columns:
    """One list a column, one entry a job, in order of submission; of a job with several attempts the last one."""

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

    bank: list[str | None] = field(default_factory=list)
    """The bank that each job is charged to; empty if the trace names none."""

    preemptions: list[Preemption] = field(default_factory=list)
    """In the order in which the attempts ended."""

    def __len__(self) -> int:
        return len(self.job)

    def earlier_attempts(self) -> Iterator[Preemption]:
        """The attempts that no row has, since the job was submitted again."""
        return (each for each in self.preemptions if each.again)

    def __repr__(self) -> str:
        """In a line: the names of the columns, which may have a million rows."""
        return f"<Columns of {len(self)} jobs: {', '.join(self.__slots__)}>"
