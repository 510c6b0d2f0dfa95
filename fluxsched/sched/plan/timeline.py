"""What will be free on the reserved targets, step by step from now on: all their ids as one number.

Law: in that number each target has a field of bits, its cores below its GPUs, so what is asked of a step of time costs
one operation for all targets at once. A step lasts until the next one begins; what is free for some time is what jobs
have given by its begin, less what is reserved at some time of it. No number is kept for each step, since one of 131,072
targets takes a MiB. Jobs end by their limits, and nothing is taken twice: the pool is not changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf, nextafter
from typing import Final, NamedTuple, TypeAlias

from fluxsched.sched.pool.bitset import BITS, LOW_BITS, WORD_SHIFT, ids_of
from fluxsched.sched.pool.placement import Block, Blocks, on_targets

TargetIds: TypeAlias = tuple[int, int, int]
"""Of a target: its rank, cores and GPUs."""

_PIECE: Final = 64
"""Fields that are gone through in a number of their own, where a number has more than `_SHORT`: a multiple of eight."""

_SHORT: Final = 512


class IdLayout:
    """Which bits of a number are whose: a target gets its field when it is first asked for, and keeps it.

    A field has `most_cores` bits and `most_gpus` above them; `cores` are the bits of cores, of all fields. Numbers of
    many targets are put together from groups of eight fields, which fill whole bytes whatever their width, so that the
    time is linear in their length.
    """

    __slots__ = (
        "_core_bits", "_field_bits", "_known", "_ones", "_places", "_ranks", "_shift", "_width", "cores",
    )  # fmt: skip

    def __init__(self, most_cores: int, most_gpus: int) -> None:
        self._shift = most_cores
        self._width = most_cores + most_gpus
        self._core_bits = (1 << self._shift) - 1
        self._field_bits = (1 << self._width) - 1
        self._places: dict[int, int] = {}
        self._ranks: list[int] = []
        self._known: dict[int, int] = {}  # the targets that have a field, word by word
        self._ones = 0  # the lowest bit of each field
        self.cores = 0

    def among(self, words: Mapping[int, int]) -> int:
        """The fields of those targets that are in these words."""
        groups: dict[int, int] = {}
        for at, word in self._known.items():
            for bit in ids_of(word & words.get(at, 0)):
                self._put(groups, self._places[at << WORD_SHIFT | bit], self._field_bits)
        return self._joined(groups)

    def ids(self, blocks: Iterable[Block]) -> int:
        """These blocks, as far as they are of targets."""
        first, fresh, groups = len(self._ranks), list[tuple[int, int]](), dict[int, int]()
        for at, word, cores, gpus, _ in on_targets(blocks):
            field = self._field(cores, gpus)
            known = self._known.get(at, 0)
            if word & ~known:
                n = self._enter(at, word & ~known)
                fresh.append((field * self._repeated(n), n * self._width))
            for bit in ids_of(word & known):
                self._put(groups, self._places[at << WORD_SHIFT | bit], field)
        if not fresh:
            return self._joined(groups)
        ones = self._repeated(len(self._ranks) - first) << first * self._width
        self._ones |= ones
        self.cores |= (ones << self._shift) - ones
        return self._joined(groups) | _in_a_row(fresh) << first * self._width

    def ids_of(self, parts: list[TargetIds]) -> int:
        """These ids of targets that have fields."""
        if len(parts) == 1:
            ((rank, cores, gpus),) = parts
            return self._field(cores, gpus) << self._places[rank] * self._width
        groups: dict[int, int] = {}
        for rank, cores, gpus in parts:
            self._put(groups, self._places[rank], self._field(cores, gpus))
        return self._joined(groups)

    def whole(self, ids: int) -> int:
        """All bits of the fields in which there is one of these."""
        if not ids:
            return 0
        ones, top = self._ones, self._width - 1
        below = (ones << top) - ones  # all bits of each field but the highest, to which a carry from these goes
        found = ((ids & below) + below | ids) >> top & ones
        return (found << self._width) - found

    def parts(self, ids: int) -> Iterator[TargetIds]:
        """Target by target, which cores and GPUs are among these ids; targets without any are skipped."""
        width, field_bits = self._width, self._field_bits
        for first, fields in _pieces(ids, width) if ids.bit_length() > _SHORT * width else ((0, ids),):
            while fields:
                number = ((fields & -fields).bit_length() - 1) // width
                field = fields >> number * width & field_bits
                fields ^= field << number * width
                yield self._ranks[first + number], field & self._core_bits, field >> self._shift

    def blocks(self, ids: int) -> Blocks:
        """The same, as a pool takes and gives it."""
        words: dict[tuple[int, int, int], int] = {}
        for rank, cores, gpus in self.parts(ids):
            key = rank >> WORD_SHIFT, cores, gpus
            words[key] = words.get(key, 0) | BITS[rank & LOW_BITS]
        return tuple([Block(at, word, cores, gpus) for (at, cores, gpus), word in words.items()])

    # ---- within

    def _field(self, cores: int, gpus: int) -> int:
        return cores & self._core_bits | (gpus << self._shift & self._field_bits)

    def _enter(self, at: int, word: int) -> int:
        """Gives fields in a row to these targets, none of which has one; how many they are."""
        first, base = len(self._ranks), at << WORD_SHIFT
        self._ranks += [base + bit for bit, digit in enumerate(f"{word:b}"[::-1]) if digit == "1"]
        last = len(self._ranks)
        self._places.update(zip(self._ranks[first:], range(first, last), strict=True))
        self._known[at] = self._known.get(at, 0) | word
        return last - first

    def _put(self, groups: dict[int, int], place: int, field: int) -> None:
        group = place >> 3
        groups[group] = groups.get(group, 0) | field << (place & 7) * self._width

    def _joined(self, groups: dict[int, int]) -> int:
        """The number of these groups of fields."""
        width = self._width
        if len(groups) <= 1:
            return sum([fields << group * 8 * width for group, fields in groups.items()])
        data = bytearray((max(groups) + 1) * width)
        for group, fields in groups.items():
            data[group * width : (group + 1) * width] = fields.to_bytes(width, "little")
        return int.from_bytes(data, "little")

    def _repeated(self, n: int) -> int:
        """The lowest bits of `n` fields in a row."""
        if n == 1 or not self._width:
            return 1
        group = sum([1 << each * self._width for each in range(8)]).to_bytes(self._width, "little")
        return int.from_bytes(group * (n + 7 >> 3), "little") & (1 << n * self._width) - 1


def _pieces(ids: int, width: int) -> Iterator[tuple[int, int]]:
    """Pieces of a number in which there is something, ascending, each with the number of its first field."""
    size = _PIECE * width >> 3
    data, zeros = ids.to_bytes((ids.bit_length() + 7) >> 3, "little"), bytes(size)
    for begin in range(0, len(data), size):
        piece = data[begin : begin + size]
        if piece != zeros:
            yield begin // size * _PIECE, int.from_bytes(piece, "little")


def _in_a_row(numbers: list[tuple[int, int]]) -> int:
    """Numbers of so many bits, the lowest first, as one; joined by twos, so that none is copied often."""
    while len(numbers) > 1:
        pairs = zip(numbers[::2], numbers[1::2], strict=False)
        odd = numbers[-1:] if len(numbers) & 1 else []
        numbers = [(low | high << bits, bits + more) for (low, bits), (high, more) in pairs] + odd
    return numbers[0][0] if numbers else 0


Projection: TypeAlias = Callable[[Iterable[int], float], tuple[list[TargetIds], dict[float, list[TargetIds]]]]
"""Of targets, what is free now, and what is freed when; what is overdue, at the time named."""

KEPT_BYTES_MAX = 1 << 25
"""Memory for known results of `given_by`, of which two are kept in any case: all of 10,000 jobs on 400 targets fit."""


class Reserved(NamedTuple):
    """What is reserved from one instant to another, and how many cores of it are free when that begins."""

    start_s: float
    end_s: float
    ids: int
    cores: int


class Timeline:
    """Steps from `now_s` on: `times` is when each begins. `now` is what is free now, `ranks` are the targets that are
    looked at, and `stamp` says as of which change all that is.

    What jobs free is kept by time and target, and joined into a number when `given_by` is asked for it. `_most` is an
    upper bound of the free cores of each step, so that most steps need no number.
    """

    __slots__ = (
        "_ends", "_ends_s", "_given", "_given_by_s", "_most", "_of_others", "_others", "_project", "_reserved", "_seen",
        "_starts_s", "layout", "now", "ranks", "stamp", "times",
    )  # fmt: skip

    def __init__(self, layout: IdLayout, now_s: float, stamp: object, project: Projection) -> None:
        self.layout = layout
        self._project = project
        self._ends: dict[float, list[TargetIds]] = {}
        self._given_by_s = [-inf]  # the times of the known results
        self._given = [0]
        self._most = [0]
        self._reserved: list[Reserved] = []  # by start
        self._starts_s: list[float] = []  # of these
        self._ends_s: list[float] = []
        self._others = -1  # all ids but those that `between` found reserved last
        self._of_others: tuple[int, int] | None = None  # how many reservations had begun, and were over, then
        self._seen = 0  # the fields of the targets that are looked at
        self.times = [now_s]
        self.now = 0
        self.ranks: set[int] = set()
        self.stamp = stamp

    def look_at(self, ids: int) -> None:
        """Takes in the targets of these ids."""
        ids &= ~self._seen
        if not ids:
            return
        self._seen |= self.layout.whole(ids)
        ranks = [rank for rank, *_ in self.layout.parts(ids)]
        self.ranks.update(ranks)
        now, ends = self._project(ranks, nextafter(self.times[0], inf))
        self.now |= self.layout.ids_of(now)
        for end_s in ends:
            self._step_at(end_s)
        most = _cores_of(now)
        for step, time_s in enumerate(self.times):
            if time_s in ends:
                most += _cores_of(ends[time_s])
            self._most[step] += most
        self._give_besides(ends)
        for end_s, parts in ends.items():
            self._ends[end_s] = self._ends.get(end_s, []) + parts

    def take(self, start_s: float, end_s: float, ids: int) -> None:
        """Reserves these ids from one instant to another."""
        if not ids:
            return
        self.look_at(ids)
        cores = (ids & self.layout.cores & (self.now | self.given_by(start_s))).bit_count()
        self._change_most(start_s, end_s, -cores)
        insort(self._reserved, Reserved(start_s, end_s, ids, cores))
        insort(self._starts_s, start_s)
        insort(self._ends_s, end_s)
        self._of_others = None

    def give(self, start_s: float, end_s: float, ids: int) -> None:
        """Frees what was taken so."""
        if not ids:
            return
        at = next(at for at, each in enumerate(self._reserved) if each[:3] == (start_s, end_s, ids))
        self._change_most(start_s, end_s, self._reserved.pop(at).cores)
        del self._starts_s[at], self._ends_s[bisect_left(self._ends_s, end_s)]
        self._of_others = None

    def between(self, start_s: float, end_s: float) -> int:
        """What is free all the time from one instant to before another."""
        begun, over = bisect_left(self._starts_s, end_s), bisect_right(self._ends_s, start_s)
        if (begun, over) != self._of_others:  # mostly the same ones as a step before
            taken = 0
            for _, last_s, ids, _ in self._reserved[:begun]:
                if last_s > start_s:
                    taken |= ids
            self._others, self._of_others = ~taken, (begun, over)
        return (self.now | self.given_by(start_s)) & self._others

    def free_for(self, first: int, end_s: float, cores: int) -> int:
        """What is free all the time from the begin of a step to before an instant; 0 if not so many cores are."""
        if self._most[first] < cores:
            return 0
        free = self.between(self.times[first], end_s)
        return free if (free & self.layout.cores).bit_count() >= cores else 0

    def given_by(self, when_s: float) -> int:
        """What jobs have freed by then."""
        known_s, times = self._given_by_s, self.times
        first, last = bisect_right(known_s, when_s) - 1, bisect_right(times, when_s)
        given, begin = self._given[first], bisect_right(times, known_s[first])
        if begin == last:
            return given
        ends = self._ends
        parts = [part for time_s in times[begin:last] for part in ends.get(time_s, ())]
        if not parts:
            return given
        given |= self.layout.ids_of(parts)
        known_s.insert(first + 1, times[last - 1])
        self._given.insert(first + 1, given)
        if len(known_s) > 2 and len(known_s) * (given.bit_length() >> 3) > KEPT_BYTES_MAX:
            del known_s[1::2], self._given[1::2]
        return given

    def _give_besides(self, ends: Mapping[float, list[TargetIds]]) -> None:
        """Adds what further targets give to the known results."""
        given, times = 0, sorted(ends)
        done = 0
        for at, known_s in enumerate(self._given_by_s):
            until = bisect_right(times, known_s)
            if until > done:
                given |= self.layout.ids_of([part for time_s in times[done:until] for part in ends[time_s]])
                done = until
            self._given[at] |= given

    def _change_most(self, start_s: float, end_s: float, more: int) -> None:
        most, first = self._most, self._step_at(start_s)
        last = self._step_at(end_s)
        most[first:last] = [cores + more for cores in most[first:last]]

    def _step_at(self, time_s: float) -> int:
        """The step that begins at this time, which is made if there is none."""
        step = bisect_left(self.times, time_s)
        if time_s < inf and (step == len(self.times) or self.times[step] != time_s):
            self.times.insert(step, time_s)
            self._most.insert(step, self._most[step - 1])
        return step


def _cores_of(parts: Iterable[TargetIds]) -> int:
    return sum([cores.bit_count() for _, cores, _ in parts])
