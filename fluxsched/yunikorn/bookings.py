"""Bookings of one resource manager, all that it has here: how an ask becomes a job, a grant an allocation, and how what
is released leaves.

Container states of pending asks (why each waits) are looked at here as well, each every LOOK_S at most, and reported on
change.

Laws: what the scheduler holds, what the tables hold and what the states of applications count is the same after each
step; whatever is told is told once, but for demands, which are repeated until they are confirmed. What is looked at in
one turn is bounded, so that many asks that wait cost a turn no more than few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from fluxsched.core.quantities import Amounts, amounts_setting
from fluxsched.errors import InvalidValue
from fluxsched.sched.decisions import PREEMPT, Effect, Granted, PluginFailed, Raise
from fluxsched.sched.engine import why as reasons
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP
from fluxsched.sched.engine.why import WaitCause
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.pool.placement import WORD_SHIFT
from fluxsched.yunikorn.applications import (
    OVER,
    AllocationsTimedOut,
    AsksTimedOut,
    Consequence,
    PendingAgain,
    Placeholder,
    PlaceholderReplaced,
    PlaceholderTimedOut,
    StateChanged,
    WaitsAsAny,
)
from fluxsched.yunikorn.messages import PLACEHOLDER_REPLACED, PREEMPTED_BY_SCHEDULER, TIMEOUT
from fluxsched.yunikorn.tables import (
    ADD,
    APP,
    FAILED,
    PARTITION_CHARS,
    PRIORITY_ZERO,
    REMOVE,
    REQUEST,
    RESERVED,
    SCHEDULED,
    SET,
    SKIPPED,
    STAGES,
    AllocationEntry,
    ApplicationEntry,
    AskEntry,
    KnownResource,
    NodeEntry,
    Observations,
    Outgoing,
    Partition,
    Quantities,
    Timers,
    application_updated,
    ask_released,
    new_allocation,
    plain_partition,
    released,
)
from fluxsched.yunikorn.tree.queues import AskTerms

REPEAT_S: Final = 30.0
"""After so long without a confirmation a demand is sent again."""

STAMP_S: Final = 1e-6
"""Asks that come at one time are so far apart, in their order."""


class Bookings:
    """Tables and answers of one resource manager; `held` are its allocations by UUID, `fresh` the asks that came since
    container states were last looked at, while they are. `foreign` are the nodes of what other schedulers have placed,
    by key. `callback` may have predicates, in process; `make_plugins` gives a partition its plugins, and `failures` is
    what went wrong in them, for the log.
    """

    __slots__ = (
        "_by_job", "_jobs", "_last_t_s", "callback", "failures", "foreign", "fresh", "held", "make_plugins",
        "make_uuid", "nodes", "observed", "outgoing", "partitions", "quantities", "timers",
    )  # fmt: skip

    def __init__(
        self,
        rm_id: str,
        make_uuid: Callable[[], str],
        callback: Any = None,
        make_plugins: Callable[[], Sequence[Plugin]] = tuple,
    ) -> None:
        self.make_uuid = make_uuid
        self.make_plugins = make_plugins
        self.failures: list[str] = []
        self.callback = callback
        self._jobs = 0
        self._last_t_s = 0.0
        self._by_job: dict[int, AllocationEntry] = {}
        self.partitions: dict[str, Partition] = {}
        self.nodes: dict[str, NodeEntry] = {}
        self.held: dict[str, AllocationEntry] = {}
        self.foreign: dict[str, NodeEntry] = {}
        self.fresh: list[AskEntry] = []
        self.outgoing = Outgoing(rm_id)
        self.observed = Observations(rm_id)
        self.quantities = Quantities()
        self.timers: Timers[ApplicationEntry | AllocationEntry] = Timers(self._is_due)

    def stamp(self, now_s: float) -> float:
        """Return the time of an arrival: later than all before it."""
        self._last_t_s = now_s if now_s > self._last_t_s else self._last_t_s + STAMP_S
        return self._last_t_s

    def key_of(self, jobid: int) -> str:
        """Return the allocationKey of a job, which waits or holds something."""
        held = self._by_job.get(jobid)
        if held is not None:
            return held.ask.key
        return next(each.asks[jobid].key for each in self.partitions.values() if jobid in each.asks)

    def node_of(self, rank: int) -> str:
        """Return the nodeID of a rank."""
        return next(each.ranks[rank].node_id for each in self.partitions.values() if rank in each.ranks)

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def partition(self, name: str) -> Partition:
        """Return the partition of a name as requests have it. Raises InvalidValue."""
        found = self.partitions.get(name) or self.partitions.get(plain_partition(name))
        if found is None:
            names = ", ".join(self.partitions)
            raise InvalidValue(f"partition {name[:PARTITION_CHARS]!r} is not known: the partitions are {names}")
        return found

    # ---- asks

    def enqueue(self, ask: AskEntry, repeats: int, now_s: float) -> None:
        """Add so many repeats of an ask for the queue."""
        ask.queued += repeats
        if not ask.jobids:
            self._offer(ask, now_s)

    def offer_more(self, partition: Partition, now_s: float) -> bool:
        """Each repeat may have a node kept for it: where the queued ones of an ask have theirs, as many more follow.

        To be called after a pass; returns whether another is due. Those that require a certain node, which is kept for
        one, follow one by one.
        """
        kept = partition.scheduler.group(DEFAULT_GROUP).reserved.by_job
        if not kept:
            return False
        due: list[AskEntry] = []
        for jobid in kept:
            ask = partition.asks.get(jobid)
            if ask is None or ask.required_node or ask.queued <= len(ask.jobids):
                continue
            if ask.jobids[-1] == jobid:  # the last of them: nodes are kept in this order
                due.append(ask)
        for ask in due:
            for _ in range(min(len(ask.jobids), ask.queued - len(ask.jobids))):
                self._offer(ask, now_s)
        return bool(due)

    def _offer(self, ask: AskEntry, now_s: float) -> None:
        """Put the next repeat into the queue, once its required node is there."""
        partition = ask.application.partition
        options = ask.options
        if ask.required_node:
            node = self.nodes.get(ask.required_node)
            if node is None or node.partition is not partition:
                partition.absent.setdefault(ask.required_node, []).append(ask)
                return
            options = options._replace(node=node.rank)
            partition.required.setdefault(ask.required_node, {})[ask.key, ask.application.application_id] = ask
        self._jobs += 1
        jobid = self._jobs
        ask.jobids += (jobid,)
        partition.asks[jobid] = ask
        terms = AskTerms(ask.application.account, options)
        partition.scheduler.enter(jobid, ask.priority + PRIORITY_ZERO, ask.t_s, ask.request, terms, now_s)

    def unqueue(self, ask: AskEntry) -> None:
        """Remove the repeats of an ask that wait in the queue, or for its node."""
        partition = ask.application.partition
        for jobid in ask.jobids:
            partition.scheduler.cancel(jobid)
            del partition.asks[jobid]
        ask.jobids = ()
        if ask.required_node:
            partition.no_longer_requires(ask)
            waiting = partition.absent.get(ask.required_node, [])
            waiting[:] = [other for other in waiting if other is not ask]
            if not waiting:
                partition.absent.pop(ask.required_node, None)

    def withdraw(self, ask: AskEntry) -> None:
        """Nothing of an ask is pending any more; its application is told by the caller, of what is still in the row."""
        self.unqueue(ask)
        if ask.application.asks.get(ask.key) is ask:
            del ask.application.asks[ask.key]

    def node_has_come(self, node: NodeEntry, now_s: float) -> None:
        """Queue the asks that wait for this node."""
        for ask in node.partition.absent.pop(node.node_id, ()):
            self._offer(ask, now_s)

    def node_goes(self, node: NodeEntry) -> None:
        """Remove the asks that require this node from the queue; they wait for it outside."""
        partition = node.partition
        for ask in list(partition.required.get(node.node_id, {}).values()):
            self.unqueue(ask)
            partition.absent.setdefault(node.node_id, []).append(ask)

    # ---- allocations

    def decided(self, effect: Effect, partition: Partition, now_s: float) -> None:
        """Book an effect of a pass."""
        if isinstance(effect, Granted):
            self._granted(effect, partition, now_s)
        elif isinstance(effect, Raise) and effect.type == PREEMPT:
            self.demand(self._by_job[effect.jobid], PREEMPTED_BY_SCHEDULER, _preempted(effect, partition), now_s)
        elif isinstance(effect, PluginFailed):
            self.failures.append(effect.note)

    def _granted(self, granted: Granted, partition: Partition, now_s: float) -> None:
        jobid = granted.jobid
        ask = partition.asks.pop(jobid)
        block = granted.fit.blocks[0]
        node = partition.ranks[block.at << WORD_SHIFT | block.word.bit_length() - 1]
        ask.left -= 1
        ask.queued -= 1
        ask.jobids = tuple([each for each in ask.jobids if each != jobid])
        if ask.required_node:
            partition.no_longer_requires(ask)
        if not ask.queued:
            self._if_done(ask)
        elif not ask.jobids:
            self._offer(ask, now_s)
        held = self._begin(ask, jobid, node, self.make_uuid(), now_s)
        application = ask.application
        if ask.is_placeholder:
            since_s = ask.created_s or now_s
            told = application.progress.placeholder_allocated(_placeholder(held), since_s, now_s)
            self.perform(application, told, now_s)
        else:
            told = application.progress.allocated(now_s)
            if told:
                self.perform(application, told, now_s)

    def _begin(self, ask: AskEntry, jobid: int, node: NodeEntry, uuid: str, now_s: float) -> AllocationEntry:
        """Enter an allocation in the tables, and tell the resource manager."""
        held = self._enter(ask, jobid, node, uuid)
        new_allocation(self.outgoing, held)
        if ask.timeout_s:
            self.timers.set(now_s + ask.timeout_s, held)
        observed = self.observed
        if observed.on:
            key, application_id = ask.key, ask.application.application_id
            observed.event(REQUEST, key, application_id, "Allocated", ADD, f"{uuid} on {node.node_id}")
            observed.state(application_id, key, SCHEDULED, "")
        return held

    def _enter(self, ask: AskEntry, jobid: int, node: NodeEntry, uuid: str) -> AllocationEntry:
        held = AllocationEntry(uuid, jobid, ask, node)
        self.held[uuid] = ask.application.held[uuid] = self._by_job[jobid] = node.held[jobid] = held
        if ask.is_single:
            ask.application.by_key[ask.key] = held
        return held

    def recover(self, ask: AskEntry, node: NodeEntry, uuid: str, now_s: float) -> AllocationEntry:
        """Enter an allocation that the resource manager reports, a fact; `ask` is the row made of it, with nothing
        left.
        """
        application, since_s = ask.application, ask.created_s or now_s
        held = self._enter(ask, self._adopt(ask, node, since_s, now_s), node, uuid)
        self.observed.event(REQUEST, ask.key, application.application_id, "Recovered", ADD, f"{uuid} on {node.node_id}")
        if ask.is_placeholder:
            told = application.progress.placeholder_recovered(_placeholder(held), since_s, now_s)
        else:
            told = application.progress.recovered(since_s, now_s)
        self.perform(application, told, now_s)
        return held

    def _adopt(self, ask: AskEntry, node: NodeEntry, since_s: float, now_s: float) -> int:
        """Books what an ask has on a node, which is a fact; returns the number of its job."""
        jobid, priority = self._next_job(), ask.priority + PRIORITY_ZERO
        terms = AskTerms(ask.application.account, ask.options)
        node.partition.scheduler.adopt(jobid, node.rank, ask.resource.amounts, terms, since_s, now_s, priority)
        return jobid

    def resize(self, held: AllocationEntry, resource: KnownResource, now_s: float) -> None:
        """Record that the resource manager has given an allocation another size: a fact as well.

        Raises InvalidValue for one whose release is demanded, or that may be replaced.
        """
        ask = held.ask
        if resource.amounts == ask.resource.amounts:
            return
        if held.demand or ask.is_placeholder:
            why = "its release is demanded" if held.demand else "it is a placeholder"
            raise InvalidValue(f"the size of allocation {ask.key[:256]!r} cannot change: {why}")
        after = ask.of_size(resource)
        self._leave(held)
        held.node.partition.scheduler.free_all(held.jobid, now_s)
        since_s = ask.created_s or now_s
        self._enter(after, self._adopt(after, held.node, since_s, now_s), held.node, held.uuid)
        size = amounts_setting(resource.amounts)
        self.observed.event(REQUEST, ask.key, ask.application.application_id, "Resized", SET, size)

    def occupy(self, node: NodeEntry, key: str, amounts: Amounts, now_s: float) -> None:
        """Another scheduler has this much on a node, under a key; nothing: no longer."""
        if amounts:
            node.foreign[key] = amounts
            self.foreign[key] = node
        else:
            del node.foreign[key], self.foreign[key]
        node.partition.scheduler.resized(node.rank, node.schedulable, now_s, node.others_use)

    def free(self, held: AllocationEntry, reason: str, now_s: float) -> None:
        """Record that an allocation is gone; its application goes on."""
        self.drop(held, reason, now_s)
        application = held.ask.application
        if held.ask.is_placeholder:
            told = application.progress.placeholder_gone(held.uuid, now_s)
        else:
            told = application.progress.released(now_s)
        self.perform(application, told, now_s)

    def drop(self, held: AllocationEntry, reason: str, now_s: float) -> None:
        """Remove an allocation from the tables, and free what it holds; its application is told by the caller."""
        held.node.partition.scheduler.free_all(held.jobid, now_s)
        self._leave(held)
        ask = held.ask
        self.observed.event(REQUEST, ask.key, ask.application.application_id, reason, REMOVE, held.uuid)

    def _leave(self, held: AllocationEntry) -> None:
        ask = held.ask
        del self.held[held.uuid], ask.application.held[held.uuid]
        if ask.is_single:
            del ask.application.by_key[ask.key]
        del self._by_job[held.jobid], held.node.held[held.jobid]

    # ---- demands of ours

    def demand(self, held: AllocationEntry, type: int, message: str, now_s: float) -> None:
        """Asks the resource manager to end an allocation, unless that was demanded before."""
        if held.demand:
            return
        held.demand, held.message = type, message
        ask = held.ask
        self.observed.event(REQUEST, ask.key, ask.application.application_id, _DEMANDS[type], SET, message)
        self._send_demand(held, now_s)

    def _send_demand(self, held: AllocationEntry, now_s: float) -> None:
        released(self.outgoing, held, held.demand, held.message)
        held.repeat_s = now_s + REPEAT_S
        self.timers.set(held.repeat_s, held)

    def confirm(self, held: AllocationEntry, type: int, now_s: float) -> None:
        """Record that the resource manager has ended an allocation, as it was demanded or not."""
        if type == PLACEHOLDER_REPLACED == held.demand:
            self._replace(held, now_s)
        else:
            self.free(held, "Confirmed", now_s)

    def _replace(self, held: AllocationEntry, now_s: float) -> None:
        """Record that a real ask takes over what its placeholder held."""
        application = held.ask.application
        key, told = application.progress.placeholder_confirmed(held.uuid, now_s)
        if key is None:
            self.drop(held, "Confirmed", now_s)
        else:
            ask, jobid, node = application.asks[key], self._next_job(), held.node
            node.partition.scheduler.replace(held.jobid, jobid, ask.resource.amounts, now_s)
            self._leave(held)
            self.observed.event(
                REQUEST, held.ask.key, application.application_id, "Replaced", REMOVE, f"{held.uuid}, by ask {key}"
            )
            ask.replacing -= 1
            self._if_done(ask)
            self._begin(ask, jobid, node, self.make_uuid(), now_s)
        self.perform(application, told, now_s)

    def _if_done(self, ask: AskEntry) -> None:
        if not ask.left and not ask.replacing:
            del ask.application.asks[ask.key]

    # ---- applications

    def perform(self, application: ApplicationEntry, consequences: Sequence[Consequence], now_s: float) -> None:
        """Do what follows from an event of an application, and set its timer."""
        for each in consequences:
            match each:
                case StateChanged():
                    self._has_changed(application, each)
                case WaitsAsAny(key, repeats):
                    self.enqueue(application.asks[key], repeats, now_s)
                case PlaceholderReplaced(uuid, key):
                    ask = application.asks[key]
                    ask.left -= 1
                    ask.replacing += 1
                    self.demand(application.held[uuid], PLACEHOLDER_REPLACED, f"replaced by ask {key}", now_s)
                case PendingAgain(key):
                    ask = application.asks[key]
                    ask.replacing -= 1
                    ask.left += 1
                case PlaceholderTimedOut(uuid, message):
                    self.demand(application.held[uuid], TIMEOUT, message, now_s)
                case AsksTimedOut(only_placeholders, message):
                    self._end_asks(application, only_placeholders, message)
                case AllocationsTimedOut(message):
                    for held in list(application.held.values()):
                        if not held.ask.is_placeholder:
                            self.demand(held, TIMEOUT, message, now_s)
        wake_s = application.progress.next_wake_s
        if wake_s is not None and wake_s != application.wake_s:
            application.wake_s = wake_s
            self.timers.set(wake_s, application)

    def _has_changed(self, application: ApplicationEntry, change: StateChanged) -> None:
        application_id = application.application_id
        if application_id:
            application_updated(self.outgoing, application_id, change)
        partition, account = application.partition, application.account
        self.observed.event(APP, application_id, account.queue.path, change.state.value, SET, change.message)
        tree = partition.tree
        if STAGES[change.state] != account.stage:
            tree.set_stage(account, STAGES[change.state])
        if change.state in OVER:
            del partition.applications[application_id]
            for path in tree.remove_application(account):
                self.observed.queue_event(path, partition.name, "Removed", REMOVE, "its last application was removed")

    def _end_asks(self, application: ApplicationEntry, only_placeholders: bool, message: str) -> None:
        for ask in [ask for ask in application.asks.values() if ask.is_placeholder or not only_placeholders]:
            if ask.left:
                ask_released(self.outgoing, ask, TIMEOUT, message)
                self.observed.event(REQUEST, ask.key, application.application_id, "AskTimedOut", REMOVE, message)
            self.withdraw(ask)

    # ---- time

    def wake(self, now_s: float, is_paused: bool) -> None:
        """Do what is due. Demands are not repeated while their resource manager is paused: the first is kept."""
        for row in self.timers.due(now_s):
            if isinstance(row, ApplicationEntry):
                row.wake_s = 0.0
                self.perform(row, row.progress.wake(now_s), now_s)
            elif not row.demand:
                self.demand(row, TIMEOUT, f"it has run for {row.ask.timeout_s:g} s, as long as its ask allows", now_s)
            elif is_paused:
                row.repeat_s = now_s + REPEAT_S
                self.timers.set(row.repeat_s, row)
            else:
                self._send_demand(row, now_s)

    def _is_due(self, at_s: float, row: ApplicationEntry | AllocationEntry) -> bool:
        """Return whether the timer of a row still holds."""
        if isinstance(row, ApplicationEntry):
            return row.wake_s == at_s and not row.progress.is_over
        return self.held.get(row.uuid) is row and (not row.demand or row.repeat_s == at_s)


_DEMANDS: Final = {
    TIMEOUT: "TimeoutDemanded",
    PREEMPTED_BY_SCHEDULER: "PreemptionDemanded",
    PLACEHOLDER_REPLACED: "ReplacementDemanded",
}


def _preempted(effect: Raise, partition: Partition) -> str:
    """Why, naming the ask that is to start: managers do not know the numbers of jobs."""
    ask = partition.asks.get(effect.for_jobid or 0)
    if ask is None:
        return effect.note
    whose, why = ask.application.application_id, effect.note.partition(": ")[2]
    return f"preempted so that ask {ask.key[:64]!r} of application {whose[:64]!r} can start: {why}"


def _placeholder(held: AllocationEntry) -> Placeholder:
    ask = held.ask
    return Placeholder(held.uuid, ask.key, ask.task_group, ask.resource.amounts, held.node.node_id)


# ---- container states

LOOK_S: Final = 10.0
"""Interval at which the state of an ask is examined (seconds)."""

LOOKS_MAX = 100
"""Asks looked at in one turn; some microseconds each."""

_STATES: Final = {
    reasons.NODE: FAILED,
    reasons.QUEUE: SKIPPED,
    reasons.LIMIT: SKIPPED,
    reasons.GATE: SKIPPED,
    reasons.RESERVED: RESERVED,
}


class ContainerStates:
    """Goes round the pending asks of a manager, new ones first."""

    __slots__ = ("_bookings", "_round", "_start_s")

    def __init__(self, bookings: Bookings) -> None:
        self._bookings = bookings
        self._round: list[AskEntry] = []
        self._start_s = 0.0

    def look(self, now_s: float) -> None:
        """Tells what has changed, after a pass."""
        bookings = self._bookings
        if not bookings.observed.on:
            return
        if not self._round and now_s >= self._start_s + LOOK_S:
            self._start_s = now_s
            for partition in bookings.partitions.values():
                self._round += [ask for each in partition.applications.values() for ask in each.asks.values()]
            self._round.reverse()
        looked = 0
        for asks in (bookings.fresh, self._round):
            while asks and looked < LOOKS_MAX:
                looked += 1
                self._look_at(asks.pop(), now_s)

    @property
    def next_s(self) -> float:
        """Return the time at which more states are to be examined."""
        bookings = self._bookings
        if not bookings.observed.on:
            return inf
        if self._round or bookings.fresh:
            return 0.0
        waiting = any(partition.asks or partition.absent for partition in bookings.partitions.values())
        return self._start_s + LOOK_S if waiting else inf

    def _look_at(self, ask: AskEntry, now_s: float) -> None:
        application = ask.application
        if application.asks.get(ask.key) is not ask or not ask.queued or (ask.told_s and now_s < ask.told_s + LOOK_S):
            return
        if ask.jobids:
            lacks = application.partition.scheduler.report.why_waiting(ask.jobids[0])
            found = (0, "") if lacks is None else (_STATES[lacks.kind], self._text(lacks))
        else:
            found = FAILED, f"required node {ask.required_node!r} is not known"
        if found[0] and found != ask.told:
            ask.told, ask.told_s = found, now_s
            self._bookings.observed.state(application.application_id, ask.key, *found)

    def _text(self, lacks: WaitCause) -> str:
        """Return a text with ids of nodes, by which a resource manager knows them."""
        if lacks.rank is None:
            return lacks.text
        return f"node {self._bookings.node_of(lacks.rank)} is kept for it, where not enough is free yet"
