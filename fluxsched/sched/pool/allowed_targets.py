"""Targets that a request may use: the classes that its constraint and plugins allow, and its need on each target.

Law: nothing here depends on what is free, so it is worked out once in a generation of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts, times, total
from fluxsched.sched.pool.amounts import AskedAmounts
from fluxsched.sched.pool.bitset import WORD_SHIFT, Bits
from fluxsched.sched.pool.placement import NO_TARGET, Blocks, Shape
from fluxsched.sched.pool.target_class import FreeIndex, TargetClass


class Candidates(NamedTuple):
    """The members of one target class that a constraint allows: `size` of them; `only` is None if those are all.

    Those with a higher `score` are selected first, whatever the placement.
    """

    targets: TargetClass
    size: int
    only: Bits | None
    score: int = 0


Choice: TypeAlias = tuple[Candidates, ...]
"""Targets that a constraint allows, one entry a target class."""


class Narrowed:
    """Choice of a shape as restricted by plugins: `now`, and `ever`, by which its feasibility is judged.

    `ranks` is the mask of those left now. `later` and `never` say why the others are not, empty if there are none.
    Targets without cores are in no choice: of them `ranks` are left now and `ever_ranks` ever, in the order of
    `scores`, pairs of a mask and the score of its targets.
    """

    __slots__ = ("ever", "ever_ranks", "later", "never", "now", "ranks", "scores")

    def __init__(
        self,
        now: Choice,
        ever: Choice,
        ranks: int,
        later: str,
        never: str,
        ever_ranks: int | None = None,
        scores: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.now = now
        self.ever = ever
        self.ranks = ranks
        self.ever_ranks = ranks if ever_ranks is None else ever_ranks
        self.scores = scores
        self.later = later
        self.never = never

    @property
    def tiers(self) -> list[int]:
        """The ranks that are left now, the highest score first."""
        if not self.scores:
            return [self.ranks]
        by_score = sorted(self.scores, key=itemgetter(1), reverse=True)
        return [mask & self.ranks for mask, _ in by_score if mask & self.ranks]

    def allows(self, blocks: Blocks) -> bool:
        """Return whether all the targets of these blocks are left now."""
        left = self.ranks
        return all(at == NO_TARGET or not word & ~(left >> (at << WORD_SHIFT)) for at, word, *_ in blocks)


def restricted(choice: Choice, mask: int, scores: Sequence[tuple[int, int]] = ()) -> Choice:
    """Return the part of a choice in the mask; `scores` are pairs of a mask and the new score of its targets."""
    found = []
    for targets, size, only, own in choice:
        allowed = mask if only is None else mask & only.mask()
        for some, score in scores or ((mask, own),):
            bits = Bits.of(allowed & some)
            count = targets.members.count_common(bits)
            if count:
                found.append(Candidates(targets, count, None if count == size and only is None else bits, score))
    return tuple(found)


class Need(NamedTuple):
    """Amounts that must be free on one target; `exclusive` asks for the whole target, which must have at least these.
    """

    cores: int
    gpus: int
    amounts: Amounts
    exclusive: bool

    def on(self, targets: TargetClass) -> tuple[int, int]:
        """Free cores and GPUs that a target of this class must have."""
        if not self.exclusive:
            return self.cores, self.gpus
        return max(targets.cores, self.cores), max(targets.gpus, self.gpus)

    def amounts_on(self, targets: TargetClass) -> Amounts:
        """Return the amounts of countables that a job gets of a target of this class."""
        return targets.amounts if self.exclusive else self.amounts

    def fits_ever(self, targets: TargetClass) -> bool:
        """Return whether an idle target of this class has these amounts."""
        if self.cores > targets.cores or self.gpus > targets.gpus:
            return False
        there = targets.countables
        return all(kind in there and amount <= there[kind].total for kind, amount in self.amounts)


class PartChoice(NamedTuple):
    """Need of a part of a request on each of its targets, and the classes where an idle target has that."""

    need: Need
    able: Choice


def need_of(request: Request, slots: int) -> Need:
    """Return the need of this number of slots on one target."""
    amounts = request.amounts
    if amounts or request.node_amounts:
        amounts = total(times(amounts, slots), request.node_amounts)
    return Need(slots * request.cores, slots * request.gpus, amounts, request.exclusive)


class Remaining:
    """Choice of a shape without the targets that an outage keeps; `base` is the choice that plugins left it before."""

    __slots__ = ("base", "narrowed", "prepared")

    def __init__(self, base: Narrowed | None, narrowed: Narrowed) -> None:
        self.base = base
        self.narrowed = narrowed
        self.prepared: Prepared | None = None


def slots_on(request: Request, cores: int, gpus: int, amounts: Amounts = ()) -> int:
    """Return the number of slots that fit in these free ids and amounts of one target; a slot of a jobspec has at least
    one core (RFC 25).
    """
    slots = cores // request.cores if request.cores else 0
    if request.gpus:
        slots = min(slots, gpus // request.gpus)
    if request.amounts:
        there = dict(amounts)
        slots = min([slots, *[there.get(kind, 0) // amount for kind, amount in request.amounts]])
    return slots


def slots_of_idle(request: Request, targets: TargetClass) -> int:
    """Return the number of slots that an idle target of this class can hold."""
    return slots_on(request, targets.cores, targets.gpus, targets.amounts)


def most_slots(choice: Choice, request: Request) -> int:
    """Return the most slots that a node of the choice could ever hold; bounds the slots a node that are tried."""
    if request.slots.is_fixed:
        return request.slots.min
    return max([slots_of_idle(request, each.targets) for each in choice], default=0)


class Prepared:
    """A shape and its choice, with all that can be worked out before anything is placed.

    `free_index` is set if the shape asks for one target and its choice is one whole target class: then `best` and
    `worst` are the masks of the levels that have enough free, `cores` and `gpus` must be free on the target, and
    `first_cores` and `first_gpus` are the ids that the job gets of an idle one. `whole` is set if the shape asks for
    `wanted` whole targets of one target class: then any idle ones fit, whatever the placement. `asked` is set if the
    shape asks for amounts without cores, `parts` if it asks for several parts: what each may choose from.
    """

    __slots__ = (
        "asked", "best", "choice", "cores", "first_cores", "first_gpus", "free_index", "gpus", "nslots",
        "parts", "shape", "wanted", "whole", "worst",
    )  # fmt: skip

    def __init__(self, shape: Shape, choice: Choice) -> None:
        self.shape = shape
        self.choice = choice
        self.free_index: FreeIndex | None = None
        self.best = self.worst = 0
        self.cores = self.gpus = 0
        self.first_cores = self.first_gpus = 0
        self.whole: TargetClass | None = None
        self.wanted = 0
        self.nslots = 0
        self.asked: AskedAmounts | None = None
        self.parts: tuple[PartChoice, ...] = ()
