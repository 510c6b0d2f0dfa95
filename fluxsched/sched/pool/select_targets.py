"""Selection of the targets of a job of many: the first that fit, in the order of its placement; and their number.

Law: nothing is changed here. Targets come in batches, each of one word and with equally much free, so a batch is taken
whole, or its lowest ranks are. The orders of several target classes are merged; ties go to the lowest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts
from fluxsched.sched.pool.allowed_targets import Candidates, Choice, Need, need_of, slots_on
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, ids_of, lowest
from fluxsched.sched.pool.placement import BEST_FIT, LEAST_LOST, WORST_FIT, Block, Blocks, on_targets
from fluxsched.sched.pool.target_class import FreeLevel, TargetClass

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


# ---- in order

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
    """Return the weight of what remains free on a target beyond the request; `taken` is the weight of a node, or slot.
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
    for id in ids_of(word ^ idle):
        rank = at << WORD_SHIFT | id
        free_cores, free_gpus = targets.free_ids(rank)
        if some >> id & 1:
            assert preferred is not None
            early_cores, early_gpus = preferred.ids(rank)
            mine = _chosen(free_cores, cores, early_cores), _chosen(free_gpus, gpus, early_gpus)
        else:
            mine = lowest(free_cores, cores), lowest(free_gpus, gpus)
        blocks.append(Block(at, 1 << id, *mine, amounts))


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
