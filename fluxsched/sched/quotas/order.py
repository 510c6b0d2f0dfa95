"""Whose ask comes next: down the tree by priority, share and name, in a leaf by the sort of its applications.

The share of a queue is a vector: of each kind that it uses, its usage by its guarantee, or 1 + its usage by what the
root has where it has no guarantee; the largest first. Law: only what has changed since the last question gets a new
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from fluxsched.sched.quotas.bookings import change
from fluxsched.sched.quotas.claimants import Claimants, Key
from fluxsched.sched.quotas.queue import ACCEPTED, Application, Queue
from fluxsched.sched.quotas.settings import FAIR, STATEAWARE


def shares(used: Mapping[str, int], guarantee: Mapping[str, int], root: Mapping[str, int]) -> tuple[float, ...]:
    """The share vector, the largest first; `root` is what there is in all."""
    found: list[float] = []
    for kind, amount in used.items():
        if amount:
            own = guarantee.get(kind)
            if own:
                found.append(amount / own)
            else:
                there = root.get(kind)
                found.append(1.0 + amount / there if there else inf)
    if len(found) > 1:
        found.sort(reverse=True)
    return tuple(found)


def priority_seen(queue: Queue) -> int:
    """The highest priority that waits below a queue, as its parent sees it."""
    settings = queue.settings
    assert queue.priority is not None
    return settings.priority_offset if settings.priority_fence else queue.priority + settings.priority_offset


END: Final = -1.0
"""Behind the last share of a key: less than any share, so that a list that ends is less. Flat keys compare faster."""


def queue_key(queue: Queue, by_priority: bool, root: Mapping[str, int]) -> Key:
    """The key of a queue among its siblings."""
    share, priority = shares(queue.used, queue.guarantee, root), -priority_seen(queue)
    return (priority, *share, END, queue.label) if by_priority else (*share, END, priority, queue.label)


def application_key(application: Application, root: Mapping[str, int]) -> Key:
    """The key of an application in its leaf."""
    settings = application.queue.settings
    priority, since_s, id = -(application.priority or 0), application.submitted_s, application.label
    if settings.sort == STATEAWARE and application.stage == ACCEPTED:
        return (since_s, id)
    if settings.sort == FAIR:
        share = shares(application.used, {}, root)
        return (priority, *share, END, since_s, id) if settings.by_priority else (*share, END, priority, since_s, id)
    return (priority, since_s, id) if settings.by_priority else (since_s, priority, id)


class TreeOrder:
    """The walk of a tree. `generation` changes when something may start that could not before.

    `version` changes when keys do of which nothing is booked: what there is in all, or settings.
    """

    __slots__ = ("_root", "generation", "version")

    def __init__(self, root: Queue) -> None:
        self._root = root
        self.generation = 0
        self.version = 0

    def renew(self) -> None:
        """All keys are other ones, and anything may start."""
        self.generation += 1
        self.version += 1

    def first(self) -> Application | None:
        """The application whose ask comes next; None if none is left that may start."""
        at = self._root
        while True:
            if at.settings.is_parent:
                child = self._first_queue(at)
                if child is not None:
                    at = child
                    continue
            else:
                application = self._first_application(at)
                if application is not None:
                    return application
            if at.parent is None:
                return None
            at.parent.claimants.put_aside(at)
            at = at.parent

    def put_aside(self, application: Application) -> None:
        """The application that came first has no ask that can start now."""
        leaf = application.queue
        among = leaf.claimants
        if leaf.settings.sort == STATEAWARE and application.stage == ACCEPTED:
            among = leaf.accepted
        among.put_aside(application)

    def _first_queue(self, parent: Queue) -> Queue | None:
        among = parent.claimants
        among.wake(self.generation)
        if not among.is_of(self.version):
            for queue in parent.children.values():
                if queue.priority is not None:
                    among.change(queue)
        if among.changed:
            root, by_priority = self._root.bounds, parent.settings.by_priority
            for child in among.changed:
                child.changed = False
                if child.priority is not None:
                    assert isinstance(child, Queue)
                    among.enter(child, queue_key(child, by_priority, root))
            among.changed.clear()
        first = among.first()
        assert first is None or isinstance(first, Queue)
        return first

    def _first_application(self, leaf: Queue) -> Application | None:
        if not leaf.claimants.is_of(self.version):
            leaf.accepted.is_of(self.version)
            for application in leaf.applications.values():
                change(application)
        if leaf.settings.sort == STATEAWARE:
            return self._first_by_stage(leaf)
        return self._best(leaf.claimants)

    def _first_by_stage(self, leaf: Queue) -> Application | None:
        """Of those that began and, if none is starting, the oldest accepted one; none after it, if it cannot start."""
        began = self._best(leaf.claimants)
        accepted = None if leaf.starting else self._best(leaf.accepted)
        if accepted is not None and leaf.accepted.one_aside_is_before:
            accepted = None
        if began is None or accepted is None:
            return began or accepted
        priority = accepted.priority or 0
        if leaf.settings.by_priority and priority != began.priority:
            return accepted if priority > (began.priority or 0) else began
        if accepted.submitted_s != began.submitted_s or priority == began.priority:
            return accepted if (accepted.submitted_s, accepted.id) < (began.submitted_s, began.id) else began
        return accepted if priority > (began.priority or 0) else began

    def _best(self, among: Claimants) -> Application | None:
        among.wake(self.generation)
        if among.changed:
            for each in among.changed:
                each.changed = False
                if each.priority is not None:
                    assert isinstance(each, Application)
                    among.enter(each, application_key(each, self._root.bounds))
            among.changed.clear()
        first = among.first()
        assert first is None or isinstance(first, Application)
        return first
