"""Life of one application: its states, their timers, and its gang of placeholders with the real asks for them.

It counts what is pending and allocated, which the machine reports as it happens, and never looks at queues or nodes.
Each method returns what the machine has to do, in order; `now_s` is Unix time.

Laws: an application ends once, and nothing of it is left then. Each placeholder ends exactly once, replaced, timed out
or released, and one real ask takes its place at most. The machine books; a `Gang` only decides which ask takes which
placeholder, and when an ask has to wait as any other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.quantities import Amounts, less

TOO_SMALL: Final = "no ask of its task group can take the placeholder: an ask is larger, or must not use its node"


class Placeholder(NamedTuple):
    """An allocation that keeps the place of a real one."""

    uuid: str
    key: str
    task_group: str
    amounts: Amounts
    node_id: str


class GangAsk(NamedTuple):
    """A real ask of a task group; lower `order` takes a placeholder first; `suits` says which nodes it may use."""

    order: tuple[int, ...]
    key: str
    task_group: str
    amounts: Amounts
    suits: Callable[[str], bool] | None = None

    def can_take(self, placeholder: Placeholder) -> bool:
        """Return whether the placeholder is at least as large, on a node that suits."""
        if less(self.amounts, placeholder.amounts):
            return False
        return self.suits is None or self.suits(placeholder.node_id)


class PlaceholderReplaced(NamedTuple):
    """Send `released` PLACEHOLDER_REPLACED and hold it until confirmed; the repeat of the ask is pending no more."""

    uuid: str
    key: str


class PlaceholderTimedOut(NamedTuple):
    """Send `released` TIMEOUT for the placeholder and hold it until confirmed."""

    uuid: str
    message: str


class PendingAgain(NamedTuple):
    """The placeholder that the ask was to replace has gone otherwise: one repeat more is pending, not yet queued."""

    key: str


class WaitsAsAny(NamedTuple):
    """Consequence: so many pending repeats of the real ask are queued like those of any ask."""

    key: str
    repeats: int


GangConsequence: TypeAlias = PlaceholderReplaced | PlaceholderTimedOut | PendingAgain | WaitsAsAny


class PendingPlaceholders:
    """Of one task group: how many repeats are pending, by key and by size. `has_fewer_sizes`: since that was reset."""

    __slots__ = ("_by_key", "_sizes", "has_fewer_sizes")

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[Amounts, int]] = {}
        self._sizes: dict[Amounts, int] = {}
        self.has_fewer_sizes = False

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def put(self, key: str, amounts: Amounts, repeats: int) -> int:
        """Set the number of repeats of a key, 0 for none; return by how many it has grown."""
        old, before = self._by_key.pop(key, (amounts, 0))
        if repeats:
            self._by_key[key] = (amounts, repeats)
            self._sizes[amounts] = self._sizes.get(amounts, 0) + repeats
        if before:
            self._sizes[old] -= before
            if not self._sizes[old]:
                del self._sizes[old]
                self.has_fewer_sizes = True
        return repeats - before

    def take(self, key: str) -> None:
        """One less of a key."""
        amounts, repeats = self._by_key[key]
        self.put(key, amounts, repeats - 1)

    def clear(self) -> int:
        """None is pending any more; returns how many were."""
        repeats = sum(self._sizes.values())
        self._by_key.clear()
        self._sizes.clear()
        self.has_fewer_sizes = True
        return repeats

    def may_bring(self, amounts: Amounts) -> bool:
        """Return whether a placeholder at least as large is pending."""
        return any(not less(amounts, size) for size in self._sizes)


class Gang:
    """`deadline_s` is when the placeholders that are left time out, None without any."""

    __slots__ = (
        "_as_any", "_asks", "_free", "_held", "_pending", "_replacing", "_reserved", "_waiting", "deadline_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.deadline_s: float | None = None
        self._pending: dict[str, PendingPlaceholders] = {}  # by task group
        self._held: dict[str, Placeholder] = {}
        self._free: dict[str, dict[str, Placeholder]] = {}  # by task group; neither taken nor ending
        self._replacing: dict[str, GangAsk | None] = {}  # by placeholder; None: the ask has gone since
        self._reserved: dict[str, int] = {}  # of each kind what placeholders hold, or held until they were replaced
        self._waiting: dict[str, list[tuple[tuple[int, ...], str]]] = {}  # by task group, in order
        self._asks: dict[str, tuple[GangAsk, int]] = {}  # waiting ones, and how many repeats
        self._as_any: set[str] = set()  # task groups of which asks were queued for want of placeholders

    @property
    def is_empty(self) -> bool:
        """Return whether no placeholder is pending or held."""
        return not self._held and not any(self._pending.values())

    @property
    def is_held(self) -> bool:
        """Return whether any placeholder is held."""
        return bool(self._held)

    # ---- placeholders

    def placeholder_asked(self, key: str, task_group: str, amounts: Amounts, repeats: int) -> int:
        """Set the number of pending repeats, 0 when the ask is gone; return by how many it has grown."""
        return self._pending_of(task_group).put(key, amounts, repeats)

    def placeholder_allocated(self, placeholder: Placeholder) -> list[GangConsequence]:
        """One repeat less is pending, and one more is held."""
        self._pending_of(placeholder.task_group).take(placeholder.key)
        self.add(placeholder)
        return self.match(placeholder.task_group)

    def add(self, placeholder: Placeholder) -> None:
        """Add a placeholder that is held from now on."""
        self._held[placeholder.uuid] = placeholder
        self._free.setdefault(placeholder.task_group, {})[placeholder.uuid] = placeholder
        for kind, amount in placeholder.amounts:
            self._reserved[kind] = self._reserved.get(kind, 0) + amount

    def calls_back(self, task_group: str) -> bool:
        """Return whether asks of the task group were queued for want of placeholders since the last call."""
        found = task_group in self._as_any
        self._as_any.discard(task_group)
        return found

    def has_reserved(self, amounts: Amounts) -> bool:
        """Return whether placeholders have been allocated for all of the amounts."""
        return all(self._reserved.get(kind, 0) >= amount for kind, amount in amounts)

    def replaced(self, uuid: str) -> str | None:
        """Record that the resource manager has confirmed; return the key of the ask that takes the place, None if it
        has gone since.
        """
        self._remove(uuid)
        ask = self._replacing.pop(uuid, None)
        return None if ask is None else ask.key

    def gone(self, uuid: str) -> list[GangConsequence]:
        """Record that the placeholder has ended otherwise; the ask that was to replace it waits for another."""
        for kind, amount in self._remove(uuid).amounts:
            self._reserved[kind] = max(0, self._reserved.get(kind, 0) - amount)
        ask = self._replacing.pop(uuid, None)
        if ask is None:
            return []
        self.wait(ask, 1)
        return [PendingAgain(ask.key), *self.match_ask(ask.key)]

    def time_out(self, message: str) -> tuple[int, list[GangConsequence]]:
        """All that are not being replaced end; how many repeats were pending, and what else follows."""
        self.deadline_s = None
        self._reserved.clear()
        pending = sum([of_group.clear() for of_group in self._pending.values()])
        free = [placeholder for of_group in self._free.values() for placeholder in of_group.values()]
        told: list[GangConsequence] = [self._end(placeholder, message) for placeholder in free]
        return pending, [*told, *self.match_all()]

    # ---- real asks

    def wait(self, ask: GangAsk, repeats: int) -> None:
        """Add so many repeats of a real ask that wait for placeholders."""
        repeats += self._unwait(ask.key)
        self._asks[ask.key] = (ask, repeats)
        insort(self._waiting.setdefault(ask.task_group, []), (ask.order, ask.key))

    def forget(self, key: str) -> int:
        """Record that the real ask has been released; return how many repeats waited here. What it was to replace is
        then only freed.
        """
        for uuid, ask in self._replacing.items():
            if ask is not None and ask.key == key:
                self._replacing[uuid] = None
        return self._unwait(key)

    def forget_all(self) -> None:
        """Forget every real ask that waits for placeholders."""
        self._waiting.clear()
        self._asks.clear()
        self._replacing = dict.fromkeys(self._replacing)

    def match_all(self) -> list[GangConsequence]:
        """Return which ask takes which placeholder, in all task groups."""
        return [told for task_group in list(self._waiting) for told in self.match(task_group)]

    def match_ask(self, key: str) -> list[GangConsequence]:
        """Return the placeholders that a waiting ask takes: nothing has become better for the others."""
        return list(self._match_one(key, self._asks[key][0].task_group))

    def match(self, task_group: str) -> list[GangConsequence]:
        """Return which ask takes which placeholder, as far as it can be decided now.

        Asks without a placeholder left still wait, unless placeholders of a size are pending no more.
        """
        told: list[GangConsequence] = []
        pending = self._pending_of(task_group)
        all_of_them, pending.has_fewer_sizes = pending.has_fewer_sizes, False
        for _, key in list(self._waiting.get(task_group, ())):
            if not all_of_them and not self._free.get(task_group):
                break
            told += self._match_one(key, task_group)
        return told

    def _match_one(self, key: str, task_group: str) -> Iterator[GangConsequence]:
        ask, repeats = self._asks[key]
        free = self._free.setdefault(task_group, {})
        while repeats:
            found = next((placeholder for placeholder in free.values() if ask.can_take(placeholder)), None)
            if found is not None:
                del free[found.uuid]
                self._replacing[found.uuid] = ask
                yield PlaceholderReplaced(found.uuid, key)
                repeats -= 1
            elif self._pending_of(task_group).may_bring(ask.amounts):
                break
            elif free:
                yield self._end(next(iter(free.values())), TOO_SMALL)
                yield WaitsAsAny(key, 1)
                repeats -= 1
            else:
                self._as_any.add(task_group)
                yield WaitsAsAny(key, repeats)
                repeats = 0
        if repeats:
            self._asks[key] = (ask, repeats)
        else:
            self._unwait(key)

    def _pending_of(self, task_group: str) -> PendingPlaceholders:
        return self._pending.setdefault(task_group, PendingPlaceholders())

    def _unwait(self, key: str) -> int:
        ask, repeats = self._asks.pop(key, (None, 0))
        if ask is not None:
            waiting = self._waiting[ask.task_group]
            del waiting[bisect_left(waiting, (ask.order, key))]
        return repeats

    def _end(self, placeholder: Placeholder, message: str) -> PlaceholderTimedOut:
        del self._free[placeholder.task_group][placeholder.uuid]
        return PlaceholderTimedOut(placeholder.uuid, message)

    def _remove(self, uuid: str) -> Placeholder:
        placeholder = self._held.pop(uuid)
        self._free[placeholder.task_group].pop(uuid, None)
        if self.is_empty:
            self.deadline_s = None
        return placeholder


# ---- states of the application

STARTING_S: Final = 300.0
"""Starting becomes Running after this time also without another allocation."""

COMPLETING_S: Final = 30.0
"""Completing becomes Completed after this time without an ask."""

PLACEHOLDER_TIMEOUT_S: Final = 900.0
"""For placeholders of applications that name no execution timeout."""

RUN: Final = "runApplication"
COMPLETE: Final = "completeApplication"
FAIL: Final = "failApplication"
RESERVATION_TIMEOUT: Final = "ResourceReservationTimeout"
EXECUTION_TIMEOUT: Final = "ExecutionTimeout"


class ApplicationState(StrEnum):
    """The interface's names, as `UpdatedApplication.state` has them."""

    NEW = "New"
    ACCEPTED = "Accepted"
    STARTING = "Starting"
    RUNNING = "Running"
    RESUMING = "Resuming"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    FAILING = "Failing"
    FAILED = "Failed"


class ApplicationEvent(StrEnum):
    """Events that change the state of an application."""

    ASKED = "ask"
    RECOVERED = "recovered allocation"
    ALLOCATED = "real allocation"
    RESERVED = "all placeholders allocated"
    STARTING_OVER = "starting for long enough"
    EMPTY = "no ask, allocation or replacement left"
    COMPLETING_OVER = "completing for long enough"
    REMOVED = "removed"
    SOFT_TIMEOUT = "placeholder timeout, Soft"
    HARD_TIMEOUT = "placeholder timeout, Hard"
    PLACEHOLDERS_GONE = "placeholders gone"
    EXECUTION_TIMEOUT = "execution timeout"
    ALLOCATIONS_GONE = "allocations gone"


_S: TypeAlias = ApplicationState
_E: TypeAlias = ApplicationEvent

APPLICATION_STATES: Final[dict[tuple[ApplicationState, ApplicationEvent], tuple[ApplicationState, str]]] = {
    (_S.NEW, _E.ASKED): (_S.ACCEPTED, RUN),
    (_S.NEW, _E.RECOVERED): (_S.ACCEPTED, RUN),
    (_S.NEW, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.ACCEPTED, _E.ALLOCATED): (_S.STARTING, RUN),
    (_S.ACCEPTED, _E.RESERVED): (_S.STARTING, RUN),
    (_S.ACCEPTED, _E.EMPTY): (_S.COMPLETING, COMPLETE),
    (_S.ACCEPTED, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.ACCEPTED, _E.SOFT_TIMEOUT): (_S.RESUMING, RESERVATION_TIMEOUT),
    (_S.ACCEPTED, _E.HARD_TIMEOUT): (_S.FAILING, RESERVATION_TIMEOUT),
    (_S.STARTING, _E.ALLOCATED): (_S.RUNNING, RUN),
    (_S.STARTING, _E.STARTING_OVER): (_S.RUNNING, RUN),
    (_S.STARTING, _E.EMPTY): (_S.COMPLETING, COMPLETE),
    (_S.STARTING, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.STARTING, _E.EXECUTION_TIMEOUT): (_S.FAILING, EXECUTION_TIMEOUT),
    (_S.RUNNING, _E.EMPTY): (_S.COMPLETING, COMPLETE),
    (_S.RUNNING, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.RUNNING, _E.EXECUTION_TIMEOUT): (_S.FAILING, EXECUTION_TIMEOUT),
    (_S.RESUMING, _E.PLACEHOLDERS_GONE): (_S.ACCEPTED, RUN),
    (_S.RESUMING, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.COMPLETING, _E.ASKED): (_S.RUNNING, RUN),
    (_S.COMPLETING, _E.RECOVERED): (_S.RUNNING, RUN),
    (_S.COMPLETING, _E.COMPLETING_OVER): (_S.COMPLETED, COMPLETE),
    (_S.COMPLETING, _E.REMOVED): (_S.COMPLETED, COMPLETE),
    (_S.FAILING, _E.ALLOCATIONS_GONE): (_S.FAILED, FAIL),
}  # fmt: skip
"""(state, event) -> next state and the message that tells of it. An event that is not listed moves nothing."""

OVER: Final = frozenset((_S.COMPLETED, _S.FAILED))
"""States that nothing leaves: the id is free."""


class StateChanged(NamedTuple):
    """Send an UpdatedApplication. In a state of OVER the application is to be forgotten."""

    state: ApplicationState
    message: str
    t_ns: int


class AsksTimedOut(NamedTuple):
    """All pending asks, or only the placeholders among them, leave the queue and are sent as `releasedAsks` TIMEOUT.

    They are counted out already: no call for them.
    """

    only_placeholders: bool
    message: str


class AllocationsTimedOut(NamedTuple):
    """All real allocations with no demand of ours yet: `released` TIMEOUT, each held until confirmed."""

    message: str


Consequence: TypeAlias = StateChanged | AsksTimedOut | AllocationsTimedOut | GangConsequence

NOTHING: Final[Sequence[Consequence]] = ()


_MOVED_BY_ASKS: Final = frozenset((_S.NEW, _S.COMPLETING))
_MOVED_BY_ALLOCATIONS: Final = frozenset((_S.ACCEPTED, _S.STARTING))
_TIMED: Final = frozenset((_S.STARTING, _S.RUNNING))


def to_ns(t_s: float) -> int:
    """Unix time as messages have it."""
    return round(t_s * 1e9)


class ApplicationProgress:
    """`pending` and `allocations` count repeats and holdings, those of real asks and placeholders together.

    `execution_timeout_s` of 0 or less is none.
    """

    __slots__ = (
        "_has_replaced", "_is_gang", "_is_hard", "_is_started_at_once", "_placeholder_ask", "_run_ends_s",
        "_state_ends_s", "_timeout_s", "allocations", "gang", "pending", "state", "t_ns",
    )  # fmt: skip

    def __init__(
        self, now_s: float, *, execution_timeout_s: float = 0.0, placeholder_ask: Amounts = (), is_hard: bool = False,
        is_stateaware_disabled: bool = False,
    ) -> None:  # fmt: skip
        self.state = ApplicationState.NEW
        self.t_ns = to_ns(now_s)
        self.pending = 0
        self.allocations = 0
        self.gang = Gang()
        self._is_gang = bool(placeholder_ask)
        self._placeholder_ask = placeholder_ask
        self._timeout_s = max(0.0, execution_timeout_s)
        self._is_hard = is_hard
        self._is_started_at_once = is_stateaware_disabled
        self._has_replaced = False
        self._state_ends_s: float | None = None
        self._run_ends_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the application has ended: its id is free."""
        return self.state in OVER

    @property
    def next_wake_s(self) -> float | None:
        """Return the time at which `wake` is to be called, None for never."""
        times = (self._state_ends_s, self._run_ends_s if self.state in _TIMED else None, self.gang.deadline_s)
        return min([at_s for at_s in times if at_s is not None], default=None)

    # ---- real asks and allocations

    def asked(self, repeats: int, now_s: float) -> Sequence[Consequence]:
        """Add so many repeats of a real ask without a task group to the pending ones."""
        self.pending += repeats
        return self._event(_E.ASKED, now_s) if self.state in _MOVED_BY_ASKS else NOTHING

    def unasked(self, repeats: int, now_s: float) -> Sequence[Consequence]:
        """Remove so many repeats from the pending ones: the ask has been released.

        If an ask replaces another, report the new one first.
        """
        self.pending -= repeats
        return self._if_nothing_left(now_s)

    def allocated(self, now_s: float) -> Sequence[Consequence]:
        """One pending repeat of a real ask has been allocated, not in the place of a placeholder."""
        self.pending -= 1
        self.allocations += 1
        return self._event(_E.ALLOCATED, now_s) if self.state in _MOVED_BY_ALLOCATIONS else NOTHING

    def recovered(self, since_s: float, now_s: float) -> Sequence[Consequence]:
        """Record that the resource manager reported a real allocation, which it has had since `since_s`."""
        self.allocations += 1
        return [*self._event(_E.RECOVERED, now_s), *self._event(_E.ALLOCATED, now_s, since_s)]

    def released(self, now_s: float) -> Sequence[Consequence]:
        """Record that a real allocation has gone: stopped, its node gone, or a demand of ours confirmed."""
        self.allocations -= 1
        return NOTHING if self.allocations else self._if_nothing_left(now_s)

    # ---- gangs

    def gang_asked(self, ask: GangAsk, repeats: int, now_s: float) -> Sequence[Consequence]:
        """Add so many repeats of a real ask of a task group to the pending ones: `WaitsAsAny` says which may be
        queued.
        """
        self.pending += repeats
        moved = self._event(_E.ASKED, now_s)
        self.gang.wait(ask, repeats)
        return [*moved, *self._counted(self.gang.match_ask(ask.key))]

    def gang_returned(self, ask: GangAsk, repeats: int) -> Sequence[Consequence]:
        """Take back so many repeats that waited as any in the queue, for a placeholder may be allocated for them."""
        self.gang.wait(ask, repeats)
        return self._counted(self.gang.match_ask(ask.key))

    def gang_unasked(self, key: str, queued: int, now_s: float) -> Sequence[Consequence]:
        """Record that a real ask of a task group has been released, `queued` repeats of which waited as any."""
        self.pending -= queued + self.gang.forget(key)
        return self._if_nothing_left(now_s)

    def placeholder_asked(
        self, key: str, task_group: str, amounts: Amounts, repeats: int, now_s: float
    ) -> Sequence[Consequence]:
        """Set the number of pending repeats of a placeholder ask, 0 when it has been released."""
        self.pending += self.gang.placeholder_asked(key, task_group, amounts, repeats)
        if repeats:
            self._is_gang = True
            return self._event(_E.ASKED, now_s)
        return [*self._counted(self.gang.match(task_group)), *self._after_placeholder(now_s)]

    def placeholder_allocated(self, placeholder: Placeholder, since_s: float, now_s: float) -> Sequence[Consequence]:
        """One pending repeat of a placeholder ask has been allocated; the timeout counts from `since_s`."""
        self.pending -= 1
        told = self._counted(self.gang.placeholder_allocated(placeholder))
        return [*self._placeholder_held(since_s, now_s), *told]

    def placeholder_recovered(self, placeholder: Placeholder, since_s: float, now_s: float) -> Sequence[Consequence]:
        """Record that the resource manager reported a placeholder, which it has had since `since_s`."""
        self._is_gang = True
        self.gang.add(placeholder)
        told = self._counted(self.gang.match(placeholder.task_group))
        return [*self._event(_E.RECOVERED, now_s), *self._placeholder_held(since_s, now_s), *told]

    def placeholder_confirmed(self, uuid: str, now_s: float) -> tuple[str | None, Sequence[Consequence]]:
        """Record that a PLACEHOLDER_REPLACED has been confirmed.

        With a key, the real ask of that key takes over the holding, and its `new` goes before what follows; with None
        the holding is to be freed, for the ask has gone since.
        """
        key = self.gang.replaced(uuid)
        if key is None:
            self.allocations -= 1
            return None, self._after_placeholder(now_s)
        moved = self._event(_E.ALLOCATED, now_s) if self._has_replaced else NOTHING
        self._has_replaced = True
        return key, [*moved, *self._after_placeholder(now_s)]

    def placeholder_gone(self, uuid: str, now_s: float) -> Sequence[Consequence]:
        """Record that a placeholder has ended otherwise: stopped, its node gone, a TIMEOUT or preemption confirmed."""
        self.allocations -= 1
        told = self._counted(self.gang.gone(uuid))
        return [*told, *self._after_placeholder(now_s)]

    # ---- the application itself

    def removed(self, now_s: float) -> Sequence[Consequence]:
        """Record that the resource manager removes it. Its asks and allocations go with it, without a call for each."""
        self.pending = self.allocations = 0
        self.gang = Gang()
        return [*self._event(_E.REMOVED, now_s), *self._event(_E.ALLOCATIONS_GONE, now_s)]

    def wake(self, now_s: float) -> Sequence[Consequence]:
        """Return the consequences of the time that has passed."""
        told: list[Consequence] = []
        if self._state_ends_s is not None and self._state_ends_s <= now_s:
            told += self._event(_E.STARTING_OVER, now_s) or self._event(_E.COMPLETING_OVER, now_s)
        if self.state in _TIMED and self._run_ends_s is not None and self._run_ends_s <= now_s:
            told += self._fail(_E.EXECUTION_TIMEOUT, now_s)
        if self.gang.deadline_s is not None and self.gang.deadline_s <= now_s:
            told += self._placeholder_timeout(now_s)
        return told

    def _counted(self, told: list[GangConsequence]) -> list[GangConsequence]:
        """Record that a repeat that takes a place is pending no more, until that has gone."""
        for each in told:
            if isinstance(each, PlaceholderReplaced):
                self.pending -= 1
            elif isinstance(each, PendingAgain):
                self.pending += 1
        return told

    def _placeholder_held(self, since_s: float, now_s: float) -> Sequence[Consequence]:
        self.allocations += 1
        if self.gang.deadline_s is None:
            self.gang.deadline_s = since_s + (self._timeout_s or PLACEHOLDER_TIMEOUT_S)
        if self._placeholder_ask and self.gang.has_reserved(self._placeholder_ask):
            return self._event(_E.RESERVED, now_s)
        return NOTHING

    def _placeholder_timeout(self, now_s: float) -> list[Consequence]:
        if self.state is _S.ACCEPTED and self._is_hard:
            return self._fail(_E.HARD_TIMEOUT, now_s)
        moved = self._event(_E.SOFT_TIMEOUT, now_s)
        pending, ended = self.gang.time_out(RESERVATION_TIMEOUT)
        self.pending -= pending
        asks = [AsksTimedOut(True, RESERVATION_TIMEOUT)] if pending else NOTHING
        return [*moved, *asks, *self._counted(ended), *self._after_placeholder(now_s)]

    def _fail(self, event: ApplicationEvent, now_s: float) -> list[Consequence]:
        """All that is pending goes, all that is held is asked back."""
        moved = self._event(event, now_s)
        message = EXECUTION_TIMEOUT if event is _E.EXECUTION_TIMEOUT else RESERVATION_TIMEOUT
        self.gang.forget_all()
        _, ended = self.gang.time_out(message)
        asks = [AsksTimedOut(False, message)] if self.pending else NOTHING
        self.pending = 0
        return [*moved, *asks, *ended, AllocationsTimedOut(message), *self._if_nothing_left(now_s)]

    def _after_placeholder(self, now_s: float) -> Sequence[Consequence]:
        """Let a soft gang go on as any application once what it held has gone, even with nothing to do at first."""
        if self.state is not _S.RESUMING:
            return self._if_nothing_left(now_s)
        if self.gang.is_held:
            return NOTHING
        accepted = self._event(_E.PLACEHOLDERS_GONE, now_s)
        return [*accepted, *self._event(_E.ALLOCATED, now_s)] if self.allocations else accepted

    def _if_nothing_left(self, now_s: float) -> Sequence[Consequence]:
        if self.allocations:
            return NOTHING
        if self.state is _S.FAILING:
            return self._event(_E.ALLOCATIONS_GONE, now_s)
        return NOTHING if self.pending else self._event(_E.EMPTY, now_s)

    def _event(self, event: ApplicationEvent, now_s: float, since_s: float | None = None) -> Sequence[Consequence]:
        found = APPLICATION_STATES.get((self.state, event))
        if found is None:
            return NOTHING
        self.state, message = found
        self.t_ns = to_ns(now_s)
        self._state_ends_s = None
        told = [StateChanged(self.state, message, self.t_ns)]
        if self.state is _S.COMPLETING:
            self._state_ends_s = now_s + COMPLETING_S
        elif self.state is _S.STARTING:
            self._state_ends_s = now_s + STARTING_S
            if self._timeout_s and not self._is_gang and self._run_ends_s is None:
                self._run_ends_s = (now_s if since_s is None else since_s) + self._timeout_s
            if self._is_started_at_once:
                return [*told, *self._event(_E.STARTING_OVER, now_s)]
        return told
