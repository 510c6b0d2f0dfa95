"""The scheduler interface without I/O: requests of resource managers in, effects out, on a time that is an argument.

Law: a call checks its rmID and shape, refuses or queues, and changes nothing else; what it asks for is done in a turn.
Managers never see each other; turns serve them alternately.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, TypeAlias

from fluxsched.adapters.si.machine.effects import ALLOCATIONS, APPLICATIONS, KINDS, NODES, Effect, EndStreams
from fluxsched.adapters.si.machine.rm import BACKLOG_ITEMS_MAX, RM, items_of
from fluxsched.adapters.si.machine.states import RMEvent, RMState, next_state
from fluxsched.adapters.si.machine.streams import RMStreams
from fluxsched.adapters.si.messages import AllocationRequest, ApplicationRequest, NodeRequest
from fluxsched.errors import InvalidValue, Refused

RM_ID_CHARS_MAX = 256

MANAGERS_MAX = 256
"""Resource managers at once: each has pools, queues and tables of its own, also while it is paused."""

PASS_S: Final = 0.005
"""So long a partition decides before it is the turn of the next."""

ReadConfig: TypeAlias = Callable[[str], Sequence[Any]]


class SIMachine:
    """All resource managers of a scheduler.

    `configs` gives the text of a policy group, or None; `user_groups` the groups of a user; `make_uuid` a new UUID;
    `read_config` makes partitions of a text, or raises InvalidValue with all faults; `elapsed_s` is a clock that only
    measures how long passes take (seconds).
    """

    def __init__(
        self,
        configs: Callable[[str], str | None],
        user_groups: Callable[[str], Sequence[str]],
        make_uuid: Callable[[], str],
        read_config: ReadConfig,
        elapsed_s: Callable[[], float] = float,
    ) -> None:
        self._configs = configs
        self._user_groups = user_groups
        self._make_uuid = make_uuid
        self._read_config = read_config
        self._elapsed_s = elapsed_s
        self._rms: dict[str, RM] = {}  # stopped ones are not here
        self._effects: deque[Effect] = deque()
        self._streams = 0

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

        Raises InvalidValue with all faults, and Refused (EPERM: of another identity, EAGAIN: too many).
        """
        rm_id = request.rmID
        faults = [] if 0 < len(rm_id) <= RM_ID_CHARS_MAX else [_bad_rm_id(rm_id)]
        known = self._rms.get(rm_id)
        if known is not None and known.identity != identity:
            raise Refused(f"resource manager {rm_id!r} was registered with another certificate", errno.EPERM)
        text = request.config or self._configs(request.policyGroup) or ""
        try:
            self._read_config(text)
            self._check_policy_group(rm_id, request.policyGroup, text)
        except InvalidValue as fault:
            faults.append(str(fault))
        if faults:
            raise InvalidValue("; ".join(faults))
        if known is None and len(self._rms) >= MANAGERS_MAX:
            raise Refused(f"{len(self._rms)} resource managers are registered: the limit", errno.EAGAIN)
        if known is not None:
            self._effects.append(EndStreams(rm_id, "another registration of this rmID has replaced this one"))
        manager = RM(rm_id, request.policyGroup, text, RMStreams(in_process, now_s))
        manager.identity, manager.predicates = identity, predicates
        self._rms[rm_id] = manager

    def _check_policy_group(self, rm_id: str, group: str, text: str) -> None:
        """Managers without a policy group share none."""
        for other in self._rms.values():
            if group and other.policy_group == group and other.rm_id != rm_id and other.config != text:
                raise InvalidValue(
                    f"config: it differs from that of {other.rm_id!r} in policyGroup {group!r}: give all managers of a "
                    "group the same, or this one another group"
                )

    def identity_of(self, rm_id: str) -> str | None:
        """The identity with which a manager registered. Raises Refused if it is not known."""
        return self._rm(rm_id).identity

    # ---- requests

    def update_allocation(self, request: Any, now_s: float) -> None:
        """An AllocationRequest. Raises Refused (ENOENT: register first; EAGAIN: too much waits) or InvalidValue."""
        manager = self.check(request, AllocationRequest)
        releases = request.releases
        items = items_of((request.asks, releases.allocationsToRelease, releases.allocationAsksToRelease))
        manager.queue(ALLOCATIONS, request, items)

    def update_application(self, request: Any, now_s: float) -> None:
        """An ApplicationRequest; raises as `update_allocation`."""
        self.check(request, ApplicationRequest).queue(APPLICATIONS, request, items_of((request.new, request.remove)))

    def update_node(self, request: Any, now_s: float) -> None:
        """A NodeRequest; raises as `update_allocation`."""
        self.check(request, NodeRequest).queue(NODES, request, items_of((request.nodes,)))

    def update_configuration(self, request: Any, now_s: float) -> None:
        """An UpdateConfigurationRequest: another configuration for all managers of a policy group, or for none."""
        self._rm(request.rmID)
        self._read_config(request.config)

    def check(self, request: Any, shape: Any) -> RM:
        """The manager of a request that could be queued; raises as `update_allocation`, and may run in any thread."""
        if not isinstance(request, shape):
            raise InvalidValue(f"{type(request).__name__} is not a {shape.__name__}")
        manager = self._rm(request.rmID)
        if manager.backlog_items >= BACKLOG_ITEMS_MAX:
            raise Refused(
                f"{manager.backlog_items} items of {manager.rm_id!r} wait to be read, limit {BACKLOG_ITEMS_MAX}: "
                "send more slowly", errno.EAGAIN
            )  # fmt: skip
        return manager

    def backlog(self, rm_id: str) -> int:
        """Items of requests that are not read yet: what sends them may wait until they are fewer."""
        manager = self._rms.get(rm_id)
        return 0 if manager is None else manager.backlog_items

    def observe(self, rm_id: str, on: bool) -> None:
        """Whether Observed effects are wanted for a manager; without, they are not made."""
        self._rm(rm_id)

    # ---- streams

    def stream_opened(self, rm_id: str, kind: str, now_s: float) -> int:
        """A stream of a kind is bound to a manager, instead of an earlier one; returns its number.

        Raises Refused (ENOENT) for a manager that is not known.
        """
        manager = self._rm(rm_id)
        if kind not in KINDS:
            raise InvalidValue(f"{kind!r} is no kind of stream: there are {', '.join(KINDS)}")
        self._streams += 1
        manager.connection.opened(kind, self._streams)
        if manager.state is RMState.PAUSED:
            manager.state = next_state(manager.state, RMEvent.RESUMED)
        return self._streams

    def stream_closed(self, rm_id: str, kind: str, number: int, half_closed: bool, now_s: float) -> None:
        """A stream has ended: half-closed by its manager, or by an error. Nothing if another had replaced it."""
        manager = self._rms.get(rm_id)
        if manager is None:
            return
        match manager.connection.closed(kind, number, half_closed):
            case RMEvent.SHUT_DOWN:
                self.shut_down(rm_id, now_s)
            case RMEvent.LOST:
                self.connection_lost(rm_id, now_s)

    def connection_lost(self, rm_id: str, now_s: float) -> None:
        """No stream of a manager is open any more: it is paused."""
        manager = self._rms.get(rm_id)
        if manager is not None and manager.state is RMState.RUNNING:
            manager.connection.lost(now_s)
            manager.state = next_state(manager.state, RMEvent.LOST)

    def shut_down(self, rm_id: str, now_s: float) -> None:
        """A manager has gone of its own will: what is known of it is forgotten."""
        manager = self._rms.get(rm_id)
        if manager is not None:
            self._stop(manager, RMEvent.SHUT_DOWN, "the resource manager has shut down")

    def unread(self, rm_id: str, items: int) -> None:
        """So many items of its answers a manager has not read."""
        manager = self._rms.get(rm_id)
        if manager is not None:
            manager.unread_items = items

    def _stop(self, manager: RM, event: RMEvent, detail: str) -> None:
        manager.state = next_state(manager.state, event)
        del self._rms[manager.rm_id]
        self._effects.append(EndStreams(manager.rm_id, detail))

    # ---- the turn

    def turn(self, now_s: float, budget_s: float = PASS_S) -> Iterator[Effect]:
        """Does what is due at `now_s` (wall time, seconds), effect by effect; a partition decides for `budget_s`."""
        self._time_out(now_s)
        while self._effects:
            yield self._effects.popleft()

    @property
    def next_wake_s(self) -> float:
        """When the next turn is due even if nothing happens (wall time, seconds): 0.0 for at once, inf for never."""
        if self._effects:
            return 0.0
        return min([manager.connection.ends_s for manager in self._rms.values()], default=inf)

    def _time_out(self, now_s: float) -> None:
        for manager in [manager for manager in self._rms.values() if manager.connection.ends_s <= now_s]:
            if manager.state is RMState.RUNNING:
                self.connection_lost(manager.rm_id, now_s)
            else:
                self._stop(manager, RMEvent.TIMED_OUT, "its connection was lost for too long")

    # ---- for people

    def state_dump(self, rm_id: str | None = None) -> dict[str, Any]:
        """The state as a JSON object, of one manager or of all; texts of configurations are not in it."""
        managers = list(self._rms.values()) if rm_id is None else [self._rm(rm_id)]
        return {"rms": [manager.dump() for manager in managers]}

    # ---- within

    def _rm(self, rm_id: str) -> RM:
        manager = self._rms.get(rm_id)
        if manager is None:
            raise Refused(f"resource manager {rm_id[:RM_ID_CHARS_MAX]!r} is not registered: register", errno.ENOENT)
        return manager


def _bad_rm_id(rm_id: str) -> str:
    return f"rmID has {len(rm_id)} characters: it needs 1 to {RM_ID_CHARS_MAX}"
