"""Usage as it is booked, and what one more allocation would exceed.

Law: what is booked in an application is booked in its queue, in all above it, and in the meters of its limits, by the
same amount; tables hold no zeros and nothing below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fluxsched.core.amounts import Amounts, amount_text, total
from fluxsched.sched.quotas.queue import (
    ACCEPTED,
    COMPLETING,
    STAGES,
    STARTING,
    Application,
    Queue,
    QuotaMeter,
    amounts_of,
)
from fluxsched.sched.quotas.settings import FAIR, STATEAWARE


class Exceeded(NamedTuple):
    """What an allocation would exceed: a maximum of a queue, or a limit of a user or group (`is_limit`).

    `is_of_root`: what there is in all, which nodes say better where none has room.
    """

    is_limit: bool
    text: str
    is_of_root: bool = False


def admits(application: Application, amounts: Amounts) -> bool:
    """Whether this much more exceeds no maximum and no limit of the application."""
    for queue in application.path:
        bounds = queue.bounds
        if bounds:
            used = queue.used
            for kind, amount in amounts:
                bound = bounds.get(kind)
                if bound is not None and used.get(kind, 0) + amount > bound:
                    return False
    for meter in application.meters:
        bounds, used = meter.bounds, meter.used
        for kind, amount in amounts:
            bound = bounds.get(kind)
            if bound is not None and used.get(kind, 0) + amount > bound:
                return False
    return application.began or may_begin(application)


def may_begin(application: Application) -> bool:
    """Whether one more application may hold something, if this one does not yet."""
    if application.began:
        return True
    for queue in application.path:
        bound = queue.settings.max_applications
        if bound and queue.began >= bound:
            return False
    for meter in application.meters:
        if meter.limit.max_applications and meter.applications >= meter.limit.max_applications:
            return False
    return True


def first_exceeded(application: Application, amounts: Amounts) -> Exceeded | None:
    """What this much more would exceed first, from the leaf up, then the limits, and what there is in all at last."""
    for queue in application.path:
        text = _over(queue.bounds, queue.used, amounts) if queue.parent is not None else None
        if text is not None:
            return Exceeded(False, f"queue {queue.path}: {text}")
        bound = queue.settings.max_applications
        if bound and not application.began and queue.began >= bound:
            return Exceeded(False, f"queue {queue.path}: {queue.began} of at most {bound} applications have begun")
    for meter in application.meters:
        where = f"limit of {meter.name} in queue {meter.queue.path}"
        text = _over(meter.bounds, meter.used, amounts)
        if text is not None:
            return Exceeded(True, f"{where}: {text}")
        bound = meter.limit.max_applications
        if bound and not application.began and meter.applications >= bound:
            return Exceeded(True, f"{where}: {meter.applications} of at most {bound} applications have begun")
    root = application.path[-1]
    text = _over(root.bounds, root.used, amounts)
    return None if text is None else Exceeded(False, f"queue {root.path}: {text}", True)


def _over(bounds: Mapping[str, int], used: Mapping[str, int], amounts: Amounts) -> str | None:
    for kind, amount in amounts:
        bound = bounds.get(kind)
        if bound is not None and used.get(kind, 0) + amount > bound:
            has, most, asks = amount_text(kind, used.get(kind, 0)), amount_text(kind, bound), amount_text(kind, amount)
            return f"{has} of at most {most} used, {asks} more requested"
    return None


# ---- changes


def book(application: Application, jobid: int, amounts: Amounts) -> None:
    """A job of the application holds this much more."""
    held = application.allocations
    held[jobid] = total(held[jobid], amounts) if jobid in held else amounts
    _add(application.used, amounts)
    for queue in application.path:
        _add(queue.used, amounts)
        _reorder(queue)
    for meter in application.meters:
        _add(meter.used, amounts)
    if not application.began:
        _begin(application)
    if application.queue.settings.sort == FAIR:
        change(application)


def free(application: Application, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
    """A job of the application holds this much less, or nothing."""
    if all_of_it:
        amounts = application.allocations.pop(jobid)
    else:
        left = dict(application.allocations[jobid])
        _take(left, amounts)
        application.allocations[jobid] = amounts_of(left)
    _take(application.used, amounts)
    for queue in application.path:
        _take(queue.used, amounts)
        _reorder(queue)
    for meter in application.meters:
        _take(meter.used, amounts)
    if not application.allocations and application.stage in (ACCEPTED, COMPLETING):
        _end(application)
    if application.queue.settings.sort == FAIR:
        change(application)


def _reorder(queue: Queue) -> None:
    """The queue, whose usage has changed, gets a new key among its siblings, if something below it waits."""
    parent = queue.parent
    if parent is not None and queue.priority is not None and not queue.changed:
        parent.claimants.change(queue)


def change(application: Application) -> None:
    """The application gets a new key in its leaf, if something of it waits."""
    if application.priority is not None:
        leaf = application.queue
        by_stage = leaf.settings.sort == STATEAWARE and application.stage == ACCEPTED
        (leaf.accepted if by_stage else leaf.claimants).change(application)


def set_stage(application: Application, stage: str) -> None:
    """The application is in another of the STAGES."""
    assert stage in STAGES, f"{stage!r} is none of {', '.join(STAGES)}"
    leaf = application.queue
    leaf.starting += (stage == STARTING) - (application.stage == STARTING)
    application.stage = stage
    application.ticket += 1  # its entry is in the other table, or has another key
    if application.changed:
        application.changed = False
        for among in (leaf.claimants, leaf.accepted):
            if application in among.changed:
                among.changed.remove(application)
    change(application)
    if stage in (ACCEPTED, COMPLETING):
        if not application.allocations:
            _end(application)
    elif not application.began:
        _begin(application)


def count_in_meters(application: Application) -> None:
    """What the application has is counted in its meters, which are new."""
    for meter in application.meters:
        _add(meter.used, amounts_of(application.used))
        meter.applications += application.began


def _begin(application: Application) -> None:
    application.began = True
    for queue in application.path:
        queue.began += 1
    for meter in application.meters:
        meter.applications += 1


def _end(application: Application) -> None:
    if application.began:
        application.began = False
        for queue in application.path:
            queue.began -= 1
        for meter in application.meters:
            meter.applications -= 1


def _add(used: dict[str, int], amounts: Amounts) -> None:
    for kind, amount in amounts:
        used[kind] = used.get(kind, 0) + amount


def _take(used: dict[str, int], amounts: Amounts) -> None:
    for kind, amount in amounts:
        left = used[kind] - amount
        assert left >= 0, f"{-left} more of {kind} is freed than is held"
        if left:
            used[kind] = left
        else:
            del used[kind]


# ---- for tests


def check(root: Queue) -> None:
    """Asserts that all usage is the sum of allocations."""
    sums: dict[Queue | QuotaMeter, Counter[str]] = {}
    began: Counter[Queue | QuotaMeter] = Counter()
    for queue in root.walk():
        for application in queue.applications.values():
            own: Counter[str] = Counter()
            for amounts in application.allocations.values():
                own.update(dict(amounts))
            assert +own == Counter(application.used), f"application {application.id} uses {application.used}, not {own}"
            booked: list[Queue | QuotaMeter] = [*application.path, *application.meters]
            for each in booked:
                sums.setdefault(each, Counter()).update(own)
                began[each] += application.began
    for queue in root.walk():
        meters: list[Queue | QuotaMeter] = [queue, *queue.meters.values()]
        for each in meters:
            used = +sums.get(each, Counter())
            name = queue.path if isinstance(each, Queue) else f"{queue.path}, {each.name}"
            assert used == Counter(each.used), f"{name} uses {each.used}, its allocations are {used}"
            count = each.began if isinstance(each, Queue) else each.applications
            assert began[each] == count, f"{name}: {began[each]} applications began, {count} are counted"
