"""The order of a tree of queues worked out from scratch at each step, by sorting: what the policy is compared with.

It has tables of its own, and takes only settings and what happens from the tree under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fluxsched.core.quantities import Amounts
from fluxsched.yunikorn.tree.queues import QueueSettings


@dataclass
class PlainNode:
    capacity: dict[str, int]
    used: Counter[str] = field(default_factory=Counter)

    def fits(self, amounts: Amounts) -> bool:
        return all(self.capacity.get(kind, 0) - self.used[kind] >= amount for kind, amount in amounts)

    @property
    def level(self) -> int:
        """Free share in steps of 1/64."""
        kinds = [kind for kind in ("vcore", "memory") if self.capacity.get(kind)]
        parts = [Fraction(max(self.capacity[kind] - self.used[kind], 0), self.capacity[kind]) for kind in kinds]
        return int(64 * sum(parts) / len(parts)) if parts else 64


@dataclass
class PlainApplication:
    id: str
    queue: str
    user: str
    submitted_s: float
    stage: str = "accepted"
    began: bool = False
    asks: dict[int, tuple[int, bool, Amounts]] = field(default_factory=dict)  # priority, originator, amounts
    held: dict[int, tuple[int, Amounts]] = field(default_factory=dict)  # rank, amounts


class PlainTree:
    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.nodes: dict[int, PlainNode] = {}
        self.applications: dict[str, PlainApplication] = {}

    def schedule(self) -> Iterator[tuple[int, int]]:
        """(ask, rank) of all that can start, one after the other."""
        while (found := self._next()) is not None:
            application, jobid, rank = found
            self.hold(application, jobid, rank, application.asks.pop(jobid)[2])
            yield jobid, rank

    def hold(self, application: PlainApplication, jobid: int, rank: int, amounts: Amounts) -> None:
        application.held[jobid] = rank, amounts
        application.began = True
        self.nodes[rank].used.update(dict(amounts))

    def free(self, application: PlainApplication, jobid: int) -> None:
        rank, amounts = application.held.pop(jobid)
        self.nodes[rank].used.subtract(dict(amounts))
        if not application.held and application.stage in ("accepted", "completing"):
            application.began = False

    # ---- whose ask is next

    def _next(self) -> tuple[PlainApplication, int, int] | None:
        for application in self._applications(self.settings, ""):
            asks = sorted(application.asks.items(), key=lambda each: (-each[1][0], not each[1][1], each[0]))
            for jobid, (_, _, amounts) in asks:
                if not self._admits(application, amounts):
                    continue
                ranks = [rank for rank, node in self.nodes.items() if node.fits(amounts)]
                if ranks:
                    return application, jobid, min(ranks, key=lambda rank: (-self.nodes[rank].level, rank))
        return None

    def _applications(self, queue: QueueSettings, above: str) -> Iterator[PlainApplication]:
        path = above + queue.name
        if not queue.is_parent:
            yield from self._in_leaf(queue, path)
            return
        waiting = [child for child in queue.children if self._priority(child, f"{path}.") is not None]
        for child in sorted(waiting, key=lambda child: self._key(child, path, queue.by_priority)):
            yield from self._applications(child, f"{path}.")

    def _key(self, child: QueueSettings, above: str, by_priority: bool) -> Any:
        priority = -self._seen(child, f"{above}.")
        share = self._share(self._used(f"{above}.{child.name}"), dict(child.guaranteed))
        return (priority, share, child.name) if by_priority else (share, priority, child.name)

    def _seen(self, queue: QueueSettings, above: str) -> int:
        priority = self._priority(queue, above)
        assert priority is not None
        return queue.priority_offset if queue.priority_fence else priority + queue.priority_offset

    def _priority(self, queue: QueueSettings, above: str) -> int | None:
        path = above + queue.name
        if queue.is_parent:
            below = [child for child in queue.children if self._priority(child, f"{path}.") is not None]
            return max([self._seen(child, f"{path}.") for child in below], default=None)
        mine = [each for each in self.applications.values() if each.queue == path]
        return max([ask[0] for each in mine for ask in each.asks.values()], default=None)

    def _share(self, used: Counter[str], guaranteed: dict[str, int]) -> list[Fraction | float]:
        root = self._capacity()
        found: list[Fraction | float] = []
        for kind, amount in (+used).items():
            if guaranteed.get(kind):
                found.append(Fraction(amount, guaranteed[kind]))
            else:
                found.append(1 + Fraction(amount, root[kind]) if root[kind] else float("inf"))
        return sorted(found, reverse=True)

    def _in_leaf(self, leaf: QueueSettings, path: str) -> list[PlainApplication]:
        waiting = [each for each in self.applications.values() if each.queue == path and each.asks]
        if leaf.sort == "stateaware":
            accepted = sorted([each for each in waiting if each.stage == "accepted"], key=lambda each: _age(each))
            starting = any(each.stage == "starting" for each in self.applications.values() if each.queue == path)
            waiting = [each for each in waiting if each.stage != "accepted"] + ([] if starting else accepted[:1])

        def key(application: PlainApplication) -> Any:
            priority = -max(ask[0] for ask in application.asks.values())
            age: Any = _age(application)
            if leaf.sort == "fair":
                held = Counter[str]()
                for _, amounts in application.held.values():
                    held.update(dict(amounts))
                share = self._share(held, {})
                return (priority, share, age) if leaf.by_priority else (share, priority, age)
            return (priority, age) if leaf.by_priority else (age[0], priority, age[1])

        return sorted(waiting, key=key)

    # ---- what holds back

    def _admits(self, application: PlainApplication, amounts: Amounts) -> bool:
        path = ""
        for queue in self._line(application.queue):
            path = f"{path}.{queue.name}" if path else queue.name
            bounds = dict(queue.maximum) | (self._capacity() if path == "root" else {})
            if not self._within(self._used(path), bounds, amounts):
                return False
            if not self._may_begin(application, path, None, queue.max_applications):
                return False
            for limit in queue.limits:
                if limit.users & {application.user, "*"}:
                    used = self._used(path, application.user)
                    if not self._within(used, dict(limit.maximum), amounts):
                        return False
                    if not self._may_begin(application, path, application.user, limit.max_applications):
                        return False
                    break
        return True

    def _may_begin(self, application: PlainApplication, path: str, user: str | None, most: int) -> bool:
        if application.began or not most:
            return True
        return sum(each.began for each in self._below(path) if user in (None, each.user)) < most

    @staticmethod
    def _within(used: Counter[str], bounds: dict[str, int], amounts: Amounts) -> bool:
        return all(used[kind] + amount <= bounds[kind] for kind, amount in amounts if kind in bounds)

    def _line(self, path: str) -> Iterator[QueueSettings]:
        at = self.settings
        yield at
        for name in path.split(".")[1:]:
            at = next(child for child in at.children if child.name == name)
            yield at

    def _below(self, path: str) -> list[PlainApplication]:
        return [each for each in self.applications.values() if f"{each.queue}.".startswith(f"{path}.")]

    def _used(self, path: str, user: str | None = None) -> Counter[str]:
        found = Counter[str]()
        for application in self._below(path):
            for _, amounts in application.held.values() if user in (None, application.user) else ():
                found.update(dict(amounts))
        return found

    def _capacity(self) -> Counter[str]:
        found = Counter[str]()
        for node in self.nodes.values():
            found.update(node.capacity)
        return found


def _age(application: PlainApplication) -> tuple[float, str]:
    return application.submitted_s, application.id
