"""Picking many targets: words of them in the order of a placement, cut to what is wanted, and turned into blocks.

Law: nothing is changed here. Targets come in *piles*, all of one word and with equally much free, so a pile is taken
whole, or its lowest ranks are. Shelves that stand in one another's order are merged; ties go to the lowest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from fluxsched.core.amounts import Amounts
from fluxsched.core.jobspec import Request
from fluxsched.sched.pool.bitset import WORD_SHIFT, ids_of, lowest
from fluxsched.sched.pool.choice import Choice, Need, Plan, need_of, slots_on
from fluxsched.sched.pool.free_index import BEST_FIT, WORST_FIT, Bucket
from fluxsched.sched.pool.placement import Block
from fluxsched.sched.pool.target_class import Shelf

Order = tuple[int, int, int]
Pile = tuple[Order, int, Shelf, Bucket, int]
"""(where it comes: two sort keys and its word), number of its shelf, shelf, bucket, which of the word."""



class Given(Protocol):
    """What a trial gave back: chosen before all else."""

    words: dict[int, int]

    def ids(self, rank: int) -> tuple[int, int]:
        """The cores and GPUs that were given back on a target."""
        ...


# ---- in order


def _piles_of(number: int, choice: Choice, need: Need, placement: str) -> Iterator[Pile]:
    shelf, _, only = choice
    stocks = [(shelf.stocks[kind], amount) for kind, amount in need.amounts_on(shelf)]
    for bucket in shelf.rack.in_use(*need.on(shelf), placement):
        cores, gpus = bucket.cores, bucket.gpus
        first, second = (gpus, cores) if placement == BEST_FIT else (-cores, gpus)
        for at, word in bucket.filled() if only is None else bucket.filled(only.top):
            if only is not None:
                word &= only.words[at]
            for stock, amount in stocks:
                word = stock.enough(at, word, amount)
            if word:
                yield (first, second, at), number, shelf, bucket, word


def _piles_by_rank(number: int, choice: Choice, need: Need) -> Iterator[Pile]:
    """For first-fit: word by word, in each of them bucket by bucket."""
    shelf, _, only = choice
    stocks = [(shelf.stocks[kind], amount) for kind, amount in need.amounts_on(shelf)]
    buckets = shelf.rack.in_use(*need.on(shelf), BEST_FIT)
    top = 0
    for bucket in buckets:
        top |= bucket.top
    for at in ids_of(top if only is None else top & only.top):
        for bucket in buckets:
            word = bucket.words.get(at, 0) if only is None else bucket.words.get(at, 0) & only.words[at]
            for stock, amount in stocks:
                word = stock.enough(at, word, amount)
            if word:
                yield (0, 0, at), number, shelf, bucket, word


def piles(plan: Plan, need: Need, placement: str) -> Iterable[Pile]:
    """All targets that fit, in order."""
    able = [(number, choice) for number, choice in enumerate(plan) if need.fits_ever(choice.shelf)]
    if placement in (BEST_FIT, WORST_FIT):
        streams = [_piles_of(number, choice, need, placement) for number, choice in able]
    else:
        streams = [_piles_by_rank(number, choice, need) for number, choice in able]
    return streams[0] if len(streams) == 1 else merge(*streams, key=itemgetter(0, 1))


def _rows(plan: Plan, need: Need, placement: str, given: Given | None) -> Iterator[list[Pile]]:
    """Piles that stand at the same place in the order; with `given`, first what of them was given, then the rest."""
    for turn in (True, False) if given is not None else (None,):
        for _, row in groupby(piles(plan, need, placement), itemgetter(0)):
            if turn is None:
                yield list(row)
                continue
            assert given is not None
            kept = []
            for order, number, shelf, bucket, word in row:
                early = word & given.words.get(order[2], 0)
                if some := early if turn else word ^ early:
                    kept.append((order, number, shelf, bucket, some))
            if kept:
                yield kept


# ---- taking


def nodes_of(plan: Plan, need: Need, n: int, placement: str, given: Given | None) -> list[Block] | None:
    """The first `n` targets that fit, each with the same need; None if there are fewer."""
    blocks: list[Block] = []
    for row in _rows(plan, need, placement, given):
        union = 0
        for pile in row:
            union |= pile[4]
        if union.bit_count() > n:
            union = lowest(union, n)
        for order, _, shelf, _, word in row:
            if mine := word & union:
                _emit(blocks, shelf, order[2], mine, need, given)
        n -= union.bit_count()
        if not n:
            return blocks
    return None


def slots_of(plan: Plan, request: Request, n: int, placement: str, given: Given | None) -> list[Block] | None:
    """Targets that hold `n` slots in all, each as many as fit on it; None if there are fewer."""
    blocks: list[Block] = []
    for row in _rows(plan, need_of(request, 1), placement, given):
        for order, _, shelf, bucket, word in row if len(row) == 1 and not request.amounts else _one_by_one(row):
            each = slots_on(request, bucket.cores, bucket.gpus, _left(request, shelf, order[2], word))
            whole = n // each
            count = word.bit_count()
            if count > whole:
                full = lowest(word, whole)
                rest = (word ^ full) & -(word ^ full) if n % each else 0
            else:
                full, rest = word, 0
            if full:
                _emit(blocks, shelf, order[2], full, need_of(request, each), given)
            if rest:
                _emit(blocks, shelf, order[2], rest, need_of(request, n % each), given)
            n -= n if count > whole else count * each
            if not n:
                return blocks
    return None


def _left(request: Request, shelf: Shelf, at: int, word: int) -> Amounts:
    """What is left of the countables on a single target, if the request asks for any."""
    return shelf.free_amounts(at << WORD_SHIFT | word.bit_length() - 1) if request.amounts else ()


def _one_by_one(row: list[Pile]) -> list[Pile]:
    """Piles of one word target by target, ascending, where they do not have equally much free."""
    singles = [
        (order, number, shelf, bucket, 1 << id) for order, number, shelf, bucket, word in row for id in ids_of(word)
    ]
    return sorted(singles, key=itemgetter(4))


def _emit(blocks: list[Block], shelf: Shelf, at: int, word: int, need: Need, given: Given | None) -> None:
    """What the need gets on these targets: the lowest ids, those given first."""
    amounts = need.amounts_on(shelf)
    cores, gpus = need.on(shelf)
    some = word & given.words.get(at, 0) if given is not None and (cores, gpus) != (shelf.cores, shelf.gpus) else 0
    idle = word & shelf.idle.words.get(at, 0) & ~some
    if idle:
        blocks.append((at, idle, lowest(shelf.all_cores, cores), lowest(shelf.all_gpus, gpus), amounts))
    for id in ids_of(word ^ idle):
        rank = at << WORD_SHIFT | id
        free_cores, free_gpus = shelf.free_ids(rank)
        if some >> id & 1:
            assert given is not None
            early_cores, early_gpus = given.ids(rank)
            mine = _chosen(free_cores, cores, early_cores), _chosen(free_gpus, gpus, early_gpus)
        else:
            mine = lowest(free_cores, cores), lowest(free_gpus, gpus)
        blocks.append((at, 1 << id, *mine, amounts))


def _chosen(free: int, n: int, first: int) -> int:
    """The `n` lowest of what is free, those in `first` before the others."""
    early = free & first
    more = n - early.bit_count()
    return early | lowest(free ^ early, more) if more > 0 else lowest(early, n)


# ---- counting


def count(plan: Plan, need: Need) -> int:
    """How many targets fit now."""
    if any(need.amounts_on(shelf) for shelf, _, _ in plan):
        return sum([pile[4].bit_count() for pile in piles(plan, need, BEST_FIT)])
    found = 0
    for shelf, _, only in plan:
        for bucket in shelf.rack.in_use(*need.on(shelf), BEST_FIT):
            found += bucket.count if only is None else bucket.count_common(only)
    return found


def count_slots(plan: Plan, request: Request) -> int:
    """How many slots fit now."""
    found, need = 0, need_of(request, 1)
    if request.amounts:
        for order, _, shelf, bucket, word in _one_by_one(list(piles(plan, need, BEST_FIT))):
            found += slots_on(request, bucket.cores, bucket.gpus, _left(request, shelf, order[2], word))
        return found
    for shelf, _, only in plan:
        for bucket in shelf.rack.in_use(*need.on(shelf), BEST_FIT):
            some = bucket.count if only is None else bucket.count_common(only)
            found += slots_on(request, bucket.cores, bucket.gpus) * some
    return found
