"""One resource manager: its state, its streams, what it has sent that was not read yet, and its tables.

Law: what it sends is read in the order of arrival, whatever the stream, and in slices, so that others are served in
between; while it is paused nothing is decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fluxsched.adapters.si.machine.answers.outgoing import ITEMS_MAX, KEPT_ITEMS_MAX
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.container_states import ContainerStates
from fluxsched.adapters.si.machine.effects import ALLOCATIONS, NODES, Effect, PluginProblem
from fluxsched.adapters.si.machine.requests.allocations import AllocationReader
from fluxsched.adapters.si.machine.requests.applications import ApplicationReader
from fluxsched.adapters.si.machine.requests.asks import AskReader
from fluxsched.adapters.si.machine.requests.nodes import NodeReader
from fluxsched.adapters.si.machine.requests.releases import ReleaseReader
from fluxsched.adapters.si.machine.states import RMEvent, RMState, next_state
from fluxsched.adapters.si.machine.streams import RMStreams
from fluxsched.adapters.si.machine.tables.dump import dump_partition
from fluxsched.adapters.si.machine.tables.entries import Partition

UNREAD_ITEMS_MAX = 10_000
"""A manager that leaves so many items of answers unread gets no decisions until it reads."""

BACKLOG_ITEMS_MAX = 1_000_000
"""Items of requests that wait to be read; some hundred bytes each. Beyond it requests are refused."""

LOOK_EVERY: Final = 16
"""Items that are read, and decisions that are made, between two looks at the clock."""


BUILD_INFO_MAX = 64
"""Entries of buildInfo that are kept for the dump."""

BUILD_TEXT_CHARS_MAX = 256
"""Of each of them, and of the version; longer texts are cut."""


class RM:
    """One resource manager as registered by `request`; `identity` is of the certificate with which it did."""

    __slots__ = (
        "_allocations", "_applications", "_asks", "_nodes", "_now_s", "_reading", "_releases", "_states", "backlog",
        "backlog_items", "bookings", "build_info", "config", "identity", "policy_group", "rm_id", "state", "streams",
        "unread_items", "version",
    )  # fmt: skip

    def __init__(
        self, request: Any, config: str, streams: RMStreams, bookings: Bookings, applications: ApplicationReader
    ) -> None:
        self.rm_id: str = request.rmID
        self.policy_group: str = request.policyGroup
        self.version: str = request.version[:BUILD_TEXT_CHARS_MAX]
        self.build_info: dict[str, str] = {
            key[:BUILD_TEXT_CHARS_MAX]: request.buildInfo[key][:BUILD_TEXT_CHARS_MAX]
            for key in sorted(request.buildInfo)[:BUILD_INFO_MAX]
        }
        self.config = config
        self.streams = streams
        self.bookings = bookings
        self.identity: str | None = None
        self.state = next_state(RMState.INIT, RMEvent.REGISTERED)
        self.backlog: deque[tuple[str, Any, int]] = deque()  # kind, request, its items
        self.backlog_items = 0
        self.unread_items = 0
        self._now_s = 0.0
        self._reading: Iterator[None] | None = None
        self._applications = applications
        self._asks = AskReader(bookings, applications)
        self._allocations = AllocationReader(bookings, applications, self._asks)
        self._releases = ReleaseReader(bookings, self._asks)
        self._nodes = NodeReader(bookings, applications)
        self._states = ContainerStates(bookings)

    def queue(self, kind: str, request: Any, items: int) -> None:
        """A request to be read in a turn; one without items counts as one."""
        self.backlog.append((kind, request, items or 1))
        self.backlog_items += items or 1

    @property
    def is_decided_for(self) -> bool:
        """Return whether decisions are made for the manager."""
        return self.state is RMState.RUNNING and self.unread_items < UNREAD_ITEMS_MAX

    @property
    def overflows(self) -> bool:
        """Return whether too many answers are kept for the manager while it is paused."""
        return self.state is RMState.PAUSED and len(self.bookings.outgoing) > KEPT_ITEMS_MAX

    # ---- its share of a turn

    def turn(self, now_s: float, elapsed_s: Callable[[], float], budget_s: float) -> Iterator[Effect]:
        """Timers, requests, decisions, then what is to be sent; requests and each partition have `budget_s`."""
        bookings, self._now_s = self.bookings, now_s
        bookings.wake(now_s, self.state is RMState.PAUSED)
        self._read(elapsed_s, budget_s)
        self._nodes.join(now_s)
        if self.is_decided_for:
            for partition in list(bookings.partitions.values()):
                self._decide(partition, now_s, elapsed_s, budget_s)
            self._states.look(now_s)
        for note in bookings.failures:
            yield PluginProblem(self.rm_id, note)
        bookings.failures.clear()
        if not self.is_held_up:
            yield from bookings.outgoing.messages(self.streams.kinds)
        observed = bookings.observed.taken(now_s)
        if observed is not None:
            yield observed

    @property
    def is_held_up(self) -> bool:
        """Return whether the manager's answers are kept: it does not read those that it has."""
        return self.state is not RMState.RUNNING or self.unread_items >= UNREAD_ITEMS_MAX

    @property
    def _is_full(self) -> bool:
        """Return whether answers wait that have to be sent first: then no more are made, but while it is paused."""
        return self.state is RMState.RUNNING and len(self.bookings.outgoing) >= ITEMS_MAX

    def _read(self, elapsed_s: Callable[[], float], budget_s: float) -> None:
        """Requests, as far as there is time."""
        end_s, count = elapsed_s() + budget_s, 0
        while not self._is_full:
            if self._reading is None:
                if not self.backlog:
                    return
                kind, request, _ = self.backlog[0]
                self._reading = self._items(kind, request)
            for _ in self._reading:
                count += 1
                if not count % LOOK_EVERY and (elapsed_s() >= end_s or self._is_full):
                    return
            self._reading = None
            self.backlog_items -= self.backlog.popleft()[2]

    def _items(self, kind: str, request: Any) -> Iterator[None]:
        """Reads a request item by item, each at the time of the turn that comes to it."""
        if kind == ALLOCATIONS:
            read_ask, releases = self._asks.read, request.releases
            for item in request.asks:
                read_ask(item, self._now_s)
                yield
            for item in request.allocations:
                self._allocations.read(item, self._now_s)
                yield
            for item in releases.allocationAsksToRelease:
                yield from self._releases.read_ask(item, self._now_s)
                yield
            for item in releases.allocationsToRelease:
                yield from self._releases.read(item, self._now_s)
                yield
        elif kind == NODES:
            for item in request.nodes:
                self._nodes.read(item, self._now_s)
                yield
            self._nodes.join(self._now_s)
        else:
            for item in request.new:
                self._applications.add(item, self._now_s)
                yield
            for item in request.remove:
                yield from self._applications.remove(item, self._now_s)
                yield

    def _decide(self, partition: Partition, now_s: float, elapsed_s: Callable[[], float], budget_s: float) -> None:
        """A pass of a partition, which is cut off when its time is over or enough waits to be sent."""
        partition.is_cut = True
        if self._is_full:
            return
        decided, end_s = self.bookings.decided, elapsed_s() + budget_s
        effects = partition.scheduler.schedule(now_s)
        for count, effect in enumerate(effects, 1):
            decided(effect, partition, now_s)
            if not count % LOOK_EVERY and (elapsed_s() >= end_s or self._is_full):
                effects.close()  # type: ignore[attr-defined]  # a generator
                return
        partition.is_cut = self.bookings.offer_more(partition, now_s)

    @property
    def next_wake_s(self) -> float:
        """Return the time of the manager's next share of a turn: 0.0 for at once."""
        waits = not self.is_held_up and self.bookings.outgoing.waits(self.streams.kinds)
        if waits or (self.backlog and not self._is_full):
            return 0.0
        next_s = min(self.bookings.timers.next_s, self.streams.ends_s)
        if not self.is_decided_for:
            return next_s
        partitions = self.bookings.partitions.values()
        if not self._is_full and any(partition.is_cut for partition in partitions):
            return 0.0
        wakes = [partition.scheduler.next_notice_s for partition in partitions]
        return min(next_s, self._states.next_s, *wakes) if wakes else next_s

    # ---- configuration

    def configuration_faults(self, settings: Sequence[Any]) -> list[str]:
        """Why this manager cannot have another configuration."""
        faults = []
        kept = {each.name: each for each in settings}
        for partition in self.bookings.partitions.values():
            if partition.name in kept:
                faults += partition.tree.faults_of(kept[partition.name].root)
            elif partition.ranks or partition.applications:
                faults.append(
                    f"partition {partition.name!r} of {self.rm_id!r} has {len(partition.ranks)} nodes and "
                    f"{len(partition.applications)} applications: it cannot be removed before them"
                )
        return faults

    # ---- for people

    def dump(self) -> dict[str, Any]:
        """Return the state of the manager for people; no secrets."""
        return {
            "rmID": self.rm_id,
            "version": self.version,
            "buildInfo": self.build_info,
            "policyGroup": self.policy_group,
            "state": self.state.value,
            "streams": self.streams.kinds,
            "unread": self.unread_items,
            "backlog": self.backlog_items,
            "kept": len(self.bookings.outgoing),
            "partitions": [dump_partition(partition) for partition in self.bookings.partitions.values()],
        }
