"""What a request has to choose from: the target classes that its constraint allows, and what it needs of a target.

Law: nothing here depends on what is free, so it is worked out once in a generation of the pool.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts, times, total
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.bitset import Bits
from fluxsched.sched.pool.free_index import Rack
from fluxsched.sched.pool.target_class import Shelf


class Choice(NamedTuple):
    """A shelf that a constraint allows: `size` allowed members, `only` is None when that is all of them."""

    shelf: Shelf
    size: int
    only: Bits | None


Plan: TypeAlias = tuple[Choice, ...]
"""All that a constraint allows, one entry for each target class."""


class Need(NamedTuple):
    """What must be free on one target; `exclusive` asks for all that it has, and at least this."""

    cores: int
    gpus: int
    amounts: Amounts
    exclusive: bool

    def on(self, shelf: Shelf) -> tuple[int, int]:
        """Free cores and GPUs that a target of this shelf must have."""
        if not self.exclusive:
            return self.cores, self.gpus
        return max(shelf.cores, self.cores), max(shelf.gpus, self.gpus)

    def amounts_on(self, shelf: Shelf) -> Amounts:
        """What a job gets of the countables of a target of this shelf."""
        return shelf.amounts if self.exclusive else self.amounts

    def fits_ever(self, shelf: Shelf) -> bool:
        """Whether an idle target of this shelf has that much."""
        if self.cores > shelf.cores or self.gpus > shelf.gpus:
            return False
        return all(kind in shelf.stocks and amount <= shelf.stocks[kind].total for kind, amount in self.amounts)


def need_of(request: Request, slots: int) -> Need:
    """What so many slots on one target ask for."""
    amounts = request.amounts
    if amounts or request.node_amounts:
        amounts = total(times(amounts, slots), request.node_amounts)
    return Need(slots * request.cores, slots * request.gpus, amounts, request.exclusive)


def slots_on(request: Request, cores: int, gpus: int, amounts: Amounts = ()) -> int:
    """How many slots that much of one target can hold; a slot has at least one core (RFC 25)."""
    slots = cores // request.cores
    if request.gpus:
        slots = min(slots, gpus // request.gpus)
    if request.amounts:
        there = dict(amounts)
        slots = min([slots, *[there.get(kind, 0) // amount for kind, amount in request.amounts]])
    return slots


def slots_of_idle(request: Request, shelf: Shelf) -> int:
    """How many slots a target of this shelf can hold when all of it is free."""
    return slots_on(request, shelf.cores, shelf.gpus, shelf.amounts)


class Wish(NamedTuple):
    """A request and its plan. `alone` is its rack if it asks for one target and can stand on one whole shelf only.

    Then `best` and `worst` are masks of the buckets that will do, `need` is what must be free there, `first_cores` and
    `first_gpus` are the ids that it gets of an idle target. `whole` is its shelf if it asks for just `targets` of that
    shelf, each with all that it has: then any idle ones will do, in whatever placement.
    """

    request: Request
    plan: Plan
    alone: Rack | None = None
    best: int = 0
    worst: int = 0
    cores: int = 0
    gpus: int = 0
    nslots: int = 0
    first_cores: int = 0
    first_gpus: int = 0
    whole: Shelf | None = None
    targets: int = 0
