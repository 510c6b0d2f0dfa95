"""The free index of a target class: its usable targets by how many cores and GPUs are free on them.

Law: a target changes its level by one word of bits. `FreeIndex` keeps one mask of the levels in use for each order of
search, whose highest bit is the level to try first: the one for BEST_FIT always, the other two from their first use on.
A word that becomes empty stays listed, since the next job often fills it again; a search that meets it removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fluxsched.sched.pool.amounts.lost import LostWeights
from fluxsched.sched.pool.bitset import Bits, ids_of
from fluxsched.sched.pool.placement import WORST_FIT

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
        """Moves `n` targets of a word, all of which are on this level, to another one."""
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
        """The words that are not empty, ascending, of those in the mask `among`: (number, word)."""
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
        """Removes an empty word, from the masks, too."""
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
        """The level of so many free cores and GPUs, made if need be."""
        place = gpus * (self.cores + 1) + cores
        level = self.levels.get(place)
        if level is None:
            level = self.levels[place] = FreeLevel(self, cores, gpus)
            self.by_best[level.best_bit.bit_length()] = level
            self.by_worst[level.worst_bit.bit_length()] = level
        return level

    def fitting(self, cores: int, gpus: int) -> tuple[int, int]:
        """The levels with at least that much free, as masks in both orders."""
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
        """The levels with at least that much free that have a target, in the order of BEST_FIT or WORST_FIT."""
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
        """The same of the levels of this mask on which what is free weighs least, in time linear in the levels."""
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
        """The lowest word with a target on a level of this mask (of `best`), and all such targets in it; or (0, 0)."""
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
        """A level lists this word from now on."""
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
        """A level no longer lists this word."""
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
        """As `FreeIndex.first`."""
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
