"""What waits below each queue: priorities counted from the asks of applications up to the root.

Law: a parent counts each child once, by the highest priority that waits there as the child shows it.
"""

from __future__ import annotations

from fluxsched.sched.quotas.bookings import change
from fluxsched.sched.quotas.order import priority_seen
from fluxsched.sched.quotas.queue import Application, Queue


def begins_to_wait(application: Application, priority: int) -> None:
    """One more ask of this priority: the application and all above it are to be looked at again."""
    if application.gain(priority) or application.aside:
        change(application)
    leaf = application.queue
    before = _shown(leaf)
    leaf.gain(priority)
    _carry_up(leaf, before, True)


def waits_no_more(application: Application, priority: int) -> None:
    """One ask less of this priority."""
    if application.lose(priority):
        change(application)
    leaf = application.queue
    before = _shown(leaf)
    if leaf.lose(priority):
        _carry_up(leaf, before, False)


def recount(root: Queue) -> None:
    """Counts all anew, after offsets and fences have changed."""
    for queue in reversed(list(root.walk())):
        found: dict[int, int] = {}
        for child in queue.children.values():
            shown = _shown(child)
            if shown is not None:
                found[shown] = found.get(shown, 0) + 1
        for application in queue.applications.values():
            for priority, asks in application.priorities.items():
                found[priority] = found.get(priority, 0) + asks
        queue.priorities = found
        queue.priority = max(found) if found else None


def _shown(queue: Queue) -> int | None:
    return None if queue.priority is None else priority_seen(queue)


def _carry_up(queue: Queue, before: int | None, begins: bool) -> None:
    """Counts in the parents what a queue shows, which was `before`; one that `begins` may have been put aside."""
    at, parent = queue, queue.parent
    while parent is not None:
        after = _shown(at)
        if before == after and not begins:
            return
        if before != after or at.aside:
            parent.claimants.change(at)
        above = _shown(parent)
        if before != after:
            if after is not None:
                parent.gain(after)
            if before is not None:
                parent.lose(before)
        before = above
        at, parent = parent, parent.parent
