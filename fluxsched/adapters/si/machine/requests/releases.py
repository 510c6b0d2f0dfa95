"""Releases as they come: of asks, of allocations, and the confirmations of what we demanded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from fluxsched.adapters.si.machine.answers.items import not_held, released
from fluxsched.adapters.si.machine.answers.observations import NONE, REQUEST
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.requests.asks import AskReader
from fluxsched.adapters.si.machine.tables.entries import ApplicationEntry, AskEntry, HeldAllocation, Partition
from fluxsched.adapters.si.machine.tables.names import plain_partition
from fluxsched.adapters.si.messages import (
    PLACEHOLDER_REPLACED,
    PREEMPTED_BY_SCHEDULER,
    STOPPED_BY_RM,
    TIMEOUT,
)
from fluxsched.errors import InvalidValue

OURS: Final = frozenset((TIMEOUT, PREEMPTED_BY_SCHEDULER, PLACEHOLDER_REPLACED))
"""Types with which only the scheduler ends allocations: from a resource manager they confirm that."""


class ReleaseReader:
    """Reads the releases of one resource manager."""

    def __init__(self, bookings: Bookings, asks: AskReader) -> None:
        self._bookings = bookings
        self._asks = asks

    def read_ask(self, message: Any, now_s: float) -> Iterator[None]:
        """An AllocationAskRelease: of one ask by its key, or of all of an application, one by one."""
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
        """An AllocationRelease: of an allocation by its UUID, else of all of a key or an application, one by one."""
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

    def _end(self, held: HeldAllocation, message: Any, now_s: float) -> None:
        type = message.terminationType
        if type in OURS:
            self._bookings.confirm(held, type, now_s)
            return
        released(self._bookings.outgoing, held, STOPPED_BY_RM, message.message)
        self._bookings.free(held, "Released", now_s)

    def _ignore(self, message: Any, partition: str) -> None:
        """A release of what is not held is echoed, unless it confirms: that may come twice."""
        key, application_id, uuid = message.allocationKey, message.applicationID, message.UUID
        if message.terminationType not in OURS:
            not_held(self._bookings.outgoing, partition, application_id, uuid, key)
        self._bookings.observed.event(REQUEST, key, application_id, "ReleaseIgnored", NONE, f"{uuid} is not held")


def _held_by(application: ApplicationEntry, key: str) -> list[HeldAllocation]:
    """The allocations of a key; all of the application without one."""
    single = application.by_key.get(key)
    if single is not None:
        return [single]
    return [held for held in application.held.values() if not key or held.ask.key == key]


def _single_asks(application: ApplicationEntry, key: str) -> list[AskEntry]:
    """Return the pending asks of a key, or all, that were asked for as allocations: there is no other release of them.
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
