"""Choices of a request: the target classes that its constraint allows, and what it needs of a target.

Law: nothing here depends on what is free, so it is worked out once in a generation of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts, times, total
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.amounts import AmountTarget, AmountTargets, find_lowest, find_target
from fluxsched.sched.pool.placement import FAIR, FIRST_FIT, NO_TARGET, WORD_SHIFT, WORST_FIT, Bits, Blocks, Shape
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
    """The most slots that a node of the choice could ever hold; bounds the slots a node that are tried."""
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


# ---- asked

DESCENDING: Final = (FAIR, WORST_FIT)
"""Placements that try the largest free share first."""


class AskedAmounts:
    """Request of amounts and its targets, as of a generation of the pool.

    `allowed` are the targets that its constraint allows, up or down, None for all. `tiers` are the targets that plugins
    leave of them now (no tiers: all), each before the next, and `ever` those that they leave at any time (None: all);
    both are masks.
    """

    __slots__ = ("_among", "_levels", "_narrowed", "_targets", "_tiers", "allowed", "need", "request")

    def __init__(self, targets: AmountTargets, request: Request, tiers: Sequence[int], ever: int | None) -> None:
        self.request = request
        self.need = total(request.amounts, request.node_amounts) if request.node_amounts else request.amounts
        allowed = targets.allowed(request.constraint)
        self._targets = targets
        self._levels = -1 << targets.least_level(self.need)
        self._tiers = [_common(allowed, mask) for mask in tiers] if ever is not None else [allowed]
        self.allowed = allowed if ever is None else _common(allowed, ever)
        self._among: Idset | None = None
        self._narrowed: list[Bits] = []  # to the last `among`, since a pass asks for the same one again and again

    def find(self, placement: str, among: Idset | None) -> AmountTarget | None:
        """The target where it fits now, or None."""
        if among is None:
            if len(self._tiers) == 1:
                return self._find(placement, self._tiers[0])
            tiers = self._tiers
        else:
            if self._among is not among:
                self._among, self._narrowed = among, [_common(tier, among.mask) for tier in self._tiers]
            tiers = [*self._narrowed]
        for tier in tiers:
            target = self._find(placement, tier)
            if target is not None:
                return target
        return None

    def _find(self, placement: str, only: Bits | None) -> AmountTarget | None:
        if placement == FIRST_FIT:
            return find_lowest(self._targets, self.need, only)
        return find_target(self._targets, self.need, self._levels, placement in DESCENDING, only)

    def find_on(self, rank: int) -> AmountTarget | None:
        """Return a named target, withheld or not, if the request fits on it now; else None."""
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or not any(tier is None or rank in tier for tier in self._tiers):
            return None
        return target if target.holds(self.need) else None

    def lacking_on(self, rank: int, withheld: bool) -> dict[str, int] | None:
        """Return the amount of each kind that would have to be freed on a target; empty if the request fits there.

        None if the target is down, not allowed, or too small even if idle; or withheld, unless `withheld` targets
        count.
        """
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or (target.withheld and not withheld):
            return None
        if not any(tier is None or rank in tier for tier in self._tiers):
            return None
        there, free = dict(target.offered()), target.free
        lacking = {}
        for kind, amount in self.need:
            if there.get(kind, 0) < amount:
                return None
            if free.get(kind, 0) < amount:
                lacking[kind] = amount - free.get(kind, 0)
        return lacking

    def could_ever(self) -> bool:
        """Return whether one of the targets could hold the request if it were idle and up."""
        return any(target.could_hold(self.need) for target in self._candidates())

    def _candidates(self) -> Iterator[AmountTarget]:
        """Yield the allowed targets that may have the amount of each kind, held or not."""
        targets = self._targets
        for rank in targets.all_kinds.ranks(self.need, targets.members if self.allowed is None else self.allowed):
            target = targets.by_rank.get(rank)
            if target is not None:
                yield target

    def largest(self) -> dict[str, int] | None:
        """The most that any of the targets has of each kind, None if there is no target; linear, for people."""
        found: dict[str, int] | None = None
        for rank in self.allowed or self._targets.members:
            target = self._targets.by_rank.get(rank)
            if target is not None:
                if found is None:
                    found = {}
                for kind, amount in target.capacity:
                    found[kind] = max(found.get(kind, 0), amount)
        return found

    def count(self) -> tuple[int, int, int]:
        """Return the numbers of targets that can hold it now, that could ever, and that could but are down; linear, for
        people.
        """
        now = ever = down = 0
        for target in self._candidates():
            if target.could_hold(self.need):
                ever += 1
                down += not target.up
                now += target.usable and target.holds(self.need)
        return now, ever, down


def is_single(request: Request) -> bool:
    """Return whether a request without cores is one slot on one node, as required."""
    one_node = request.nodes is None or request.nodes.min == 1
    return request.slots.min == 1 and one_node and not request.exclusive


def _common(bits: Bits | None, mask: int) -> Bits:
    return Bits.of(mask) if bits is None else bits.common(Bits.of(mask))
