"""A queue of the tree, an application in one of its leaves, and what either uses.

Law: only the tree changes usage; the usage of a queue is that of all applications below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.sched.quotas.claimants import Claimant, Claimants
from fluxsched.sched.quotas.settings import Limit, QueueSettings

ACCEPTED: Final = "accepted"
STARTING: Final = "starting"
RUNNING: Final = "running"
COMPLETING: Final = "completing"
STAGES: Final = (ACCEPTED, STARTING, RUNNING, COMPLETING)
"""Of an application, as far as the order of a leaf and the number of its applications depend on it."""


class AskOptions(NamedTuple):
    """What an ask says beside its amounts; `node` is the rank that it needs, None for any."""

    node: int | None = None
    is_originator: bool = False
    may_be_preempted: bool = True
    may_preempt: bool = False


PLAIN: Final = AskOptions()
"""Of an ask that says nothing."""


class QuotaMeter:
    """What one user, or one group, uses in a queue, under a limit of it; `applications` counts those that began."""

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
        """What is held below it."""
        return amounts_of(self.used)

    def up(self) -> Iterator[Queue]:
        """This queue and those above it, the root last."""
        at: Queue | None = self
        while at is not None:
            yield at
            at = at.parent

    def walk(self) -> Iterator[Queue]:
        """This queue and all below it, parents first, in the order of their settings."""
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
        """What it holds."""
        return amounts_of(self.used)

    @property
    def starting(self) -> bool:
        return self.stage == STARTING

    @property
    def running(self) -> bool:
        return self.stage == RUNNING


def amounts_of(used: dict[str, int]) -> Amounts:
    """A table as a value."""
    return tuple(sorted([(kind, amount) for kind, amount in used.items() if amount]))
