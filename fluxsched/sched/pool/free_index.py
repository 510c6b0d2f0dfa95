"""The buckets of a shelf: which of its targets have just so many GPUs and cores free, and in which order to look there.

Law: a bucket changes in one word. `Rack` knows in which buckets somebody may stand, as one mask for each order of
looking, whose highest bit is where to look first: BEST_FIT always, the other two from the first time that somebody asks
for them, so nobody pays for what is not used. A word that becomes empty stays listed, since the next job often fills it
again; whoever comes across it, looking for somebody, strikes it off with `end`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fluxsched.sched.pool.bitset import Bits, ids_of

BEST_FIT = "best-fit"
"""Fewest free GPUs first, then fewest free cores, then the lowest rank: gaps are filled, GPUs are kept for who asks."""

WORST_FIT = "worst-fit"
"""Most free cores first, then fewest free GPUs, then the lowest rank: load is spread."""

FIRST_FIT = "first-fit"
"""The lowest ranks that have enough free: jobs gather at one end of the machine."""

PLACEMENTS = (WORST_FIT, BEST_FIT, FIRST_FIT)

FAN_SHIFT = 3
FAN = 1 << FAN_SHIFT
"""A node of Front's tree has 8 below it: three levels over the 256 words of 131,072 targets."""

BUCKETS_MAX = 1 << 20
"""Buckets that a rack may have, (cores + 1) x (GPUs + 1) of a target: 4,096 cores with 255 GPUs; 128 KiB a mask."""

FITTING_MAX = 1024
"""Needs of which a rack remembers the buckets that will do: two masks each, some KiB at the worst."""


class Bucket(Bits):
    """The usable targets with just that many free GPUs and cores. Some of its words may have become empty."""

    __slots__ = ("best_bit", "cores", "gpus", "rack", "worst_bit")

    def __init__(self, rack: Rack, cores: int, gpus: int) -> None:
        super().__init__()
        self.rack = rack
        self.cores = cores
        self.gpus = gpus
        self.best_bit = 1 << (rack.gpus - gpus) * (rack.cores + 1) + rack.cores - cores
        self.worst_bit = 1 << cores * (rack.gpus + 1) + rack.gpus - gpus

    def put(self, at: int, word: int) -> None:
        have = self.words.get(at)
        if have is None:
            self.words[at] = word
            self.begin(at)
        else:
            assert not have & word, "a target stands in a bucket twice"
            self.words[at] = have | word
        self.count += word.bit_count()

    def drop(self, at: int, word: int) -> None:
        left = self.words[at] ^ word
        assert not left & word, "a target does not stand in its bucket"
        self.words[at] = left
        self.count -= word.bit_count()

    def hand(self, at: int, word: int, n: int, other: Bucket) -> None:
        """The `n` targets of a word, all of which stand here, go to another bucket."""
        words = self.words
        words[at] ^= word
        self.count -= n
        words = other.words
        have = words.get(at)
        if have is None:
            words[at] = word
            other.begin(at)
        else:
            words[at] = have | word
        other.count += n

    def filled(self, among: int = -1) -> Iterator[tuple[int, int]]:
        """Its words that are not empty, ascending, of those in the mask `among`: (number, word)."""
        words = self.words
        for at in ids_of(self.top & among):
            word = words[at]
            if word:
                yield at, word
            else:
                self.end(at)

    def begin(self, at: int) -> None:
        """A word is listed from now on."""
        rack, top = self.rack, self.top
        self.top = top | 1 << at
        if not top:
            rack.best |= self.best_bit
            if rack.worst is not None:
                rack.worst |= self.worst_bit
        if rack.front is not None:
            rack.front.begin(at, self)

    def end(self, at: int) -> None:
        """An empty word is no longer listed."""
        rack, top = self.rack, self.top ^ 1 << at
        del self.words[at]
        self.top = top
        if not top:
            rack.best ^= self.best_bit
            if rack.worst is not None:
                rack.worst ^= self.worst_bit
        if rack.front is not None:
            rack.front.end(at, self)


class Rack:
    """The buckets of targets that have `cores` and `gpus` in all, by gpus * (cores + 1) + cores of what is free there.

    `best` and `worst` are masks of those that list a word. In `best` fewer GPUs stand higher, then fewer cores; in
    `worst` more cores, then fewer GPUs: the highest bit is where BEST_FIT and WORST_FIT look first. `by_best` and
    `by_worst` give a bucket by the length of its bit there.
    """

    __slots__ = ("_fitting", "best", "buckets", "by_best", "by_worst", "cores", "front", "gpus", "worst")

    def __init__(self, cores: int, gpus: int) -> None:
        self.cores = cores
        self.gpus = gpus
        self.best = 0
        self.worst: int | None = None
        self.front: Front | None = None
        self.buckets: dict[int, Bucket] = {}
        self.by_best: dict[int, Bucket] = {}
        self.by_worst: dict[int, Bucket] = {}
        self._fitting: dict[tuple[int, int], tuple[int, int]] = {}

    def bucket(self, cores: int, gpus: int) -> Bucket:
        """The bucket of so many free cores and GPUs, made if need be."""
        place = gpus * (self.cores + 1) + cores
        bucket = self.buckets.get(place)
        if bucket is None:
            bucket = self.buckets[place] = Bucket(self, cores, gpus)
            self.by_best[bucket.best_bit.bit_length()] = bucket
            self.by_worst[bucket.worst_bit.bit_length()] = bucket
        return bucket

    def fitting(self, cores: int, gpus: int) -> tuple[int, int]:
        """The buckets with at least that much free, as masks over the places in both orders."""
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

    def in_use(self, cores: int, gpus: int, placement: str) -> list[Bucket]:
        """The buckets with at least that much free where somebody stands, in the order of BEST_FIT or WORST_FIT."""
        best, worst = self.fitting(cores, gpus)
        if placement == WORST_FIT:
            listed = [self.by_worst[id + 1] for id in ids_of(self.spread() & worst)]
        else:
            listed = [self.by_best[id + 1] for id in ids_of(self.best & best)]
        found = []
        for bucket in reversed(listed):
            if bucket.count:
                found.append(bucket)
            else:
                for at in ids_of(bucket.top):
                    bucket.end(at)
        return found

    def spread(self) -> int:
        """`worst`, made when it is asked for the first time."""
        if self.worst is None:
            self.worst = 0
            for bucket in self.buckets.values():
                self.worst |= bucket.worst_bit if bucket.top else 0
        return self.worst

    def first(self, wanted: int) -> tuple[int, int]:
        """The lowest word in which somebody stands in a bucket of this mask (of `best`), and all who do there.

        An empty word if nobody does.
        """
        if self.front is None:
            self.front = Front(self)
        return self.front.first(wanted)


class Front:
    """The lowest word in which a bucket of a set has somebody, without looking at all words.

    Law: a tree over the words; each node is the mask (by `best`) of the buckets that list a word below it, and changes
    only when one begins or ends to do so, as far up as that makes a difference. The words are the first level, the root
    is the last one.
    """

    __slots__ = ("_levels", "_rack")

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._levels = [[0]]
        for bucket in rack.buckets.values():
            for at in bucket.words:
                self.begin(at, bucket)

    def begin(self, at: int, bucket: Bucket) -> None:
        """A bucket lists this word now."""
        bit, levels = bucket.best_bit, self._levels
        while at >= len(levels[0]):
            for level in levels:
                level += [0] * (len(level) * (FAN - 1))
            levels.append(levels[-1][:1])
        for level in levels:
            if level[at] & bit:
                return
            level[at] |= bit
            at >>= FAN_SHIFT

    def end(self, at: int, bucket: Bucket) -> None:
        """A bucket lists this word no more."""
        bit, below = bucket.best_bit, self._levels[0]
        below[at] ^= bit
        for level in self._levels[1:]:
            at >>= FAN_SHIFT
            for node in below[at << FAN_SHIFT : (at + 1) << FAN_SHIFT]:
                if node & bit:
                    return
            level[at] ^= bit
            below = level

    def first(self, wanted: int) -> tuple[int, int]:
        """The lowest word in which somebody stands in a wanted bucket, and all who do; an empty one if nobody does."""
        by_best, levels = self._rack.by_best, self._levels
        while levels[-1][0] & wanted:
            at = 0
            for level in reversed(levels):
                at <<= FAN_SHIFT
                while not level[at] & wanted:
                    at += 1
            some, found = level[at] & wanted, 0
            while some:  # `ids_of`, written out: there are many
                bucket = by_best[some.bit_length()]
                some ^= bucket.best_bit
                if word := bucket.words[at]:
                    found |= word
                else:
                    bucket.end(at)
            if found:
                return at, found
        return 0, 0
