"""The scheduler interface without I/O: requests of resource managers in, effects out, on a time that is an argument.

Law: a call checks its rmID and shape, refuses or queues, and changes nothing else; what it asks for is done in a turn.
Resource managers never see each other: turns serve them alternately, and a bug that one meets costs the others nothing.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, TypeAlias

from fluxsched.adapters.si.config.settings import ROOT, PartitionSettings
from fluxsched.adapters.si.machine.answers.observations import NONE
from fluxsched.adapters.si.machine.bookings import Bookings
from fluxsched.adapters.si.machine.effects import ALLOCATIONS, APPLICATIONS, KINDS, NODES, Broke, Effect, EndStreams
from fluxsched.adapters.si.machine.partitions import configure
from fluxsched.adapters.si.machine.requests.applications import ApplicationReader
from fluxsched.adapters.si.machine.rm import BACKLOG_ITEMS_MAX, RM
from fluxsched.adapters.si.machine.states import RMEvent, RMState, next_state
from fluxsched.adapters.si.machine.streams import RMStreams
from fluxsched.adapters.si.messages import AllocationRequest, ApplicationRequest, NodeRequest
from fluxsched.errors import InvalidValue, Refused
from fluxsched.sched.hooks.api import Plugin

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
        """A RegisterResourceManagerRequest; with the rmID of a known manager that begins anew.

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
        """Reads the configuration of a request, for a `read_config` that keeps what it has read; in any thread."""
        with suppress(InvalidValue):
            self._read_config(self._text(request.config, request.policyGroup))

    def _text(self, config: str, group: str) -> str:
        """The text of a configuration: as given, else that of the policy group, else that of the default one."""
        return config or (self._configs(group) if group else None) or ""

    def _check_policy_group(self, rm_id: str, group: str, text: str) -> None:
        """Managers without a policy group share none."""
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
        """The identity with which a manager registered. Raises Refused if it is not known."""
        return self._rm(rm_id).identity

    # ---- requests

    def check(self, request: Any, shape: Any) -> RM:
        """The resource manager of a request of this class, which may be queued; changes nothing.

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
        """An AllocationRequest; raises as `check`."""
        rm, releases = self.check(request, AllocationRequest), request.releases
        items = len(request.asks) + len(request.allocations)
        items += len(releases.allocationsToRelease) + len(releases.allocationAsksToRelease)
        rm.queue(ALLOCATIONS, request, items)

    def update_application(self, request: Any, now_s: float) -> None:
        """An ApplicationRequest; raises as `check`."""
        self.check(request, ApplicationRequest).queue(APPLICATIONS, request, len(request.new) + len(request.remove))

    def update_node(self, request: Any, now_s: float) -> None:
        """A NodeRequest; raises as `check`."""
        self.check(request, NodeRequest).queue(NODES, request, len(request.nodes))

    def update_configuration(self, request: Any, now_s: float) -> None:
        """An UpdateConfigurationRequest: another configuration for all managers of a policy group, or for none.

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
        """Does what was found to be possible, unless it is not any more."""
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
        """A stream of a kind is bound to a manager, instead of an earlier one; returns its number.

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
        """A stream has ended: half-closed by its manager, or by an error. Nothing if another had replaced it."""
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
            rm.streams.lost(now_s)
            rm.state = next_state(rm.state, RMEvent.LOST)

    def shut_down(self, rm_id: str, now_s: float) -> None:
        """A manager has gone of its own will: what is known of it is forgotten."""
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
        """Does what is due at `now_s` (wall time, seconds), effect by effect; a partition decides for `budget_s`.

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
        """The state as a JSON object, of one manager or of all; texts of configurations are not in it."""
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
