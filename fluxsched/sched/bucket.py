"""The buckets of a shelf: which of its targets have just so many GPUs and cores free, and in which order to look there.

Law: a bucket changes in one word. `Rack` knows in which buckets somebody stands, as one mask for each order of looking:
BEST_FIT always, the other two from the first time that somebody asks for them, so nobody pays for what is not used.
"""

from __future__ import annotations

from fluxsched.sched.bits import Bits, ids_of

BEST_FIT = "best-fit"
"""Fewest free GPUs first, then fewest free cores, then the lowest rank: gaps are filled, GPUs are kept for who asks."""

WORST_FIT = "worst-fit"
"""Most free cores first, then fewest free GPUs, then the lowest rank: load is spread."""

FIRST_FIT = "first-fit"
"""The lowest ranks that have enough free: jobs gather at one end of the machine."""

PLACEMENTS = (WORST_FIT, BEST_FIT, FIRST_FIT)

FAN_SHIFT = 3
"""A node of Front's tree has 8 below it: three levels for the 256 words of 131,072 targets."""

BUCKETS_MAX = 1 << 20
"""Buckets that a rack may have, (cores + 1) x (GPUs + 1) of a target: 4,096 cores with 255 GPUs; 128 KiB a mask."""

FITTING_MAX = 1024
"""Needs of which a rack remembers the buckets that will do: two masks each, some KiB at the worst."""


class Bucket(Bits):
    """The usable targets with just that many free GPUs and cores; `best` is its place in the order of BEST_FIT."""

    __slots__ = ("best", "best_bit", "cores", "gpus", "rack", "worst_bit")

    def __init__(self, rack: Rack, cores: int, gpus: int) -> None:
        super().__init__()
        self.rack = rack
        self.cores = cores
        self.gpus = gpus
        self.best = gpus * (rack.cores + 1) + cores
        self.best_bit = 1 << self.best
        self.worst_bit = 1 << cores * (rack.gpus + 1) + rack.gpus - gpus

    def put(self, at: int, word: int) -> None:
        have = self.words.get(at)
        if have is not None:
            assert not have & word, "a target stands in a bucket twice"
            self.words[at] = have | word
        else:
            self.words[at] = word
            self.begin(at)
        self.count += word.bit_count()

    def drop(self, at: int, word: int) -> None:
        left = self.words[at] ^ word
        if left:
            assert not left & word, "a target does not stand in its bucket"
            self.words[at] = left
        else:
            del self.words[at]
            self.end(at)
        self.count -= word.bit_count()

    def begin(self, at: int) -> None:
        """A word is no longer empty."""
        rack, top = self.rack, self.top
        self.top = top | 1 << at
        if not top:
            rack.best ^= self.best_bit
            if rack.worst is not None:
                rack.worst ^= self.worst_bit
        if rack.front is not None:
            rack.front.begin(at, self)

    def end(self, at: int) -> None:
        """A word has become empty."""
        rack, top = self.rack, self.top ^ 1 << at
        self.top = top
        if not top:
            rack.best ^= self.best_bit
            if rack.worst is not None:
                rack.worst ^= self.worst_bit
        if rack.front is not None:
            rack.front.end(at, self)


class Rack:
    """The buckets of targets that have `cores` and `gpus` in all; `best` and `worst` are masks of those in use.

    A bit of `best` is gpus * (cores + 1) + cores of the bucket's free numbers; of `worst` it is those numbers' place
    when sorted by cores, then by GPUs from many to few, so that its highest bit is where WORST_FIT looks first.
    """

    __slots__ = ("_fitting", "best", "buckets", "by_worst", "cores", "front", "gpus", "worst")

    def __init__(self, cores: int, gpus: int) -> None:
        self.cores = cores
        self.gpus = gpus
        self.best = 0
        self.worst: int | None = None
        self.front: Front | None = None
        self.buckets: dict[int, Bucket] = {}
        self.by_worst: dict[int, Bucket] = {}
        self._fitting: dict[tuple[int, int], tuple[int, int]] = {}

    def bucket(self, cores: int, gpus: int) -> Bucket:
        """The bucket of so many free cores and GPUs, made if need be."""
        bucket = self.buckets.get(gpus * (self.cores + 1) + cores)
        if bucket is None:
            bucket = Bucket(self, cores, gpus)
            self.buckets[bucket.best] = self.by_worst[bucket.worst_bit.bit_length() - 1] = bucket
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
        run = (1 << self.cores + 1) - (1 << cores)
        for free_gpus in range(gpus, self.gpus + 1):
            best |= run << free_gpus * (self.cores + 1)
        run = (1 << self.gpus - gpus + 1) - 1
        for free_cores in range(cores, self.cores + 1):
            worst |= run << free_cores * (self.gpus + 1)
        return best, worst

    def in_use(self, cores: int, gpus: int, placement: str) -> list[Bucket]:
        """The buckets with at least that much free where somebody stands, in the order of BEST_FIT or WORST_FIT."""
        best, worst = self.fitting(cores, gpus)
        if placement == WORST_FIT:
            return [self.by_worst[place] for place in ids_of(self.spread() & worst)][::-1]
        return [self.buckets[place] for place in ids_of(self.best & best)]

    def spread(self) -> int:
        """`worst`, made when it is asked for the first time."""
        if self.worst is None:
            self.worst = 0
            for bucket in self.buckets.values():
                self.worst |= bucket.worst_bit if bucket.top else 0
        return self.worst

    def first(self, cores: int, gpus: int) -> Bucket | None:
        """The bucket, of those with at least that much free, in which the lowest rank stands."""
        if self.front is None:
            self.front = Front(self)
        return self.front.first(cores, gpus)


class Front:
    """The lowest word in which a bucket of a set has somebody, without looking at all words.

    Law: a tree over the words; each node is the mask (by `best`) of the buckets in use below it, and changes only when
    a bucket begins or ends to have somebody in a word, as far up as that makes a difference.
    """

    __slots__ = ("_levels", "_rack")

    def __init__(self, rack: Rack) -> None:
        self._rack = rack
        self._levels: list[dict[int, int]] = [{}]
        for bucket in rack.buckets.values():
            for at in bucket.words:
                self.begin(at, bucket)

    def begin(self, at: int, bucket: Bucket) -> None:
        """A bucket has somebody in this word now."""
        while at >> FAN_SHIFT * (len(self._levels) - 1):
            self._levels.append({0: self._union(len(self._levels) - 1, 0)})
        for level in self._levels:
            before = level.get(at, 0)
            level[at] = before | bucket.best_bit
            at >>= FAN_SHIFT

    def end(self, at: int, bucket: Bucket) -> None:
        """A bucket has nobody in this word any more."""
        self._levels[0][at] ^= bucket.best_bit
        for height, level in enumerate(self._levels[1:]):
            at >>= FAN_SHIFT
            union = self._union(height, at)
            if union == level[at]:
                return
            level[at] = union

    def first(self, cores: int, gpus: int) -> Bucket | None:
        """The bucket, of those with at least so much free, in which the lowest rank stands."""
        wanted, _ = self._rack.fitting(cores, gpus)
        if not self._levels[-1].get(0, 0) & wanted:
            return None
        at = 0
        for level in self._levels[-2::-1]:
            at <<= FAN_SHIFT
            while not level.get(at, 0) & wanted:
                at += 1
        found, lowest_bit = None, 0
        for place in ids_of(self._levels[0][at] & wanted):
            bucket = self._rack.buckets[place]
            word = bucket.words[at]
            word &= -word
            if found is None or word < lowest_bit:
                found, lowest_bit = bucket, word
        return found

    def _union(self, height: int, at: int) -> int:
        level, union = self._levels[height], 0
        for below in range(at << FAN_SHIFT, (at + 1) << FAN_SHIFT):
            union |= level.get(below, 0)
        return union
