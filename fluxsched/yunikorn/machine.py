"""Scheduler interface without I/O: requests of resource managers in, effects out, on a time that is an argument.

An `RM` is one resource manager: its state, its streams, what it has sent that was not read yet, and its tables, whose
partitions are made and changed as a configuration says. The plugin `predicates` asks the callbacks of a manager in
process.

Laws: a call checks its rmID and shape, refuses or queues, and changes nothing else; what it asks for is done in a turn,
in the order of arrival, whatever the stream, and in slices, so that others are served in between; while a manager is
paused nothing is decided for it. Resource managers never see each other: turns serve them alternately, and a bug that
one meets costs the others nothing. What a predicate raises is its refusal of that node, in its own words, and of
nothing else.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, ClassVar, Final, TypeAlias

from fluxsched.core.text import counted
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.hooks import PASS, JobSeen, Later, Option, Pass, Plugin
from fluxsched.sched.policy import NO, YES
from fluxsched.sched.queue import PendingJob
from fluxsched.yunikorn.bookings import Bookings, ContainerStates
from fluxsched.yunikorn.config import ROOT, PartitionSettings
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    KINDS,
    NODES,
    AllocationRequest,
    ApplicationRequest,
    Broke,
    Effect,
    EndStreams,
    NodeRequest,
    PluginProblem,
    PredicatesArgs,
    PreemptionPredicatesArgs,
    RMEvent,
    RMState,
    RMStreams,
    next_state,
)
from fluxsched.yunikorn.nodes import AllocationReader, NodeReader
from fluxsched.yunikorn.requests import ApplicationReader, AskReader, ReleaseReader
from fluxsched.yunikorn.tables import (
    ADD,
    ITEMS_MAX,
    KEPT_ITEMS_MAX,
    NONE,
    REASON_CHARS_MAX,
    REMOVE,
    SET,
    Partition,
    dump_partition,
)
from fluxsched.yunikorn.tree.asks import QuotaAdmission
from fluxsched.yunikorn.tree.policy import Tree
from fluxsched.yunikorn.tree.queues import QueueTree


class Predicates:
    """A plugin that asks a callback about the node that was chosen for an ask.

    `key_of` gives the allocation key of a job, `node_of` the nodeID of a rank.
    """

    name: ClassVar[str] = "predicates"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    READS: ClassVar[Sequence[str]] = ()

    def __init__(self, callback: Any, key_of: Callable[[int], str], node_of: Callable[[int], str]) -> None:
        self._callback = callback
        self._key_of = key_of
        self._node_of = node_of

    def look(self, job: JobSeen, rank: int) -> Pass | Later:
        """Return whether the ask may be allocated on the node of a rank."""
        why = self.refusal(job.jobid, rank, is_allocation=True)
        return PASS if why is None else Later(why)

    def allows_reservation(self, job: PendingJob, rank: int) -> bool:
        """Return whether the node of a rank may be kept for the ask."""
        return self.refusal(job.jobid, rank, is_allocation=False) is None

    def refusal(self, jobid: int, rank: int, is_allocation: bool) -> str | None:
        """Why an ask may not be allocated on a node, or not reserve it; None if it may, or if that is not asked."""
        ask = getattr(self._callback, "Predicates", None)
        if ask is None:
            return None
        args = PredicatesArgs(allocationKey=self._key_of(jobid), nodeID=self._node_of(rank), allocate=is_allocation)
        try:
            ask(args)
        except Exception as fault:
            return str(fault)[:REASON_CHARS_MAX] or type(fault).__name__
        return None

    def last_to_go(self, jobid: int, rank: int, keys: Sequence[str], start_index: int) -> int | None:
        """Return the index of the last of the allocations `keys` that has to go before an ask can run on a node.

        `start_index` is that of the last that frees enough, which is the answer where the callback is not asked; None
        if none of them helps.
        """
        ask = getattr(self._callback, "PreemptionPredicates", None)
        if ask is None:
            return start_index
        args = PreemptionPredicatesArgs(
            allocationKey=self._key_of(jobid),
            nodeID=self._node_of(rank),
            preemptAllocationKeys=keys,
            startIndex=start_index,
        )
        try:
            answer = ask(args)
        except Exception:
            return None
        if not answer.success or not start_index <= answer.index < len(keys):
            return None
        return int(answer.index)


# ---- partitions from a configuration


def make_partition(bookings: Bookings, settings: PartitionSettings) -> Partition:
    """Return a partition without nodes. The callback of its resource manager is asked for its predicates, if it has
    any, after the plugins of the service.
    """
    tree, policy = QueueTree(settings.root), Tree(settings.node_order, _switch(settings.preemption))
    callback, plugins = bookings.callback, list[Plugin](bookings.make_plugins())
    predicates = Predicates(callback, bookings.key_of, bookings.node_of)
    if hasattr(callback, "Predicates"):
        plugins.append(predicates)
        policy.may_reserve = predicates.allows_reservation
    if hasattr(callback, "PreemptionPredicates"):
        policy.judge = partial(_judged, bookings, predicates)
    admission = QuotaAdmission(tree)
    scheduler = Scheduler(policy, notify=False, admission=admission, plugins={"": plugins} if plugins else None)
    scheduler.weigh(settings.weights)
    return Partition(settings, tree, policy, scheduler)


def _judged(
    bookings: Bookings, predicates: Predicates, job: PendingJob, rank: int, gone: Sequence[int], start_index: int
) -> int | None:
    return predicates.last_to_go(job.jobid, rank, [bookings.key_of(jobid) for jobid in gone], start_index)


def _switch(on: bool) -> str:
    return YES if on else NO


def configure(bookings: Bookings, settings: Sequence[PartitionSettings]) -> None:
    """Other settings for the partitions of a manager, which were found to be without faults for it."""
    kept = {each.name: each for each in settings}
    for name in [name for name in bookings.partitions if name not in kept]:
        del bookings.partitions[name]
    for name, each in kept.items():
        partition = bookings.partitions.get(name)
        if partition is None:
            bookings.partitions[name] = make_partition(bookings, each)
            continue
        partition.settings = each
        changes = partition.tree.reconfigure(each.root)
        partition.policy.settle(each.node_order, _switch(each.preemption))
        partition.scheduler.weigh(each.weights)
        for reason, paths, change in (
            ("Added", changes.made, ADD), ("Draining", changes.draining, SET), ("Removed", changes.dropped, REMOVE)
        ):  # fmt: skip
            for path in paths:
                bookings.observed.queue_event(path, name, reason, change, "by another configuration")


# ---- one resource manager

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
        """Queue a request to be read in a turn; one without items counts as one."""
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
        """Perform requests, as far as there is time."""
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
        """Read a request item by item, each at the time of the turn that comes to it."""
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
        """Run a pass of a partition, which is cut off when its time is over or enough waits to be sent."""
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
                    f"partition {partition.name!r} of {self.rm_id!r} has {counted(len(partition.ranks), 'node')} and "
                    f"{counted(len(partition.applications), 'application')}: it cannot be removed before them"
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


# ---- the machine

RM_ID_CHARS_MAX = 256

MANAGERS_MAX = 256
"""Resource managers at once: each has pools, queues and tables of its own, also while it is paused."""

PASS_S: Final = 0.005
"""Time that a partition decides before the next one has its turn (seconds)."""

ReadConfig: TypeAlias = Callable[[str], Sequence[PartitionSettings]]


class SIMachine:
    """All resource managers of a scheduler.

    `configs` gives the text of a policy group, or None; `user_groups` the groups of a user; `make_uuid` a new UUID;
    `read_config` makes partitions of a text, or raises InvalidValue with all faults; `elapsed_s` is a clock that only
    measures how long passes take (seconds); `make_plugins` gives each partition plugins of its own.
    """

    def __init__(
        self,
        configs: Callable[[str], str | None],
        user_groups: Callable[[str], Sequence[str]],
        make_uuid: Callable[[], str],
        read_config: ReadConfig,
        elapsed_s: Callable[[], float] = float,
        make_plugins: Callable[[], Sequence[Plugin]] = tuple,
    ) -> None:
        self._configs = configs
        self._user_groups = user_groups
        self._make_uuid = make_uuid
        self._read_config = read_config
        self._elapsed_s = elapsed_s
        self._make_plugins = make_plugins
        self._rms: dict[str, RM] = {}  # stopped ones are not here
        self._effects: deque[Effect] = deque()
        self._updates: deque[tuple[list[RM], str, Sequence[PartitionSettings]]] = deque()
        self._is_in_turn = False
        self._streams = 0
        self._first = 0

    # ---- registration

    def register(
        self,
        request: Any,
        now_s: float,
        identity: str | None = None,
        predicates: Any = None,
        in_process: bool = False,
    ) -> None:
        """Perform a RegisterResourceManagerRequest; with the rmID of a known manager that begins anew.

        The caller then ends the streams of the one before: an effect might come after new ones were opened.
        Raises InvalidValue with all faults, and Refused (EPERM: of another identity, EAGAIN: too many).
        """
        rm_id = request.rmID
        faults = [] if 0 < len(rm_id) <= RM_ID_CHARS_MAX else [_bad_rm_id(rm_id)]
        known = self._rms.get(rm_id)
        if known is not None and known.identity != identity:
            raise Refused(f"resource manager {rm_id!r} was registered with another certificate", errno.EPERM)
        text = self._text(request.config, request.policyGroup)
        settings: Sequence[PartitionSettings] = ()
        try:
            settings = self._read_config(text)
            self._check_policy_group(rm_id, request.policyGroup, text)
        except InvalidValue as fault:
            faults.append(str(fault))
        if faults:
            raise InvalidValue("; ".join(faults))
        if known is None and len(self._rms) >= MANAGERS_MAX:
            raise Refused(f"{len(self._rms)} resource managers are registered: the limit", errno.EAGAIN)
        bookings = Bookings(rm_id, self._make_uuid, predicates, self._make_plugins)
        configure(bookings, settings)
        applications = ApplicationReader(bookings, self._user_groups)
        rm = RM(request, text, RMStreams(in_process, now_s), bookings, applications)
        rm.identity = identity
        self._rms[rm_id] = rm

    def read_ahead(self, request: Any) -> None:
        """Read the configuration of a request, for a `read_config` that keeps what it has read; in any thread."""
        with suppress(InvalidValue):
            self._read_config(self._text(request.config, request.policyGroup))

    def _text(self, config: str, group: str) -> str:
        """Return the text of a configuration: as given, else that of the policy group, else that of the default one."""
        return config or (self._configs(group) if group else None) or ""

    def _check_policy_group(self, rm_id: str, group: str, text: str) -> None:
        """Check that all managers of a policy group have one configuration; those without a group share none."""
        for other in self._rms.values():
            if group and other.policy_group == group and other.rm_id != rm_id and other.config != text:
                raise InvalidValue(
                    f"config: it differs from that of {other.rm_id!r} in policyGroup {group!r}: give all managers of a "
                    "group the same, or this one another group"
                )

    def is_registered(self, rm_id: str) -> bool:
        """Return whether a manager is known, running or paused."""
        return rm_id in self._rms

    def identity_of(self, rm_id: str) -> str | None:
        """Return the identity with which a manager registered. Raises Refused if it is not known."""
        return self._rm(rm_id).identity

    # ---- requests

    def check(self, request: Any, shape: Any) -> RM:
        """Return the resource manager of a request of this class, which may be queued; changes nothing.

        Raises Refused (ENOENT: register first; EAGAIN: too much waits) or InvalidValue.
        """
        if not isinstance(request, shape):
            raise InvalidValue(f"{type(request).__name__} is not a {shape.__name__}")
        rm = self._rm(request.rmID)
        if rm.backlog_items >= BACKLOG_ITEMS_MAX:
            what = f"{rm.backlog_items} items of {rm.rm_id!r} wait to be read"
            raise Refused(f"{what}, the limit is {BACKLOG_ITEMS_MAX}: send more slowly", errno.EAGAIN)
        return rm

    def update_allocation(self, request: Any, now_s: float) -> None:
        """Perform an AllocationRequest; raise as `check`."""
        rm, releases = self.check(request, AllocationRequest), request.releases
        items = len(request.asks) + len(request.allocations)
        items += len(releases.allocationsToRelease) + len(releases.allocationAsksToRelease)
        rm.queue(ALLOCATIONS, request, items)

    def update_application(self, request: Any, now_s: float) -> None:
        """Perform an ApplicationRequest; raise as `check`."""
        self.check(request, ApplicationRequest).queue(APPLICATIONS, request, len(request.new) + len(request.remove))

    def update_node(self, request: Any, now_s: float) -> None:
        """Perform a NodeRequest; raise as `check`."""
        self.check(request, NodeRequest).queue(NODES, request, len(request.nodes))

    def update_configuration(self, request: Any, now_s: float) -> None:
        """Perform an UpdateConfigurationRequest: another configuration for all managers of a policy group, or for none.

        Raises InvalidValue with all faults. Asked for in a turn, it is done in the next, if that is still possible.
        """
        rm = self._rm(request.rmID)
        group = request.policyGroup or rm.policy_group
        if group != rm.policy_group:
            raise InvalidValue(f"policyGroup is {group!r}, but {rm.rm_id!r} was registered with {rm.policy_group!r}")
        text = self._text(request.config, group)
        settings = self._read_config(text)
        rms = [each for each in self._rms.values() if each is rm or (group and each.policy_group == group)]
        faults = [fault for each in rms for fault in each.configuration_faults(settings)]
        if faults:
            raise InvalidValue("; ".join(faults))
        self._updates.append((rms, text, settings))
        if not self._is_in_turn:
            self._configure()

    def _configure(self) -> None:
        """Do what was found to be possible, unless it is not any more."""
        while self._updates:
            rms, text, settings = self._updates.popleft()
            rms = [rm for rm in rms if self._rms.get(rm.rm_id) is rm]
            faults = "; ".join([fault for rm in rms for fault in rm.configuration_faults(settings)])
            for rm in rms:
                if faults:
                    rm.bookings.observed.queue_event(ROOT, rm.policy_group, "ConfigurationIgnored", NONE, faults)
                else:
                    rm.config = text
                    configure(rm.bookings, settings)

    def backlog(self, rm_id: str) -> int:
        """Items of requests that are not read yet: what sends them may wait until they are fewer."""
        rm = self._rms.get(rm_id)
        return 0 if rm is None else rm.backlog_items

    def observe(self, rm_id: str, on: bool) -> None:
        """Set whether Observed effects are wanted for a manager; without, they are not made."""
        self._rm(rm_id).bookings.observed.on = on

    # ---- streams

    def stream_opened(self, rm_id: str, kind: str, now_s: float) -> int:
        """Bind a stream of a kind to a manager, instead of an earlier one; return its number.

        Raises Refused (ENOENT) for a manager that is not known.
        """
        rm = self._rm(rm_id)
        if kind not in KINDS:
            raise InvalidValue(f"{kind!r} is not a kind of stream: the kinds are {', '.join(KINDS)}")
        self._streams += 1
        rm.streams.opened(kind, self._streams)
        if rm.state is RMState.PAUSED:
            rm.state = next_state(rm.state, RMEvent.RESUMED)
        return self._streams

    def stream_closed(self, rm_id: str, kind: str, number: int, half_closed: bool, now_s: float) -> None:
        """Record that a stream has ended: half-closed by its manager, or by an error. Nothing if another had replaced
        it.
        """
        rm = self._rms.get(rm_id)
        if rm is None:
            return
        match rm.streams.closed(kind, number, half_closed):
            case RMEvent.SHUT_DOWN:
                self.shut_down(rm_id, now_s)
            case RMEvent.LOST:
                self.connection_lost(rm_id, now_s)

    def connection_lost(self, rm_id: str, now_s: float) -> None:
        """No stream of a manager is open any more: it is paused."""
        rm = self._rms.get(rm_id)
        if rm is not None and rm.state is RMState.RUNNING:
            rm.streams.close_all(now_s)
            rm.state = next_state(rm.state, RMEvent.LOST)

    def shut_down(self, rm_id: str, now_s: float) -> None:
        """Forget what is known of a manager that has gone of its own will."""
        rm = self._rms.get(rm_id)
        if rm is not None:
            self._stop(rm, RMEvent.SHUT_DOWN, "the resource manager has shut down")

    def unread(self, rm_id: str, items: int) -> None:
        """Set the number of items of its answers that a manager has not read."""
        rm = self._rms.get(rm_id)
        if rm is not None:
            rm.unread_items = items

    def _stop(self, rm: RM, event: RMEvent, detail: str) -> None:
        rm.state = next_state(rm.state, event)
        del self._rms[rm.rm_id]
        self._effects.append(EndStreams(rm.rm_id, detail))

    # ---- the turn

    def turn(self, now_s: float, budget_s: float = PASS_S) -> Iterator[Effect]:
        """Do what is due at `now_s` (wall time, seconds), effect by effect; a partition decides for `budget_s`.

        To be taken to its end, or closed; what an effect leads to may call back in.
        """
        self._is_in_turn = True
        try:
            self._configure()
            self._time_out(now_s)
            yield from self._taken()
            rms = list(self._rms.values())
            self._first = (self._first + 1) % max(1, len(rms))
            for rm in rms[self._first :] + rms[: self._first]:
                yield from self._share_of(rm, now_s, budget_s)
            yield from self._taken()
        finally:
            self._is_in_turn = False

    def _share_of(self, rm: RM, now_s: float, budget_s: float) -> Iterator[Effect]:
        """Yield the effects of one manager's share of a turn."""
        if self._rms.get(rm.rm_id) is not rm:
            return
        try:
            yield from rm.turn(now_s, self._elapsed_s, budget_s)
        except Exception as fault:
            self._stop(rm, RMEvent.BROKEN, "an internal error has cost it its state: register again")
            yield Broke(rm.rm_id, fault)
            return
        if rm.overflows:
            self._stop(rm, RMEvent.OVERFLOWED, "it was paused for too many answers")

    def _taken(self) -> Iterator[Effect]:
        while self._effects:
            yield self._effects.popleft()

    @property
    def next_wake_s(self) -> float:
        """Return the time of the next turn even if nothing happens (wall time, seconds): 0.0 for at once, inf for
        never.
        """
        if self._effects or self._updates:
            return 0.0
        return min([rm.next_wake_s for rm in self._rms.values()], default=inf)

    def _time_out(self, now_s: float) -> None:
        for rm in [rm for rm in self._rms.values() if rm.streams.ends_s <= now_s]:
            if rm.state is RMState.RUNNING:
                self.connection_lost(rm.rm_id, now_s)
            else:
                self._stop(rm, RMEvent.TIMED_OUT, "its connection was lost for too long")

    # ---- for people

    def state_dump(self, rm_id: str | None = None) -> dict[str, Any]:
        """Return the state as a JSON object, of one manager or of all; texts of configurations are not in it."""
        rms = list(self._rms.values()) if rm_id is None else [self._rm(rm_id)]
        return {"rms": [rm.dump() for rm in rms]}

    # ---- within

    def _rm(self, rm_id: str) -> RM:
        rm = self._rms.get(rm_id)
        if rm is None:
            raise Refused(
                f"resource manager {rm_id[:RM_ID_CHARS_MAX]!r} is not registered: register it first", errno.ENOENT
            )
        return rm


def _bad_rm_id(rm_id: str) -> str:
    return f"rmID has {len(rm_id)} characters: it needs 1 to {RM_ID_CHARS_MAX}"
