"""Asks as they come.

Law: each is checked whole before anything changes; what is refused leaves an earlier ask of its key as it was.
"""

from __future__ import annotations

from typing import Any, Final

from fluxsched.adapters.si.machine.answers.items import ask_rejected
from fluxsched.adapters.si.machine.answers.observations import ADD, NONE, REMOVE, REQUEST, SET
from fluxsched.adapters.si.machine.applications import ApplicationState
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.gangs import GangAsk
from fluxsched.adapters.si.machine.requests.applications import ApplicationReader
from fluxsched.adapters.si.machine.requests.tags import NO_TAGS, AskTags, read_tags
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, AskEntry, NodeEntry
from fluxsched.core.amounts import amounts_setting, less
from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.quotas.queue import AskOptions

ASK_BYTES_MAX = 1 << 16
"""Of one ask: a message of answers has room for several of its allocations."""

_NODE: Final = Idset.of([0])


class AskReader:
    """Reads the asks of one resource manager."""

    def __init__(self, bookings: Bookings, applications: ApplicationReader) -> None:
        self._bookings = bookings
        self._applications = applications

    def read(self, message: Any, now_s: float, is_single: bool = False) -> None:
        """An AllocationAsk; `is_single` if it was an Allocation, of whose key there is one."""
        try:
            ask, repeats = self._checked(message, now_s)
        except InvalidValue as fault:
            self.reject(message.allocationKey, message.applicationID, str(fault), is_single)
            return
        ask.is_single = is_single
        application = ask.application
        before = application.asks.get(ask.key)
        if is_single and before is not None and not before.left:
            return  # it is taking the place of a placeholder
        observed = self._bookings.observed
        if observed.on:
            wants = f"{repeats} of {amounts_setting(ask.resource.amounts)}"
            change = ADD if before is None else SET
            observed.event(REQUEST, ask.key, application.application_id, "AskAccepted", change, wants)
            self._bookings.fresh.append(ask)
        if before is None:
            application.asks[ask.key] = ask
            ask.left = repeats
            self._enter(ask, repeats, now_s)
        else:
            self._replace(before, ask, repeats, now_s)

    def _replace(self, before: AskEntry, ask: AskEntry, repeats: int, now_s: float) -> None:
        """Another ask of a known key, counted as one repeat meanwhile, so that its application does not seem empty."""
        application = ask.application
        application.progress.asked(1, now_s)
        self._bookings.unqueue(before)
        application.asks[ask.key] = ask
        ask.left = repeats
        placeholders = ask.is_placeholder and before.is_placeholder and ask.task_group == before.task_group
        if not placeholders:  # else how many are pending is said with the new one
            self._leave(before, now_s)
        self._enter(ask, repeats, now_s)
        self._bookings.perform(application, application.progress.unasked(1, now_s), now_s)

    def _checked(self, message: Any, now_s: float) -> tuple[AskEntry, int]:
        """Makes the row. Raises InvalidValue, and changes nothing."""
        bookings = self._bookings
        key = message.allocationKey
        if not key:
            raise InvalidValue("an ask needs an allocationKey")
        if message.ByteSize() > ASK_BYTES_MAX:
            raise LimitExceeded(f"the ask has {message.ByteSize()} bytes: the limit is {ASK_BYTES_MAX}")
        resource = bookings.quantities.read(message.resourceAsk)
        if not resource.amounts:
            raise InvalidValue(resource.fault or "the ask requests nothing: give at least one quantity above 0")
        repeats = message.maxAllocations
        if repeats < 1:
            raise InvalidValue(f"maxAllocations is {repeats}: at least 1 is needed")
        found, tags = NO_TAGS, message.tags
        if tags:
            found = read_tags(tags, now_s)
        request = resource.request(found.constraint)
        application = self._application(message, now_s)  # last: it may be made for this ask
        ask = AskEntry(application, key, resource, request, found.created_s or bookings.stamp(now_s))
        if tags:
            _take_tags(ask, found, dict(tags))
        ask.priority = message.priority
        milliseconds = message.executionTimeoutMilliSeconds
        if milliseconds > 0:
            ask.timeout_s = milliseconds / 1000
        group = message.taskGroupName
        if group:
            ask.task_group = group
            ask.is_placeholder = message.placeholder
        ask.options = ask_options(message, message.Originator, found.may_be_preempted)
        return ask, repeats

    def _application(self, message: Any, now_s: float) -> ApplicationEntry:
        partition = self._bookings.partition(message.partitionName)
        application_id = message.applicationID
        application = partition.applications.get(application_id)
        if application is None:
            if application_id:
                raise InvalidValue(f"application {application_id[:256]!r} is not known in partition {partition.name!r}")
            application = self._applications.independent(partition, now_s)
        if application.progress.state is ApplicationState.FAILING:
            raise InvalidValue(f"application {application_id!r} is Failing: it takes no asks")
        return application

    def _enter(self, ask: AskEntry, repeats: int, now_s: float) -> None:
        application = ask.application
        progress = application.progress
        if not ask.task_group:
            told = progress.asked(repeats, now_s)
            self._bookings.enqueue(ask, repeats, now_s)
        elif ask.is_placeholder:
            told = progress.placeholder_asked(ask.key, ask.task_group, ask.resource.amounts, repeats, now_s)
            self._bookings.enqueue(ask, repeats, now_s)
            if progress.gang.calls_back(ask.task_group):
                self._call_back(ask, now_s)
        else:
            told = progress.gang_asked(_gang_ask(ask, self._bookings), repeats, now_s)
        if told:
            self._bookings.perform(application, told, now_s)

    def _call_back(self, placeholder: AskEntry, now_s: float) -> None:
        """Real asks that came before their placeholders leave the queue and wait for those."""
        application = placeholder.application
        for ask in list(application.asks.values()):
            if ask.task_group != placeholder.task_group or ask.is_placeholder or not ask.queued:
                continue
            if not less(ask.resource.amounts, placeholder.resource.amounts):
                self._bookings.unqueue(ask)
                repeats, ask.queued = ask.queued, 0
                told = application.progress.gang_returned(_gang_ask(ask, self._bookings), repeats)
                self._bookings.perform(application, told, now_s)

    def _leave(self, before: AskEntry, now_s: float) -> None:
        """The application is told that an ask is gone."""
        progress = before.application.progress
        if not before.task_group:
            told = progress.unasked(before.left, now_s)
        elif before.is_placeholder:
            told = progress.placeholder_asked(before.key, before.task_group, (), 0, now_s)
        else:
            told = progress.gang_unasked(before.key, before.queued, now_s)
        self._bookings.perform(before.application, told, now_s)

    def release(self, ask: AskEntry, now_s: float) -> None:
        """Nothing of an ask is wanted any more."""
        self._bookings.withdraw(ask)
        what = f"{ask.left} were pending"
        self._bookings.observed.event(REQUEST, ask.key, ask.application.application_id, "AskReleased", REMOVE, what)
        self._leave(ask, now_s)

    def reject(self, key: str, application_id: str, reason: str, is_single: bool = False) -> None:
        """Refuses an ask, or a release."""
        ask_rejected(self._bookings.outgoing, key, application_id, reason, is_single)
        self._bookings.observed.event(REQUEST, key, application_id, "Rejected", NONE, reason)


def _take_tags(ask: AskEntry, found: AskTags, tags: dict[str, str]) -> None:
    ask.tags = tags
    ask.created_s = found.created_s
    ask.required_node = found.required_node


_OPTIONS: Final = {
    (originator, self_, other): AskOptions(None, originator, self_, other)
    for originator in (False, True)
    for self_ in (False, True)
    for other in (False, True)
}


def ask_options(message: Any, is_originator: bool, may_be_preempted: bool) -> AskOptions:
    """Return what an ask or allocation says; without a policy it may be preempted, and may not preempt.

    Its tag has to allow that it is preempted, too: `may_be_preempted`.
    """
    if message.HasField("preemptionPolicy"):
        policy = message.preemptionPolicy
        return _OPTIONS[is_originator, policy.allowPreemptSelf and may_be_preempted, policy.allowPreemptOther]
    return _OPTIONS[is_originator, may_be_preempted, False]


def _gang_ask(ask: AskEntry, bookings: Bookings) -> GangAsk:
    constraint = ask.request.constraint
    suits = None
    if ask.required_node or constraint != EVERYTHING:

        def suits(node_id: str) -> bool:
            node = bookings.nodes.get(node_id)
            return node is not None and _suits(ask.required_node, constraint, node)

    order = (-ask.priority, int(not ask.options.is_originator), round(ask.t_s * 1e6))
    return GangAsk(order, ask.key, ask.task_group, ask.resource.amounts, suits)


def _suits(required_node: str, constraint: Constraint, node: NodeEntry) -> bool:
    """Return whether an ask may use a node, by the rules of the pool."""
    if required_node and required_node != node.node_id:
        return False
    properties = dict.fromkeys(node.properties, _NODE)
    return bool(constraint.match(_NODE, properties, lambda host: _NODE if host == node.host else EMPTY))
