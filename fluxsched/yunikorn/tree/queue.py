"""Queues of the tree, their settings, the applications in its leaves, and the first among those that have claims.

Law: only the tree changes usage; the usage of a queue is that of all applications below it. A kind that a maximum does
not name is free, one that it names with 0 is forbidden; `max_applications` 0 is no limit. The key of a claimant is
worked out when its owner has changed and the first is asked for; nothing is sorted. What has nothing that can start is
put aside until the generation is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias, cast

from fluxsched.core.quantities import Amounts
from fluxsched.sched.sorted_jobs import AdmissionTerms, PendingJob

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


# ---- claimants

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


# ---- queue

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
