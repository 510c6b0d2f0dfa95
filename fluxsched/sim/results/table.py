"""The table of jobs that a simulation fills in, column by column, and the states of a job in it.

Law: a job keeps its row whatever became of it; what did not happen is None.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fluxsched.sched.fair.accounts import Vector

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


class Resizing(NamedTuple):
    """A running job of a row got so many cores more, or left them (`change` below 0), from `when_s` until its end.

    `until_s` is None while it runs. Times are virtual, in seconds; `ranks` are the targets.
    """

    row: int
    when_s: float
    until_s: float | None
    change: int
    ranks: str

    def of(self, amounts: Vector, procs: int) -> Vector:
        """What that is of each kind, without a sign, where the job has these amounts with so many cores."""
        return tuple([amount * abs(self.change) // procs for amount in amounts])

    def core_s(self, until_s: float) -> float:
        """Core seconds more, or less, than it would have had by then at its size before."""
        end_s = until_s if self.until_s is None else min(self.until_s, until_s)
        return self.change * max(0.0, end_s - self.when_s)


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

    resizes: list[Resizing] = field(default_factory=list)
    """In order of time; `procs` is what a job had at its start."""

    hops: list[int | None] = field(default_factory=list)
    """The most between any two targets of a job, or of one of its parts; None of one target. Empty if not known."""

    def __len__(self) -> int:
        return len(self.job)

    def earlier_attempts(self) -> Iterator[Preemption]:
        """The attempts that no row has, since the job was submitted again."""
        return (each for each in self.preemptions if each.again)

    def __repr__(self) -> str:
        """In a line: the names of the columns, which may have a million rows."""
        return f"<Columns of {len(self)} jobs: {', '.join(self.__slots__)}>"
