"""Equal targets on one shelf: those that may be used stand in buckets by how many GPUs and cores are free on them.

Law: what is taken or given costs what it touches. A target that may be used and is idle or spent (nothing free) is a
bit in a word of its bucket and nothing else, so 512 of them move at once; of one that is partly free the rest is noted
beside. A target that is down stands in no bucket, and its rest is noted unless it is idle. Targets of one shelf have
the same ids, amounts and properties (as far as those were told apart), so a constraint mostly takes a shelf whole or
leaves it.

A *mixed* shelf has targets of equal counts but different ids, for machines where nearly all differ: there the rest of
every target is noted, and none is moved with others.
"""

from __future__ import annotations

from typing import TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.sched.pool.bitset import BITS, LOW_BITS, WORD_SHIFT, Bits, ids_of
from fluxsched.sched.pool.countables import Stock
from fluxsched.sched.pool.free_index import BEST_FIT, FIRST_FIT, PLACEMENTS, WORST_FIT, Bucket, Rack
from fluxsched.sched.pool.placement import Block

__all__ = ["BEST_FIT", "FIRST_FIT", "PLACEMENTS", "WORST_FIT", "Rests", "Shelf", "ranks_in"]

MIXED = -1
"""The ids of a mixed shelf: no target's free ids ever equal it."""

Rest: TypeAlias = tuple[int, int, Bucket]
"""Of one target: its free cores and GPUs, and the bucket for so many, where it stands if it may be used."""

Rests: TypeAlias = dict[int, list[Rest | None]]
"""Of each word in which there are targets: the rests of its 512 ranks, None where the bits of the buckets tell all."""


class Shelf:
    """`cores` and `gpus` are each target's totals, `all_cores` and `all_gpus` their ids, `amounts` its countables.

    `rests` is the pool's, shared by all its shelves. `idle` is the bucket of targets that have everything free, `spent`
    of those that have nothing.
    """

    __slots__ = (
        "_buckets", "_row", "_totals", "all_cores", "all_gpus", "amounts", "cores", "gpus", "idle", "layout",
        "members", "mixed", "rack", "rests", "spent", "stocks",
    )  # fmt: skip

    def __init__(self, rests: Rests, cores: int, gpus: int, amounts: Amounts, *, mixed: bool) -> None:
        self.layout = (cores, gpus, amounts)  # on a mixed shelf just those of the first target
        self.mixed = mixed
        self.all_cores = MIXED if mixed else cores
        self.all_gpus = MIXED if mixed else gpus
        self.cores = cores.bit_count()
        self.gpus = gpus.bit_count()
        self.amounts = amounts
        self.members = Bits()
        self.rests = rests
        self.rack = Rack(self.cores, self.gpus)
        self._row = self.cores + 1
        self._buckets = self.rack.buckets
        aside = Bucket(self.rack, 0, 0)  # where nobody ever stands
        self.idle = aside if mixed else self.rack.bucket(self.cores, self.gpus)
        self.spent = aside if mixed else self.rack.bucket(0, 0)
        self.stocks = {kind: Stock(total) for kind, total in amounts}
        self._totals: dict[int, tuple[int, int]] = {}  # of a mixed shelf

    # ---- who is here

    def join(self, at: int, word: int, cores: int, gpus: int) -> None:
        """Targets with these ids come, idle and down; on a shelf that is not mixed the ids are the shelf's."""
        self.members.put(at, word)
        if self.mixed:
            rests, rest = self.rests[at], (cores, gpus, self.rack.bucket(self.cores, self.gpus))
            for id in ids_of(word):
                self._totals[at << WORD_SHIFT | id] = (cores, gpus)
                rests[id] = rest

    def quit(self, at: int, word: int) -> None:
        """Targets that are down go."""
        self.members.drop(at, word)
        rests = self.rests[at]
        for id in ids_of(word):
            rests[id] = None
            self._totals.pop(at << WORD_SHIFT | id, None)
            for stock in self.stocks.values():
                stock.forget(at << WORD_SHIFT | id)

    def hand_over(self, at: int, word: int, other: Shelf) -> None:
        """Targets that are down move to another shelf of the same ids and amounts, busy or not."""
        self.members.drop(at, word)
        other.members.put(at, word)
        rests = self.rests[at]
        for id in ids_of(word):
            rest, rank = rests[id], at << WORD_SHIFT | id
            if rest is not None:
                rests[id] = (rest[0], rest[1], other.rack.bucket(rest[2].cores, rest[2].gpus))
            if self.mixed:
                other._totals[rank] = self._totals.pop(rank)
            for kind, stock in self.stocks.items():
                other.stocks[kind].set_left(rank, stock.left(rank))
                stock.forget(rank)

    def rise(self, at: int, word: int) -> None:
        """Targets that were down may be used."""
        rests = self.rests[at]
        for id in ids_of(word) if any(rests) else ():
            rest = rests[id]
            if rest is not None:
                rest[2].put(at, 1 << id)
                word ^= 1 << id
                if rest[2] is self.spent:
                    rests[id] = None
        if word:
            self.idle.put(at, word)

    def fall(self, at: int, word: int) -> None:
        """Targets that were up may not be used."""
        rests, idle, spent = self.rests[at], word & self.idle.at(at), word & self.spent.at(at)
        if idle:
            self.idle.drop(at, idle)
        if spent:
            self.spent.drop(at, spent)
        for id in ids_of(spent):
            rests[id] = (0, 0, self.spent)
        for id in ids_of(word ^ idle ^ spent):
            rest = rests[id]
            assert rest is not None, f"rank {at << WORD_SHIFT | id} is up but in no bucket"
            rest[2].drop(at, 1 << id)

    def ids(self, rank: int) -> tuple[int, int]:
        """All cores and GPUs of a member, busy or not."""
        return self._totals[rank] if self.mixed else (self.all_cores, self.all_gpus)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """The free cores and GPUs of a member."""
        rest = self.rests[rank >> WORD_SHIFT][rank & LOW_BITS]
        if rest is not None:
            return rest[0], rest[1]
        return (0, 0) if rank in self.spent else (self.all_cores, self.all_gpus)

    def free_amounts(self, rank: int) -> Amounts:
        """What is left of each countable on a member."""
        return tuple([(kind, stock.left(rank)) for kind, stock in self.stocks.items()])

    # ---- taking and giving: the caller names members of one word; False changes nothing

    def take(self, block: Block) -> bool:
        """Marks the block busy on each of its targets, if all of them are up and have it free.

        `take` and `give` of one target are most of what a pool does, so the steps of buckets are written out there.
        """
        at, word, cores, gpus, amounts = block
        if amounts:
            return self._take_counted(at, word, cores, gpus, amounts)
        old = self.idle
        if cores == self.all_cores and gpus == self.all_gpus:
            if old.words.get(at, 0) & word != word:
                return False
            old.hand(at, word, word.bit_count(), self.spent)
            return True
        id = word.bit_length() - 1
        if word != BITS[id]:
            return self._take_many(at, word, cores, gpus)
        rests = self.rests[at]
        rest = rests[id]
        if rest is None:
            left_cores, left_gpus = self.all_cores ^ cores, self.all_gpus ^ gpus
            if not cores and not gpus:
                return True
        else:
            left_cores, left_gpus, old = rest
            left_cores ^= cores
            left_gpus ^= gpus
        words = old.words
        others = words.get(at, 0) ^ word
        if left_cores & cores or left_gpus & gpus or others & word:
            return False
        if left_cores or left_gpus or self.mixed:
            try:
                bucket = self._buckets[left_gpus.bit_count() * self._row + left_cores.bit_count()]
            except KeyError:
                bucket = self.rack.bucket(left_cores.bit_count(), left_gpus.bit_count())
            rests[id] = (left_cores, left_gpus, bucket)
        else:
            bucket = self.spent
            rests[id] = None
        words[at] = others
        old.count -= 1
        words = bucket.words
        try:
            words[at] |= word
        except KeyError:
            words[at] = word
            bucket.begin(at)
        bucket.count += 1
        return True

    def give(self, block: Block) -> bool:
        """Marks the block free on each of its targets, if all have it busy; ids that they do not have are passed over.
        """
        at, word, cores, gpus, amounts = block
        if amounts:
            return self._give_counted(at, word, cores, gpus, amounts)
        old, all_cores, all_gpus = self.spent, self.all_cores, self.all_gpus
        cores &= all_cores
        gpus &= all_gpus
        if cores == all_cores and gpus == all_gpus and old.words.get(at, 0) & word == word:
            old.hand(at, word, word.bit_count(), self.idle)
            return True
        id = word.bit_length() - 1
        if word != BITS[id]:
            return self._give_many(at, word, cores, gpus)
        rests = self.rests[at]
        rest = rests[id]
        if rest is None:
            words = old.words
            have = words.get(at, 0)
            if not have & word or not (cores or gpus):
                return not cores and not gpus
        else:
            free_cores, free_gpus, old = rest
            if self.mixed:
                mine = self._totals[at << WORD_SHIFT | id]
                cores &= mine[0]
                gpus &= mine[1]
            if free_cores & cores or free_gpus & gpus:
                return False
            cores |= free_cores
            gpus |= free_gpus
            words = old.words
            have = words.get(at, 0)
        if cores == all_cores and gpus == all_gpus:
            bucket = self.idle
            rests[id] = None
        else:
            try:
                bucket = self._buckets[gpus.bit_count() * self._row + cores.bit_count()]
            except KeyError:
                bucket = self.rack.bucket(cores.bit_count(), gpus.bit_count())
            rests[id] = (cores, gpus, bucket)
        if have & word:  # it is up
            words[at] = have ^ word
            old.count -= 1
            words = bucket.words
            try:
                words[at] |= word
            except KeyError:
                words[at] = word
                bucket.begin(at)
            bucket.count += 1
        return True

    def take_down(self, at: int, bit: int, cores: int, gpus: int) -> bool:
        """Like `take`, of one target that is down: a job was found running there."""
        id = bit.bit_length() - 1
        free_cores, free_gpus = self.free_ids(at << WORD_SHIFT | id)
        if free_cores & cores != cores or free_gpus & gpus != gpus:
            return False
        if cores or gpus:
            free_cores ^= cores
            free_gpus ^= gpus
            bucket = self.rack.bucket(free_cores.bit_count(), free_gpus.bit_count())
            self.rests[at][id] = (free_cores, free_gpus, bucket)
        return True

    def take_amounts(self, at: int, word: int, amounts: Amounts) -> bool:
        """Takes so much of each kind on each of these targets, if all have it."""
        stocks = self.stocks
        for kind, amount in amounts:
            if kind not in stocks or stocks[kind].enough(at, word, amount) != word:
                return False
        for kind, amount in amounts:
            stock = stocks[kind]
            for rank in ranks_in(at, word):
                stock.set_left(rank, stock.left(rank) - amount)
        return True

    def _take_counted(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        ids = (at, word, cores, gpus, ())
        if word & ~self.members.at(at) or ((cores or gpus) and not self.take(ids)):
            return False
        return self.take_amounts(at, word, amounts) or not self.give(ids)

    def _give_counted(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        """Kinds that these targets do not have are passed over."""
        if word & ~self.members.at(at) or not self.give((at, word, cores, gpus, ())):
            return False
        for kind, amount in amounts:
            stock = self.stocks.get(kind)
            if stock is not None:
                for rank in ranks_in(at, word):
                    stock.set_left(rank, min(stock.left(rank) + amount, stock.total))
        return True

    def _take_many(self, at: int, word: int, cores: int, gpus: int) -> bool:
        left_cores, left_gpus = self.all_cores ^ cores, self.all_gpus ^ gpus
        if word & self.idle.at(at) == word:
            if left_cores & cores or left_gpus & gpus:
                return False  # ids that these targets do not have
            self._move_many(at, word, left_cores, left_gpus, self.idle)
            return True
        for id in ids_of(word):
            if not self.take((at, 1 << id, cores, gpus, ())):
                for done in ids_of(word & ((1 << id) - 1)):
                    self.give((at, 1 << done, cores, gpus, ()))
                return False
        return True

    def _give_many(self, at: int, word: int, cores: int, gpus: int) -> bool:
        if word & self.spent.at(at) == word:
            self._move_many(at, word, cores, gpus, self.spent)
            return True
        for id in ids_of(word):
            if not self.give((at, 1 << id, cores, gpus, ())):
                for done in ids_of(word & ((1 << id) - 1)):
                    if not self.take((at, 1 << done, cores, gpus, ())):
                        self.take_down(at, 1 << done, cores, gpus)
                return False
        return True

    def _move_many(self, at: int, word: int, cores: int, gpus: int, old: Bucket) -> None:
        """Targets that were idle or spent all have these ids free from now on."""
        bucket = self.rack.bucket(cores.bit_count(), gpus.bit_count())
        old.hand(at, word, word.bit_count(), bucket)
        if bucket is not self.idle and bucket is not self.spent:
            rests, rest = self.rests[at], (cores, gpus, bucket)
            for id in ids_of(word):
                rests[id] = rest


def ranks_in(at: int, word: int) -> list[int]:
    """The ranks of a word."""
    base = at << WORD_SHIFT
    return [base + id for id in ids_of(word)]
