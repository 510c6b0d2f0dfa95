"""What jobs asked for and held of every kind of resource, and what of it was used.

Law: amounts are whole numbers in the order of `kinds`; a row has what its job asked for until it started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fluxsched.sched.fair.accounts import Vector
from fluxsched.sim.results.step_functions import average
from fluxsched.sim.results.table import Columns


class AmountColumns(NamedTuple):
    """Of each row, and what is usable from each time on (virtual, seconds)."""

    kinds: tuple[str, ...]
    of_row: list[Vector]
    capacity: list[tuple[float, Vector]]

    def only(self, kinds: Sequence[str]) -> AmountColumns:
        """The same of these kinds, in their order; 0 of what there is none of."""
        places = [self.kinds.index(kind) if kind in self.kinds else -1 for kind in kinds]
        known: dict[Vector, Vector] = {}

        def chosen(vector: Vector) -> Vector:
            if vector not in known:
                known[vector] = tuple([0 if at < 0 else vector[at] for at in places])
            return known[vector]

        rows, capacity = [chosen(vector) for vector in self.of_row], self.capacity
        return AmountColumns(tuple(kinds), rows, [(when_s, chosen(vector)) for when_s, vector in capacity])

    def utilisation(self, jobs: Columns, begin_s: float, end_s: float) -> dict[str, float]:
        """The part of each kind that was held, of what was usable; kinds of which there is nothing are left out."""
        used = [0.0] * len(self.kinds)
        attempts = [(lost.row, lost.start_s, lost.end_s) for lost in jobs.earlier_attempts()]
        last = [(row, start_s, jobs.end[row]) for row, start_s in enumerate(jobs.start) if start_s is not None]
        for row, start_s, ended_s in [*attempts, *last]:
            passed_s = min(end_s, end_s if ended_s is None else ended_s) - max(begin_s, start_s)
            if passed_s > 0:
                for at, amount in enumerate(self.of_row[row]):
                    used[at] += amount * passed_s
        for resize in jobs.resizes:
            passed_s = (resize.core_s(end_s) - resize.core_s(begin_s)) / abs(resize.change)
            for at, amount in enumerate(resize.of(self.of_row[resize.row], jobs.procs[resize.row])):
                used[at] += amount * passed_s
        found = {}
        for at, kind in enumerate(self.kinds):
            usable = average([(when_s, vector[at]) for when_s, vector in self.capacity], begin_s, end_s)
            if usable:
                found[kind] = used[at] / (usable * (end_s - begin_s))
        return found
