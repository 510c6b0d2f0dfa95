"""The tree of queues: what each may use, what it uses, and which applications there are.

Law: usage is booked from an application up to the root in one step, also where it exceeds a maximum, since what was
allocated is a fact; whether one more is allowed is asked before. Changes of the settings are made whole or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.quotas import bookings
from fluxsched.sched.quotas.order import TreeOrder
from fluxsched.sched.quotas.queue import COMPLETING, Application, Queue, QuotaMeter
from fluxsched.sched.quotas.settings import ANYONE, QueueSettings
from fluxsched.sched.quotas.waits import recount

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
    """Queues below `root`, by path; `order` says whose ask comes next."""

    def __init__(self, settings: QueueSettings) -> None:
        self.root = Queue(settings, None)
        self._by_path: dict[str, Queue] = {self.root.path: self.root}
        self._capacity: dict[str, int] = {}
        self.order = TreeOrder(self.root)
        self._configure(self.root, settings, [], [])

    # ---- queues

    def queue(self, path: str) -> Queue | None:
        """The queue at a path such as `root.a.b`."""
        return self._by_path.get(path)

    def create(self, path: str, settings: QueueSettings) -> Queue:
        """Makes a queue that goes with its last application. Raises InvalidValue if it cannot be there."""
        above, _, name = path.rpartition(".")
        parent = self._by_path.get(above)
        if parent is None or not parent.settings.is_parent:
            raise InvalidValue(f"queue {path!r} cannot be made: {above!r} is not a queue that has others below it")
        if path in self._by_path or name != settings.name:
            raise InvalidValue(f"queue {path!r} cannot be made as {settings.name!r}, or is there already")
        if parent.draining:
            raise InvalidValue(f"queue {path!r} cannot be made: {above!r} is draining")
        if parent.depth >= QUEUE_DEPTH_MAX:
            levels = parent.depth + 1
            raise LimitExceeded(f"queue {path!r} has {levels} levels above it: the limit is {QUEUE_DEPTH_MAX}")
        return self._make(parent, settings, created=True)

    def change_created(self, queue: Queue, settings: QueueSettings) -> None:
        """Gives a created leaf other amounts, or another number of applications."""
        if settings != queue.settings:
            self._configure(queue, settings, [], [])
            self.order.renew()

    def drop(self, queue: Queue) -> None:
        """Takes a queue out that has no applications and no queues below it. Raises InvalidValue if it has some."""
        if queue.parent is None or queue.children or queue.applications:
            raise InvalidValue(f"queue {queue.path!r} cannot go: it is the root, or has queues or applications")
        del queue.parent.children[queue.name], self._by_path[queue.path]

    def faults_of(self, settings: QueueSettings) -> list[str]:
        """Why these settings cannot be taken, for each queue where they cannot."""
        return _changed_kinds(self.root, settings)

    def reconfigure(self, settings: QueueSettings) -> QueueChanges:
        """Other settings for all queues but created ones: one that is not among them drains.

        Raises InvalidValue, and changes nothing, if a leaf with applications would become a parent, or the reverse.
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
        """All that there is: the maximum of the root."""
        self._capacity.clear()
        self.change_capacity(amounts, 1)

    def change_capacity(self, amounts: Amounts, sign: int) -> None:
        """So much more is there, or (sign -1) less."""
        capacity, root = self._capacity, self.root
        for kind, amount in amounts:
            capacity[kind] = capacity.get(kind, 0) + sign * amount
        root.bounds = {**dict(root.settings.maximum), **capacity}
        self.order.renew()

    # ---- applications

    def add_application(
        self, id: str, queue: Queue, user: str, groups: tuple[str, ...], t_s: float
    ) -> Application:
        """An application, submitted at `t_s` (wall time, seconds). Raises InvalidValue where none can join."""
        if not queue.is_leaf or queue.draining or id in queue.applications:
            why = "is a parent" if not queue.is_leaf else "is draining" if queue.draining else f"has {id!r} already"
            raise InvalidValue(f"application {id!r} cannot join queue {queue.path!r}: it {why}")
        application = queue.applications[id] = Application(id, queue, user, groups, t_s)
        application.meters = self._meters_of(application)
        return application

    def remove_application(self, application: Application) -> list[str]:
        """Takes out an application that holds nothing; returns the paths of queues that go with it.

        Raises InvalidValue if it holds something.
        """
        if application.allocations:
            held = len(application.allocations)
            raise InvalidValue(f"application {application.id!r} cannot go: it has {held} allocations, which go first")
        bookings.set_stage(application, COMPLETING)
        queue = application.queue
        del queue.applications[application.id]
        self.order.generation += 1
        return self._drop_empty(queue)

    def set_stage(self, application: Application, stage: str) -> None:
        """One of STAGES: orders of applications by stage, and how many have begun, depend on it."""
        bookings.set_stage(application, stage)
        self.order.generation += 1

    # ---- usage

    def admits(self, application: Application, amounts: Amounts) -> bool:
        """Whether this much more exceeds no maximum and no limit."""
        return bookings.admits(application, amounts)

    def lacks_room(self, application: Application, amounts: Amounts) -> bool:
        """Whether nothing but what there is in all would be exceeded: nodes lack room, as far as they are known."""
        found = bookings.first_exceeded(application, amounts)
        return found is not None and found.is_of_root

    def held_back(self, application: Application, amounts: Amounts) -> str | None:
        """The maximum or limit that this much more would exceed, in words with numbers; None if it exceeds none."""
        found = bookings.first_exceeded(application, amounts)
        return None if found is None else found.text

    def book(self, application: Application, jobid: int, amounts: Amounts) -> None:
        """A job of the application holds this much more."""
        bookings.book(application, jobid, amounts)

    def free(self, application: Application, jobid: int, amounts: Amounts, all_of_it: bool) -> None:
        """A job of the application holds this much less, or nothing."""
        bookings.free(application, jobid, amounts, all_of_it)
        self.order.generation += 1

    def check(self) -> None:
        """Asserts that all usage is the sum of allocations, for tests; linear in everything."""
        bookings.check(self.root)
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
            bookings.set_stage(application, application.stage)
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
        """Drops a queue that is to go and has nothing any more, and those above it of which that holds then."""
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
        """Of each queue on its path the first limit that names the user, a group of theirs, or anyone."""
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
        """The meters of all applications, summed anew."""
        queues = list(self.root.walk())
        for queue in queues:
            queue.meters = {}
        for queue in queues:
            for application in queue.applications.values():
                application.meters = self._meters_of(application)
                bookings.count_in_meters(application)


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
