"""What an ask may take back for its queues, and of which others: guarantees, maxima, fences, priorities.

Law: an ask takes back for its leaf, or a queue above it, that stays within what it is guaranteed with the ask, and only
what is guaranteed there; of queues that do not hold it, none of which falls below its own guarantee. So the queue for
which it is taken back gains by it. What is going counts as gone. Asks for which it goes count as placed where their
queues take back more, and not where their queues lose something: they may leave before they are placed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fluxsched.core.amounts import Amounts
from fluxsched.sched.policies.tree.victims import Above, can_lose
from fluxsched.sched.policy import Holding
from fluxsched.sched.quotas.bookings import may_begin
from fluxsched.sched.quotas.queue import Application, Queue, QuotaMeter
from fluxsched.sched.quotas.settings import PREEMPT_DISABLED, PREEMPT_FENCE


class Changes:
    """By how much usage differs from what is booked, of queues and of users in them."""

    __slots__ = ("_going", "_of_meter", "_of_queue")

    def __init__(self) -> None:
        self._going: dict[Queue, dict[str, int]] = {}
        self._of_queue: dict[Queue, dict[str, int]] = {}
        self._of_meter: dict[QuotaMeter, dict[str, int]] = {}

    def goes(self, application: Application, amounts: Amounts) -> None:
        """So much of an application is going."""
        for queue in application.path:
            _count(self._going.setdefault(queue, {}), amounts, -1)
        self._count(application, amounts, -1)

    def is_to_be_placed(self, application: Application, amounts: Amounts) -> None:
        """So much goes for an ask of an application."""
        self._count(application, amounts, 1)

    def _count(self, application: Application, amounts: Amounts, sign: int) -> None:
        for queue in application.path:
            _count(self._of_queue.setdefault(queue, {}), amounts, sign)
        for meter in application.meters:
            _count(self._of_meter.setdefault(meter, {}), amounts, sign)

    def of_queue(self, queue: Queue) -> dict[str, int]:
        """What the queue uses, by kind, once all that are going are gone and all for which they go are placed."""
        return _sum(queue.used, self._of_queue.get(queue))

    def left_to(self, queue: Queue) -> dict[str, int]:
        """What the queue uses, by kind, once all that are going are gone."""
        return _sum(queue.used, self._going.get(queue))

    def admit(self, application: Application, amounts: Amounts) -> bool:
        """Whether this much more leaves room, under each maximum and limit, for the asks for which others go."""
        for queue in application.path:
            if queue in self._of_queue and _over(self.of_queue(queue), dict(amounts), queue.bounds):
                return False
        for meter in application.meters:
            if meter in self._of_meter and _over(self.of_meter(meter), dict(amounts), meter.bounds):
                return False
        return True

    def of_meter(self, meter: QuotaMeter) -> dict[str, int]:
        """What a user has in a queue, by kind, as `of_queue`."""
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
    """By how much an ask is over a maximum of a queue, or of a user in one."""

    __slots__ = ("amount", "key", "kind", "meter", "queue")

    def __init__(self, queue: Queue | None, meter: QuotaMeter | None, kind: str, amount: int, key: str) -> None:
        self.queue = queue
        self.meter = meter
        self.kind = kind
        self.amount = amount
        self.key = key

    def is_freed_by(self, lacking: Mapping[str, int]) -> bool:
        """Whether it comes free with what a node lacks, whatever goes there: all is below the root."""
        return self.queue is not None and self.queue.parent is None and lacking.get(self.kind, 0) >= self.amount

    def freed(self, application: Application, amounts: Amounts) -> tuple[tuple[str, int], ...]:
        """What of it comes free when an application frees these amounts."""
        if self.queue is not None and self.queue not in application.path:
            return ()
        if self.meter is not None and self.meter not in application.meters:
            return ()
        return tuple([(self.key, amount) for kind, amount in amounts if kind == self.kind])


class Claim:
    """What an ask for `amounts`, of a priority, may take back for the queues that hold it."""

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
        """Whether no queue would stay within its guarantee, or the application must not begin."""
        return not self._served or not may_begin(self.application)

    def served(self, lacking: Collection[str]) -> Queue | None:
        """The lowest queue for which these kinds may be taken back."""
        for queue in self._served:
            if all(kind in queue.guarantee for kind in lacking):
                return queue
        return None

    def losers(self) -> Iterator[Application]:
        """The applications of which something may go, as far as fences allow it."""
        for queue in self._path[-1].walk():
            if queue.is_leaf and self._losing_from(queue):
                for application in queue.applications.values():
                    if application is not self.application:
                        yield application

    def victims(self, running: Mapping[int, Holding]) -> Iterator[Holding]:
        """Return the preemptible jobs of which each alone could go, as far as queues and priorities are concerned."""
        served = self.served(())
        if served is None:
            return
        for application in self.losers():
            for jobid, amounts in application.allocations.items():
                holding = running.get(jobid)
                queues = () if holding is None else self.losing(application, holding.priority, served)
                if holding is not None and queues and can_lose([self.above(queue) for queue in queues], amounts):
                    yield holding

    def losing(self, application: Application, priority: int, served: Queue) -> tuple[Queue, ...]:
        """The queues that lose what goes of an application; none if nothing of this priority may go."""
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
        """How much the queue has beyond its guarantee, by kind."""
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
        """The queues that hold a leaf and not the ask, if they may lose something, and to it."""
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
    """A priority as each queue of a path shows it to the one above."""
    found = []
    for queue in path:
        settings = queue.settings
        priority = settings.priority_offset if settings.priority_fence else priority + settings.priority_offset
        found.append(priority)
    return found
