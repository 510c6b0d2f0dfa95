"""Waiting asks by application: equal ones in a line, lines in the order of their first, some of them to a chunk.

Law: what failed once in a generation of the tree's order is not tried again in it, nor what asks for no less: a
generation ends when something is freed, added or allowed, so until then there is only less to have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.core.constraint import EVERYTHING
from fluxsched.sched.queue.sorted_jobs import Waiting
from fluxsched.sched.quotas.queue import Application
from fluxsched.sched.quotas.tree import QueueTree
from fluxsched.sched.quotas.waits import begins_to_wait, waits_no_more
from fluxsched.sched.shape import Shape

AskKey: TypeAlias = tuple[int, bool, float, int]
"""Higher priority first, then the originator, then what asks longest, then the lower id."""

CHUNK_LINES: Final = 32
"""Lines of a chunk after a split, and half the most."""

UNFIT_KEPT: Final = 8
"""Amounts that fit nowhere, against which all others are compared."""


def ask_key(job: Waiting) -> AskKey:
    """The place of an ask in its application."""
    return (-job.priority, not job.options.is_originator, job.t_submit_s, job.jobid)


class AskLine:
    """The asks of one application for the same, on `node` if they need a certain one.

    `failed` is the generation in which it last failed.
    """

    __slots__ = ("_queue", "application", "by_id", "failed", "key", "need", "node", "shape")

    def __init__(self, application: Application, shape: Shape, node: int | None) -> None:
        self.application = application
        self.shape = shape
        self.node = node
        self.need: Amounts = shape.request.amounts
        self.by_id: dict[int, Waiting] = {}
        self._queue: list[AskKey] = []
        self.key: AskKey = (0, False, 0.0, 0)  # where it stands in its application
        self.failed = -1

    @property
    def is_over(self) -> bool:
        """Whether all its asks have left."""
        return not self.by_id

    @property
    def first(self) -> Waiting:
        """The ask that comes first."""
        return self.by_id[self._queue[0][3]]

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
        """All its asks; linear in them times log."""
        return (self.by_id[key[3]] for key in sorted(set(self._queue)) if key[3] in self.by_id)


class _Chunk:
    """Some lines in order; none of them asks for less of a kind than `least`. All failed in generation `failed`."""

    __slots__ = ("failed", "keys", "least", "lines")

    def __init__(self, keys: list[AskKey], lines: list[AskLine]) -> None:
        self.keys = keys
        self.lines = lines
        self.failed = -1
        self.least: dict[str, int] = dict(lines[0].need) if lines else {}
        for line in lines:
            self.lower(line.need)

    def lower(self, need: Amounts) -> None:
        """One that needs so much joins."""
        least = self.least
        if not least:
            return
        found = dict(need)
        for kind in list(least):
            amount = found.get(kind, 0)
            if amount < least[kind]:
                if amount:
                    least[kind] = amount
                else:
                    del least[kind]


class ApplicationAsks:
    """The lines of one application."""

    __slots__ = ("_chunks", "_lasts", "application", "lines")

    def __init__(self, application: Application) -> None:
        self.application = application
        self.lines: dict[tuple[int, int | None], AskLine] = {}
        self._chunks: list[_Chunk] = []
        self._lasts: list[AskKey] = []

    def __iter__(self) -> Iterator[AskLine]:
        """Lines in order; nothing may change meanwhile."""
        return (line for chunk in self._chunks for line in chunk.lines)

    def add(self, job: Waiting) -> None:
        """An ask joins its line."""
        key = (-job.priority, not job.options.is_originator, job.t_submit_s, job.jobid)
        at = (job.shape.number, job.options.node)
        line = self.lines.get(at)
        if line is None:
            line = self.lines[at] = AskLine(self.application, job.shape, job.options.node)
            line.add(key, job)
            self._enter(line, key)
            return
        line.add(key, job)
        if key < line.key:
            self._exit(line)
            self._enter(line, key)

    def remove(self, job: Waiting) -> None:
        """An ask leaves its line."""
        at = (job.shape.number, job.options.node)
        line = self.lines[at]
        line.remove(job.jobid)
        key = line.first_key()
        if key is None:
            del self.lines[at]
            self._exit(line)
        elif key != line.key:
            self._exit(line)
            self._enter(line, key)

    def next(self, unfit: Unfit, tree: QueueTree) -> AskLine | None:
        """The first line that did not fail in this generation, and is not known to fail; None if there is none."""
        generation = tree.order.generation
        for chunk in self._chunks:
            if chunk.failed == generation:
                continue
            if len(chunk.lines) > 1 and chunk.least:
                if unfit.covers(chunk.least):  # not even the least of them fits
                    unfit.lacking.append(chunk.lines)
                    chunk.failed = generation
                    continue
                if not tree.admits(self.application, tuple(chunk.least.items())):
                    chunk.failed = generation
                    continue
            for line in chunk.lines:
                if line.failed == generation:
                    continue
                if not unfit.has(line):
                    return line
                line.failed = generation
                unfit.lacking.append([line])
            chunk.failed = generation
        return None

    def _enter(self, line: AskLine, key: AskKey) -> None:
        line.key = key
        lasts = self._lasts
        if not lasts:
            self._chunks.append(_Chunk([key], [line]))
            lasts.append(key)
            return
        at = bisect_left(lasts, key, 0, len(lasts) - 1) if len(lasts) > 1 else 0
        chunk = self._chunks[at]
        keys = chunk.keys
        if key > keys[-1]:  # most come at the end
            keys.append(key)
            chunk.lines.append(line)
            lasts[at] = key
        else:
            place = bisect_left(keys, key)
            keys.insert(place, key)
            chunk.lines.insert(place, line)
        chunk.failed = -1
        chunk.lower(line.need)
        if len(keys) > 2 * CHUNK_LINES:
            lines = chunk.lines
            halves = _Chunk(keys[:CHUNK_LINES], lines[:CHUNK_LINES]), _Chunk(keys[CHUNK_LINES:], lines[CHUNK_LINES:])
            self._chunks[at : at + 1] = halves
            lasts[at : at + 1] = [keys[CHUNK_LINES - 1], keys[-1]]

    def _exit(self, line: AskLine) -> None:
        key, lasts = line.key, self._lasts
        at = bisect_left(lasts, key, 0, len(lasts) - 1) if len(lasts) > 1 else 0
        chunk = self._chunks[at]
        keys = chunk.keys
        if len(keys) == 1:
            del self._chunks[at], lasts[at]
            return
        place = 0 if keys[0] == key else bisect_left(keys, key)
        del keys[place], chunk.lines[place]
        lasts[at] = keys[-1]


class Unfit:
    """Amounts that fit on no node in a generation, whatever the constraint, and shapes that did not.

    `lacking` are the lines that failed for that, in this order; some may be there twice.
    """

    __slots__ = ("_amounts", "_generation", "_shapes", "lacking")

    def __init__(self) -> None:
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
        if line.shape.request.constraint != EVERYTHING or line.shape.scope is not None or not line.need:
            return
        need = dict(line.need)
        kept = [amounts for amounts in self._amounts if not _no_less(dict(amounts), line.need)]
        if len(kept) < UNFIT_KEPT and not any(_no_less(need, amounts) for amounts in kept):
            kept.append(line.need)
        self._amounts = kept

    def has(self, line: AskLine) -> bool:
        """Whether a line is known to fit nowhere."""
        if line.shape.number in self._shapes:
            return True
        return bool(self._amounts) and self.covers(dict(line.need))

    def covers(self, need: Mapping[str, int]) -> bool:
        """Whether what needs no less than this is known to fit nowhere."""
        for amounts in self._amounts:  # noqa: SIM110 - a generator costs more
            if _no_less(need, amounts):
                return True
        return False


def _no_less(need: Mapping[str, int], amounts: Amounts) -> bool:
    for kind, amount in amounts:  # noqa: SIM110
        if need.get(kind, 0) < amount:
            return False
    return True


class Asks:
    """All waiting asks of a tree of queues; `without` counts waiting jobs that no application asks for."""

    __slots__ = ("by_application", "tree", "unfit", "without")

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.unfit = Unfit()
        self.by_application: dict[Application, ApplicationAsks] = {}
        self.without = 0

    def add(self, job: Waiting) -> None:
        """An ask joins; its application, and the queues above it, are to be looked at again."""
        application, priority = job.application, job.priority
        if application is None:
            self.without += 1
            return
        asks = self.by_application.get(application)
        if asks is None:
            asks = self.by_application[application] = ApplicationAsks(application)
        asks.add(job)
        begins_to_wait(application, priority)

    def remove(self, job: Waiting) -> None:
        """An ask leaves."""
        application, priority = job.application, job.priority
        if application is None:
            self.without -= 1
            return
        asks = self.by_application[application]
        asks.remove(job)
        if not asks.lines:
            del self.by_application[application]
        waits_no_more(application, priority)

    def next(self) -> AskLine | None:
        """The line whose first ask comes next; None if none is left that may start."""
        order = self.tree.order
        self.unfit.renew(order.generation)
        while True:
            application = order.first()
            if application is None:
                return None
            asks = self.by_application[application]
            line = asks.next(self.unfit, self.tree)
            if line is not None:
                return line
            order.put_aside(application)

    def failed(self, line: AskLine, lacks_node: bool) -> None:
        """The line cannot start in this generation, as no node has room, or by a quota."""
        line.failed = self.tree.order.generation
        if lacks_node:
            self.unfit.note(line)

    def lacking_nodes(self) -> Iterator[AskLine]:
        """The lines that failed in this generation since no node has room, in this order; some may come twice."""
        self.unfit.renew(self.tree.order.generation)
        return (line for lines in list(self.unfit.lacking) for line in list(lines))
