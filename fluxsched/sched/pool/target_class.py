"""Target classes: targets with equal resources, the usable ones indexed by how many cores and GPUs are free on them.

Law: taking and giving cost what they touch. A usable target that is idle or busy (nothing free) is one bit of a word on
its level and nothing else, so 512 of them move at once; of one that is partly free, the ids are kept beside. A target
that is down is on no level, and its free ids are kept unless it is idle. `FreeIndex` keeps one mask of the levels in
use for each order of search, whose highest bit is the level to try first. Targets of one class have the same ids,
amounts and properties (as far as those are told apart), so a constraint mostly allows a class whole or not at all; as
many classes are told apart as a machine of a few kinds needs, since placing a job looks at every class that it may use.

A *mixed* class has targets with equal counts but different ids, for machines where nearly all differ: there the free
ids of every target are kept, and none moves with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import Amounts
from fluxsched.sched.pool.amounts import Countable, LostWeights
from fluxsched.sched.pool.placement import (
    BITS,
    LOW_BITS,
    WORD_BITS,
    WORD_SHIFT,
    WORST_FIT,
    Bits,
    Block,
    ids_of,
    words_of,
)

FAN_SHIFT: Final = 3
FAN: Final = 1 << FAN_SHIFT
"""Children of a node of FirstFitTree: three tiers over the 256 words of 131,072 targets."""

LEVELS_MAX = 1 << 20
"""Levels of one index, (cores + 1) x (GPUs + 1) of a target: 4,096 cores with 255 GPUs; 128 KiB a mask."""

FITTING_MAX = 1024
"""Needs whose masks of sufficient levels are remembered: two masks each, some KiB at the worst."""


class FreeLevel(Bits):
    """The usable targets with just that many free cores and GPUs. Some of the words may be empty."""

    __slots__ = ("best_bit", "cores", "gpus", "index", "worst_bit")

    def __init__(self, index: FreeIndex, cores: int, gpus: int) -> None:
        super().__init__()
        self.index = index
        self.cores = cores
        self.gpus = gpus
        self.best_bit = 1 << (index.gpus - gpus) * (index.cores + 1) + index.cores - cores
        self.worst_bit = 1 << cores * (index.gpus + 1) + index.gpus - gpus

    def put(self, at: int, word: int) -> None:
        have = self.words.get(at)
        if have is None:
            self.words[at] = word
            self.list_word(at)
        else:
            assert not have & word, "a target is put into a level twice"
            self.words[at] = have | word
        self.count += word.bit_count()

    def drop(self, at: int, word: int) -> None:
        left = self.words[at] ^ word
        assert not left & word, "a target is not in the level that it is dropped from"
        self.words[at] = left
        self.count -= word.bit_count()

    def transfer(self, at: int, word: int, n: int, other: FreeLevel) -> None:
        """Move `n` targets of a word, all of which are on this level, to another one."""
        words = self.words
        words[at] ^= word
        self.count -= n
        words = other.words
        have = words.get(at)
        if have is None:
            words[at] = word
            other.list_word(at)
        else:
            words[at] = have | word
        other.count += n

    def filled(self, among: int = -1) -> Iterator[tuple[int, int]]:
        """Yield the words that are not empty, ascending, of those in the mask `among`: (number, word)."""
        words = self.words
        for at in ids_of(self.top & among):
            word = words[at]
            if word:
                yield at, word
            else:
                self.unlist_word(at)

    def list_word(self, at: int) -> None:
        """Enters a new word in the masks."""
        index, top = self.index, self.top
        self.top = top | 1 << at
        if not top:
            index.best |= self.best_bit
            if index.worst is not None:
                index.worst |= self.worst_bit
        if index.tree is not None:
            index.tree.list_word(at, self)

    def unlist_word(self, at: int) -> None:
        """Remove an empty word, from the masks, too."""
        index, top = self.index, self.top ^ 1 << at
        del self.words[at]
        self.top = top
        if not top:
            index.best ^= self.best_bit
            if index.worst is not None:
                index.worst ^= self.worst_bit
        if index.tree is not None:
            index.tree.unlist_word(at, self)


class FreeIndex:
    """The levels of targets that have `cores` and `gpus` in all, by gpus * (cores + 1) + cores of what is free there.

    `best` and `worst` are masks of the levels that list a word. In `best` fewer GPUs are higher, then fewer cores; in
    `worst` more cores, then fewer GPUs: the highest bit is the level that BEST_FIT or WORST_FIT tries first. `by_best`
    and `by_worst` give a level by the length of its bit there.
    """

    __slots__ = ("_fitting", "best", "by_best", "by_worst", "cores", "gpus", "levels", "tree", "worst")

    def __init__(self, cores: int, gpus: int) -> None:
        self.cores = cores
        self.gpus = gpus
        self.best = 0
        self.worst: int | None = None
        self.tree: FirstFitTree | None = None
        self.levels: dict[int, FreeLevel] = {}
        self.by_best: dict[int, FreeLevel] = {}
        self.by_worst: dict[int, FreeLevel] = {}
        self._fitting: dict[tuple[int, int], tuple[int, int]] = {}

    def level(self, cores: int, gpus: int) -> FreeLevel:
        """Return the level of these numbers of free cores and GPUs, created if need be."""
        place = gpus * (self.cores + 1) + cores
        level = self.levels.get(place)
        if level is None:
            level = self.levels[place] = FreeLevel(self, cores, gpus)
            self.by_best[level.best_bit.bit_length()] = level
            self.by_worst[level.worst_bit.bit_length()] = level
        return level

    def fitting(self, cores: int, gpus: int) -> tuple[int, int]:
        """Return the levels with at least this much free, as masks in both orders."""
        found = self._fitting.get((cores, gpus))
        if found is None:
            if len(self._fitting) >= FITTING_MAX:
                self._fitting.clear()
            found = self._fitting[cores, gpus] = self._fit(cores, gpus)
        return found

    def _fit(self, cores: int, gpus: int) -> tuple[int, int]:
        if cores > self.cores or gpus > self.gpus:
            return 0, 0
        best = worst = 0
        run = (1 << self.cores - cores + 1) - 1
        for more_gpus in range(self.gpus - gpus + 1):
            best |= run << more_gpus * (self.cores + 1)
        run = (1 << self.gpus - gpus + 1) - 1
        for free_cores in range(cores, self.cores + 1):
            worst |= run << free_cores * (self.gpus + 1)
        return best, worst

    def in_use(self, cores: int, gpus: int, placement: str) -> list[FreeLevel]:
        """Return the levels with at least this much free that have a target, in the order of BEST_FIT or WORST_FIT."""
        best, worst = self.fitting(cores, gpus)
        if placement == WORST_FIT:
            listed = [self.by_worst[id + 1] for id in ids_of(self.spread() & worst)]
        else:
            listed = [self.by_best[id + 1] for id in ids_of(self.best & best)]
        found = []
        for level in reversed(listed):
            if level.count:
                found.append(level)
            else:
                for at in ids_of(level.top):
                    level.unlist_word(at)
        return found

    def spread(self) -> int:
        """`worst`, made on its first use."""
        if self.worst is None:
            self.worst = 0
            for level in self.levels.values():
                self.worst |= level.worst_bit if level.top else 0
        return self.worst

    def least(self, wanted: int, lost: LostWeights) -> tuple[int, int]:
        """Return the levels of this mask on which free resources weigh least; takes time linear in the levels."""
        while some := self.best & wanted:
            least: list[FreeLevel] = []
            least_weight = 0
            while some:
                level = self.by_best[some.bit_length()]
                some ^= level.best_bit
                weight = level.cores * lost.core + level.gpus * lost.gpu
                if not least or weight < least_weight:
                    least, least_weight = [level], weight
                elif weight == least_weight:
                    least.append(level)
            found, at = 0, -1
            for level in least:
                for filled, word in level.filled():
                    if at < 0 or filled <= at:
                        found = word if filled != at else found | word
                        at = filled
                    break
            if found:
                return at, found
        return 0, 0

    def first(self, wanted: int) -> tuple[int, int]:
        """Return the lowest word with a target on a level of this mask (of `best`), and all such targets in it; or (0,
        0).
        """
        if self.tree is None:
            self.tree = FirstFitTree(self)
        return self.tree.first(wanted)


class FirstFitTree:
    """Finds the lowest word with a target on one of some levels, without a look at all words.

    Law: a tree over the words; each node is the mask (by `best`) of the levels that list a word below it, and changes
    only as far up as a newly listed or removed word makes a difference. The words are the first tier, the root is the
    last one.
    """

    __slots__ = ("_index", "_tiers")

    def __init__(self, index: FreeIndex) -> None:
        self._index = index
        self._tiers = [[0]]
        for level in index.levels.values():
            for at in level.words:
                self.list_word(at, level)

    def list_word(self, at: int, level: FreeLevel) -> None:
        """List this word on a level from now on."""
        bit, tiers = level.best_bit, self._tiers
        while at >= len(tiers[0]):
            for tier in tiers:
                tier += [0] * (len(tier) * (FAN - 1))
            tiers.append(tiers[-1][:1])
        for tier in tiers:
            if tier[at] & bit:
                return
            tier[at] |= bit
            at >>= FAN_SHIFT

    def unlist_word(self, at: int, level: FreeLevel) -> None:
        """Remove this word from the list of a level."""
        bit, below = level.best_bit, self._tiers[0]
        below[at] ^= bit
        for tier in self._tiers[1:]:
            at >>= FAN_SHIFT
            for node in below[at << FAN_SHIFT : (at + 1) << FAN_SHIFT]:
                if node & bit:
                    return
            tier[at] ^= bit
            below = tier

    def first(self, wanted: int) -> tuple[int, int]:
        """Return the first target as `FreeIndex.first` does."""
        by_best, tiers = self._index.by_best, self._tiers
        while tiers[-1][0] & wanted:
            at = 0
            for tier in reversed(tiers):
                at <<= FAN_SHIFT
                while not tier[at] & wanted:
                    at += 1
            some, found = tier[at] & wanted, 0
            while some:  # `ids_of`, written out: there are many
                level = by_best[some.bit_length()]
                some ^= level.best_bit
                if word := level.words[at]:
                    found |= word
                else:
                    level.unlist_word(at)
            if found:
                return at, found
        return 0, 0


# ---- targets with equal resources

MIXED: Final = -1
"""The ids of a mixed class: no target's free ids ever equal it."""

Partial: TypeAlias = tuple[int, int, FreeLevel]
"""The free cores and GPUs of one target, and the level for so many, on which it is if it may be used."""

Partials: TypeAlias = dict[int, list[Partial | None]]
"""Free ids on each of the 512 ranks of a word with targets, None where the level implies that all are free."""


class Target(NamedTuple):
    """Copy of one target as it is now, for people: its resources, the free ones, and whether it may be used.

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
        """Return whether the whole target is free; amounts count where it has no cores."""
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
        """Add targets with these ids, idle and down; unless the class is mixed, the ids are those of the class."""
        self.members.put(at, word)
        if self.mixed:
            partials, partial = self.partials[at], (cores, gpus, self.index.level(self.cores, self.gpus))
            for id in ids_of(word):
                self._totals[at << WORD_SHIFT | id] = (cores, gpus)
                partials[id] = partial

    def remove(self, at: int, word: int) -> None:
        """Remove targets that are down."""
        self.members.drop(at, word)
        partials = self.partials[at]
        for id in ids_of(word):
            partials[id] = None
            self._totals.pop(at << WORD_SHIFT | id, None)
            for countable in self.countables.values():
                countable.forget(at << WORD_SHIFT | id)

    def transfer(self, at: int, word: int, other: TargetClass) -> None:
        """Move targets that are down, busy or not, to another class with the same ids and amounts."""
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
        """Make targets that were down usable."""
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
        """Take targets that were up out of use."""
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
        """Return all cores and GPUs of a member, busy or not."""
        return self._totals[rank] if self.mixed else (self.all_cores, self.all_gpus)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """Return the free cores and GPUs of a member."""
        partial = self.partials[rank >> WORD_SHIFT][rank & LOW_BITS]
        if partial is not None:
            return partial[0], partial[1]
        return (0, 0) if rank in self.busy else (self.all_cores, self.all_gpus)

    @property
    def weighs_amounts(self) -> bool:
        """Return whether some of its countables count in the weight of a remainder, which then depends on the
        target.
        """
        return not self.countables.keys().isdisjoint(self.lost.kinds)

    def free_amounts(self, rank: int) -> Amounts:
        """Return the free amount of each countable on a member."""
        return tuple([(kind, countable.left(rank)) for kind, countable in self.countables.items()])

    # ---- taking and giving: the caller names members of one word; False changes nothing

    def take(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts = ()) -> bool:
        """Mark this busy on each of its targets, if it is free on all and all are up.

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
        """Mark this free on each of its targets, if it is busy on all; ids that they do not have are ignored."""
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
        """Take the amounts on each of these targets, if all have them; else return False."""
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
    """Return the ranks of a word."""
    base = at << WORD_SHIFT
    return [base + id for id in ids_of(word)]


# ---- all classes of a pool

TRAITS_MAX = 64
"""Sets of properties that get classes of their own; targets with further ones share classes and are found by mask."""

LAYOUTS_MAX = 16
"""Sets of ids that get classes of their own; targets with further ones share the mixed class of their counts."""

Layout = tuple[int, int, Amounts]
Piece = tuple[TargetClass, int, int, int, int, Amounts]

_ClassKey = tuple[int, int, Amounts, tuple[str, ...], bool]


class TargetClasses:
    """`by_word` gives for a word of ranks its members of each class, `single` the class where there is just one.

    `others` are the ranks of targets without cores, which are in no class.
    """

    def __init__(self, others: Bits) -> None:
        self._others = others
        self.partials: Partials = {}
        self.lost = LostWeights()
        self.by_word: dict[int, tuple[tuple[int, TargetClass], ...]] = {}
        self.single: dict[int, TargetClass] = {}
        self._classes: dict[_ClassKey, TargetClass] = {}
        self._traits: set[tuple[str, ...]] = {()}
        self._layouts: set[Layout] = set()

    def __iter__(self) -> Iterator[TargetClass]:
        return iter(self._classes.values())

    def tidy(self) -> None:
        """Remove classes without members."""
        self._classes = {key: targets for key, targets in self._classes.items() if targets.members.count}
        self._traits = {()} | {key[3] for key in self._classes}
        self._layouts = {key[:3] for key, targets in self._classes.items() if not targets.mixed}

    def _class(self, layout: Layout, traits: tuple[str, ...], *, mixed: bool) -> TargetClass:
        cores, gpus, amounts = layout
        key = (cores.bit_count(), gpus.bit_count(), amounts, traits, mixed) if mixed else (*layout, traits, mixed)
        targets = self._classes.get(key)
        if targets is None:
            targets = self._classes[key] = TargetClass(self.partials, self.lost, cores, gpus, amounts, mixed=mixed)
        return targets

    def add(self, mask: int, layout: Layout, traits: tuple[str, ...]) -> None:
        """Add new targets, which are down, to their class."""
        mixed = layout not in self._layouts and len(self._layouts) >= LAYOUTS_MAX
        if not mixed:
            self._layouts.add(layout)
        targets = self._class(layout, traits, mixed=mixed)
        for at, word in words_of(mask):
            if at not in self.partials:
                self.partials[at] = [None] * WORD_BITS
            targets.add(at, word, layout[0], layout[1])
            self._note(at, targets)

    def remove(self, at: int, word: int) -> None:
        """Remove targets that are down."""
        for members, targets in self.by_word.get(at, ()):
            if mine := members & word:
                targets.remove(at, mine)
                self._note(at, targets)

    def move(self, at: int, word: int, targets: TargetClass, traits: tuple[str, ...]) -> None:
        """Give targets that are down other traits."""
        other = self._class(targets.layout, traits, mixed=targets.mixed)
        if other is not targets:
            targets.transfer(at, word, other)
            self._note(at, other)
            self._note(at, targets)

    def _note(self, at: int, targets: TargetClass) -> None:
        """Take over which targets of a word are members of a class now."""
        others = tuple([pair for pair in self.by_word.get(at, ()) if pair[1] is not targets])
        word = targets.members.words.get(at)
        found = (*others, (word, targets)) if word else others
        if found:
            self.by_word[at] = found
        else:
            del self.by_word[at], self.partials[at]
        self.settle(at)

    def settle(self, at: int) -> None:
        """Note whether all targets of a word are of one class."""
        found = self.by_word.get(at, ())
        if len(found) == 1 and at not in self._others.words:
            self.single[at] = found[0][1]
        else:
            self.single.pop(at, None)

    def counted(self, blocks: Iterable[Block]) -> Iterator[Piece]:
        """Yield the part of the blocks that the pool counts, in pieces of one class, with ids and kinds that its
        targets have.
        """
        for at, word, cores, gpus, amounts in blocks:
            for members, targets in self.by_word.get(at, ()):
                if not (mine := word & members):
                    continue
                kept = tuple([one for one in amounts if one[0] in targets.countables]) if amounts else ()
                if not targets.mixed:
                    yield targets, at, mine, cores & targets.all_cores, gpus & targets.all_gpus, kept
                    continue
                for id in ids_of(mine):
                    all_cores, all_gpus = targets.ids(at << WORD_SHIFT | id)
                    yield targets, at, 1 << id, cores & all_cores, gpus & all_gpus, kept

    def by_traits(self, properties: Mapping[str, Idset], ranks: Idset) -> list[tuple[tuple[str, ...], Idset]]:
        """Return the ranks by the properties that tell them apart; () for those with none, or above TRAITS_MAX."""
        sets: list[tuple[Idset, tuple[str, ...]]] = [(ranks, ())]
        for name, having in sorted(properties.items()):
            split = [(part & having, (*names, name)) for part, names in sets]
            split = [(part, names) for part, names in split if part]
            if len(sets) + len(split) > 2 * TRAITS_MAX:
                break  # further names tell no classes apart: their constraints become masks
            sets = [(part - having, names) for part, names in sets] + split
            sets = [(part, names) for part, names in sets if part]
        found: dict[tuple[str, ...], Idset] = {}
        for part, names in sets:
            if names not in self._traits and len(self._traits) >= TRAITS_MAX:
                names = ()
            self._traits.add(names)
            found[names] = found.get(names, EMPTY) | part
        return list(found.items())
