"""Applications as they come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from fluxsched.adapters.si.config.placement import Submission, place_application
from fluxsched.adapters.si.machine.answers.items import application_accepted, application_rejected, released
from fluxsched.adapters.si.machine.answers.observations import ADD, APP, NONE, REMOVE, REQUEST
from fluxsched.adapters.si.machine.applications import ApplicationProgress
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.requests.tags import check_tags
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, Partition
from fluxsched.adapters.si.messages import STOPPED_BY_RM
from fluxsched.core.amounts import Amounts, amount_text
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.sched.quotas.queue import Queue
from fluxsched.sched.quotas.settings import FAIR, QueueSettings

ID_CHARS_MAX = 1024
"""Of the id of an application or a node: it is in each of its allocations."""

GROUPS_MAX = 4096
"""Groups of one user."""

STYLES: Final = ("", "Hard", "Soft")
STATEAWARE_DISABLED: Final = "application.stateaware.disable"
SHARED_QUEUE: Final = "root.default"
"""Of asks without an application."""


class ApplicationReader:
    """Reads the applications of one resource manager; `user_groups` are the groups of a user that names none."""

    def __init__(self, bookings: Bookings, user_groups: Callable[[str], Sequence[str]]) -> None:
        self._bookings = bookings
        self._user_groups = user_groups

    def add(self, message: Any, now_s: float) -> None:
        """An AddApplicationRequest."""
        application_id = message.applicationID
        bookings = self._bookings
        try:
            application = self._checked(message, now_s)
        except (InvalidValue, Refused) as fault:
            application_rejected(bookings.outgoing, application_id, str(fault))
            bookings.observed.event(APP, application_id, message.queueName, "Rejected", NONE, str(fault))
            return
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
        user = message.ugi.user
        groups = tuple(message.ugi.groups) or tuple(self._user_groups(user))
        leaf = self._placed(partition, message, user, groups, wanted.amounts)
        account = partition.tree.add_application(application_id, leaf, user, groups, bookings.stamp(now_s))
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

    def _placed(self, partition: Partition, message: Any, user: str, groups: tuple[str, ...], wanted: Amounts) -> Queue:
        """The leaf of an application, made for it if need be."""
        tree = partition.tree
        submission = Submission(message.queueName, user, frozenset(groups), dict(message.tags))
        path, created = place_application(partition.settings, tree, submission)
        leaf = tree.queue(path)
        above = leaf or tree.queue(created[0][0].rpartition(".")[0])
        assert above is not None, path
        made = [(each_path, settings) for each_path, settings in created]
        existing = [(queue.path, queue.settings) for queue in above.up()]
        _check_gang(wanted, created[-1][1] if created else above.settings, [*reversed(made), *existing])
        for each_path, settings in created:
            leaf = tree.create(each_path, settings)
            self._bookings.observed.queue_event(each_path, partition.name, "Added", ADD, "by a placement rule")
        assert leaf is not None, path
        return leaf

    def independent(self, partition: Partition, now_s: float) -> ApplicationEntry:
        """The application of asks that name none. Raises InvalidValue if there can be none."""
        leaf = partition.tree.queue(SHARED_QUEUE)
        if leaf is None or not leaf.is_leaf or leaf.draining:
            raise InvalidValue(f"an ask without applicationID needs a leaf queue {SHARED_QUEUE}, which is not there")
        account = partition.tree.add_application("", leaf, "", (), self._bookings.stamp(now_s))
        application = ApplicationEntry("", partition, account, ApplicationProgress(now_s))
        partition.applications[""] = application
        return application

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
