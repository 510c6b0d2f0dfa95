"""Readers of what a resource manager asks for: applications, asks with their tags, releases (`ReleaseReader`) and
confirmations.

Laws: each ask is checked whole before anything changes; what is refused leaves an earlier ask of its key as it was. A
tag that is read and is wrong refuses its ask; others are texts, and all are carried along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts, amount_text, amounts_setting, less
from fluxsched.core.text import load_object
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.yunikorn.applications import ApplicationProgress, ApplicationState, GangAsk
from fluxsched.yunikorn.bookings import Bookings
from fluxsched.yunikorn.messages import (
    PLACEHOLDER_REPLACED,
    PREEMPTED_BY_SCHEDULER,
    STOPPED_BY_RM,
    TIMEOUT,
    AddApplicationRequest,
)
from fluxsched.yunikorn.placement import (
    RECOVERY_QUEUE,
    SHARED_QUEUE,
    Placed,
    Submission,
    place_application,
    place_recovered,
    place_shared,
    with_tags,
)
from fluxsched.yunikorn.tables import (
    ADD,
    APP,
    NONE,
    REMOVE,
    REQUEST,
    SET,
    AllocationEntry,
    ApplicationEntry,
    AskEntry,
    NodeEntry,
    Partition,
    application_accepted,
    application_rejected,
    ask_rejected,
    not_held,
    plain_partition,
    released,
)
from fluxsched.yunikorn.tree.queues import FAIR, AskOptions, Queue, QueueSettings

REQUIRED_NODE: Final = "yunikorn.apache.org/requiredNode"
ALLOW_PREEMPTION: Final = "yunikorn.apache.org/allowPreemption"
CREATION_TIME: Final = "creationTime"
APPLICATION_CREATION_TIME: Final = "yunikorn.apache.org/creationTime"
"""The tag of an application; that of an ask has no domain."""

FOREIGN: Final = "foreign"
"""The tag of an allocation that another scheduler has made."""

CONSTRAINT: Final = "fluxsched/constraint"

TRUE: Final = frozenset(("1", "t", "true"))
FALSE: Final = frozenset(("0", "f", "false"))

TAGS_MAX = 256
"""Of one ask, application or node; each allocation carries those of its ask."""

CONSTRAINTS_CACHED_MAX = 4096
"""Constraints as read; some hundred bytes each."""


class AskTags(NamedTuple):
    """`created_s` is wall time in seconds, 0.0 if it is not said; `required_node` "" is any."""

    required_node: str = ""
    created_s: float = 0.0
    constraint: Constraint = EVERYTHING
    may_be_preempted: bool = True


NO_TAGS: Final = AskTags()


def read_tags(tags: Mapping[str, str], now_s: float) -> AskTags:
    """Return the meaning of the tags. Raises InvalidValue naming the tag that is wrong."""
    check_tags(tags)
    constraint = EVERYTHING
    if CONSTRAINT in tags:
        try:
            constraint = _constraint(tags[CONSTRAINT])
        except InvalidValue as fault:
            raise InvalidValue(f"tag {CONSTRAINT}: {fault}") from None
    return AskTags(
        tags.get(REQUIRED_NODE, ""),
        creation_s(tags, CREATION_TIME, now_s),
        constraint,
        flag(tags, ALLOW_PREEMPTION, otherwise=True),
    )


def flag(tags: Mapping[str, str], tag: str, otherwise: bool = False) -> bool:
    """Return the truth value of a tag, `otherwise` without it. Raises InvalidValue for any other text."""
    text = tags.get(tag, "")
    if not text:
        return otherwise
    if text.lower() not in TRUE | FALSE:
        raise InvalidValue(f"tag {tag} is {text[:40]!r}: it must be true or false")
    return text.lower() in TRUE


def check_tags(tags: Mapping[str, str], what: str = "tags") -> None:
    """Raise LimitExceeded for too many of them; attributes of nodes are bounded alike."""
    if len(tags) > TAGS_MAX:
        raise LimitExceeded(f"{len(tags)} {what}: the limit is {TAGS_MAX}")


@lru_cache(CONSTRAINTS_CACHED_MAX)
def _constraint(text: str) -> Constraint:
    return Constraint.parse(load_object(text, "constraint"))


def creation_s(tags: Mapping[str, str], tag: str, now_s: float) -> float:
    """Return the time of creation in a tag (wall time, seconds), at most `now_s`; 0.0 without it.

    Raises InvalidValue for what is no time.
    """
    text = tags.get(tag, "")
    if not text:
        return 0.0
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < inf:
        raise InvalidValue(f"tag {tag} is {text[:40]!r}: it must be seconds since the Unix epoch")
    return min(found, now_s)


# ---- applications

ID_CHARS_MAX = 1024
"""Of the id of an application or a node: it is in each of its allocations."""

GROUPS_MAX = 4096
"""Maximum number of groups of one user."""

REFUSED_KEPT_MAX = 10_000
"""Applications that were refused and are remembered, the last ones, since nodes may come on which they run."""

REFUSED_BYTES_MAX = 4096
"""Of an application that is remembered so."""

STYLES: Final = ("", "Hard", "Soft")
STATEAWARE_DISABLED: Final = "application.stateaware.disable"
CREATE_FORCED: Final = "application.create.force"
"""Tag of an application that runs something already: it is not refused for want of a queue."""


class ApplicationReader:
    """Reads the applications of one resource manager; `user_groups` are the groups of a user that names none."""

    def __init__(self, bookings: Bookings, user_groups: Callable[[str], Sequence[str]]) -> None:
        self._bookings = bookings
        self._user_groups = user_groups
        self._refused: dict[tuple[str, str], Any] = {}  # (partition, id) -> AddApplicationRequest

    def add(self, message: Any, now_s: float) -> None:
        """Add an application by an AddApplicationRequest."""
        application_id = message.applicationID
        bookings = self._bookings
        try:
            application = self._checked(message, now_s)
        except (InvalidValue, Refused) as fault:
            self._remember(message)
            application_rejected(bookings.outgoing, application_id, str(fault))
            bookings.observed.event(APP, application_id, message.queueName, "Rejected", NONE, str(fault))
            return
        self._refused.pop((application.partition.name, application_id), None)
        application_accepted(bookings.outgoing, application_id)
        path = application.account.queue.path
        bookings.observed.event(APP, application_id, path, "Accepted", ADD, f"into queue {path}")

    def _checked(self, message: Any, now_s: float) -> ApplicationEntry:
        """Its row, made. Raises InvalidValue or Refused, and changes nothing."""
        application_id = message.applicationID
        check_id(application_id, "applicationID")
        bookings = self._bookings
        partition = bookings.partition(message.partitionName)
        if application_id in partition.applications:
            raise InvalidValue(f"application {application_id!r} is known: remove it first, or give another id")
        if message.gangSchedulingStyle not in STYLES:
            raise InvalidValue(f"gangSchedulingStyle is {message.gangSchedulingStyle[:256]!r}: it must be Hard or Soft")
        check_tags(message.tags)
        if len(message.ugi.groups) > GROUPS_MAX:
            raise LimitExceeded(f"{len(message.ugi.groups)} groups: the limit is {GROUPS_MAX}")
        wanted = bookings.quantities.read(message.placeholderAsk)
        if wanted.fault:
            raise InvalidValue(f"placeholderAsk: {wanted.fault}")
        created_s = creation_s(message.tags, APPLICATION_CREATION_TIME, now_s)
        user = message.ugi.user
        groups = tuple(message.ugi.groups) or tuple(self._user_groups(user))
        tags = dict(message.tags)
        try:
            placed = place_application(
                partition.settings, partition.tree, Submission(message.queueName, user, frozenset(groups), tags)
            )
        except Refused:
            if not flag(tags, CREATE_FORCED):
                raise
            placed = place_recovered(partition.tree)
        leaf = self._made(partition, placed, tags, wanted.amounts)
        submitted_s = created_s or bookings.stamp(now_s)
        account = partition.tree.add_application(application_id, leaf, user, groups, submitted_s)
        progress = ApplicationProgress(
            now_s,
            execution_timeout_s=message.executionTimeoutMilliSeconds / 1000,
            placeholder_ask=wanted.amounts,
            is_hard=message.gangSchedulingStyle == "Hard",
            is_stateaware_disabled=message.tags.get(STATEAWARE_DISABLED, "").lower() == "true",
        )
        application = ApplicationEntry(application_id, partition, account, progress)
        partition.applications[application_id] = application
        return application

    def _made(self, partition: Partition, placed: Placed, tags: Mapping[str, str], wanted: Amounts) -> Queue:
        """Return a leaf: made, or changed as tags say, if rules make it. Raises InvalidValue or Refused."""
        tree, (path, created) = partition.tree, placed
        leaf = tree.queue(path)
        above = leaf or tree.queue(created[0][0].rpartition(".")[0])
        assert above is not None, path
        settings = created[-1][1] if created else above.settings
        if leaf is not None and leaf.created and path != RECOVERY_QUEUE:
            settings = with_tags(leaf.settings, tags)
        queues = [*reversed(created), *[(queue.path, queue.settings) for queue in above.up()]]
        _check_gang(wanted, settings, [(path, settings), *queues[1:]])
        for each_path, each in created:
            leaf = tree.create(each_path, each)
            self._bookings.observed.queue_event(each_path, partition.name, "Added", ADD, "by a placement rule")
        assert leaf is not None, path
        if settings != leaf.settings:
            tree.change_created(leaf, settings)
            self._bookings.observed.queue_event(path, partition.name, "Updated", SET, "by the tags of an application")
        return leaf

    def independent(self, partition: Partition, now_s: float) -> ApplicationEntry:
        """Return the application of asks that name none. Raises InvalidValue if there can be none."""
        leaf = self._made(partition, self._check_shared(partition), {}, ())
        account = partition.tree.add_application("", leaf, "", (), self._bookings.stamp(now_s))
        application = ApplicationEntry("", partition, account, ApplicationProgress(now_s))
        partition.applications[""] = application
        return application

    def _check_shared(self, partition: Partition) -> Placed:
        try:
            return place_shared(partition.settings, partition.tree)
        except Refused as refusal:
            raise InvalidValue(f"an ask without applicationID needs the leaf queue {SHARED_QUEUE}: {refusal}") from None

    # ---- of what exists already

    def check_existing(self, partition: Partition, application_id: str) -> None:
        """Raise InvalidValue if nothing that exists can be of this application."""
        if application_id in partition.applications:
            return
        if not application_id:
            self._check_shared(partition)
        elif (partition.name, application_id) not in self._refused:
            raise InvalidValue(f"application {application_id[:256]!r} is not known: send that first")

    def of_existing(self, partition: Partition, application_id: str, now_s: float) -> ApplicationEntry:
        """Return the application, which `check_existing` allows; one that was refused is recovered."""
        found = partition.applications.get(application_id)
        if found is not None:
            return found
        if not application_id:
            return self.independent(partition, now_s)
        message = self._refused.pop((partition.name, application_id))
        user = message.ugi.user
        groups = tuple(message.ugi.groups) or tuple(self._user_groups(user))
        leaf = self._made(partition, place_recovered(partition.tree), {}, ())
        account = partition.tree.add_application(application_id, leaf, user, groups, self._bookings.stamp(now_s))
        found = partition.applications[application_id] = ApplicationEntry(
            application_id, partition, account, ApplicationProgress(now_s)
        )
        what = "it was refused, but an allocation of it exists"
        self._bookings.observed.event(APP, application_id, leaf.path, "Recovered", ADD, what)
        return found

    def _remember(self, message: Any) -> None:
        """Record that an application was refused; one that is known, or has no id, is not remembered."""
        name = plain_partition(message.partitionName)
        partition, application_id = self._bookings.partitions.get(name), message.applicationID
        if partition is None or not application_id or application_id in partition.applications:
            return
        if len(application_id) > ID_CHARS_MAX or message.ByteSize() > REFUSED_BYTES_MAX:
            return
        kept = AddApplicationRequest(applicationID=application_id, ugi=message.ugi)
        self._refused.pop((name, application_id), None)
        self._refused[name, application_id] = kept
        if len(self._refused) > REFUSED_KEPT_MAX:
            del self._refused[next(iter(self._refused))]

    def remove(self, message: Any, now_s: float) -> Iterator[None]:
        """Perform a RemoveApplicationRequest: all that it has goes, one by one, its asks first."""
        bookings = self._bookings
        application_id = message.applicationID
        try:
            application = bookings.partition(message.partitionName).applications.get(application_id)
            fault = "it is not known"
        except InvalidValue as unknown:
            application, fault = None, str(unknown)
        if application is None:
            self._refused.pop((plain_partition(message.partitionName), application_id), None)
            bookings.observed.event(APP, application_id, "", "RemoveIgnored", NONE, fault)
            return
        for ask in list(application.asks.values()):
            bookings.withdraw(ask)
            bookings.observed.event(REQUEST, ask.key, application_id, "AskReleased", REMOVE, "application removed")
            yield
        for held in list(application.held.values()):
            if bookings.held.get(held.uuid) is not held:
                continue
            released(bookings.outgoing, held, STOPPED_BY_RM, "application removed")
            bookings.drop(held, "Released", now_s)
            yield
        path = application.account.queue.path
        bookings.observed.event(APP, application_id, path, "RemoveRequested", REMOVE, f"from queue {path}")
        bookings.perform(application, application.progress.removed(now_s), now_s)


def check_id(id: str, what: str) -> None:
    """Raise InvalidValue unless it is the id of an application or a node."""
    if not 0 < len(id) <= ID_CHARS_MAX or "\0" in id:
        shown = f"{id[:64]!r}{'...' * (len(id) > 64)} with {len(id)} characters" if id else "empty"
        raise InvalidValue(f"{what} is {shown}: it needs 1 to {ID_CHARS_MAX}, none of them NUL")


def _check_gang(wanted: Amounts, leaf: QueueSettings, queues: Iterable[tuple[str, QueueSettings]]) -> None:
    """Raise InvalidValue if placeholders for so much cannot be in a leaf, which is the first of these queues."""
    if wanted and leaf.sort == FAIR:
        raise InvalidValue(f"queue {leaf.name!r} orders applications by share: gangs need fifo or stateaware")
    for path, settings in queues:
        for kind, most in settings.maximum:
            asked = dict(wanted).get(kind, 0)
            if asked > most:
                has = f"queue {path!r} has at most {amount_text(kind, most)}"
                raise InvalidValue(f"placeholderAsk is {amount_text(kind, asked)}: {has}")


# ---- asks

ASK_BYTES_MAX = 1 << 16
"""Of one ask: a message of answers has room for several of its allocations."""

_NODE: Final = Idset.of([0])


class AskReader:
    """Reads the asks of one resource manager."""

    def __init__(self, bookings: Bookings, applications: ApplicationReader) -> None:
        self._bookings = bookings
        self._applications = applications

    def read(self, message: Any, now_s: float, is_single: bool = False) -> None:
        """Perform an AllocationAsk; `is_single` if it was an Allocation, of whose key there is one."""
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
        """Make the row. Raises InvalidValue, and changes nothing."""
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
        """Tell the application that an ask is gone."""
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


# ---- releases

OURS: Final = frozenset((TIMEOUT, PREEMPTED_BY_SCHEDULER, PLACEHOLDER_REPLACED))
"""Types with which only the scheduler ends allocations: from a resource manager they confirm that."""


class ReleaseReader:
    """Reads the releases of one resource manager."""

    def __init__(self, bookings: Bookings, asks: AskReader) -> None:
        self._bookings = bookings
        self._asks = asks

    def read_ask(self, message: Any, now_s: float) -> Iterator[None]:
        """Perform an AllocationAskRelease: of one ask by its key, or of all of an application, one by one."""
        key, application_id = message.allocationKey, message.applicationID
        try:
            partition = self._bookings.partition(message.partitionName)
            if not key and not application_id:
                raise InvalidValue("a release of asks needs an allocationKey or an applicationID")
        except InvalidValue as fault:
            self._asks.reject(key, application_id, str(fault))
            return
        found = _asks_named(partition, key, application_id)
        for ask in found:
            if ask.application.asks.get(ask.key) is ask:
                self._asks.release(ask, now_s)
            yield
        if not found:
            self._bookings.observed.event(
                REQUEST, key, application_id, "ReleaseIgnored", NONE, "no such ask is pending"
            )

    def read(self, message: Any, now_s: float) -> Iterator[None]:
        """Perform an AllocationRelease: of an allocation by its UUID, else of all of a key or an application, one by
        one.
        """
        key, application_id, uuid = message.allocationKey, message.applicationID, message.UUID
        name = plain_partition(message.partitionName)
        partition = self._bookings.partitions.get(name)
        if not uuid and not application_id and key in self._bookings.foreign:
            self._bookings.occupy(self._bookings.foreign[key], key, (), now_s)
            return
        if uuid:
            held = self._bookings.held.get(uuid)
            if held is None or held.ask.application.partition is not partition or (
                application_id and held.ask.application.application_id != application_id
            ):  # fmt: skip
                self._ignore(message, name)
            else:
                self._end(held, message, now_s)
            return
        application = None if partition is None else partition.applications.get(application_id)
        if application is None:
            what = f"application {application_id[:256]!r} is not known in partition {name[:256]!r}"
            self._asks.reject(key, application_id, f"a release without a UUID needs an application: {what}")
            return
        for held in _held_by(application, key):
            if self._bookings.held.get(held.uuid) is held:
                self._end(held, message, now_s)
            yield
        if message.terminationType != TIMEOUT:
            for ask in _single_asks(application, key):
                if application.asks.get(ask.key) is ask:
                    self._asks.release(ask, now_s)
                yield

    def _end(self, held: AllocationEntry, message: Any, now_s: float) -> None:
        type = message.terminationType
        if type in OURS:
            self._bookings.confirm(held, type, now_s)
            return
        released(self._bookings.outgoing, held, STOPPED_BY_RM, message.message)
        self._bookings.free(held, "Released", now_s)

    def _ignore(self, message: Any, partition: str) -> None:
        """Echo a release of what is not held, unless it confirms: that may come twice."""
        key, application_id, uuid = message.allocationKey, message.applicationID, message.UUID
        if message.terminationType not in OURS:
            not_held(self._bookings.outgoing, partition, application_id, uuid, key)
        self._bookings.observed.event(REQUEST, key, application_id, "ReleaseIgnored", NONE, f"{uuid} is not held")


def _held_by(application: ApplicationEntry, key: str) -> list[AllocationEntry]:
    """Return the allocations of a key; all of the application without one."""
    single = application.by_key.get(key)
    if single is not None:
        return [single]
    return [held for held in application.held.values() if not key or held.ask.key == key]


def _single_asks(application: ApplicationEntry, key: str) -> list[AskEntry]:
    """Return the pending asks of a key, or all, that were asked for as allocations: there is no other release of
    them.
    """
    asks = application.asks
    found = list(asks.values()) if not key else [asks[key]] if key in asks else []
    return [ask for ask in found if ask.is_single]


def _asks_named(partition: Partition, key: str, application_id: str) -> list[AskEntry]:
    """All of an application, that of a key in an application, or those of a key in any."""
    if application_id:
        application = partition.applications.get(application_id)
        asks = [] if application is None else list(application.asks.values())
        return [ask for ask in asks if ask.key == key or not key]
    return [each.asks[key] for each in partition.applications.values() if key in each.asks]
