"""Interface of rules beside the resources by which jobs may start, such as quotas.

Law: the scheduler carries the `AdmissionTerms` of a job and never reads them. It asks the admission before a job with
terms starts, and tells it what each holds; jobs without terms start without it. `AdmissionControl` itself has no rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.core.quantities import Amounts
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.sorted_jobs import AdmissionTerms, PendingJob


class Exceeded(NamedTuple):
    """Bound that a start would exceed: of a queue, or of a user or group (`is_limit`).

    `is_of_root`: the capacity of all nodes, which a reason about nodes explains better where none has room.
    """

    is_limit: bool
    text: str
    is_of_root: bool = False


class JobIndex:
    """Pending jobs of a queue that may start, in an order of the admission, for a policy that knows it."""

    __slots__ = ()

    def add(self, job: PendingJob) -> None:
        """Add a job that may start from now on."""

    def remove(self, job: PendingJob) -> None:
        """Remove a job that starts, or may not start any more."""


class AdmissionControl:
    """Rules of one scheduler, and the record of what jobs with terms hold.

    `is_open_ended`: targets may come at any time and no job has an end that is known, so that no request is infeasible
    and no start is forecast. `preemption_rate` is the most preemptions in a window (seconds), None for the usual one.
    """

    __slots__ = ("is_open_ended", "preemption_rate")

    def __init__(self, is_open_ended: bool = False, preemption_rate: tuple[int, float] | None = None) -> None:
        self.is_open_ended = is_open_ended
        self.preemption_rate = preemption_rate

    @property
    def generation(self) -> int:
        """Return a number that is another one after each change by which a job may start."""
        return -1

    def renew(self) -> None:
        """Begin another generation, since something has happened in a group."""

    def index(self, pool: Pool) -> JobIndex | None:
        """Return a new index of pending jobs for a queue on these targets, None where the queue's order is enough."""
        return None

    def change_capacity(self, pool: Pool, targets: Idset, sign: int) -> None:
        """Count these targets of a pool, or (sign -1) count them no more."""

    def admits(self, terms: AdmissionTerms, amounts: Amounts) -> bool:
        """Return whether these amounts more exceed no bound."""
        return True

    def exceeded(self, terms: AdmissionTerms, amounts: Amounts) -> Exceeded | None:
        """Return the first bound that these amounts more would exceed, None if there is none."""
        return None

    def book(self, terms: AdmissionTerms, jobid: int, amounts: Amounts) -> None:
        """Add amounts to what a job holds."""

    def free(self, terms: AdmissionTerms, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        """Subtract amounts from what a job holds, or remove the job."""

    def describe(self, terms: AdmissionTerms) -> str:
        """Return to what a job belongs, in words for people, behind "waits"."""
        return ""

    def check(self, held: Iterable[tuple[int, AdmissionTerms, Amounts]]) -> None:
        """Assert that these jobs hold what is booked."""
