"""Waiting asks of one application for the same, as one line; and what is known to fit nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.core.constraint import EVERYTHING
from fluxsched.sched.queue.sorted_jobs import Waiting
from fluxsched.sched.quotas.queue import Application
from fluxsched.sched.shape import Shape

AskKey: TypeAlias = tuple[int, bool, float, int]
"""Higher priority first, then the originator, then what asks longest, then the lower id."""

UNFIT_KEPT: Final = 8
"""Amounts that fit nowhere, against which all others are compared."""


def ask_key(job: Waiting) -> AskKey:
    """The place of an ask in its application."""
    return (-job.priority, not job.options.is_originator, job.t_submit_s, job.jobid)


class AskLine:
    """The asks of one application for the same, on `node` if they need a certain one.

    `failed` is the generation in which it last failed. Asks that were passed over come again once they are restored.
    """

    __slots__ = ("_passed", "_queue", "application", "by_id", "failed", "key", "need", "node", "shape")

    def __init__(self, application: Application, shape: Shape, node: int | None) -> None:
        self.application = application
        self.shape = shape
        self.node = node
        self.need: Amounts = shape.request.amounts
        self.by_id: dict[int, Waiting] = {}
        self._queue: list[AskKey] = []
        self._passed: list[AskKey] = []
        self.key: AskKey = (0, False, 0.0, 0)  # where it stands in its application
        self.failed = -1

    @property
    def is_over(self) -> bool:
        """Whether all its asks have left."""
        return not self.by_id

    @property
    def first(self) -> Waiting:
        """The ask that comes first; the line is not over."""
        key = self.first_key()
        if key is None:
            self.restore()
            key = self._queue[0]
        return self.by_id[key[3]]

    @property
    def some_passed(self) -> bool:
        """Whether some asks were passed over, and have not been restored."""
        return bool(self._passed)

    def pass_over(self) -> None:
        """The first ask cannot start for a reason of its own: the next one comes."""
        self._passed.append(heappop(self._queue))

    def restore(self) -> None:
        """Asks that were passed over have their places again."""
        for key in self._passed:
            if key[3] in self.by_id:
                heappush(self._queue, key)
        self._passed.clear()

    def add(self, key: AskKey, job: Waiting) -> None:
        self.by_id[job.jobid] = job
        heappush(self._queue, key)

    def remove(self, jobid: int) -> None:
        del self.by_id[jobid]

    def first_key(self) -> AskKey | None:
        """The key of the first ask, None if there is none: those of asks that have left are forgotten."""
        queue, by_id = self._queue, self.by_id
        while queue and queue[0][3] not in by_id:
            heappop(queue)
        return queue[0] if queue else None

    def in_order(self) -> Iterator[Waiting]:
        """All its asks; those that are not taken cost nothing but a copy of the queue, once the second is."""
        yield self.first
        queue, last = self._queue.copy(), self._queue[0]
        while queue:
            key = heappop(queue)
            if key != last and key[3] in self.by_id:
                yield self.by_id[key[3]]
            last = key


class Unfit:
    """Amounts that fit on no node in a generation, whatever the constraint, and shapes that did not.

    `lacking` are the lines that failed for that, in this order; some may be there twice. `fits` says whether amounts
    fit on some node.
    """

    __slots__ = ("_amounts", "_fits", "_generation", "_shapes", "lacking")

    def __init__(self, fits: Callable[[Amounts], bool]) -> None:
        self._fits = fits
        self._generation = -1
        self._shapes: set[int] = set()
        self._amounts: list[Amounts] = []
        self.lacking: list[list[AskLine]] = []

    def renew(self, generation: int) -> None:
        """Nothing is known of a new generation."""
        if self._generation != generation:
            self._generation = generation
            self._shapes.clear()
            self._amounts.clear()
            self.lacking.clear()

    def note(self, line: AskLine) -> None:
        """What a line asks for fitted nowhere."""
        self.lacking.append([line])
        if line.node is not None:
            return
        self._shapes.add(line.shape.number)
        if line.shape.request.constraint == EVERYTHING and line.shape.scope is None:
            self._keep(line.need)

    def fits_least(self, amounts: Amounts) -> bool:
        """Whether this much fits on some node."""
        if self._fits(amounts):
            return True
        self._keep(amounts)
        return False

    def _keep(self, unfit: Amounts) -> None:
        """Keeps these amounts, and no others that ask for no less."""
        need = dict(unfit)
        kept = [amounts for amounts in self._amounts if not _no_less(dict(amounts), unfit)]
        if unfit and len(kept) < UNFIT_KEPT and not any(_no_less(need, amounts) for amounts in kept):
            kept.append(unfit)
        self._amounts = kept

    def has(self, line: AskLine) -> bool:
        """Whether a line is known to fit nowhere."""
        if line.shape.number in self._shapes:
            return True
        return bool(self._amounts) and self.covers(dict(line.need))

    def covers(self, need: Mapping[str, int]) -> bool:
        """Whether what needs no less than this is known to fit nowhere; of an empty one nothing is known."""
        for amounts in self._amounts:  # noqa: SIM110 - a generator costs more
            if _no_less(need, amounts):
                return True
        return False


def _no_less(need: Mapping[str, int], amounts: Amounts) -> bool:
    for kind, amount in amounts:  # noqa: SIM110
        if need.get(kind, 0) < amount:
            return False
    return True
