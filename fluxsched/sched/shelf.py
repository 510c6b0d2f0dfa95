"""Equal targets on one shelf: those that may be used stand in buckets by how many GPUs and cores are free on them.

Law: what is taken or given costs what it touches. A target that is idle or spent (nothing free) is a bit in a word and
nothing else, so 512 of them move at once; one that is partly free has an entry in `free`. A target that is down stands
in no bucket, but keeps its entry, or its bit in `spent`. Targets of one shelf have the same ids, amounts and properties
(as far as those were told apart), so a constraint mostly takes a shelf whole or leaves it.

A *mixed* shelf has targets of equal counts but different ids, for machines where nearly all differ: there every target
has an entry, and none is moved with others.
"""

from __future__ import annotations

from typing import TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.sched.bits import LOW_BITS, WORD_SHIFT, Bits, ids_of
from fluxsched.sched.bucket import BEST_FIT, FIRST_FIT, PLACEMENTS, WORST_FIT, Bucket, Rack
from fluxsched.sched.stock import Stock

__all__ = ["BEST_FIT", "FIRST_FIT", "PLACEMENTS", "WORST_FIT", "Held", "Shelf", "ranks_in"]

MIXED = -1
"""The ids of a mixed shelf: no target's free ids ever equal it."""

Held: TypeAlias = "tuple[int, int, Bucket, Shelf]"
"""Of a target that is partly free: its free cores and GPUs, its bucket (where it stands if it is up), its shelf."""


class Shelf:
    """`cores` and `gpus` are each target's totals, `all_cores` and `all_gpus` their ids, `amounts` its countables.

    `free` is the pool's table of partly free targets, by rank, which all its shelves share. `idle` is the bucket of
    targets that have everything free, `spent` has the words of those that have nothing.
    """

    __slots__ = (
        "_totals", "all_cores", "all_gpus", "amounts", "cores", "free", "gpus", "idle", "layout", "members", "mixed",
        "rack", "spent", "stocks",
    )  # fmt: skip

    def __init__(self, free: dict[int, Held], cores: int, gpus: int, amounts: Amounts, *, mixed: bool) -> None:
        self.layout = (cores, gpus, amounts)  # on a mixed shelf just those of the first target
        self.mixed = mixed
        self.all_cores = MIXED if mixed else cores
        self.all_gpus = MIXED if mixed else gpus
        self.cores = cores.bit_count()
        self.gpus = gpus.bit_count()
        self.amounts = amounts
        self.members = Bits()
        self.spent: dict[int, int] = {}
        self.free = free
        self.rack = Rack(self.cores, self.gpus)
        self.idle = Bucket(self.rack, 0, 0) if mixed else self.rack.bucket(self.cores, self.gpus)
        self.stocks = {kind: Stock(total) for kind, total in amounts}
        self._totals: dict[int, tuple[int, int]] = {}  # of a mixed shelf, where `idle` stays empty

    # ---- who is here

    def join(self, at: int, word: int, cores: int, gpus: int) -> None:
        """Targets with these ids come, idle and down; on a shelf that is not mixed the ids are the shelf's."""
        self.members.put(at, word)
        if self.mixed:
            held = (cores, gpus, self.rack.bucket(self.cores, self.gpus), self)
            for rank in ranks_in(at, word):
                self._totals[rank] = (cores, gpus)
                self.free[rank] = held

    def quit(self, at: int, word: int) -> None:
        """Targets that are down go."""
        self.members.drop(at, word)
        self._spend(at, self.spent.get(at, 0) & ~word)
        for rank in ranks_in(at, word):
            self.free.pop(rank, None)
            self._totals.pop(rank, None)
            for stock in self.stocks.values():
                stock.forget(rank)

    def hand_over(self, at: int, word: int, other: Shelf) -> None:
        """Targets that are down move to another shelf of the same ids and amounts, busy or not."""
        self.members.drop(at, word)
        other.members.put(at, word)
        spent = self.spent.get(at, 0)
        self._spend(at, spent & ~word)
        other._spend(at, other.spent.get(at, 0) | spent & word)
        for rank in ranks_in(at, word):
            held, totals = self.free.get(rank), self._totals.pop(rank, None)
            if held is not None:
                self.free[rank] = (held[0], held[1], other.rack.bucket(held[2].cores, held[2].gpus), other)
            if totals is not None:
                other._totals[rank] = totals
            for kind, stock in self.stocks.items():
                other.stocks[kind].set_left(rank, stock.left(rank))
                stock.forget(rank)

    def rise(self, at: int, word: int) -> None:
        """Targets that were down may be used."""
        word ^= self.spent.get(at, 0) & word
        for rank in ranks_in(at, word) if self.free else ():
            held = self.free.get(rank)
            if held is not None:
                bit = 1 << (rank & LOW_BITS)
                held[2].put(at, bit)
                word ^= bit
        if word:
            self.idle.put(at, word)

    def fall(self, at: int, word: int) -> None:
        """Targets that were up may not be used."""
        if idle := self.idle.words.get(at, 0) & word:
            self.idle.drop(at, idle)
        for rank in ranks_in(at, word ^ idle ^ self.spent.get(at, 0) & word):
            self.free[rank][2].drop(at, 1 << (rank & LOW_BITS))

    def ids(self, rank: int) -> tuple[int, int]:
        """All cores and GPUs of a member, busy or not."""
        return self._totals[rank] if self.mixed else (self.all_cores, self.all_gpus)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """The free cores and GPUs of a member."""
        held = self.free.get(rank)
        if held is not None:
            return held[0], held[1]
        if self.spent.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1:
            return 0, 0
        return self.all_cores, self.all_gpus

    def free_amounts(self, rank: int) -> Amounts:
        """What is left of each countable on a member."""
        return tuple([(kind, stock.left(rank)) for kind, stock in self.stocks.items()])

    # ---- taking and giving: the caller names members of one word; False changes nothing

    def take(self, at: int, word: int, cores: int, gpus: int) -> bool:
        """Marks ids busy on each of these targets, if all of them are up and have the ids free; at least one id."""
        idle = self.idle
        have = idle.words.get(at, 0)
        if word & have == word:
            left_cores, left_gpus = self.all_cores ^ cores, self.all_gpus ^ gpus
            if left_cores & cores or left_gpus & gpus:
                return False  # ids that these targets do not have
            have ^= word
            if have:
                idle.words[at] = have
            else:
                del idle.words[at]
                idle.end(at)
            idle.count -= word.bit_count()
            if left_cores or left_gpus:
                self._stand(at, word, left_cores, left_gpus, word)
            else:
                self.spent[at] = self.spent.get(at, 0) | word
            return True
        if word & (word - 1):
            return self._take_each(at, word, cores, gpus)
        rank = at << WORD_SHIFT | word.bit_length() - 1
        held = self.free.get(rank)
        if held is None or held[0] & cores != cores or held[1] & gpus != gpus or not held[2].words.get(at, 0) & word:
            return False
        set_free(self, rank, at, word, held[0] ^ cores, held[1] ^ gpus, held[2])
        return True

    def give(self, at: int, word: int, cores: int, gpus: int, up: int) -> bool:
        """Marks ids free on each of these targets, if all have them busy; `up` are those that may be used.

        Ids that the targets do not have are passed over.
        """
        cores &= self.all_cores
        gpus &= self.all_gpus
        spent = self.spent.get(at, 0)
        if word & spent == word:
            if not cores and not gpus:
                return True
            self._spend(at, spent ^ word)
            if cores != self.all_cores or gpus != self.all_gpus:
                self._stand(at, word, cores, gpus, up)
            elif up:
                self.idle.put(at, up)
            return True
        if word & (word - 1):
            return self._give_each(at, word, cores, gpus, up)
        rank = at << WORD_SHIFT | word.bit_length() - 1
        held = self.free.get(rank)
        if self.mixed:
            cores, gpus = cores & self._totals[rank][0], gpus & self._totals[rank][1]
        if held is None or held[0] & cores or held[1] & gpus:
            return not cores and not gpus
        set_free(self, rank, at, word, held[0] | cores, held[1] | gpus, held[2] if up else None)
        return True

    def take_down(self, at: int, bit: int, cores: int, gpus: int) -> bool:
        """Like `take`, of one target that is down: a job was found running there."""
        rank = at << WORD_SHIFT | bit.bit_length() - 1
        free_cores, free_gpus = self.free_ids(rank)
        if free_cores & cores != cores or free_gpus & gpus != gpus:
            return False
        if cores or gpus:
            set_free(self, rank, at, bit, free_cores ^ cores, free_gpus ^ gpus, None)
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

    def give_amounts(self, at: int, word: int, amounts: Amounts) -> None:
        """Gives so much of each kind back; kinds that these targets do not have are passed over."""
        for kind, amount in amounts:
            stock = self.stocks.get(kind)
            if stock is not None:
                for rank in ranks_in(at, word):
                    stock.set_left(rank, min(stock.left(rank) + amount, stock.total))

    def _spend(self, at: int, word: int) -> None:
        """Of this word just these targets have nothing free."""
        if word:
            self.spent[at] = word
        else:
            self.spent.pop(at, None)

    def _stand(self, at: int, word: int, cores: int, gpus: int, up: int) -> None:
        """Targets that were idle or spent are now partly free, all in the same way."""
        bucket = self.rack.bucket(cores.bit_count(), gpus.bit_count())
        if up:
            bucket.put(at, up)
        held = (cores, gpus, bucket, self)
        if not word & (word - 1):
            self.free[at << WORD_SHIFT | word.bit_length() - 1] = held
            return
        for rank in ranks_in(at, word):
            self.free[rank] = held

    def _take_each(self, at: int, word: int, cores: int, gpus: int) -> bool:
        for id in ids_of(word):
            if not self.take(at, 1 << id, cores, gpus):
                for done in ids_of(word & ((1 << id) - 1)):
                    self.give(at, 1 << done, cores, gpus, 1 << done)
                return False
        return True

    def _give_each(self, at: int, word: int, cores: int, gpus: int, up: int) -> bool:
        for id in ids_of(word):
            bit = 1 << id
            if not self.give(at, bit, cores, gpus, bit & up):
                for done in ids_of(word & (bit - 1)):
                    again = self.take if up >> done & 1 else self.take_down
                    again(at, 1 << done, cores, gpus)
                return False
        return True


def set_free(shelf: Shelf, rank: int, at: int, bit: int, cores: int, gpus: int, old: Bucket | None) -> None:
    """One target has other ids free than before; `old` is where it stands if it is up.

    The heart of most allocations, so `put` and `drop` of a single bit are written out.
    """
    if old is not None:
        words = old.words
        left = words[at] ^ bit
        if left:
            words[at] = left
        else:
            del words[at]
            old.end(at)
        old.count -= 1
    if cores == shelf.all_cores and gpus == shelf.all_gpus:
        del shelf.free[rank]
        bucket = shelf.idle
    elif cores or gpus or shelf.mixed:
        rack = shelf.rack
        place = gpus.bit_count() * (rack.cores + 1) + cores.bit_count() if gpus else cores.bit_count()
        found = rack.buckets.get(place)
        bucket = rack.bucket(cores.bit_count(), gpus.bit_count()) if found is None else found
        shelf.free[rank] = (cores, gpus, bucket, shelf)
    else:
        shelf.free.pop(rank, None)
        shelf.spent[at] = shelf.spent.get(at, 0) | bit
        return
    if old is not None:
        words = bucket.words
        have = words.get(at)
        if have is not None:
            words[at] = have | bit
        else:
            words[at] = bit
            bucket.begin(at)
        bucket.count += 1


def ranks_in(at: int, word: int) -> list[int]:
    """The ranks of a word."""
    base = at << WORD_SHIFT
    return [base + id for id in ids_of(word)]
