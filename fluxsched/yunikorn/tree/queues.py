"""Queues of the tree, their settings, the applications in its leaves, and the first among those that have claims.

Law: only the tree changes usage; the usage of a queue is that of all applications below it. A kind that a maximum does
not name is free, one that it names with 0 is forbidden; `max_applications` 0 is no limit. The key of a claimant is
worked out when its owner has changed and the first is asked for; nothing is sorted. What has nothing that can start is
put aside until the generation is another one.

The tree of queues: what each may use and uses, which applications there are, and whose ask comes next.

Law: usage is booked from an application up to the root, and in the meters of its limits, in one step and by the same
amount, also where it exceeds a maximum, since what was allocated is a fact; whether one more is allowed is asked
before. Tables hold no zeros. Changes of the settings are made whole or not at all. The next ask is found down the tree
by priority, share and name, in a leaf by the sort of its applications. The share of a queue is a vector: of each kind
that it uses, its usage by its guarantee. A parent counts each child once, by the highest priority that waits there as
the child shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, cast

from fluxsched.core.quantities import Amounts, amount_text, total
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.queue import AdmissionTerms, Exceeded, PendingJob

ANYONE: Final = "*"
"""A user or a group of a limit that holds for each user."""

FIFO: Final = "fifo"
FAIR: Final = "fair"
STATEAWARE: Final = "stateaware"
SORTS: Final = (FIFO, FAIR, STATEAWARE)
"""Orders of the applications of a leaf."""

PREEMPT_DEFAULT: Final = "default"
PREEMPT_DISABLED: Final = "disabled"
PREEMPT_FENCE: Final = "fence"
PREEMPTION_POLICIES: Final = (PREEMPT_DEFAULT, PREEMPT_DISABLED, PREEMPT_FENCE)
"""`disabled`: none of its allocations may be preempted; `fence`: what is inside preempts nothing outside of it."""

PREEMPTION_DELAY_S: Final = 30.0
"""Time that an ask waits before others are preempted for it (seconds)."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limit of each of these users at once in a queue, or of each of these groups all together.

    `ANYONE` in either is each user. An empty `maximum` limits no resources.
    """

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    maximum: Amounts = ()
    max_applications: int = 0


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One queue and those below it. `by_priority`: priorities come before shares; else they decide between equal ones.

    `priority_offset` is added to the priorities of what waits below, as parents see them; with `priority_fence` they
    see the offset alone.
    """

    name: str
    is_parent: bool = False
    guaranteed: Amounts = ()
    maximum: Amounts = ()
    max_applications: int = 0
    sort: str = FIFO
    by_priority: bool = True
    priority_offset: int = 0
    priority_fence: bool = False
    preemption: str = PREEMPT_DEFAULT
    preemption_delay_s: float = PREEMPTION_DELAY_S
    limits: tuple[Limit, ...] = ()
    children: tuple[QueueSettings, ...] = ()


# ---- claims of queues

Key: TypeAlias = tuple[Any, ...]

OLD_ENTRIES: Final = 64
"""Least number of entries that are searched for old ones, once they are twice as many as were left the last time."""


class Claimant:
    """One of them. `priority` is the highest of what waits there, None if nothing does; `ticket` names its entry.

    One that is not `aside` has not been put there since its last key.
    """

    __slots__ = ("aside", "changed", "label", "priorities", "priority", "ticket")

    def __init__(self, label: str) -> None:
        self.label = label
        self.priority: int | None = None
        self.priorities: dict[int, int] = {}  # how many wait of each
        self.changed = False
        self.aside = False
        self.ticket = 0

    def gain(self, priority: int) -> bool:
        """Count one more pending ask of this priority; return whether that is the highest now."""
        self.priorities[priority] = self.priorities.get(priority, 0) + 1
        if self.priority is None or priority > self.priority:
            self.priority = priority
            return True
        return False

    def lose(self, priority: int) -> bool:
        """One less of this priority waits; whether the highest is another one now."""
        left = self.priorities[priority] - 1
        if left:
            self.priorities[priority] = left
            return False
        del self.priorities[priority]
        if priority != self.priority:
            return False
        self.priority = max(self.priorities) if self.priorities else None
        return True


_Entry: TypeAlias = tuple[Key, int, Claimant]


class Claimants:
    """Claimants with a pending ask; `changed` are to get new keys."""

    __slots__ = ("_heap", "_idle", "_look_at", "changed", "generation", "version")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._idle: list[_Entry] = []
        self._look_at: int = OLD_ENTRIES
        self.changed: list[Claimant] = []
        self.generation = -1
        self.version = 0

    def change(self, claimant: Claimant) -> None:
        """Mark a claimant whose key has changed, or that takes part again."""
        if not claimant.changed:
            claimant.changed = True
            self.changed.append(claimant)

    def enter(self, claimant: Claimant, key: Key) -> None:
        """Enter a claimant with its new key."""
        claimant.ticket += 1
        claimant.aside = False
        heappush(self._heap, (key, claimant.ticket, claimant))
        if len(self._heap) > self._look_at:
            self._heap = [entry for entry in self._heap if _holds(entry)]
            heapify(self._heap)
            self._look_at = max(OLD_ENTRIES, 2 * len(self._heap))

    def wake(self, generation: int) -> None:
        """Restore the claimants that were put aside, if this is another generation."""
        if self.generation == generation:
            return
        self.generation = generation
        if self._idle:
            self._heap += self._idle
            self._idle.clear()
            heapify(self._heap)

    def is_of(self, version: int) -> bool:
        """Return whether the keys are of this version; if not, all are removed, and each claimant is to be changed."""
        if self.version == version:
            return True
        self.version = version
        self._heap.clear()
        self._idle.clear()
        return False

    def first(self) -> Claimant | None:
        """Return the one with the least key; all keys are up to date."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if _holds(entry):
                return entry[2]
            heappop(heap)
        return None

    def put_aside(self, claimant: Claimant) -> None:
        """Put aside the first claimant, which has nothing that can start now."""
        heap = self._heap
        if heap and heap[0][2] is claimant:
            claimant.aside = True
            self._idle.append(heappop(heap))

    @property
    def one_aside_is_before(self) -> bool:
        """Return whether a claimant that was put aside, and is unchanged, precedes the first of the others."""
        first = self._heap[0][0]
        return any(entry[0] < first for entry in self._idle if _holds(entry))


def _holds(entry: _Entry) -> bool:
    """Return whether the entry is the latest of its claimant, and an ask of it is pending."""
    return entry[2].ticket == entry[1] and entry[2].priority is not None


# ---- queues and applications

ACCEPTED: Final = "accepted"
STARTING: Final = "starting"
RUNNING: Final = "running"
COMPLETING: Final = "completing"
STAGES: Final = (ACCEPTED, STARTING, RUNNING, COMPLETING)
"""Stages of an application, as far as the order of a leaf and the number of its applications depend on them."""


class AskOptions(NamedTuple):
    """Options of an ask beside its amounts; `node` is the rank that it needs, None for any."""

    node: int | None = None
    is_originator: bool = False
    may_be_preempted: bool = True
    may_preempt: bool = False


PLAIN: Final = AskOptions()
"""Options of an ask by default."""


class AskTerms(AdmissionTerms):
    """An ask, as the scheduler carries it: to which application, with which options."""

    __slots__ = ("application", "options")

    def __init__(self, application: Application, options: AskOptions = PLAIN) -> None:
        self.application = application
        self.options = options


def ask_of(job: PendingJob) -> AskTerms:
    """Return the ask of a job that has one."""
    return cast(AskTerms, job.terms)


class QuotaMeter:
    """Usage of one user, or one group, in a queue, under a limit of it; `applications` counts those that began."""

    __slots__ = ("applications", "bounds", "limit", "name", "queue", "used")

    def __init__(self, queue: Queue, limit: Limit, name: str) -> None:
        self.queue = queue
        self.limit = limit
        self.name = name
        self.bounds: dict[str, int] = dict(limit.maximum)
        self.used: dict[str, int] = {}
        self.applications = 0


class Queue(Claimant):
    """A leaf, or a parent of others; `path` is its name with those above it, joined by dots.

    `bounds` is its maximum (of the root: all that there is), `began` counts its applications that hold something or
    are in a stage beyond ACCEPTED, `starting` those in that stage. A queue that is `draining` takes no more
    applications, and goes with its last; one that was `created` for an application goes then, too.
    """

    __slots__ = (
        "accepted", "applications", "began", "bounds", "children", "claimants", "created", "depth", "draining",
        "guarantee", "meters", "parent", "path", "settings", "starting", "used",
    )  # fmt: skip

    def __init__(self, settings: QueueSettings, parent: Queue | None, created: bool = False) -> None:
        super().__init__(settings.name)
        self.parent = parent
        self.path: str = settings.name if parent is None else f"{parent.path}.{settings.name}"
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.settings = settings
        self.bounds: dict[str, int] = {}
        self.guarantee: dict[str, int] = {}
        self.children: dict[str, Queue] = {}
        self.applications: dict[str, Application] = {}
        self.used: dict[str, int] = {}
        self.began = 0
        self.starting = 0
        self.created = created
        self.draining = False
        self.meters: dict[tuple[int, str], QuotaMeter] = {}
        self.claimants = Claimants()
        self.accepted = Claimants()  # applications in that stage, where the leaf is `stateaware`

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_leaf(self) -> bool:
        return not self.settings.is_parent

    @property
    def usage(self) -> Amounts:
        """Return the amounts held below the queue."""
        return amounts_of(self.used)

    def up(self) -> Iterator[Queue]:
        """Yield this queue and its ancestors, the root last."""
        at: Queue | None = self
        while at is not None:
            yield at
            at = at.parent

    def walk(self) -> Iterator[Queue]:
        """Yield this queue and all its descendants, parents first, in the order of their settings."""
        below = [self]
        while below:
            queue = below.pop()
            yield queue
            below += reversed(queue.children.values())


class Application(Claimant):
    """One application in a leaf; `submitted_s` is wall time in seconds. `allocations` are what it holds, by job id."""

    __slots__ = (
        "allocations", "began", "groups", "id", "meters", "path", "queue", "stage", "submitted_s", "used", "user",
    )  # fmt: skip

    def __init__(self, id: str, queue: Queue, user: str, groups: tuple[str, ...], submitted_s: float) -> None:
        super().__init__(id)
        self.id = id
        self.queue = queue
        self.path: tuple[Queue, ...] = tuple(queue.up())
        self.user = user
        self.groups = groups
        self.submitted_s = submitted_s
        self.stage: str = ACCEPTED
        self.began = False
        self.used: dict[str, int] = {}
        self.allocations: dict[int, Amounts] = {}
        self.meters: list[QuotaMeter] = []

    @property
    def usage(self) -> Amounts:
        """Return the amounts that the application holds."""
        return amounts_of(self.used)

    @property
    def starting(self) -> bool:
        return self.stage == STARTING

    @property
    def running(self) -> bool:
        return self.stage == RUNNING


def amounts_of(used: dict[str, int]) -> Amounts:
    """Return a table as a value."""
    return tuple(sorted([(kind, amount) for kind, amount in used.items() if amount]))


# ---- maxima and limits


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
    """Return the first bound that these amounts would exceed: of queues from the leaf up, of limits, of the
    capacity.
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


# ---- check of all usage


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


# ---- orders of queues and applications


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


# ---- asks that wait below a queue


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


# ---- the tree

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

    def add_application(self, id: str, queue: Queue, user: str, groups: tuple[str, ...], t_s: float) -> Application:
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
        """Return the maximum or limit that this much more would exceed, in words with numbers; None if it exceeds
        none.
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
