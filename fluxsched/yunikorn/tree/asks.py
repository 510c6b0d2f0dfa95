"""Waiting asks by application: equal ones in a line, lines in the order of their first, some of them to a chunk; and
the admission by which a scheduler starts them.

Law: what failed once in a generation of the tree's order is not tried again in it, nor what asks for no less: a
generation ends when something is freed, added or allowed, so until then there is only less to have. The terms of an ask
are its application and its options; nothing else has terms in such a scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from heapq import heappop, heappush, merge
from typing import Final, TypeAlias, cast

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import Amounts
from fluxsched.core.request import Request
from fluxsched.sched.pool.find_fit import find_fit
from fluxsched.sched.pool.placement import BINPACKING, Shape
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import AdmissionControl, AdmissionTerms, Exceeded, JobIndex, PendingJob
from fluxsched.yunikorn.tree.queues import (
    Application,
    AskOptions,
    AskTerms,
    QueueTree,
    admits,
    ask_of,
    begins_to_wait,
    first_exceeded,
    waits_no_more,
)

AskKey: TypeAlias = tuple[int, bool, float, int]
"""Higher priority first, then the originator, then what asks longest, then the lower id."""

UNFIT_KEPT: Final = 8
"""Amounts that fit nowhere, against which all others are compared."""


def ask_key(job: PendingJob, options: AskOptions) -> AskKey:
    """Return the place of an ask in its application."""
    return (-job.priority, not options.is_originator, job.t_submit_s, job.jobid)


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
        self.by_id: dict[int, PendingJob] = {}
        self._queue: list[AskKey] = []
        self._passed: list[AskKey] = []
        self.key: AskKey = (0, False, 0.0, 0)  # where it stands in its application
        self.failed = -1

    @property
    def is_over(self) -> bool:
        """Return whether all asks of the line have been removed."""
        return not self.by_id

    @property
    def first(self) -> PendingJob:
        """Return the first ask in order; the line must not be over."""
        key = self.first_key()
        if key is None:
            self.restore()
            key = self._queue[0]
        return self.by_id[key[3]]

    @property
    def some_passed(self) -> bool:
        """Return whether some asks were passed over and have not been restored."""
        return bool(self._passed)

    def pass_over(self) -> None:
        """Pass over the first ask, which cannot start for a reason of its own."""
        self._passed.append(heappop(self._queue))

    def restore(self) -> None:
        """Asks that were passed over have their places again."""
        for key in self._passed:
            if key[3] in self.by_id:
                heappush(self._queue, key)
        self._passed.clear()

    def add(self, key: AskKey, job: PendingJob) -> None:
        self.by_id[job.jobid] = job
        heappush(self._queue, key)

    def remove(self, jobid: int) -> None:
        del self.by_id[jobid]

    def first_key(self) -> AskKey | None:
        """Return the key of the first ask, None if there is none: those of asks that have left are forgotten."""
        queue, by_id = self._queue, self.by_id
        while queue and queue[0][3] not in by_id:
            heappop(queue)
        return queue[0] if queue else None

    def in_order(self) -> Iterator[PendingJob]:
        """Yield all asks of the line in order; no more than a copy of the queue is spent on those that are not
        taken.
        """
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
        """Discard what is known if the generation is a new one."""
        if self._generation != generation:
            self._generation = generation
            self._shapes.clear()
            self._amounts.clear()
            self.lacking.clear()

    def note(self, line: AskLine) -> None:
        """Record that an ask of this line fits on no node."""
        self.lacking.append([line])
        if line.node is not None:
            return
        self._shapes.add(line.shape.number)
        if line.shape.request.constraint == EVERYTHING and line.shape.scope is None:
            self._keep(line.need)

    def fits_least(self, amounts: Amounts) -> bool:
        """Return whether these amounts fit on some node."""
        if self._fits(amounts):
            return True
        self._keep(amounts)
        return False

    def _keep(self, unfit: Amounts) -> None:
        """Keep these amounts, and no others that ask for no less."""
        need = dict(unfit)
        kept = [amounts for amounts in self._amounts if not _no_less(dict(amounts), unfit)]
        if unfit and len(kept) < UNFIT_KEPT and not any(_no_less(need, amounts) for amounts in kept):
            kept.append(unfit)
        self._amounts = kept

    def has(self, line: AskLine) -> bool:
        """Return whether a line is known to fit on no node."""
        if line.shape.number in self._shapes:
            return True
        return bool(self._amounts) and self.covers(dict(line.need))

    def covers(self, need: Mapping[str, int]) -> bool:
        """Return whether a need of at least these amounts is known to fit on no node; False for an empty need."""
        for amounts in self._amounts:  # noqa: SIM110 - a generator costs more
            if _no_less(need, amounts):
                return True
        return False


def _no_less(need: Mapping[str, int], amounts: Amounts) -> bool:
    for kind, amount in amounts:  # noqa: SIM110
        if need.get(kind, 0) < amount:
            return False
    return True


# ---- asks

CHUNK_LINES: Final = 32
"""Lines of a chunk after a split, and half the most."""

LACKING_CHUNKS: Final = 16
"""Chunks of an application, of which all fail, whose lines are named as lacking a node."""

FEW_LINES: Final = 8
"""Fewer lines than that are tried one by one."""


class _Chunk:
    """Consecutive lines. All failed in generation `failed`; the least that they ask for was tried in `tried`."""

    __slots__ = ("_least", "failed", "keys", "lines", "tried")

    def __init__(self, keys: list[AskKey], lines: list[AskLine]) -> None:
        self.keys = keys
        self.lines = lines
        self.failed = self.tried = -1
        self._least: dict[str, int] | None = None

    @property
    def least(self) -> dict[str, int]:
        """Return a lower bound of the lines' needs, by kind; worked out when one has failed."""
        found = self._least
        if found is None:
            found = self._least = dict(self.lines[0].need)
            for line in self.lines:
                lower(found, line.need)
        return found

    def joined(self) -> None:
        """Discard values derived from the lines, after an ask was added."""
        self.failed = -1
        self._least = None


def lower(least: dict[str, int], need: Amounts) -> None:
    """Lower a bound of needs to include one more need."""
    found = dict(need)
    for kind in list(least):
        amount = found.get(kind, 0)
        if not amount:
            del least[kind]
        elif amount < least[kind]:
            least[kind] = amount


class ApplicationAsks:
    """The lines of one application."""

    __slots__ = ("_chunks", "_failed", "_lasts", "_least", "_passed", "_passed_in", "_tried", "application", "lines")

    def __init__(self, application: Application) -> None:
        self.application = application
        self.lines: dict[tuple[int, int | None], AskLine] = {}
        self._chunks: list[_Chunk] = []
        self._lasts: list[AskKey] = []
        self._least: dict[str, int] = {}  # of all lines, since they are more than one chunk
        self._failed = self._tried = self._passed_in = -1
        self._passed: list[AskLine] = []

    def __iter__(self) -> Iterator[AskLine]:
        """Lines in order; nothing may change meanwhile."""
        for chunk in self._chunks:  # written out: compiled code makes a list of a generator expression
            yield from chunk.lines

    def may_preempt(self) -> Iterator[AskLine]:
        """Yield the lines whose first ask may have others preempted, in the order of the iterator."""
        for line in self:
            if ask_of(line.first).options.may_preempt:
                yield line

    def add(self, job: PendingJob, options: AskOptions) -> None:
        """Add an ask to its line."""
        key, node = ask_key(job, options), options.node
        at = (job.shape.number, node)
        line = self.lines.get(at)
        if line is None:
            line = self.lines[at] = AskLine(self.application, job.shape, node)
            line.add(key, job)
            self._enter(line, key)
            return
        line.add(key, job)
        if key < line.key or line.some_passed:
            line.failed = -1
            self._exit(line)
            self._enter(line, line.first_key() or key)

    def remove(self, job: PendingJob, node: int | None) -> None:
        """Remove an ask from its line, on `node` if it needs a certain one."""
        at = (job.shape.number, node)
        line = self.lines[at]
        line.remove(job.jobid)
        if line.is_over:
            del self.lines[at]
            self._exit(line)
        else:
            self._settle(line)

    def pass_over(self, line: AskLine, generation: int) -> None:
        """Pass over the first ask of a line, which cannot start for a reason of its own, until another generation."""
        line.pass_over()
        self._passed.append(line)
        self._passed_in = generation
        if line.first_key() is None:
            line.failed = generation
        else:
            self._settle(line)

    def _settle(self, line: AskLine) -> None:
        """Place the line by its first ask that was not passed over."""
        key = line.first_key()
        if key is not None and key != line.key:
            self._exit(line)
            self._enter(line, key)

    def next(self, unfit: Unfit, tree: QueueTree) -> AskLine | None:
        """Return the first line that did not fail in this generation, and is not known to fail; None if there is none.

        Once one of a chunk has failed, the least that any of them asks for is tried, since all may fail with it; once
        all of a chunk have, the least of all chunks.
        """
        generation = tree.order.generation
        if self._failed == generation:
            return None
        if self._passed and self._passed_in != generation:
            for passed in self._passed:
                passed.restore()
                if not passed.is_over:
                    self._settle(passed)
            self._passed.clear()
        for at, chunk in enumerate(self._chunks):
            if chunk.failed == generation:
                continue
            if at == 1 and self._tried != generation:
                self._tried = generation
                if self._all_fail(self._least, self._chunks[:LACKING_CHUNKS], unfit, tree):
                    break
            line = self._next_in(chunk, unfit, tree)
            if line is not None:
                return line
            chunk.failed = generation
        self._failed = generation
        return None

    def _next_in(self, chunk: _Chunk, unfit: Unfit, tree: QueueTree) -> AskLine | None:
        generation, some_failed = tree.order.generation, False
        for line in chunk.lines:
            if line.failed == generation:
                some_failed = True
                continue
            if some_failed and len(chunk.lines) >= FEW_LINES:
                some_failed = False
                if chunk.tried != generation:
                    chunk.tried = generation
                    if self._all_fail(chunk.least, [chunk], unfit, tree):
                        return None
            if not unfit.has(line):
                return line
            line.failed, some_failed = generation, True
            unfit.lacking.append([line])
        return None

    def _all_fail(self, least: dict[str, int], chunks: list[_Chunk], unfit: Unfit, tree: QueueTree) -> bool:
        """Return whether no ask for at least these amounts could start; if a node is lacking, record the chunks."""
        if not least:
            return False
        amounts = tuple(sorted(least.items()))
        if not unfit.covers(least):
            if not tree.admits(self.application, amounts):
                if tree.lacks_room(self.application, amounts):
                    unfit.lacking += [chunk.lines for chunk in chunks]
                return True
            if unfit.fits_least(amounts):
                return False
        unfit.lacking += [chunk.lines for chunk in chunks]
        return True

    def _enter(self, line: AskLine, key: AskKey) -> None:
        line.key = key
        self._failed = -1
        lasts = self._lasts
        if len(lasts) > 1:
            lower(self._least, line.need)
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
        chunk.joined()
        if len(keys) > 2 * CHUNK_LINES:
            lines = chunk.lines
            if len(lasts) == 1:
                self._least = dict(chunk.least)
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


class Asks(JobIndex):
    """Pending asks of a tree of queues; `without` counts pending jobs that are no asks."""

    __slots__ = ("by_application", "tree", "unfit", "without")

    def __init__(self, tree: QueueTree, fits: Callable[[Amounts], bool]) -> None:
        self.tree = tree
        self.unfit = Unfit(fits)
        self.by_application: dict[Application, ApplicationAsks] = {}
        self.without = 0

    def add(self, job: PendingJob) -> None:
        """Add an ask; its application, and the queues above it, are to be examined again."""
        if job.terms is None:
            self.without += 1
            return
        ask, priority = ask_of(job), job.priority
        application = ask.application
        asks = self.by_application.get(application)
        if asks is None:
            asks = self.by_application[application] = ApplicationAsks(application)
        asks.add(job, ask.options)
        begins_to_wait(application, priority)

    def remove(self, job: PendingJob) -> None:
        """Remove an ask from its application."""
        if job.terms is None:
            self.without -= 1
            return
        ask, priority = ask_of(job), job.priority
        application = ask.application
        asks = self.by_application[application]
        asks.remove(job, ask.options.node)
        if not asks.lines:
            del self.by_application[application]
        waits_no_more(application, priority)

    def next(self) -> AskLine | None:
        """Return the line with the next ask in order; None if none is left that may start."""
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

    def fits_nowhere(self, line: AskLine) -> None:
        """Record that no node has room for the line in this generation."""
        line.failed = self.tree.order.generation
        self.unfit.note(line)

    def held_back(self, line: AskLine) -> None:
        """Record that the line cannot start in this generation for another reason; it lacks a node if there is too
        little in all.
        """
        line.failed = self.tree.order.generation
        if self.tree.lacks_room(line.application, line.need):
            self.unfit.lacking.append([line])

    def pass_over(self, line: AskLine) -> None:
        """Record that the first ask of the line cannot start in this generation, for a reason that others need not
        share.
        """
        self.by_application[line.application].pass_over(line, self.tree.order.generation)

    def lacking_nodes(self) -> Iterator[AskLine]:
        """Yield the lines that failed in this generation since no node has room, in order; some may occur twice."""
        self.unfit.renew(self.tree.order.generation)
        for lines in list(self.unfit.lacking):
            yield from list(lines)

    def may_preempt(self) -> Iterator[AskLine]:
        """Yield the lines that could not start in this generation, whatever they lack, and may have others preempted.

        Where all nodes are full that is the maximum of the root as well. Only lines that are taken are looked at, and
        the first of each application; nothing may change meanwhile.
        """
        return merge(*[asks.may_preempt() for asks in self.by_application.values()], key=_line_key)


def _line_key(line: AskLine) -> AskKey:
    return line.key


# ---- admission

QUOTA_RATE, QUOTA_WINDOW_S = 10, 1.0
"""Maximum number of preemptions in a tree of queues, and the window for it (seconds)."""


class QuotaAdmission(AdmissionControl):
    """Quotas of a tree of queues."""

    __slots__ = ("tree",)

    def __init__(self, tree: QueueTree) -> None:
        super().__init__(is_open_ended=True, preemption_rate=(QUOTA_RATE, QUOTA_WINDOW_S))
        self.tree: Final = tree

    @property
    def generation(self) -> int:
        return self.tree.order.generation

    def renew(self) -> None:
        self.tree.order.generation += 1

    def index(self, pool: Pool) -> JobIndex | None:
        return Asks(self.tree, partial(has_room, pool))

    def change_capacity(self, pool: Pool, targets: Idset, sign: int) -> None:
        """Add the capacity of these targets, up or down, to the root's maximum, or (sign -1) subtract it."""
        by_rank = pool.amount_targets.by_rank
        for rank in targets:
            if rank in by_rank:
                self.tree.change_capacity(by_rank[rank].offered(), sign)

    def admits(self, terms: AdmissionTerms, amounts: Amounts) -> bool:
        return admits(cast(AskTerms, terms).application, amounts)

    def exceeded(self, terms: AdmissionTerms, amounts: Amounts) -> Exceeded | None:
        return first_exceeded(cast(AskTerms, terms).application, amounts)

    def book(self, terms: AdmissionTerms, jobid: int, amounts: Amounts) -> None:
        self.tree.book(cast(AskTerms, terms).application, jobid, amounts)

    def free(self, terms: AdmissionTerms, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        self.tree.free(cast(AskTerms, terms).application, jobid, amounts, all_of_it)

    def describe(self, terms: AdmissionTerms) -> str:
        application = cast(AskTerms, terms).application
        return f"of application {application.id} in queue {application.queue.path}"

    def check(self, held: Iterable[tuple[int, AdmissionTerms, Amounts]]) -> None:
        self.tree.check()
        for jobid, terms, amounts in held:
            booked = cast(AskTerms, terms).application.allocations.get(jobid)
            assert booked == amounts, f"job {jobid} holds {amounts}, {booked} is booked"


def has_room(pool: Pool, amounts: Amounts) -> bool:
    """Return whether these amounts fit on some target now."""
    shape = Shape(Request.of_amounts(amounts))
    fits = find_fit(pool, shape, BINPACKING) is not None
    pool.prepared.pop(shape.number, None)  # it does not come again
    return fits
