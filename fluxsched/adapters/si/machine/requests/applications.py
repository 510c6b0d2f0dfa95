"""Applications as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fluxsched.adapters.si.config.placement import (
    RECOVERY_QUEUE,
    SHARED_QUEUE,
    Placed,
    Submission,
    place_application,
    place_recovered,
    place_shared,
    with_tags,
)
from fluxsched.adapters.si.machine.answers.items import application_accepted, application_rejected, released
from fluxsched.adapters.si.machine.answers.observations import ADD, APP, NONE, REMOVE, REQUEST, SET
from fluxsched.adapters.si.machine.applications import ApplicationProgress
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.requests.tags import APPLICATION_CREATION_TIME, check_tags, creation_s, flag
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, Partition
from fluxsched.adapters.si.machine.tables.names import plain_partition
from fluxsched.adapters.si.messages import STOPPED_BY_RM, AddApplicationRequest
from fluxsched.core.amounts import Amounts, amount_text
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.sched.quotas.queue import FAIR, Queue, QueueSettings

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
"""The tag of an application of which something runs already: it is not refused for want of a queue."""


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
        """The application of asks that name none. Raises InvalidValue if there can be none."""
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
        """Raises InvalidValue if nothing that exists can be of this application."""
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
        """An application was refused; one that is known, or has no id, is not remembered."""
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
        """A RemoveApplicationRequest: all that it has goes, one by one, its asks first."""
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
    """Raises InvalidValue unless it is the id of an application or a node."""
    if not 0 < len(id) <= ID_CHARS_MAX or "\0" in id:
        shown = f"{id[:64]!r}{'...' * (len(id) > 64)} with {len(id)} characters" if id else "empty"
        raise InvalidValue(f"{what} is {shown}: it needs 1 to {ID_CHARS_MAX}, none of them NUL")


def _check_gang(wanted: Amounts, leaf: QueueSettings, queues: Iterable[tuple[str, QueueSettings]]) -> None:
    """Raises InvalidValue if placeholders for so much cannot be in a leaf, which is the first of these queues."""
    if wanted and leaf.sort == FAIR:
        raise InvalidValue(f"queue {leaf.name!r} orders applications by share: gangs need fifo or stateaware")
    for path, settings in queues:
        for kind, most in settings.maximum:
            asked = dict(wanted).get(kind, 0)
            if asked > most:
                has = f"queue {path!r} has at most {amount_text(kind, most)}"
                raise InvalidValue(f"placeholderAsk is {amount_text(kind, asked)}: {has}")
