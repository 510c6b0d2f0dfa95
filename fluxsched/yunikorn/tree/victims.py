"""Victims for an ask: which running jobs of one node go so that it fits there, and what its queues may take back.

Law: those that rather stay go only where the others do not suffice, and so do those that began their application. Of
the sets of candidates that then free what is lacking and leave each queue its guarantee, a smallest goes; of these the
one whose last in the order of victims comes first in it, then the last but one, and so on. Where that takes more than
STEPS_MAX trials, it is what is left of the first in order when each is spared without which it will do.

An ask takes back for its leaf, or a queue above it, that stays within what it is guaranteed with the ask, and only what
is guaranteed there; of queues that do not hold it, none of which falls below its own guarantee. What is going counts as
gone. Asks for which it goes count as placed where their queues take back more, and not where their queues lose
something: they may leave before they are placed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from fluxsched.core.quantities import Amounts
from fluxsched.sched.policy import JobAllocation
from fluxsched.yunikorn.tree.queue import PREEMPT_DISABLED, PREEMPT_FENCE, Application, Queue, QuotaMeter
from fluxsched.yunikorn.tree.queue_tree import may_begin

STEPS_MAX = 2_000
"""Trials for one node: a millisecond or two. Nodes with jobs of few sizes take about as many as victims."""

VictimKind: TypeAlias = tuple[bool, bool]
"""(whether it rather stays, whether it began its application)."""

Order: TypeAlias = tuple[bool, bool, int, float, int]
"""Order of victims: (whether it prefers to stay, whether it began its application, priority, -start, -id); least first.
"""

Above: TypeAlias = dict[str, int]
"""Amount that a queue may lose, by kind, of the kinds of which it is guaranteed some."""


class Candidate(NamedTuple):
    """A running job that may go; `queues` are those that lose the `amounts` it holds, and `order` is its place.

    `frees` is what comes free of what is lacking, on the node or under a maximum, by key.
    """

    order: Order
    jobid: int
    amounts: Amounts
    frees: Amounts
    queues: tuple[Above, ...]

    @property
    def kind(self) -> VictimKind:
        """Return the kind of victim: a lesser kind is preempted first, however many jobs it needs."""
        return self.order[:2]

    @property
    def allows(self) -> bool:
        """Return whether the queues can lose the job."""
        return can_lose(self.queues, self.amounts)

    def goes(self, sign: int) -> None:
        """Subtract the job's amounts from the surplus of its queues (1), or add them again (-1)."""
        for above in self.queues:
            for kind, amount in self.amounts:
                if kind in above:
                    above[kind] -= sign * amount


def can_lose(queues: Sequence[Above], amounts: Amounts) -> bool:
    """Return whether none of the queues falls below its guarantee when it loses this."""
    for above in queues:
        for kind, amount in amounts:
            if above.get(kind, amount) < amount:
                return False
    return True


def fewest(
    candidates: Sequence[Candidate], lacking: Mapping[str, int], known: tuple[VictimKind, int] | None = None
) -> list[Candidate] | None:
    """Return the jobs to preempt, in order, of candidates in order; None if they do not suffice.

    If a number of jobs of a kind is `known` to suffice elsewhere, only an equal or better choice is searched.
    """
    found = [each for each in candidates if each.allows]
    for kind in sorted({each.kind for each in found}):
        if known is not None and kind > known[0]:
            break
        search = _Search([each for each in found if each.kind <= kind], lacking)
        most = len(search.candidates) if known is None or kind < known[0] else min(known[1], len(search.candidates))
        chosen = search.run(most) if search.sizes_suffice(most) else None
        if chosen is not None:
            return chosen
    return None


def more(candidates: Sequence[Candidate], chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that may be preempted in addition to the chosen, in order, if these prove insufficient."""
    gone = {each.jobid for each in chosen}
    found: list[Candidate] = []
    for each in chosen:
        each.goes(1)
    for each in candidates:
        if each.jobid not in gone and each.allows:
            each.goes(1)
            found.append(each)
    for each in (*chosen, *found):
        each.goes(-1)
    return found


class _Search:
    """`left` is what is lacking yet, `above` are changed with each candidate that is taken, and back."""

    __slots__ = ("_chosen", "_left", "_most", "_sizes", "_steps", "_sums", "candidates")

    def __init__(self, candidates: list[Candidate], lacking: Mapping[str, int]) -> None:
        kinds = list(lacking)
        found = [(each, _sizes(each.frees, kinds)) for each in candidates]
        found = [(each, sizes) for each, sizes in found if any(sizes)]
        self.candidates = [each for each, _ in found]
        self._sizes = [sizes for _, sizes in found]
        self._left = [lacking[kind] for kind in kinds]
        self._most: list[list[int]] = []  # the largest of each kind among the first so many
        most = [0] * len(kinds)
        for sizes in self._sizes:
            self._most.append(most)
            most = [max(one, other) for one, other in zip(most, sizes, strict=True)]
        self._most.append(most)
        self._sums = [  # of so many of the largest
            list(accumulate(sorted([sizes[at] for sizes in self._sizes], reverse=True), initial=0))
            for at in range(len(kinds))
        ]
        self._steps = 0
        self._chosen: list[int] = []

    def sizes_suffice(self, count: int) -> bool:
        """Return whether the `count` largest candidates would suffice if there were no guarantees."""
        return all(sums[count] >= lacking for lacking, sums in zip(self._left, self._sums, strict=True))

    def run(self, most: int) -> list[Candidate] | None:
        """Return the fewest candidates, at most `most`, that suffice; the queues' amounts are unchanged."""
        found = self._fewest(most)
        for at in self._chosen:
            self.candidates[at].goes(-1)
        return found

    def _fewest(self, most: int) -> list[Candidate] | None:
        for count in range(1, most + 1):
            if not self.sizes_suffice(count):
                continue
            if self._take(count, len(self.candidates)):
                return [self.candidates[at] for at in sorted(self._chosen)]
            if self._steps > STEPS_MAX:
                return self._in_order()
        return None

    def _take(self, count: int, before: int) -> bool:
        """Take `count` of the first `before` candidates; return whether they suffice."""
        if not count:
            return all(lacking <= 0 for lacking in self._left)
        for last in range(count - 1, before):
            if self._steps > STEPS_MAX:
                return False
            self._steps += 1
            most, sizes = self._most[last], self._sizes[last]
            if any(
                lacking > size + (count - 1) * largest
                for lacking, size, largest in zip(self._left, sizes, most, strict=True)
            ):
                continue
            if self._add(last):
                if self._take(count - 1, last):
                    return True
                self._drop(last)
        return False

    def _in_order(self) -> list[Candidate] | None:
        """Return the first that will do, less those that are not needed: the last of them is spared first."""
        for at in range(len(self.candidates)):
            if any(lacking > 0 and size for lacking, size in zip(self._left, self._sizes[at], strict=True)):
                self._add(at)
        if any(lacking > 0 for lacking in self._left):
            return None
        for at in reversed(list(self._chosen)):
            if all(lacking + size <= 0 for lacking, size in zip(self._left, self._sizes[at], strict=True)):
                self._drop(at)
        return [self.candidates[index] for index in sorted(self._chosen)]

    def _add(self, at: int) -> bool:
        """Take a candidate, if its queues can still lose it."""
        candidate = self.candidates[at]
        if not candidate.allows:
            return False
        self._chosen.append(at)
        self._count(at, 1)
        return True

    def _drop(self, at: int) -> None:
        self._chosen.remove(at)
        self._count(at, -1)

    def _count(self, at: int, sign: int) -> None:
        for kind, size in enumerate(self._sizes[at]):
            self._left[kind] -= sign * size
        self.candidates[at].goes(sign)


def _sizes(frees: Amounts, kinds: Sequence[str]) -> tuple[int, ...]:
    have = dict(frees)
    return tuple([have.get(kind, 0) for kind in kinds])


# ---- guarantees

class Changes:
    """Differences between usage and booked usage, of queues and of users in them."""

    __slots__ = ("_going", "_of_meter", "_of_queue")

    def __init__(self) -> None:
        self._going: dict[Queue, dict[str, int]] = {}
        self._of_queue: dict[Queue, dict[str, int]] = {}
        self._of_meter: dict[QuotaMeter, dict[str, int]] = {}

    def goes(self, application: Application, amounts: Amounts) -> None:
        """Subtract amounts of an application that are being preempted."""
        for queue in application.path:
            _count(self._going.setdefault(queue, {}), amounts, -1)
        self._count(application, amounts, -1)

    def is_to_be_placed(self, application: Application, amounts: Amounts) -> None:
        """Add amounts of an application's ask that others are preempted for."""
        self._count(application, amounts, 1)

    def _count(self, application: Application, amounts: Amounts, sign: int) -> None:
        for queue in application.path:
            _count(self._of_queue.setdefault(queue, {}), amounts, sign)
        for meter in application.meters:
            _count(self._of_meter.setdefault(meter, {}), amounts, sign)

    def of_queue(self, queue: Queue) -> dict[str, int]:
        """Return the usage of the queue, by kind, once all preempted jobs have ended and the asks they end for are
        placed.
        """
        return _sum(queue.used, self._of_queue.get(queue))

    def left_to(self, queue: Queue) -> dict[str, int]:
        """Return the usage of the queue, by kind, once all preempted jobs have ended."""
        return _sum(queue.used, self._going.get(queue))

    def admit(self, application: Application, amounts: Amounts) -> bool:
        """Return whether these amounts leave room, under each maximum and limit, for the asks that others are preempted
        for.
        """
        for queue in application.path:
            if queue in self._of_queue and _over(self.of_queue(queue), dict(amounts), queue.bounds):
                return False
        for meter in application.meters:
            if meter in self._of_meter and _over(self.of_meter(meter), dict(amounts), meter.bounds):
                return False
        return True

    def of_meter(self, meter: QuotaMeter) -> dict[str, int]:
        """Return the usage of a user or group in a queue, by kind, as `of_queue` does."""
        return _sum(meter.used, self._of_meter.get(meter))


def _count(into: dict[str, int], amounts: Amounts, sign: int) -> None:
    for kind, amount in amounts:
        into[kind] = into.get(kind, 0) + sign * amount


def _sum(booked: dict[str, int], more: dict[str, int] | None) -> dict[str, int]:
    if more is None:
        return booked
    found = dict(booked)
    for kind, amount in more.items():
        found[kind] = found.get(kind, 0) + amount
    return found


class Excess:
    """Amount by which an ask exceeds a maximum of a queue, or of a user in one."""

    __slots__ = ("amount", "key", "kind", "meter", "queue")

    def __init__(self, queue: Queue | None, meter: QuotaMeter | None, kind: str, amount: int, key: str) -> None:
        self.queue = queue
        self.meter = meter
        self.kind = kind
        self.amount = amount
        self.key = key

    def is_freed_by(self, lacking: Mapping[str, int]) -> bool:
        """Return whether the excess is freed with what a node lacks, whichever jobs are preempted: all are below the
        root.
        """
        return self.queue is not None and self.queue.parent is None and lacking.get(self.kind, 0) >= self.amount

    def freed(self, application: Application, amounts: Amounts) -> tuple[tuple[str, int], ...]:
        """Return the part of the excess that is freed when an application frees these amounts."""
        if self.queue is not None and self.queue not in application.path:
            return ()
        if self.meter is not None and self.meter not in application.meters:
            return ()
        return tuple([(self.key, amount) for kind, amount in amounts if kind == self.kind])


class Claim:
    """Claim of an ask for `amounts`, with a priority, on resources that its queues may take back."""

    __slots__ = ("_above", "_changes", "_losing", "_path", "_priorities", "_reach", "_served", "application", "excess")

    def __init__(self, application: Application, amounts: Amounts, priority: int, changes: Changes) -> None:
        path = self._path = application.path
        self.application = application
        self._changes = changes
        self._priorities = _as_seen(path, priority)
        self._above: dict[Queue, Above] = {}
        self._losing: dict[Queue, tuple[Queue, ...]] = {}
        asked = dict(amounts)
        self._served = [queue for queue in path if self._stays_within(queue, asked)]
        fences = [at for at, queue in enumerate(path) if queue.settings.preemption == PREEMPT_FENCE]
        self._reach = set(path[: fences[0] + 1] if fences else path)
        self.excess = self._excess(asked) if self._served else []

    @property
    def is_vain(self) -> bool:
        """Return whether no queue would stay within its guarantee, or the application must not begin."""
        return not self._served or not may_begin(self.application)

    def served(self, lacking: Collection[str]) -> Queue | None:
        """Return the lowest queue for which these kinds may be taken back."""
        for queue in self._served:
            if all(kind in queue.guarantee for kind in lacking):
                return queue
        return None

    def losers(self) -> Iterator[Application]:
        """Yield the applications of which something may go, as far as fences allow it."""
        for queue in self._path[-1].walk():
            if queue.is_leaf and self._losing_from(queue):
                for application in queue.applications.values():
                    if application is not self.application:
                        yield application

    def victims(self, running: Mapping[int, JobAllocation]) -> Iterator[JobAllocation]:
        """Return the preemptible jobs of which each alone could go, as far as queues and priorities are concerned."""
        served = self.served(())
        if served is None:
            return
        for application in self.losers():
            for jobid, amounts in application.allocations.items():
                allocation = running.get(jobid)
                queues = () if allocation is None else self.losing(application, allocation.priority, served)
                if allocation is not None and queues and can_lose([self.above(queue) for queue in queues], amounts):
                    yield allocation

    def losing(self, application: Application, priority: int, served: Queue) -> tuple[Queue, ...]:
        """Return the queues that lose the usage of an application's job; none if no job of this priority may be
        preempted.
        """
        queues = self._losing_from(application.queue)
        if not queues:
            return ()
        common = queues[-1].parent
        if common is None or common.depth >= served.depth:
            return ()  # the served queue holds it already
        if _as_seen(queues, priority)[-1] > self._priorities[self._path.index(common) - 1]:
            return ()
        return queues

    def above(self, queue: Queue) -> Above:
        """Return the usage of the queue beyond its guarantee, by kind."""
        found = self._above.get(queue)
        if found is None:
            changes = self._changes
            used = changes.of_queue(queue) if queue in self._path else changes.left_to(queue)
            found = self._above[queue] = {kind: used.get(kind, 0) - own for kind, own in queue.guarantee.items()}
        return found

    def _stays_within(self, queue: Queue, asked: dict[str, int]) -> bool:
        above = self.above(queue)
        return bool(above) and all(over + asked.get(kind, 0) <= 0 for kind, over in above.items())

    def _losing_from(self, leaf: Queue) -> tuple[Queue, ...]:
        """Return the queues that hold a leaf and not the ask, if they may lose something, and to it."""
        queues = self._losing.get(leaf)
        if queues is None:
            queues = self._losing[leaf] = self._hold_only(leaf)
        return queues

    def _hold_only(self, leaf: Queue) -> tuple[Queue, ...]:
        found: list[Queue] = []
        is_shared = False
        for queue in leaf.up():
            if queue.settings.preemption == PREEMPT_DISABLED:
                return ()
            if is_shared or queue in self._path:
                if not is_shared and queue not in self._reach:
                    return ()
                is_shared = True
            else:
                found.append(queue)
        return tuple(found)

    def _excess(self, asked: dict[str, int]) -> list[Excess]:
        found = []
        for queue in self._path:
            used = self._changes.of_queue(queue)
            for kind, over in _over(used, asked, queue.bounds):
                found.append(Excess(queue, None, kind, over, f"{kind} of {queue.path}"))
        for meter in self.application.meters:
            used = self._changes.of_meter(meter)
            for kind, over in _over(used, asked, meter.bounds):
                found.append(Excess(None, meter, kind, over, f"{kind} of {meter.name} in {meter.queue.path}"))
        return found


def _over(used: dict[str, int], asked: dict[str, int], bounds: dict[str, int]) -> list[tuple[str, int]]:
    return [
        (kind, over) for kind, amount in asked.items()
        if amount and kind in bounds and (over := used.get(kind, 0) + amount - bounds[kind]) > 0
    ]  # fmt: skip


def _as_seen(path: tuple[Queue, ...], priority: int) -> list[int]:
    """Return a priority as each queue of a path shows it to the one above."""
    found = []
    for queue in path:
        settings = queue.settings
        priority = settings.priority_offset if settings.priority_fence else priority + settings.priority_offset
        found.append(priority)
    return found
