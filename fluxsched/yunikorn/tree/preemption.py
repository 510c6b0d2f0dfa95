"""Reservations and preemption for asks that cannot start: which ask gets which node, and which running jobs go for it.

Law: only what has failed in this generation for lack of a node is looked at, in the order in which it failed. Jobs go
for an ask that allows it, has waited for the delay of its leaf, and may take back for one of its queues what is
lacking, on a node or under a maximum; a node is reserved for it until they are gone. If a node has room, that one is
taken; else the one where those go that come first by kind, then the fewest, then the first in the order of victims,
then the lowest rank. No more go at a time than the rate allows, and while some are going for an ask no others go for
it. Candidates are running jobs of queues that may lose them, not of the ask's application, and not going already. What
a node lacks has to come free there; what is over a maximum, anywhere below it.

Victims for an ask: which running jobs of one node go so that it fits there, and what its queues may take back.

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

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from math import ceil, inf
from typing import Final, NamedTuple, TypeAlias, cast

from fluxsched.core.quantities import Amounts, format_duration
from fluxsched.sched.policies.backfill import NOT_ENOUGH, cannot_preempt, rate_reached
from fluxsched.sched.policy import (
    PAUSE,
    UNKNOWN,
    AskedAmounts,
    Decision,
    JobAllocation,
    PendingJob,
    Preempt,
    Preemptions,
    View,
    Wake,
    WhatIfPreempted,
    Withhold,
    rank_of,
)
from fluxsched.yunikorn.tree.asks import Asks
from fluxsched.yunikorn.tree.queues import (
    PREEMPT_DISABLED,
    PREEMPT_FENCE,
    Application,
    AskTerms,
    Queue,
    QuotaMeter,
    ask_of,
    may_begin,
)

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


# ---- guarantees and claims


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


# ---- search for a node

LOOKED_AT_MAX = 16_384
"""Running jobs that are looked at for one ask; then the best node so far is taken."""

ELSEWHERE_MAX = 256
"""Running jobs anywhere, the first in the order of victims, that are tried so that an ask stays within a maximum."""

NODES_AT_ONCE: Final = 128
"""Nodes that are looked at between two pauses: some milliseconds."""


class Offer(NamedTuple):
    """Jobs to preempt on a node; of two offers the lesser is better.

    `further` are those that might be preempted as well.
    """

    kind: VictimKind
    victims: int
    orders: tuple[Order, ...]
    rank: int
    chosen: list[Candidate]
    further: list[Candidate]


class HeldOnNode(NamedTuple):
    """A running job on a node."""

    order: Order
    jobid: int
    application: Application
    amounts: Amounts
    rank: int


class NodeSearch:
    """The search for one ask, in slices: `go_on` until it `is_over`.

    Then `offers` has the best, or with `keeps_all` what would do on each node.
    """

    __slots__ = (
        "_claim", "_elsewhere", "_held", "_job", "_keeps_all", "_nodes", "_view", "is_over", "looked_at", "offers",
    )  # fmt: skip

    def __init__(self, job: PendingJob, claim: Claim, view: View, keeps_all: bool = False) -> None:
        self._job = job
        self._keeps_all = keeps_all
        self._claim = claim
        self._view = view
        self.looked_at = 0
        self._held = self._running()
        self._elsewhere: dict[tuple[Queue, tuple[str, ...]], list[tuple[int, Candidate]]] = {}
        self._nodes: Iterator[tuple[int, list[HeldOnNode]]] = iter(sorted(self._by_node().items()))
        self.offers: list[Offer] = []
        self.is_over = False

    def go_on(self) -> None:
        """Look at some more nodes."""
        with self._view.if_gone(self._job) as what_if:
            asked = what_if.asked(self._job.shape)
            room = self._with_room(what_if, asked)
            if room:
                self.offers.clear()
                self.is_over = True
                if self._claim.excess:
                    for rank in room:
                        self._look_at(rank, [], asked)
                return
            nodes = list(islice(self._nodes, NODES_AT_ONCE))
            for rank, held in nodes:
                self._look_at(rank, held, asked)
        self.is_over = not nodes

    def _with_room(self, what_if: WhatIfPreempted, asked: AskedAmounts) -> list[int]:
        """Return nodes where the ask fits once all that are going are gone; no more than the judge may want."""
        job, reserved = self._job, self._view.reserved_nodes
        node = ask_of(job).options.node
        if node is not None:
            mine = node
        else:
            fit = what_if.find(job.shape)
            if fit is not None and self._keeps_all and self._claim.excess:
                ranks = reserved.best_first(job)
                return [rank for rank in ranks if asked.lacking_on(rank, self._may_take(rank)) == {}]
            if fit is not None:
                return [part.rank for part in fit.parts]
            mine = reserved.by_job.get(job.jobid, -1)
        return [mine] if asked.lacking_on(mine, self._may_take(mine)) == {} else []

    def _by_node(self) -> dict[int, list[HeldOnNode]]:
        found: dict[int, list[HeldOnNode]] = {}
        only = ask_of(self._job).options.node
        for held in self._held:
            if only is None or held.rank == only:
                found.setdefault(held.rank, []).append(held)
        return found

    def _running(self) -> list[HeldOnNode]:
        """Jobs that may go, as far as their queues are concerned."""
        found: list[HeldOnNode] = []
        running = self._view.preemptions.running
        for application in self._claim.losers():
            for jobid, amounts in application.allocations.items():
                allocation = running.jobs.get(jobid)
                if allocation is None:
                    continue
                self.looked_at += 1
                options = cast(AskTerms, allocation.terms).options
                order = not options.may_be_preempted, options.is_originator, allocation.priority
                place = (*order, -allocation.started_s, -jobid)
                found.append(HeldOnNode(place, jobid, application, amounts, rank_of(allocation)))
            if self.looked_at >= LOOKED_AT_MAX:
                break
        return found

    def _look_at(self, rank: int, held: list[HeldOnNode], asked: AskedAmounts) -> None:
        lacking, claim = asked.lacking_on(rank, self._may_take(rank)), self._claim
        if lacking is None:
            return
        excess = [each for each in claim.excess if not each.is_freed_by(lacking)]
        if not lacking and not excess:
            return
        served = claim.served([*lacking, *[each.kind for each in excess]])
        if served is None:
            return
        lacking.update({each.key: each.amount for each in excess})
        candidates = []
        for each in held:
            found = self._candidate(each, served, each.amounts, excess)
            if found is not None:
                candidates.append(found)
        if excess:
            candidates += [found for there, found in self._under_maxima(served, excess) if there != rank or not held]
        candidates.sort(key=_order)
        known = (self.offers[0].kind, self.offers[0].victims) if self.offers and not self._keeps_all else None
        chosen = fewest(candidates, lacking, known)
        if chosen is None:
            return
        further = more(candidates, chosen) if self._keeps_all else []
        orders = tuple([each.order for each in reversed(chosen)])
        offer = Offer(chosen[-1].kind, len(chosen), orders, rank, chosen, further)
        if self._keeps_all or not self.offers:
            self.offers.append(offer)
        elif offer < self.offers[0]:
            self.offers[0] = offer

    def _under_maxima(self, served: Queue, excess: Sequence[Excess]) -> list[tuple[int, Candidate]]:
        """Return those that bring the ask within the maxima that it is over, wherever they run, with their nodes."""
        key = served, tuple([each.key for each in excess])
        found = self._elsewhere.get(key)
        if found is None:
            found = self._elsewhere[key] = []
            for held in sorted(self._held, key=_held_order):
                candidate = self._candidate(held, served, (), excess)
                if candidate is not None and candidate.frees and candidate.allows:
                    found.append((held.rank, candidate))
                    if len(found) >= ELSEWHERE_MAX:
                        break
        return found

    def _candidate(self, held: HeldOnNode, served: Queue, frees: Amounts, excess: Sequence[Excess]) -> Candidate | None:
        """Return a job that may go, which `frees` this on the node, and what of the excess; None if it may not."""
        claim, application = self._claim, held.application
        losing = claim.losing(application, held.order[2], served)
        if not losing:
            return None
        for each in excess:
            frees += each.freed(application, held.amounts)
        above = tuple([claim.above(queue) for queue in losing])
        return Candidate(held.order, held.jobid, held.amounts, frees, above)

    def _may_take(self, rank: int) -> bool:
        """Return whether a reserved node may be taken: its ask can be placed elsewhere, and no job is preempted for
        that ask.
        """
        view = self._view
        jobid = view.reserved_nodes.holder(rank)
        if jobid is None or jobid == self._job.jobid:
            return True
        other = view.job(jobid)
        return jobid not in view.preemptions.awaited and (other is None or ask_of(other).options.node is None)


def _order(candidate: Candidate) -> Order:
    return candidate.order


def _held_order(held: HeldOnNode) -> Order:
    return held.order


# ---- the preemption of a tree

LOOKED_AT_A_PASS_MAX = 65_536
"""Running jobs that are looked at in a pass; other asks have their turn in the next."""

OFFERS_MAX = 64
"""Nodes that a judge is asked about for one ask, the best first; a callback each."""

Judge: TypeAlias = Callable[[PendingJob, int, Sequence[int], int], int | None]
"""(job, rank, ids of those that may go in order, index of the last that must) -> index of the last that does go; None
if the job does not start there even so.
"""


class TreePreemption:
    """Preemptions of one pass at `now_s` (wall time, seconds); `judge` has the final decision on each node.

    Of asks that are equal in all that matters here only the first is searched for. The longer searches without success
    take, the longer is the pause after them.
    """

    __slots__ = ("_changes", "_in_vain", "_judge", "_looked_at", "_now_s", "_preemptions", "_rests_until_s", "_view")

    def __init__(self, view: View, now_s: float, judge: Judge | None = None) -> None:
        self._view = view
        self._now_s = now_s
        self._judge = judge
        self._preemptions = view.preemptions
        self._rests_until_s = view.preemptions.rests_until_s(UNKNOWN, now_s)
        self._changes: Changes | None = None
        self._in_vain: set[tuple[Application, int, int, int | None]] = set()
        self._looked_at = 0

    def decide(self, job: PendingJob) -> Iterator[Decision]:
        """Yield the preemptions for an ask that cannot start now."""
        preemptions, now_s, ask = self._preemptions, self._now_s, ask_of(job)
        application = ask.application
        if not ask.options.may_preempt or job.jobid in preemptions.awaited:
            return
        if not preemptions.running.jobs or not preemptions.rate:
            return
        kind = application, job.shape.number, job.priority, ask.options.node
        if kind in self._in_vain or self._looked_at >= LOOKED_AT_A_PASS_MAX:
            return
        due_s = max(
            job.t_submit_s + application.queue.settings.preemption_delay_s,
            self._rests_until_s,
            preemptions.next_s(1, now_s),
        )
        if due_s > now_s:
            yield Wake(due_s)
            return
        rank, victims = yield from self._search(job, application)
        again_s = preemptions.next_s(len(victims), now_s)
        if not victims or again_s > now_s:
            self._in_vain.add(kind)
            if now_s < again_s < inf:
                yield Wake(again_s)
            return
        self._changes = None
        reason = f"{application.queue.path} takes back its guarantee"
        for victim in victims:
            yield Preempt(victim.jobid, job.jobid, reason)
        yield Withhold(job.jobid, rank, takes_over=True)

    def _search(
        self, job: PendingJob, application: Application
    ) -> Generator[Decision, None, tuple[int, list[Candidate]]]:
        """Search a node for the ask; return its rank and the jobs to preempt there, or -1 and none."""
        claim = Claim(application, job.request.amounts, job.priority, self._counted())
        if claim.is_vain:
            return -1, []
        search = NodeSearch(job, claim, self._view, self._judge is not None)
        while not search.is_over:
            search.go_on()
            yield PAUSE
        self._looked_at += search.looked_at
        found = self._judged(job, search.offers)
        if not found[1]:
            self._preemptions.searched_in_vain(UNKNOWN, self._looked_at, self._now_s)
        return found

    def _judged(self, job: PendingJob, offers: list[Offer]) -> tuple[int, list[Candidate]]:
        """Return the best node, or the best that the judge accepts, and those that go there."""
        offers.sort()
        for offer in offers[:OFFERS_MAX]:
            if self._judge is None:
                return offer.rank, offer.chosen
            line = [*offer.chosen, *offer.further]
            last = self._judge(job, offer.rank, [each.jobid for each in line], len(offer.chosen) - 1)
            if last is not None:
                return offer.rank, line[: max(last + 1, len(offer.chosen))]
        return -1, []

    def _counted(self) -> Changes:
        """Return the changes by jobs being preempted and by the asks that they are preempted for."""
        if self._changes is None:
            self._changes = changes_of(self._preemptions, self._view.job, self._preemptions.awaited)
        return self._changes


def why_not_preempted(
    waiting: Callable[[int], PendingJob | None], job: PendingJob, preemptions: Preemptions, now_s: float
) -> str:
    """Return what keeps running jobs from being preempted for an ask, as a pass would find it first; empty if some are
    going for it. `waiting` has the asks by id.
    """
    if job.terms is None or job.jobid in preemptions.awaited:
        return ""
    application, running = ask_of(job).application, preemptions.running
    if not ask_of(job).options.may_preempt:
        return "no job is preempted for it: it may preempt none (allowPreemptOther)"
    if not (running.jobs and preemptions.rate):
        return cannot_preempt(preemptions)
    claim = Claim(application, job.request.amounts, job.priority, changes_of(preemptions, waiting, preemptions.awaited))
    queue = application.queue
    if claim.is_vain:
        if not may_begin(application):
            return "no job is preempted for it: its application may not begin yet"
        return "no job is preempted for it: with it no queue above it stays within its guarantee"
    if not any(True for _ in claim.victims(running.jobs)):
        return "no job is preempted for it: no preemptible job of another queue is beyond its guarantee"
    due_s = job.t_submit_s + queue.settings.preemption_delay_s
    if due_s > now_s:
        return f"no job is preempted for it before {format_duration(ceil(due_s - now_s))} from now (preemption.delay)"
    return rate_reached(preemptions, now_s) or NOT_ENOUGH


def changes_of(
    preemptions: Preemptions, waiting: Callable[[int], PendingJob | None], beneficiaries: Iterable[int]
) -> Changes:
    """Return by how much usage differs once all that are going are gone and these asks are placed."""
    changes = Changes()
    for allocation in preemptions.allocations_going():
        if allocation.terms is not None:
            application = cast(AskTerms, allocation.terms).application
            changes.goes(application, application.allocations[allocation.jobid])
    for jobid in beneficiaries:
        job = waiting(jobid)
        if job is not None and job.terms is not None:
            changes.is_to_be_placed(ask_of(job).application, job.request.amounts)
    return changes


# ---- reservations

RESERVE_AFTER_S = 2.0
"""Time that an ask waits until a node is reserved for it (seconds)."""

SEARCHES_A_PASS = 4
"""Different asks for which a pass looks at all nodes: some milliseconds each, at 5,000."""

LINES_A_PASS = 256
"""Lines of asks without a node that a pass looks at."""

LOOK_AGAIN_S = 0.1
"""Delay of the next pass for the asks left over (seconds)."""


REFUSALS_A_PASS = 64
"""Nodes that may be refused in a pass, each by a callback; then no more are reserved in it."""

MayReserve: TypeAlias = Callable[[PendingJob, int], bool]
"""(ask, rank) -> whether the node may be kept for it."""


class _Nodes:
    """Next node for each ask, looked up once for all asks with the same request."""

    __slots__ = ("_by_shape", "_may_reserve", "_refusals", "_view", "searches")

    def __init__(self, view: View, may_reserve: MayReserve | None) -> None:
        self._view = view
        self._may_reserve = may_reserve
        self._by_shape: dict[int, Iterator[int]] = {}
        self._refusals = 0
        self.searches = 0

    def next(self, job: PendingJob) -> int | None:
        node = ask_of(job).options.node
        if node is not None:
            return node if self._may_have(job, node) else None
        nodes = self._by_shape.get(job.shape.number)
        if nodes is None:
            self.searches += 1
            nodes = self._by_shape[job.shape.number] = iter(self._view.reserved_nodes.best_first(job))
        return next((rank for rank in nodes if self._may_have(job, rank)), None)

    def _may_have(self, job: PendingJob, rank: int) -> bool:
        if self._refusals >= REFUSALS_A_PASS or not self._view.reserved_nodes.may_reserve(rank):
            return False
        if self._may_reserve is None or self._may_reserve(job, rank):
            return True
        self._refusals += 1
        return False


def reservations(view: View, asks: Asks, now_s: float, may_reserve: MayReserve | None = None) -> Iterator[Decision]:
    """Reserves nodes for those that wait long enough, and asks for a pass when the next ones do."""
    reserved, nodes, looked_at = view.reserved_nodes, _Nodes(view, may_reserve), 0
    wake_s = inf
    for line in asks.lacking_nodes():
        if looked_at >= LINES_A_PASS or reserved.all_taken:
            break
        if nodes.searches >= SEARCHES_A_PASS:
            wake_s = min(wake_s, now_s + LOOK_AGAIN_S)
            break
        missed = False
        for job in line.in_order():
            if job.jobid in reserved.by_job:
                continue
            due_s = now_s if line.node is not None else job.t_submit_s + RESERVE_AFTER_S
            missed = True
            if due_s > now_s:
                wake_s = min(wake_s, due_s)
                break
            rank = nodes.next(job)
            if rank is None:
                break
            yield Withhold(job.jobid, rank)
        looked_at += missed
    wake_s = min(wake_s, reserved.next_s)
    if wake_s < inf:
        yield Wake(wake_s)
