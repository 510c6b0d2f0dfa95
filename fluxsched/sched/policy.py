"""What a policy is: a small class that looks at a view of one group and yields decisions, and nothing else.

Law: a policy is a pure function of its view and a time (same view, same time, same decisions). It cannot change
anything: it yields, and the engine makes each decision real before the next one is asked for, so `view.place` always
answers on what is left. It never sees the ledger.

    class Smallest:
        name = "smallest"
        OPTIONS = {}

        def schedule(self, view, now_s):
            for job in sorted(view.queue, key=lambda job: job.request.cores):
                outcome = view.place(job)
                if isinstance(outcome, Fits):
                    yield Start(job.jobid, outcome)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from fluxsched.sched.decisions import Decision, Deny, Pending, Start
from fluxsched.sched.outcome import Fits, Infeasible, Insufficient, Outcome
from fluxsched.sched.queue import Waiting
from fluxsched.sched.shelf import BEST_FIT, WORST_FIT

__all__ = [
    "BEST_FIT", "PLACEMENT", "WORST_FIT", "Decision", "Deny", "Fits", "Infeasible", "Insufficient", "Option", "Outcome",
    "Pending", "Policy", "Running", "Start", "View", "Waiting", "decide",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a policy, as users write it: a default, then either the allowed texts or a parser of the text.

    `parse` raises ValueError for what is not allowed; `help` says what the option does and allows.
    """

    default: object
    choices: tuple[str, ...] = ()
    parse: Callable[[str], object] | None = None
    help: str = ""


PLACEMENT = Option(WORST_FIT, (WORST_FIT, BEST_FIT), help="spread the load over nodes, or fill gaps first")
"""The option `placement`, for any policy that passes it on to `view.place`."""


class Running(NamedTuple):
    """One job that holds resources; `expiration_s` is wall time, 0.0 for none; masks are of cores and of GPUs."""

    jobid: int
    expiration_s: float
    parts: Mapping[int, tuple[int, int]]


class View:
    """What a policy may see of one group."""

    __slots__ = ("_place", "_queue", "_running")

    def __init__(
        self,
        queue: Iterable[Waiting],
        running: Callable[[], Iterator[Running]],
        place: Callable[[Waiting, str], Outcome],
    ) -> None:
        self._queue = queue
        self._running = running
        self._place = place

    @property
    def queue(self) -> Iterator[Waiting]:
        """Jobs that may start, in priority order, from the first each time it is asked for."""
        return iter(self._queue)

    @property
    def running(self) -> Iterator[Running]:
        """Jobs that hold something in this group, in the order in which they began."""
        return self._running()

    def place(self, job: Waiting, placement: str = WORST_FIT) -> Outcome:
        """Fits, Insufficient or Infeasible for this job on what is free at this moment."""
        return self._place(job, placement)


class Policy(Protocol):
    """What the engine needs of a policy; options arrive as keyword arguments of the constructor."""

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]]

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yields decisions for one group at `now_s` (wall time, seconds)."""
        ...


def decide(job: Waiting, outcome: Outcome) -> Decision:
    """The decision that an outcome calls for when nothing else is weighed: start, wait, or never."""
    match outcome:
        case Fits():
            return Start(job.jobid, outcome)
        case Insufficient(why):
            return Pending(job.jobid, why)
        case Infeasible(why):
            return Deny(job.jobid, why)
