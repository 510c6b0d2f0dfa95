"""A target class: targets with equal resources, the usable ones indexed by how many cores and GPUs are free on them.

Law: taking and giving cost what they touch. A usable target that is idle or busy (nothing free) is one bit of a word on
its level and nothing else, so 512 of them move at once; of one that is partly free, the ids are kept beside. A target
that is down is on no level, and its free ids are kept unless it is idle. Targets of one class have the same ids,
amounts and properties (as far as those are told apart), so a constraint mostly allows a class whole or not at all.

A *mixed* class has targets with equal counts but different ids, for machines where nearly all differ: there the free
ids of every target are kept, and none moves with others.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.amounts import Amounts
from fluxsched.sched.pool.amounts.countables import Countable
from fluxsched.sched.pool.amounts.lost import LostWeights
from fluxsched.sched.pool.bitset import BITS, LOW_BITS, WORD_SHIFT, Bits, ids_of
from fluxsched.sched.pool.free_index import FreeIndex, FreeLevel

MIXED: Final = -1
"""The ids of a mixed class: no target's free ids ever equal it."""

Partial: TypeAlias = tuple[int, int, FreeLevel]
"""The free cores and GPUs of one target, and the level for so many, on which it is if it may be used."""

Partials: TypeAlias = dict[int, list[Partial | None]]
"""For each word with targets: what is free on each of its 512 ranks, None where its level says all."""


class Target(NamedTuple):
    """One target as it is now: what it has, what of that is free, and whether it may be used. A copy, for people.

    Of a target without cores `all_amounts` are less what is occupied, and `amounts` negative where jobs hold more.
    """

    all_cores: int
    all_gpus: int
    cores: int
    gpus: int
    up: bool
    all_amounts: Amounts
    amounts: Amounts

    @property
    def idle(self) -> bool:
        """Whether all that it has is free; amounts count where it has no cores."""
        if not self.all_cores and not self.all_gpus:
            return self.amounts == self.all_amounts
        return self.cores == self.all_cores and self.gpus == self.all_gpus


class TargetClass:
    """`cores` and `gpus` are each target's totals, `all_cores` and `all_gpus` their ids, `amounts` its countables.

    `partials` and `lost`, weights, belong to the pool, and all its classes use them. `idle` is the level of the targets
    that have everything free, `busy` that of those that have nothing free.
    """

    __slots__ = (
        "_levels", "_row", "_totals", "all_cores", "all_gpus", "amounts", "busy", "cores", "countables", "gpus", "idle",
        "index", "layout", "lost", "members", "mixed", "partials",
    )  # fmt: skip

    def __init__(
        self, partials: Partials, lost: LostWeights, cores: int, gpus: int, amounts: Amounts, *, mixed: bool
    ) -> None:
        self.layout = (cores, gpus, amounts)  # of a mixed class just those of its first target
        self.mixed = mixed
        self.all_cores = MIXED if mixed else cores
        self.all_gpus = MIXED if mixed else gpus
        self.cores = cores.bit_count()
        self.gpus = gpus.bit_count()
        self.amounts = amounts
        self.members = Bits()
        self.partials = partials
        self.lost = lost
        self.index = FreeIndex(self.cores, self.gpus)
        self._row = self.cores + 1
        self._levels = self.index.levels
        unused = FreeLevel(self.index, 0, 0)
        self.idle = unused if mixed else self.index.level(self.cores, self.gpus)
        self.busy = unused if mixed else self.index.level(0, 0)
        self.countables = {kind: Countable(total) for kind, total in amounts}
        self._totals: dict[int, tuple[int, int]] = {}  # of a mixed class

    # ---- members

    def add(self, at: int, word: int, cores: int, gpus: int) -> None:
        """Adds targets with these ids, idle and down; unless the class is mixed, the ids are those of the class."""
        self.members.put(at, word)
        if self.mixed:
            partials, partial = self.partials[at], (cores, gpus, self.index.level(self.cores, self.gpus))
            for id in ids_of(word):
                self._totals[at << WORD_SHIFT | id] = (cores, gpus)
                partials[id] = partial

    def remove(self, at: int, word: int) -> None:
        """Removes targets that are down."""
        self.members.drop(at, word)
        partials = self.partials[at]
        for id in ids_of(word):
            partials[id] = None
            self._totals.pop(at << WORD_SHIFT | id, None)
            for countable in self.countables.values():
                countable.forget(at << WORD_SHIFT | id)

    def transfer(self, at: int, word: int, other: TargetClass) -> None:
        """Moves targets that are down, busy or not, to another class with the same ids and amounts."""
        self.members.drop(at, word)
        other.members.put(at, word)
        partials = self.partials[at]
        for id in ids_of(word):
            partial, rank = partials[id], at << WORD_SHIFT | id
            if partial is not None:
                cores, gpus, level = partial
                partials[id] = (cores, gpus, other.index.level(level.cores, level.gpus))
            if self.mixed:
                other._totals[rank] = self._totals.pop(rank)
            for kind, countable in self.countables.items():
                other.countables[kind].set_left(rank, countable.left(rank))
                countable.forget(rank)

    def set_up(self, at: int, word: int) -> None:
        """Makes targets that were down usable."""
        partials = self.partials[at]
        for id in ids_of(word) if any(partials) else ():
            partial = partials[id]
            if partial is not None:
                _, _, level = partial
                level.put(at, 1 << id)
                word ^= 1 << id
                if level is self.busy:
                    partials[id] = None
        if word:
            self.idle.put(at, word)

    def set_down(self, at: int, word: int) -> None:
        """Takes targets that were up out of use."""
        partials, idle, busy = self.partials[at], word & self.idle.at(at), word & self.busy.at(at)
        if idle:
            self.idle.drop(at, idle)
        if busy:
            self.busy.drop(at, busy)
        for id in ids_of(busy):
            partials[id] = (0, 0, self.busy)
        for id in ids_of(word ^ idle ^ busy):
            partial = partials[id]
            assert partial is not None, f"rank {at << WORD_SHIFT | id} is up but on no level"
            _, _, level = partial
            level.drop(at, 1 << id)

    def ids(self, rank: int) -> tuple[int, int]:
        """All cores and GPUs of a member, busy or not."""
        return self._totals[rank] if self.mixed else (self.all_cores, self.all_gpus)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """The free cores and GPUs of a member."""
        partial = self.partials[rank >> WORD_SHIFT][rank & LOW_BITS]
        if partial is not None:
            return partial[0], partial[1]
        return (0, 0) if rank in self.busy else (self.all_cores, self.all_gpus)

    @property
    def weighs_amounts(self) -> bool:
        """Whether some of its countables count in what a remainder weighs, so that it has to be asked by target."""
        return not self.countables.keys().isdisjoint(self.lost.kinds)

    def free_amounts(self, rank: int) -> Amounts:
        """What is left of each countable on a member."""
        return tuple([(kind, countable.left(rank)) for kind, countable in self.countables.items()])

    # ---- taking and giving: the caller names members of one word; False changes nothing

    def take(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts = ()) -> bool:
        """Marks this busy on each of its targets, if it is free on all and all are up.

        `take` and `give` are most of what a pool does, so the steps of levels are written out there.
        """
        if amounts:
            return self._take_counted(at, word, cores, gpus, amounts)
        old, n = self.idle, 1
        if cores == self.all_cores and gpus == self.all_gpus:
            words, level = old.words, self.busy
            others = words.get(at, 0) ^ word
            if others & word:
                return False
            n = word.bit_count()
        else:
            id = word.bit_length() - 1
            if word != BITS[id]:
                return self._take_many(at, word, cores, gpus)
            partials = self.partials[at]
            partial = partials[id]
            if partial is None:
                left_cores, left_gpus = self.all_cores ^ cores, self.all_gpus ^ gpus
                if not cores and not gpus:
                    return True
            else:
                left_cores, left_gpus, old = partial
                left_cores ^= cores
                left_gpus ^= gpus
            words = old.words
            others = words.get(at, 0) ^ word
            if left_cores & cores or left_gpus & gpus or others & word:
                return False
            if left_cores or left_gpus or self.mixed:
                try:
                    level = self._levels[left_gpus.bit_count() * self._row + left_cores.bit_count()]
                except KeyError:
                    level = self.index.level(left_cores.bit_count(), left_gpus.bit_count())
                partials[id] = (left_cores, left_gpus, level)
            else:
                level = self.busy
                partials[id] = None
        words[at] = others
        old.count -= n
        words = level.words
        try:
            words[at] |= word
        except KeyError:
            words[at] = word
            level.list_word(at)
        level.count += n
        return True

    def give(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts = ()) -> bool:
        """Marks this free on each of its targets, if it is busy on all; ids that they do not have are ignored."""
        if amounts:
            return self._give_counted(at, word, cores, gpus, amounts)
        old, all_cores, all_gpus, n = self.busy, self.all_cores, self.all_gpus, 1
        words = old.words
        have = words.get(at, 0)
        cores &= all_cores
        gpus &= all_gpus
        if cores == all_cores and gpus == all_gpus and have & word == word:
            level, n = self.idle, word.bit_count()
        else:
            id = word.bit_length() - 1
            if word != BITS[id]:
                return self._give_many(at, word, cores, gpus)
            partials = self.partials[at]
            partial = partials[id]
            if partial is None:
                if not have & word or not (cores or gpus):
                    return not cores and not gpus
            else:
                free_cores, free_gpus, old = partial
                if self.mixed:
                    own_cores, own_gpus = self._totals[at << WORD_SHIFT | id]
                    cores &= own_cores
                    gpus &= own_gpus
                if free_cores & cores or free_gpus & gpus:
                    return False
                cores |= free_cores
                gpus |= free_gpus
                words = old.words
                have = words.get(at, 0)
            if cores == all_cores and gpus == all_gpus:
                level = self.idle
                partials[id] = None
            else:
                try:
                    level = self._levels[gpus.bit_count() * self._row + cores.bit_count()]
                except KeyError:
                    level = self.index.level(cores.bit_count(), gpus.bit_count())
                partials[id] = (cores, gpus, level)
        if have & word:  # it is up
            words[at] = have ^ word
            old.count -= n
            words = level.words
            try:
                words[at] |= word
            except KeyError:
                words[at] = word
                level.list_word(at)
            level.count += n
        return True

    def take_down(self, at: int, bit: int, cores: int, gpus: int) -> bool:
        """Like `take`, for one target that is down: a job was found running there."""
        id = bit.bit_length() - 1
        free_cores, free_gpus = self.free_ids(at << WORD_SHIFT | id)
        if free_cores & cores != cores or free_gpus & gpus != gpus:
            return False
        if cores or gpus:
            free_cores ^= cores
            free_gpus ^= gpus
            level = self.index.level(free_cores.bit_count(), free_gpus.bit_count())
            self.partials[at][id] = (free_cores, free_gpus, level)
        return True

    def take_amounts(self, at: int, word: int, amounts: Amounts) -> bool:
        """Takes so much of each kind on each of these targets, if all have it."""
        countables = self.countables
        for kind, amount in amounts:
            if kind not in countables or countables[kind].enough(at, word, amount) != word:
                return False
        for kind, amount in amounts:
            countable = countables[kind]
            for rank in ranks_in(at, word):
                countable.set_left(rank, countable.left(rank) - amount)
        return True

    def _take_counted(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        if word & ~self.members.at(at) or ((cores or gpus) and not self.take(at, word, cores, gpus)):
            return False
        return self.take_amounts(at, word, amounts) or not self.give(at, word, cores, gpus)

    def _give_counted(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        """Kinds that these targets do not have are ignored."""
        if word & ~self.members.at(at) or not self.give(at, word, cores, gpus):
            return False
        for kind, amount in amounts:
            countable = self.countables.get(kind)
            if countable is not None:
                for rank in ranks_in(at, word):
                    countable.set_left(rank, min(countable.left(rank) + amount, countable.total))
        return True

    def _take_many(self, at: int, word: int, cores: int, gpus: int) -> bool:
        left_cores, left_gpus = self.all_cores ^ cores, self.all_gpus ^ gpus
        if word & self.idle.at(at) == word:
            if left_cores & cores or left_gpus & gpus:
                return False  # ids that these targets do not have
            self._move_many(at, word, left_cores, left_gpus, self.idle)
            return True
        for id in ids_of(word):
            if not self.take(at, 1 << id, cores, gpus):
                for done in ids_of(word & ((1 << id) - 1)):
                    self.give(at, 1 << done, cores, gpus)
                return False
        return True

    def _give_many(self, at: int, word: int, cores: int, gpus: int) -> bool:
        if word & self.busy.at(at) == word:
            self._move_many(at, word, cores, gpus, self.busy)
            return True
        for id in ids_of(word):
            if not self.give(at, 1 << id, cores, gpus):
                for done in ids_of(word & ((1 << id) - 1)):
                    if not self.take(at, 1 << done, cores, gpus):
                        self.take_down(at, 1 << done, cores, gpus)
                return False
        return True

    def _move_many(self, at: int, word: int, cores: int, gpus: int, old: FreeLevel) -> None:
        """Leaves just these ids free on targets that were idle or busy."""
        level = self.index.level(cores.bit_count(), gpus.bit_count())
        old.transfer(at, word, word.bit_count(), level)
        if level is not self.idle and level is not self.busy:
            partials, partial = self.partials[at], (cores, gpus, level)
            for id in ids_of(word):
                partials[id] = partial


def ranks_in(at: int, word: int) -> list[int]:
    """The ranks of a word."""
    base = at << WORD_SHIFT
    return [base + id for id in ids_of(word)]
