"""The result of a simulation: the table of jobs, its figures, and the cost of scheduling.

Law: a job keeps its row whatever became of it; what did not happen is None, and an empty cell in a file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from operator import add
from pathlib import Path
from typing import Any, TextIO

from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sim.results.accounts import AccountCourse, courses
from fluxsched.sim.results.amount_columns import AmountColumns
from fluxsched.sim.results.metrics import Summary, slowdowns, summarize, waits
from fluxsched.sim.results.step_functions import beside_start_core_s
from fluxsched.sim.results.table import LEFT, Columns
from fluxsched.sim.traces.swf import number_text

COLUMNS = (
    "job", "submit", "start", "end", "procs", "policy", "user", "queue", "wait", "slowdown", "state", "ranks",
    "note", "bank", "preempted", "lost",
)  # fmt: skip
"""Of `to_csv`, in order. Times in seconds since the trace began; `slowdown` is bounded; `ranks` only if asked for.

`policy` is the label, if one was given; `note` says why the job was denied, or can only wait; `preempted` how often
the job was, and `lost` how many core seconds of its work."""

SIZE_COLUMNS = ("grown", "shrunk", "hops")
"""The last ones, if any job of the table changed its size or the hops are known: core seconds above and below its size
at the start, and the most hops between any two of its targets."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What scheduling took: instants, passes, and, if a stopwatch was given, seconds in all and in each pass.

    `refused` are the decisions of the policy that could not be made real: one that keeps the laws has none. What was
    wrong with the first grow or shrink among them is the `refusal`.
    `considered_s` has, with time of its own, how long after each submission a pass had ended that began after it.
    """

    instants: int
    passes: int
    wall_s: float | None = None
    pass_s: Sequence[float] = ()
    refused: int = 0
    considered_s: Sequence[float] = ()
    refusal: str = ""


@dataclass(repr=False)
class Result:
    """One policy on one trace, up to `until_s`. `jobs` is the table, `capacity` the usable cores from each time on.

    `held` has all kinds of resources, if they were recorded; `fair` is what was settled about accounts.
    """

    policy: str
    trace: str
    jobs: Columns
    capacity: list[tuple[float, int]]
    targets: int
    cost: Cost
    until_s: float = inf
    label: str | None = None
    held: AmountColumns | None = None
    fair: FairSettings | None = None

    @property
    def title(self) -> str:
        """What tables and plots call it: its label, else its policy."""
        return self.policy if self.label is None else self.label

    def __repr__(self) -> str:
        """In a line: the table may have a million rows."""
        return f"<Result of {self.policy} on {self.trace}: {len(self.jobs)} jobs, {self.targets} targets>"

    @property
    def cores(self) -> int:
        """Cores at the beginning."""
        return self.capacity[0][1]

    @cached_property
    def end_s(self) -> float:
        """Up to when figures are: the last end of a job, or `until_s` if there were jobs left."""
        if self.until_s < inf and not LEFT.isdisjoint(self.jobs.state):
            return self.until_s
        return max([end for end in self.jobs.end if end is not None], default=0.0)

    @cached_property
    def wait(self) -> list[float | None]:
        """Seconds from submission to start."""
        return waits(self.jobs)

    @cached_property
    def slowdown(self) -> list[float | None]:
        """Bounded slowdown of the jobs that have ended."""
        return slowdowns(self.jobs)

    @cached_property
    def summary(self) -> Summary:
        """The figures that reports show."""
        return summarize(self.jobs, self.capacity, self.end_s)

    @cached_property
    def accounts(self) -> list[AccountCourse]:
        """How accounts shared the machine, those that used most first; none if it was not recorded."""
        if self.held is None or self.fair is None:
            return []
        return courses(self.jobs, self.held, self.fair, self.end_s)

    @cached_property
    def utilisation_of(self) -> dict[str, float]:
        """Of each kind of resource from the first submission to `end_s`; empty if that was not recorded."""
        begun_s = min(self.jobs.submit, default=0.0)
        if self.held is None or self.end_s <= begun_s:
            return {}
        return self.held.utilisation(self.jobs, begun_s, self.end_s)

    @property
    def started_per_s(self) -> float:
        """Jobs started from the first submission to `end_s`, attempts that were preempted included."""
        begun_s = min(self.jobs.submit, default=0.0)
        started = sum([start is not None for start in self.jobs.start]) + sum(1 for _ in self.jobs.earlier_attempts())
        return started / (self.end_s - begun_s) if self.end_s > begun_s else 0.0

    @property
    def has_sizes(self) -> bool:
        """Whether there is anything to say under SIZE_COLUMNS."""
        return bool(self.jobs.resizes or any(self.jobs.hops))

    def _sizes(self) -> Iterator[tuple[Any, ...]]:
        jobs, beside_start = self.jobs, beside_start_core_s(self.jobs, self.end_s)
        for row, hops in enumerate(jobs.hops or [None] * len(jobs)):
            yield *beside_start.get(row, (None, None)), hops

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The table line by line, in the order of COLUMNS."""
        jobs = self.jobs
        ranks = jobs.ranks if jobs.ranks is not None else [None] * len(jobs)
        policy = [self.title] * len(jobs)
        times: dict[int, int] = {}
        lost: dict[int, float] = {}
        for each in jobs.preemptions:
            times[each.row] = times.get(each.row, 0) + 1
            lost[each.row] = lost.get(each.row, 0.0) + each.lost_core_s
        return zip(
            jobs.job, jobs.submit, jobs.start, jobs.end, jobs.procs, policy, jobs.user, jobs.queue, self.wait,
            self.slowdown, jobs.state, ranks, map(jobs.notes.get, range(len(jobs))), jobs.bank or [None] * len(jobs),
            map(times.get, range(len(jobs))), map(lost.get, range(len(jobs))), strict=True,
        )  # fmt: skip

    def to_csv(self, file: TextIO | Path | str, header: bool = True, sizes: bool | None = None) -> None:
        """Write the table, with SIZE_COLUMNS if `sizes`, or if there is anything to say in them.

        Numbers are exact: whole ones without a point, others as Python prints them.
        """
        if isinstance(file, Path | str):
            with Path(file).open("w", newline="", encoding="utf-8") as opened:
                self.to_csv(opened, header, sizes)
            return
        writer, has_sizes = csv.writer(file, lineterminator="\n"), self.has_sizes if sizes is None else sizes
        if header:
            writer.writerow(COLUMNS + SIZE_COLUMNS if has_sizes else COLUMNS)
        rows = map(add, self.rows(), self._sizes()) if has_sizes else self.rows()
        writer.writerows([_cell(value) for value in row] for row in rows)


def write_csv(results: Sequence[Result], path: Path) -> None:
    """All tables in one file, one after the other; the column `policy` tells them apart."""
    sizes = any(result.has_sizes for result in results)
    with path.open("w", newline="", encoding="utf-8") as file:
        for at, result in enumerate(results):
            result.to_csv(file, at == 0, sizes)


def _cell(value: object) -> object:
    return number_text(value) if isinstance(value, float) else value
