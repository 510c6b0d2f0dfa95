"""The tree of queues: what each may use and uses, which applications there are, and whose ask comes next.

Law: usage is booked from an application up to the root, and in the meters of its limits, in one step and by the same
amount, also where it exceeds a maximum, since what was allocated is a fact; whether one more is allowed is asked
before. Tables hold no zeros. Changes of the settings are made whole or not at all. The next ask is found down the tree
by priority, share and name, in a leaf by the sort of its applications. The share of a queue is a vector: of each kind
that it uses, its usage by its guarantee. A parent counts each child once, by the highest priority that waits there as
the child shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.quantities import Amounts, amount_text, total
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.admission import Exceeded
from fluxsched.yunikorn.tree.queue import (
    ACCEPTED,
    ANYONE,
    COMPLETING,
    FAIR,
    STAGES,
    STARTING,
    STATEAWARE,
    Application,
    Claimants,
    Key,
    Queue,
    QueueSettings,
    QuotaMeter,
    amounts_of,
)


def admits(application: Application, amounts: Amounts) -> bool:
    """Return whether an allocation of these amounts exceeds no maximum and no limit of the application."""
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
    """Return whether one more application may hold something, if this one does not yet."""
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
    """Return the first bound that these amounts would exceed: of queues from the leaf up, of limits, of the capacity.
    """
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
    """Add amounts to what a job of the application holds."""
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
    """Subtract amounts from what a job of the application holds, or remove the job."""
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
    """Renew the key of a queue whose usage has changed, if an ask below it is pending."""
    parent = queue.parent
    if parent is not None and queue.priority is not None and not queue.changed:
        parent.claimants.change(queue)


def change(application: Application) -> None:
    """Give the application a new key in its leaf, if something of it waits."""
    if application.priority is not None:
        leaf = application.queue
        by_stage = leaf.settings.sort == STATEAWARE and application.stage == ACCEPTED
        (leaf.accepted if by_stage else leaf.claimants).change(application)


def set_stage(application: Application, stage: str) -> None:
    """Record that the application is in another of the STAGES."""
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
    """Count the application's usage in its meters, which are new."""
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
    """Assert that all usage is the sum of allocations."""
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


# ---- order

def shares(used: Mapping[str, int], guarantee: Mapping[str, int], root: Mapping[str, int]) -> tuple[float, ...]:
    """Return the share vector, the largest first; `root` is the capacity of all nodes."""
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
    """Return the highest priority that waits below a queue, as its parent sees it."""
    settings = queue.settings
    assert queue.priority is not None
    return settings.priority_offset if settings.priority_fence else queue.priority + settings.priority_offset


END: Final = -1.0
"""End of the shares in a key: less than any share, so that a shorter list is less. Flat keys compare faster."""


def queue_key(queue: Queue, by_priority: bool, root: Mapping[str, int]) -> Key:
    """Return the key of a queue among its siblings."""
    share, priority = shares(queue.used, queue.guarantee, root), -priority_seen(queue)
    return (priority, *share, END, queue.label) if by_priority else (*share, END, priority, queue.label)


def application_key(application: Application, root: Mapping[str, int]) -> Key:
    """Return the key of an application in its leaf."""
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
        """Invalidate all keys and failures."""
        self.generation += 1
        self.version += 1

    def first(self) -> Application | None:
        """Return the application with the next ask in order; None if none is left that may start."""
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
        """Put aside the first application, which has no ask that can start now."""
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
        """Return the first of those that began and, if none is starting, the oldest accepted one; none after it if that
        cannot start.
        """
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


# ---- waits

def begins_to_wait(application: Application, priority: int) -> None:
    """Count one more ask of this priority, so that the application and all above it are examined again."""
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
    """Count all anew, after offsets and fences have changed."""
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
    """Count in the parents a queue's priority, which was `before`; one that `begins` may have been put aside."""
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


# ---- tree

QUEUES_MAX = 65_536
"""Queues of one tree, about 2 KiB each."""

QUEUE_DEPTH_MAX = 32
"""Levels below the root: each is looked at with each allocation."""


class QueueChanges(NamedTuple):
    """Paths of queues that new settings made, had drain, and dropped."""

    made: tuple[str, ...]
    draining: tuple[str, ...]
    dropped: tuple[str, ...]


class QueueTree:
    """Tree of queues below `root`, by path; `order` has the order of their asks."""

    def __init__(self, settings: QueueSettings) -> None:
        self.root = Queue(settings, None)
        self._by_path: dict[str, Queue] = {self.root.path: self.root}
        self._capacity: dict[str, int] = {}
        self.order = TreeOrder(self.root)
        self._configure(self.root, settings, [], [])

    # ---- queues

    def queue(self, path: str) -> Queue | None:
        """Return the queue at a path such as `root.a.b`."""
        return self._by_path.get(path)

    def create(self, path: str, settings: QueueSettings) -> Queue:
        """Create a queue that is removed with its last application. Raise InvalidValue if its place is not allowed."""
        above, _, name = path.rpartition(".")
        parent = self._by_path.get(above)
        if parent is None or not parent.settings.is_parent:
            raise InvalidValue(f"queue {path!r} cannot be made: {above!r} is not a queue that has others below it")
        if path in self._by_path or name != settings.name:
            raise InvalidValue(f"queue {path!r} cannot be created as {settings.name!r}, or exists already")
        if parent.draining:
            raise InvalidValue(f"queue {path!r} cannot be made: {above!r} is draining")
        if parent.depth >= QUEUE_DEPTH_MAX:
            levels = parent.depth + 1
            raise LimitExceeded(f"queue {path!r} has {levels} levels above it: the limit is {QUEUE_DEPTH_MAX}")
        return self._make(parent, settings, created=True)

    def change_created(self, queue: Queue, settings: QueueSettings) -> None:
        """Give a created leaf other amounts, or another number of applications."""
        if settings != queue.settings:
            self._configure(queue, settings, [], [])
            self.order.renew()

    def drop(self, queue: Queue) -> None:
        """Take a queue out that has no applications and no queues below it. Raises InvalidValue if it has some."""
        if queue.parent is None or queue.children or queue.applications:
            raise InvalidValue(f"queue {queue.path!r} cannot go: it is the root, or has queues or applications")
        del queue.parent.children[queue.name], self._by_path[queue.path]

    def faults_of(self, settings: QueueSettings) -> list[str]:
        """Why these settings cannot be taken, for each queue where they cannot."""
        return _changed_kinds(self.root, settings)

    def reconfigure(self, settings: QueueSettings) -> QueueChanges:
        """Apply other settings to all queues but created ones: one that has none drains.

        Raise InvalidValue, without a change, if a leaf with applications would become a parent, or the reverse.
        """
        faults = self.faults_of(settings)
        if faults:
            raise InvalidValue("; ".join(faults))
        made: list[Queue] = []
        removed: list[Queue] = []
        self._configure(self.root, settings, made, removed)
        for queue in removed:
            for each in queue.walk():
                each.draining = True
        dropped: list[str] = []
        for queue in removed:
            for each in reversed(list(queue.walk())):
                dropped += self._drop_empty(each)
        self._resolve_limits()
        recount(self.root)
        self.order.renew()
        paths = [each.path for queue in removed for each in queue.walk() if each.path in self._by_path]
        return QueueChanges(tuple([queue.path for queue in made]), tuple(paths), tuple(dropped))

    def set_capacity(self, amounts: Amounts) -> None:
        """Set the capacity, which is the maximum of the root."""
        self._capacity.clear()
        self.change_capacity(amounts, 1)

    def change_capacity(self, amounts: Amounts, sign: int) -> None:
        """Add the amounts to the capacity, or (sign -1) subtract them."""
        capacity, root = self._capacity, self.root
        for kind, amount in amounts:
            capacity[kind] = capacity.get(kind, 0) + sign * amount
        root.bounds = {**dict(root.settings.maximum), **capacity}
        self.order.renew()

    # ---- applications

    def add_application(
        self, id: str, queue: Queue, user: str, groups: tuple[str, ...], t_s: float
    ) -> Application:
        """Return an application, submitted at `t_s` (wall time, seconds). Raises InvalidValue where none can join."""
        if not queue.is_leaf or queue.draining or id in queue.applications:
            why = "is a parent" if not queue.is_leaf else "is draining" if queue.draining else f"has {id!r} already"
            raise InvalidValue(f"application {id!r} cannot join queue {queue.path!r}: it {why}")
        application = queue.applications[id] = Application(id, queue, user, groups, t_s)
        application.meters = self._meters_of(application)
        return application

    def remove_application(self, application: Application) -> list[str]:
        """Take out an application that holds nothing; returns the paths of queues that go with it.

        Raises InvalidValue if it holds something.
        """
        if application.allocations:
            held = len(application.allocations)
            raise InvalidValue(f"application {application.id!r} cannot go: it has {held} allocations, which go first")
        set_stage(application, COMPLETING)
        queue = application.queue
        del queue.applications[application.id]
        self.order.generation += 1
        return self._drop_empty(queue)

    def set_stage(self, application: Application, stage: str) -> None:
        """One of STAGES: orders of applications by stage, and how many have begun, depend on it."""
        set_stage(application, stage)
        self.order.generation += 1

    # ---- usage

    def admits(self, application: Application, amounts: Amounts) -> bool:
        """Return whether an allocation of these amounts exceeds no maximum and no limit."""
        return admits(application, amounts)

    def lacks_room(self, application: Application, amounts: Amounts) -> bool:
        """Return whether only the capacity would be exceeded: nodes lack room, as far as they are known."""
        found = first_exceeded(application, amounts)
        return found is not None and found.is_of_root

    def held_back(self, application: Application, amounts: Amounts) -> str | None:
        """Return the maximum or limit that this much more would exceed, in words with numbers; None if it exceeds none.
        """
        found = first_exceeded(application, amounts)
        return None if found is None else found.text

    def book(self, application: Application, jobid: int, amounts: Amounts) -> None:
        """Add amounts to what a job of the application holds."""
        book(application, jobid, amounts)

    def free(self, application: Application, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        """Subtract amounts from what a job of the application holds, or remove the job."""
        free(application, jobid, amounts, all_of_it)
        self.order.generation += 1

    def check(self) -> None:
        """Assert that all usage is the sum of allocations, for tests; linear in everything."""
        check(self.root)
        assert self._by_path == {queue.path: queue for queue in self.root.walk()}, "queues are listed wrongly"

    # ---- within

    def _make(self, parent: Queue, settings: QueueSettings, created: bool) -> Queue:
        if len(self._by_path) >= QUEUES_MAX:
            raise LimitExceeded(f"queue {settings.name!r} cannot be made: there are {QUEUES_MAX}, which is the limit")
        queue = Queue(settings, parent, created)
        parent.children[settings.name] = self._by_path[queue.path] = queue
        self._configure(queue, settings, [], [])
        return queue

    def _configure(self, queue: Queue, settings: QueueSettings, made: list[Queue], removed: list[Queue]) -> None:
        sort, queue.settings = queue.settings.sort, settings
        for application in queue.applications.values() if sort != settings.sort else ():
            set_stage(application, application.stage)
        queue.draining = False
        queue.guarantee = dict(settings.guaranteed)
        queue.bounds = dict(settings.maximum)
        if queue.parent is None:
            queue.bounds.update(self._capacity)
        names = {child.name for child in settings.children}
        removed += [child for name, child in queue.children.items() if name not in names and not child.created]
        for child in settings.children:
            known = queue.children.get(child.name)
            if known is None:
                made += self._make(queue, child, created=False).walk()
            else:
                known.created = False
                self._configure(known, child, made, removed)

    def _drop_empty(self, queue: Queue) -> list[str]:
        """Drop a queue that is to go and has nothing any more, and those above it of which that holds then."""
        dropped: list[str] = []
        at: Queue | None = queue
        while at is not None and at.parent is not None and (at.draining or at.created):
            if at.children or at.applications or at.path not in self._by_path:
                break
            self.drop(at)
            dropped.append(at.path)
            at = at.parent
        return dropped

    def _meters_of(self, application: Application) -> list[QuotaMeter]:
        """Return for each queue on its path the first limit that names the user, a group of theirs, or anyone."""
        found: list[QuotaMeter] = []
        for queue in application.path:
            for at, limit in enumerate(queue.settings.limits):
                group = next((group for group in application.groups if group in limit.groups), None)
                if application.user in limit.users or ANYONE in limit.users or ANYONE in limit.groups:
                    name = f"user {application.user}"
                elif group is not None:
                    name = f"group {group}"
                else:
                    continue
                meter = queue.meters.get((at, name))
                if meter is None:
                    meter = queue.meters[at, name] = QuotaMeter(queue, limit, name)
                found.append(meter)
                break
        return found

    def _resolve_limits(self) -> None:
        """Sum the meters of all applications anew."""
        queues = list(self.root.walk())
        for queue in queues:
            queue.meters = {}
        for queue in queues:
            for application in queue.applications.values():
                application.meters = self._meters_of(application)
                count_in_meters(application)


def _changed_kinds(queue: Queue, settings: QueueSettings) -> list[str]:
    """Queues that have applications or queues below them and would have to become the other kind."""
    faults = []
    if queue.settings.is_parent != settings.is_parent and (queue.applications or queue.children):
        kind = "a parent" if settings.is_parent else "a leaf"
        faults.append(f"queue {queue.path!r} cannot become {kind}: it is in use; give that another name")
    for child in settings.children:
        known = queue.children.get(child.name)
        if known is not None:
            faults += _changed_kinds(known, child)
    return faults
