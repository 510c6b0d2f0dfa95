"""Jobs that are preempted: when they end, and their further attempts.

Law: an attempt has a job id of its own, as in an instance, and all attempts of a job have one row of the table. Job
`row` begins as job id `row` + 1; the ids of later attempts follow those of all first ones.
"""

from __future__ import annotations

from math import inf

from fluxsched.sim.results.table import Preemption


class Attempts:
    """Rows of preempted jobs; `requeue` is how often each row's job may be submitted again.

    `preemptions` are those that have happened, in order; `known` is false until the first job is preempted, or
    true from the beginning where ends may be late.
    """

    def __init__(self, requeue: list[int], known: bool = False) -> None:
        self.preemptions: list[Preemption] = []
        self.known = known
        self._first_ids = len(requeue)
        self._left = requeue
        self._rows: list[int] = []  # of ids after the first ones
        self._ids: dict[int, int] = {}  # of rows that were submitted again
        self._going: dict[int, tuple[float, int]] = {}  # row -> when it ends at the latest, and for which row

    def row(self, jobid: int) -> int:
        """The row of an attempt."""
        return jobid - 1 if jobid <= self._first_ids else self._rows[jobid - self._first_ids - 1]

    def jobid(self, row: int) -> int:
        """The id of a row's present attempt."""
        return self._ids.get(row, row + 1) if self._ids else row + 1

    def preempt(self, row: int, end_s: float, for_row: int) -> bool:
        """The running job of a row is to be over by `end_s`, for that of another (or NO_ROW); False if it goes
        already."""
        if row in self._going:
            return False
        self.known = True
        self._going[row] = end_s, for_row
        return True

    def goes(self, row: int) -> bool:
        """Whether a running job was preempted."""
        return row in self._going

    def latest_end_s(self, row: int) -> float:
        """By when a job that goes is over; inf for any other."""
        return self._going[row][0] if row in self._going else inf

    def ended(self, row: int, start_s: float, end_s: float, procs: int, ranks: str | None = None) -> bool:
        """An attempt that was preempted is over: whether there is to be another one."""
        _, for_row = self._going.pop(row)
        again = self._left[row] > 0
        if again:
            self._left[row] -= 1
        self.preemptions.append(Preemption(row, start_s, end_s, procs, for_row, again, ranks))
        return again

    def next_id(self, row: int) -> int:
        """The id of a further attempt."""
        self._rows.append(row)
        jobid = self._ids[row] = self._first_ids + len(self._rows)
        return jobid
