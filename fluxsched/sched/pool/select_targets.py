"""Selection of targets: which ones a request may use, its need on each, and, for many, the first that fit, in order.

Laws: what a request may use, the classes that its constraint and plugins allow, does not depend on what is free, so it
is worked out once in a generation of the pool. Nothing is changed here. Targets come in batches, each of one word and
with equally much free, so a batch is taken whole, or its lowest ranks are. The orders of several target classes are
merged in the order of the request's placement; ties go to the lowest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts, times, total
from fluxsched.sched.pool.amounts import AskedAmounts
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    LEAST_LOST,
    LOW_BITS,
    NO_TARGET,
    WORD_SHIFT,
    WORST_FIT,
    Bits,
    Block,
    Blocks,
    Shape,
    ids_of,
    lowest,
    on_targets,
)
from fluxsched.sched.pool.target_class import FreeIndex, FreeLevel, TargetClass


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
    """Amounts that must be free on one target; `exclusive` asks for the whole target, which must have at least
    these.
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


# ---- batches of targets

LOSS_STEP: Final = 1 << 2048
"""Factor between remainders by weight; each remainder is less than the largest double in the least of units."""

SCORE_STEP: Final = 1 << 32
"""Distance between two scores: more than any number of cores or GPUs of a target."""


class Batch(NamedTuple):
    """The targets of a word that are on one level: `first`, `second` and `at` say where they come in the order."""

    first: int
    second: int
    at: int
    class_number: int
    level: FreeLevel
    word: int
    targets: TargetClass


_order = itemgetter(0, 1, 2)
_order_and_class = itemgetter(0, 1, 2, 3)


class Preferred:
    """Targets, and ids on them, that are selected before all others: `words` has the targets."""

    __slots__ = ("_blocks", "words")

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self._blocks: dict[int, list[tuple[int, int, int, int]]] = {}

    def add(self, blocks: Blocks) -> None:
        for at, word, cores, gpus, _ in on_targets(blocks):
            before = self.words.get(at, 0)
            self.words[at] = before | word
            self._blocks.setdefault(at, []).append((word, cores, gpus, before))

    def undo(self, blocks: Blocks) -> None:
        """Undoes the last `add`, which was of these blocks."""
        for block in reversed(on_targets(blocks)):
            _, _, _, self.words[block.at] = self._blocks[block.at].pop()

    def ids(self, rank: int) -> tuple[int, int]:
        """Return the preferred cores and GPUs of a target."""
        cores = gpus = 0
        for word, some_cores, some_gpus, _ in self._blocks[rank >> WORD_SHIFT]:
            if word >> (rank & LOW_BITS) & 1:
                cores |= some_cores
                gpus |= some_gpus
        return cores, gpus


# ---- batches in the order of a placement


def _batches_by_level(number: int, candidates: Candidates, need: Need, placement: str) -> Iterator[Batch]:
    """Yield batches for best-fit and worst-fit: level by level."""
    targets, _, only, score = candidates
    countables = [(targets.countables[kind], amount) for kind, amount in need.amounts_on(targets)]
    for level in targets.index.in_use(*need.on(targets), placement):
        cores, gpus = level.cores, level.gpus
        first, second = (gpus, cores) if placement == BEST_FIT else (-cores, gpus)
        first -= score * SCORE_STEP
        for at, word in level.filled() if only is None else level.filled(only.top):
            if only is not None:
                word &= only.words[at]
            for countable, amount in countables:
                word = countable.enough(at, word, amount)
            if word:
                yield Batch(first, second, at, number, level, word, targets)


def _batches_by_rank(number: int, candidates: Candidates, need: Need) -> Iterator[Batch]:
    """Yield batches for first-fit: word by word, in each of them level by level."""
    targets, _, only, score = candidates
    countables = [(targets.countables[kind], amount) for kind, amount in need.amounts_on(targets)]
    levels = targets.index.in_use(*need.on(targets), BEST_FIT)
    top = 0
    for level in levels:
        top |= level.top
    for at in ids_of(top if only is None else top & only.top):
        for level in levels:
            word = level.words.get(at, 0) if only is None else level.words.get(at, 0) & only.words[at]
            for countable, amount in countables:
                word = countable.enough(at, word, amount)
            if word:
                yield Batch(-score * SCORE_STEP, 0, at, number, level, word, targets)


class SlotsWanted(NamedTuple):
    """Number of slots of a request to be placed, on any targets."""

    request: Request
    n: int


def _batches_by_loss(number: int, candidates: Candidates, need: Need, slots: SlotsWanted | None) -> Iterator[Batch]:
    """Yield batches for least-lost: levels in the order of what would remain free on their targets.

    Where countables count, targets of which some are taken are examined one by one: linear in those that fit.
    """
    targets, _, only, score = candidates
    by_target = targets.weighs_amounts or bool(slots is not None and slots.request.amounts)
    countables = [(targets.countables[kind], amount) for kind, amount in need.amounts_on(targets)]
    by_loss: dict[int, list[Batch]] = {}
    levels: dict[int, list[FreeLevel]] = {}
    taken = targets.lost.of(need.cores, need.gpus, need.amounts)
    for level in targets.index.in_use(*need.on(targets), BEST_FIT):
        levels.setdefault(_loss(targets, level, targets.amounts, taken, slots), []).append(level)
    for usual in sorted(levels):
        for level in levels[usual]:
            for at, word in level.filled() if only is None else level.filled(only.top):
                if only is not None:
                    word &= only.words[at]
                for countable, amount in countables:
                    word = countable.enough(at, word, amount)
                for id in ids_of(word & _taken_at(targets, at)) if by_target else ():
                    loss = _loss(targets, level, targets.free_amounts(at << WORD_SHIFT | id), taken, slots)
                    first = loss - score * LOSS_STEP
                    by_loss.setdefault(first, []).append(Batch(first, 0, at, number, level, 1 << id, targets))
                    word ^= 1 << id
                if word:
                    first = usual - score * LOSS_STEP
                    by_loss.setdefault(first, []).append(Batch(first, 0, at, number, level, word, targets))
        if not by_target:
            yield from sorted(by_loss.pop(usual - score * LOSS_STEP, ()), key=_order)
    for first in sorted(by_loss):
        yield from sorted(by_loss[first], key=_order)


def _taken_at(targets: TargetClass, at: int) -> int:
    """Return the targets of a word on which some of a countable is taken."""
    found = 0
    for countable in targets.countables.values():
        found |= countable.taken_at(at)
    return found


def _loss(targets: TargetClass, level: FreeLevel, amounts: Amounts, taken: int, slots: SlotsWanted | None) -> int:
    """Return the weight of what remains free on a target beyond the request; `taken` is the weight of a node, or
    slot.
    """
    if slots is not None:
        taken *= min(slots.n, slots_on(slots.request, level.cores, level.gpus, amounts))
    return targets.lost.of(level.cores, level.gpus, amounts) - taken


def _batches(choice: Choice, need: Need, placement: str, slots: SlotsWanted | None = None) -> Iterable[Batch]:
    """Return all targets that fit, in order; `slots` if the need is that of a slot, and a target may get several."""
    able = [(number, each) for number, each in enumerate(choice) if need.fits_ever(each.targets)]
    if placement in (BEST_FIT, WORST_FIT):
        streams = [_batches_by_level(number, each, need, placement) for number, each in able]
    elif placement == LEAST_LOST:
        streams = [_batches_by_loss(number, each, need, slots) for number, each in able]
    else:
        streams = [_batches_by_rank(number, each, need) for number, each in able]
    return streams[0] if len(streams) == 1 else merge(*streams, key=_order_and_class)


def _ties(
    choice: Choice, need: Need, placement: str, preferred: Preferred | None, slots: SlotsWanted | None = None
) -> Iterator[list[Batch]]:
    """Yield lists of batches at the same place in the order; with `preferred`, first those targets, then the others."""
    if preferred is None:
        for _, tie in groupby(_batches(choice, need, placement, slots), _order):
            yield list(tie)
        return
    for early in (True, False):
        for _, tie in groupby(_batches(choice, need, placement, slots), _order):
            kept = []
            for batch in tie:
                some = batch.word & preferred.words.get(batch.at, 0)
                if word := some if early else batch.word ^ some:
                    kept.append(batch._replace(word=word))
            if kept:
                yield kept


# ---- selecting


def select_nodes(choice: Choice, need: Need, n: int, placement: str, preferred: Preferred | None) -> list[Block] | None:
    """Return the first `n` targets that fit, each with the same need; None if there are fewer."""
    blocks: list[Block] = []
    for tie in _ties(choice, need, placement, preferred):
        union = 0
        for batch in tie:
            union |= batch.word
        if union.bit_count() > n:
            union = lowest(union, n)
        for batch in tie:
            if mine := batch.word & union:
                emit(blocks, batch.targets, batch.at, mine, need, preferred)
        n -= union.bit_count()
        if not n:
            return blocks
    return None


def select_slots(
    choice: Choice, request: Request, n: int, placement: str, preferred: Preferred | None
) -> list[Block] | None:
    """Targets that hold `n` slots in all, each as many as fit on it; None if there are fewer."""
    blocks: list[Block] = []
    for tie in _ties(choice, need_of(request, 1), placement, preferred, SlotsWanted(request, n)):
        for batch in tie if len(tie) == 1 and not request.amounts else _one_by_one(tie):
            targets, at, word = batch.targets, batch.at, batch.word
            each = slots_on(request, batch.level.cores, batch.level.gpus, _left(request, batch))
            whole = n // each
            count = word.bit_count()
            if count > whole:
                full = lowest(word, whole)
                rest = (word ^ full) & -(word ^ full) if n % each else 0
            else:
                full, rest = word, 0
            if full:
                emit(blocks, targets, at, full, need_of(request, each), preferred)
            if rest:
                emit(blocks, targets, at, rest, need_of(request, n % each), preferred)
            n -= n if count > whole else count * each
            if not n:
                return blocks
    return None


def _left(request: Request, batch: Batch) -> Amounts:
    """Return the amounts of countables left on a batch of one target, if the request asks for any."""
    return batch.targets.free_amounts(batch.at << WORD_SHIFT | batch.word.bit_length() - 1) if request.amounts else ()


def _one_by_one(tie: list[Batch]) -> list[Batch]:
    """Batches of one word target by target, ascending."""
    singles = [batch._replace(word=1 << id) for batch in tie for id in ids_of(batch.word)]
    return sorted(singles, key=itemgetter(5))


def emit(
    blocks: list[Block], targets: TargetClass, at: int, word: int, need: Need, preferred: Preferred | None
) -> None:
    """Append the blocks that the need gets on these targets: the lowest ids, preferred ones first."""
    amounts = need.amounts_on(targets)
    cores, gpus = need.on(targets)
    some = 0
    if preferred is not None and (cores, gpus) != (targets.cores, targets.gpus):
        some = word & preferred.words.get(at, 0)
    idle = word & targets.idle.words.get(at, 0) & ~some
    if idle:
        mine = lowest(targets.all_cores, cores), lowest(targets.all_gpus, gpus)
        blocks.append(Block(at, idle, *mine, amounts))
    same, alike = (0, 0), 0
    for id in ids_of(word ^ idle):
        rank = at << WORD_SHIFT | id
        free_cores, free_gpus = targets.free_ids(rank)
        if some >> id & 1:
            assert preferred is not None
            early_cores, early_gpus = preferred.ids(rank)
            mine = _chosen(free_cores, cores, early_cores), _chosen(free_gpus, gpus, early_gpus)
        else:
            mine = lowest(free_cores, cores), lowest(free_gpus, gpus)
        if alike and mine != same:
            blocks.append(Block(at, alike, *same, amounts))
            alike = 0
        same, alike = mine, alike | 1 << id
    if alike:  # one block of all in a row that give the same ids: a block a target was most of a large job's memory
        blocks.append(Block(at, alike, *same, amounts))


def _chosen(free: int, n: int, first: int) -> int:
    """Return the `n` lowest free ids, those in `first` before the others."""
    early = free & first
    more = n - early.bit_count()
    return early | lowest(free ^ early, more) if more > 0 else lowest(early, n)


# ---- counting


def count_nodes(choice: Choice, need: Need) -> int:
    """Return the number of targets that fit now."""
    if any(need.amounts_on(targets) for targets, _, _, _ in choice):
        return sum([batch.word.bit_count() for batch in _batches(choice, need, BEST_FIT)])
    found = 0
    for targets, _, only, _ in choice:
        for level in targets.index.in_use(*need.on(targets), BEST_FIT):
            found += level.count if only is None else level.count_common(only)
    return found


def count_slots(choice: Choice, request: Request) -> int:
    """Return the number of slots that fit now."""
    found, need = 0, need_of(request, 1)
    if request.amounts:
        for batch in _one_by_one(list(_batches(choice, need, BEST_FIT))):
            found += slots_on(request, batch.level.cores, batch.level.gpus, _left(request, batch))
        return found
    for targets, _, only, _ in choice:
        for level in targets.index.in_use(*need.on(targets), BEST_FIT):
            some = level.count if only is None else level.count_common(only)
            found += slots_on(request, level.cores, level.gpus) * some
    return found
