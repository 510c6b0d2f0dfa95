"""The gang of one application: placeholders, the real asks that wait for them, and the replacements under way.

Law: each placeholder ends exactly once, replaced, timed out or released, and one real ask takes its place at most. The
machine books; this only decides which ask takes which placeholder, and tells when an ask has to wait as any other.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts, less

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
        """The resource manager has confirmed: the key of the ask that takes the place, None if it has gone since."""
        self._remove(uuid)
        ask = self._replacing.pop(uuid, None)
        return None if ask is None else ask.key

    def gone(self, uuid: str) -> list[GangConsequence]:
        """The placeholder has ended otherwise; the ask that was to replace it waits for another."""
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
        """The real ask has been released: how many repeats waited here. What it was to replace is then only freed."""
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
