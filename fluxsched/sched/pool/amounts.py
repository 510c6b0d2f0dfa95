"""Amounts without ids (memory, licences): on targets without cores, on those with cores, and of the whole instance.

Targets without cores have amounts of any kinds, each its own, and are ordered by the share that is free.

Law: the free amount of a kind is what the target has, less what is occupied by others, less what jobs hold; it may be
negative, since capacities change and jobs are found running: then nothing more of that kind fits there. A usable target
(up, and not withheld) is on the level of its free share, in whole numbers, and the lowest rank is first within a level.
The first targets in order are looked at one by one, since one of them mostly fits; where they do not, those that have
too little of a kind are left out, in words of 512. For that targets are in levels of magnitude by how much of each kind
they have: those on a higher level than a need hold it, those on its own level may. Adding, changing or removing a
target costs that target and its properties, however many others there are.

Countable resources, which have no ids (memory in bytes, licences): how much is left on each target, and in all.

Law: an amount is fungible, so it is counted, never named. Targets of which nothing is taken cost nothing here; the
others are in levels by how much is left (its order of magnitude and two more binary digits), so that a search for an
amount skips whole words of targets that have too little, and looks closely only at those near the limit. What the free
remainder of a target weighs, for the placement `least-lost`, is a whole number, so equal remainders are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import lcm
from types import MappingProxyType
from typing import Final, TypeAlias

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts, less, total
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children, merge
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.placement import BITS, FAIR, FIRST_FIT, LOW_BITS, WORD_SHIFT, WORST_FIT, Bits, ids_of


class Countable:
    """One kind, on the targets of a class, each of which has `total`."""

    __slots__ = ("_left", "_levels", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._left: dict[int, int] = {}
        self._levels: dict[int, Bits] = {}

    def left(self, rank: int) -> int:
        """Return the amount that is free on a target."""
        return self._left.get(rank, self.total)

    def set_left(self, rank: int, amount: int) -> None:
        """Set how much is free on a target."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        before = self._left.pop(rank, None)
        if before is not None:
            level = self._levels[magnitude(before)]
            level.drop(at, bit)
            if not level.count:
                del self._levels[magnitude(before)]
        if amount != self.total:
            self._left[rank] = amount
            self._levels.setdefault(magnitude(amount), Bits()).put(at, bit)

    def taken_at(self, at: int) -> int:
        """Return the targets of a word on which not all of it is free."""
        found = 0
        for bits in self._levels.values():
            found |= bits.words.get(at, 0)
        return found

    def forget(self, rank: int) -> None:
        """Record that the target has left the class."""
        self.set_left(rank, self.total)

    def enough(self, at: int, word: int, need: int) -> int:
        """Return the targets of a word on which at least `need` is free."""
        if need > self.total:
            return 0
        limit = magnitude(need)
        for level, bits in self._levels.items():
            some = bits.words.get(at, 0) & word if level <= limit else 0
            if some and level < limit:
                word ^= some
            elif some:
                base = at << WORD_SHIFT
                for id in ids_of(some):
                    if self._left[base + id] < need:
                        word ^= 1 << id
        return word


class InstanceCountables:
    """Countables that the instance has once (licences, bandwidth to a file system); `totals` is what was granted to us.

    One account for all groups of a scheduler, since a job takes the same licence wherever it runs. Jobs found running
    at hello may hold more than there is; then nothing is left until they end.
    """

    __slots__ = ("_used", "totals")

    def __init__(self) -> None:
        self.totals: Amounts = ()
        self._used: dict[str, int] = {}

    def add(self, amounts: Amounts) -> None:
        """Add the amounts of a grow."""
        self.totals = total(self.totals, amounts)

    def left(self, kind: str) -> int:
        """Return the free amount of a kind; negative if jobs hold more than there is."""
        return dict(self.totals).get(kind, 0) - self._used.get(kind, 0)

    def lacking(self, amounts: Amounts, *, ever: bool = False) -> Amounts:
        """Return how much is free (with `ever`: exists) of each kind that falls short of these amounts."""
        if not amounts:
            return ()
        there = dict(self.totals) if ever else {kind: max(self.left(kind), 0) for kind, _ in amounts}
        return tuple([(kind, there.get(kind, 0)) for kind, amount in amounts if there.get(kind, 0) < amount])

    def take(self, amounts: Amounts) -> bool:
        """Take the amounts for a job, if all of them are free; else return False."""
        if self.lacking(amounts):
            return False
        self.claim(amounts)
        return True

    def claim(self, amounts: Amounts) -> None:
        """Take the amounts of a job, whether they are free or not."""
        for kind, amount in amounts:
            self._used[kind] = self._used.get(kind, 0) + amount

    def give(self, amounts: Amounts) -> None:
        """Give back the amounts of a job. Raise LocalProtocolError for more than is taken."""
        for kind, amount in amounts:
            left = self._used.get(kind, 0) - amount
            if left < 0:
                raise LocalProtocolError(f"{amount} {kind} freed, of which only {left + amount} is allocated")
            self._used[kind] = left

    def used(self) -> Amounts:
        """Return the amounts that jobs hold, by kind."""
        return tuple(sorted((kind, amount) for kind, amount in self._used.items() if amount))


def magnitude(amount: int) -> int:
    """Grows with the amount; equal for amounts that differ by less than a quarter or so."""
    length = amount.bit_length()
    return amount if length < 3 else length << 2 | (amount >> (length - 3) & 3)


# ---- weights of remainders

LOST_WEIGHTS: Final[Mapping[str, int]] = MappingProxyType({"core": 1 << 32, "gpu": 10 << 32, "memory": 1})
"""Default weights of `[fair]` (a core as 4 GiB, a GPU as 10 cores), in which a byte of memory weighs 1."""


class LostWeights:
    """Weights of a core, a GPU and a unit of each kind; kinds without a weight do not count."""

    __slots__ = ("core", "gpu", "kinds")

    def __init__(self) -> None:
        self.core = self.gpu = 0
        self.kinds: Mapping[str, int] = {}
        self.set(LOST_WEIGHTS)

    def set(self, weights: Mapping[str, int]) -> None:
        self.core, self.gpu = weights.get("core", 0), weights.get("gpu", 0)
        self.kinds = {kind: weight for kind, weight in weights.items() if weight and kind not in ("core", "gpu")}

    def of(self, cores: int, gpus: int, amounts: Amounts = ()) -> int:
        """Return the weight of cores, GPUs and amounts."""
        found = cores * self.core + gpus * self.gpu
        for kind, amount in amounts:
            found += amount * self.kinds.get(kind, 0)
        return found


# ---- targets by how much of a kind they have left

LONG_SHIFT: Final = 13
"""Words of 8,192 ranks, 1 KiB: joining two takes a quarter of a microsecond."""

LOW_LONG_BITS: Final = (1 << LONG_SHIFT) - 1

LOW_WORDS: Final = (1 << LONG_SHIFT - WORD_SHIFT) - 1

LongWords: TypeAlias = dict[int, int]
"""A set of ranks by long words."""


class KindIndex:
    """Index of the targets that have some of each kind, by the magnitude of the amount."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds: dict[str, dict[int, LongWords]] = {}

    def change(self, kind: str, before: int, after: int, rank: int) -> None:
        """Record that a target has `after` of a kind instead of `before`; 0 or less is none."""
        old = magnitude(before) if before > 0 else 0
        new = magnitude(after) if after > 0 else 0
        if old == new:
            return
        at, bit = rank >> LONG_SHIFT, 1 << (rank & LOW_LONG_BITS)
        levels = self._kinds.get(kind)
        if levels is None:
            levels = self._kinds[kind] = {}
        if old:
            words = levels[old]
            left = words[at] ^ bit
            if left:
                words[at] = left
            else:
                del words[at]
                if not words:
                    del levels[old]
                    if not levels and not new:
                        del self._kinds[kind]
        if new:
            found = levels.get(new)
            if found is None:
                levels[new] = {at: bit}
            else:
                found[at] = found.get(at, 0) | bit

    def able(self, need: Amounts) -> LongWords | None:
        """Return the targets that may hold the need: all that do, and some that nearly do. None is all of them."""
        able: LongWords | None = None
        for kind, amount in need:
            found: LongWords = {}
            least = magnitude(amount)
            for level, words in self._kinds.get(kind, {}).items():
                if level >= least:
                    for at, word in words.items():
                        found[at] = found.get(at, 0) | word
            if able is not None:
                found = {at: word & able[at] for at, word in found.items() if at in able}
            able = found
        return able

    def ranks(self, need: Amounts, members: Bits) -> Iterator[int]:
        """Yield the ranks of these members that fit the need, ascending."""
        able = self.able(need)
        for at in ids_of(members.top):
            word = members.words[at]
            if able is not None:
                word &= cut(able, at)
            base = at << WORD_SHIFT
            for id in ids_of(word):
                yield base + id

    def check(self, amounts: Mapping[int, Mapping[str, int]]) -> None:
        """Assert that it has these ranks with these amounts, and nothing else; linear."""
        other = KindIndex()
        for rank, mine in amounts.items():
            for kind, amount in mine.items():
                other.change(kind, 0, amount, rank)
        assert self._kinds == other._kinds, "a target is listed with another amount than it has"


def cut(words: LongWords, at: int) -> int:
    """Return the part of long words in a word of 512 ranks, and perhaps bits above it."""
    return words.get(at >> LONG_SHIFT - WORD_SHIFT, 0) >> ((at & LOW_WORDS) << WORD_SHIFT)


# ---- search for a target

PROBES: Final = 8
"""Targets that are looked at before magnitudes are, which costs as much as twenty of them."""

ENDLESS: Final = -1

NONE: Final = -1
UNKNOWN: Final = -2
"""Instead of a rank: there is no target, or the tries were used up before one was found."""


def find_target(
    targets: AmountTargets, need: Amounts, levels: int, descending: bool, only: Bits | None
) -> AmountTarget | None:
    """Return the usable target with the largest (or the smallest) free share that holds the need; it is on one of
    `levels`.
    """
    rank = _first(targets, need, levels, descending, only, None, PROBES)
    if rank == UNKNOWN:
        rank = _first(targets, need, levels, descending, only, targets.free_kinds.able(need), ENDLESS)
    return None if rank == NONE else targets.by_rank[rank]


def _first(
    targets: AmountTargets,
    need: Amounts,
    levels: int,
    descending: bool,
    only: Bits | None,
    able: LongWords | None,
    tries: int,
) -> int:
    """Return the first rank in order that holds the need, within all the masks; NONE, or UNKNOWN after `tries`
    tries.
    """
    by_rank, shares = targets.by_rank, targets.shares
    used = shares.used & levels
    while used:
        low = 1 << used.bit_length() - 1 if descending else used & -used
        used ^= low
        level = shares.levels[low.bit_length() - 1]
        top = level.top if only is None else level.top & only.top
        while top:
            low = top & -top
            top ^= low
            at = low.bit_length() - 1
            word = level.words[at] if only is None else level.words[at] & only.words[at]
            if able is not None:
                word &= cut(able, at)
            base = at << WORD_SHIFT
            while word:
                low = word & -word
                word ^= low
                rank = base + low.bit_length() - 1
                free = by_rank[rank].free
                for kind, amount in need:
                    if free.get(kind, 0) < amount:
                        break
                else:
                    return rank
                tries -= 1
                if not tries:
                    return UNKNOWN
    return NONE


def find_lowest(targets: AmountTargets, need: Amounts, only: Bits | None) -> AmountTarget | None:
    """Return the usable target of the lowest rank that holds the need."""
    for rank in targets.free_kinds.ranks(need, targets.members if only is None else only):
        target = targets.by_rank.get(rank)
        if target is not None and target.usable and target.holds(need):
            return target
    return None


# ---- targets by the share that is free


class ShareIndex:
    """`levels` has the targets of each level; `used` is the mask of the levels that have any."""

    __slots__ = ("levels", "used")

    def __init__(self) -> None:
        self.levels = [Bits() for _ in range(STEPS + 1)]
        self.used = 0

    def put(self, level: int, at: int, bit: int) -> None:
        """Record that a target is usable, with this share free."""
        self.used |= 1 << level
        self.levels[level].put(at, bit)

    def drop(self, level: int, at: int, bit: int) -> None:
        """Record that a target of this level is not usable any more, or changes its level."""
        bits = self.levels[level]
        bits.drop(at, bit)
        if not bits.top:
            self.used ^= 1 << level


# ---- one target without cores

STEPS: Final = 64
"""Steps of the free share: an idle target is on level 64, one without anything free on level 0."""


ShareScale: TypeAlias = tuple[dict[str, int], int]
"""Weight of one unit of each kind in `scaled`, and a 64th of the whole; equal for equal targets."""


def scale_of(capacity: Amounts, weights: Mapping[str, int]) -> ShareScale:
    """Return the scale of targets with this capacity."""
    weighed = [(kind, amount, weights[kind]) for kind, amount in capacity if kind in weights]
    common = lcm(*[amount for _, amount, _ in weighed])
    factors = {kind: STEPS * weight * (common // amount) for kind, amount, weight in weighed}
    return factors, common * sum([weight for _, _, weight in weighed]) or 1


class AmountTarget:
    """`level` is the free share in steps of 1/64; `usable` means up and not withheld.

    The share is the mean, over the kinds that have a weight and of which the target has some, of free over capacity; 1
    for a target without such kinds. `scaled` is the sum of its terms, whose whole is STEPS times `whole`.
    """

    __slots__ = (
        "at", "bit", "capacity", "factors", "free", "host", "level", "names", "occupied", "rank", "scaled", "up",
        "usable", "whole", "withheld",
    )  # fmt: skip

    def __init__(self, rank: int, capacity: Amounts, host: str, names: tuple[str, ...]) -> None:
        self.rank = rank
        self.at = rank >> WORD_SHIFT
        self.bit = BITS[rank & LOW_BITS]
        self.host = host
        self.names = names
        self.capacity = capacity
        self.occupied: Amounts = ()
        self.free: dict[str, int] = dict(capacity)
        self.factors: dict[str, int] = {}
        self.scaled = 0
        self.whole = 1
        self.level = STEPS
        self.up = False
        self.withheld = False
        self.usable = False

    def weigh(self, scale: ShareScale) -> None:
        """Works out the share anew, by the scale of its capacity."""
        self.factors, self.whole = scale
        free, scaled = self.free, 0
        for kind, factor in self.factors.items():
            scaled += factor * max(free[kind], 0)
        self.scaled = scaled
        self.level = scaled // self.whole if self.factors else STEPS

    def holds(self, amounts: Amounts) -> bool:
        """Return whether the amount of each kind is free."""
        return all(self.free.get(kind, 0) >= amount for kind, amount in amounts)

    def could_hold(self, amounts: Amounts) -> bool:
        """Return whether the amount of each kind would be free if no job held anything and nothing were occupied."""
        there = dict(self.capacity)
        return all(there.get(kind, 0) >= amount for kind, amount in amounts)

    def free_of(self, amounts: Amounts) -> Amounts:
        """Return the amounts, each reduced to what is free of the kind."""
        free = self.free
        return tuple([(kind, min(free[kind], amount)) for kind, amount in amounts if free.get(kind, 0) > 0])

    def offered(self) -> Amounts:
        """Return the amounts that jobs can have of the target when it is idle: all but what is occupied."""
        return less(self.capacity, self.occupied)

    def held(self) -> dict[str, int]:
        """Return the amounts that jobs hold, by kind."""
        found, free, occupied = dict(self.capacity), self.free, dict(self.occupied)
        return {
            kind: amount
            for kind in sorted(found.keys() | free.keys() | occupied.keys())
            if (amount := found.get(kind, 0) - occupied.get(kind, 0) - free.get(kind, 0))
        }

    def set_capacity(self, capacity: Amounts, occupied: Amounts) -> None:
        """Set the capacity of the target, and the part of it that is occupied; jobs keep what they hold."""
        held = self.held()
        self.capacity, self.occupied = capacity, occupied
        free = dict(capacity)
        for kind, amount in (*occupied, *held.items()):
            free[kind] = free.get(kind, 0) - amount
        self.free = free


# ---- all targets without cores

WEIGHTS: Final[Mapping[str, float]] = {"vcore": 1.0, "memory": 1.0}
"""Weights of kinds in the free share of a target unless a site sets others; kinds without a weight do not count."""

ALLOWED_MAX = 1024
"""Constraints remembered in a generation, each with a mask of all targets at worst."""

SCALES_MAX = 1024
"""Capacities whose scales are remembered, some hundred bytes each: most targets are equal to another one."""


class AmountTargets:
    """`members` are all of them, `by_rank` the same one by one; `properties` gives the targets that have a name."""

    def __init__(self) -> None:
        self.members = Bits()
        self.by_rank: dict[int, AmountTarget] = {}
        self.properties: dict[str, Idset] = {}
        self.shares = ShareIndex()
        self.free_kinds = KindIndex()
        self.all_kinds = KindIndex()
        self.weights: Mapping[str, float] = WEIGHTS
        self._weights = _whole(WEIGHTS)
        self._most: dict[str, int] = {}  # of kinds with a weight: no target has more
        self._scales: dict[Amounts, ShareScale] = {}
        self._least_factors: dict[str, int] = {}  # worked out of that when it is needed
        self._least_whole = 1
        self._ranks_by_host: dict[str, Idset] = {}
        self._allowed: dict[Constraint, Bits] = {}

    # ---- what exists

    def add_all(self, resources: ResourceSet, ranks: Idset) -> None:
        """Add new targets of an R, those of these ranks, idle and down."""
        hosts = dict(zip(ranks, resources.hosts(ranks), strict=False))
        named = [(name, having & ranks) for name, having in resources.properties.items()]
        for entry in resources.entries:
            for rank in entry.ranks & ranks:
                names = tuple([name for name, having in named if rank in having])
                self.add(rank, entry.children.amounts, hosts.get(rank, ""), names)

    def add(self, rank: int, capacity: Amounts, host: str, names: tuple[str, ...]) -> None:
        """Add a new target, idle and down."""
        target = self.by_rank[rank] = AmountTarget(rank, capacity, host, names)
        target.weigh(self._scale(target.capacity))
        self.members.put(target.at, target.bit)
        for kind, amount in capacity:
            self.free_kinds.change(kind, 0, amount, target.rank)
            self.all_kinds.change(kind, 0, amount, target.rank)
        self._note_most(capacity)
        self._name(target, names)
        if host:
            self._ranks_by_host[host] = self._ranks_by_host.get(host, EMPTY) | Idset.one(rank)

    def remove(self, at: int, word: int) -> None:
        """Remove targets that are down; those of the word that are unknown are ignored."""
        for target in self.on(at, word):
            self._unname(target, target.names)
            self.members.drop(at, target.bit)
            for kind, amount in target.free.items():
                self.free_kinds.change(kind, amount, 0, target.rank)
            for kind, amount in target.capacity:
                self.all_kinds.change(kind, amount, 0, target.rank)
            if target.host:
                left = self._ranks_by_host[target.host] - Idset.one(target.rank)
                if left:
                    self._ranks_by_host[target.host] = left
                else:
                    del self._ranks_by_host[target.host]
            del self.by_rank[target.rank]

    def resize(self, rank: int, capacity: Amounts, occupied: Amounts) -> None:
        """Set the capacity of a target, and the part of it that is occupied. Raise KeyError if it is unknown."""
        target = self.by_rank[rank]
        usable = target.usable
        self._set_usable(target, False)
        free, had = target.free, dict(target.capacity)
        target.set_capacity(capacity, occupied)
        has = dict(capacity)
        for kind in {**had, **has}:  # a union of keys would be in the order of their hashes
            self.all_kinds.change(kind, had.get(kind, 0), has.get(kind, 0), rank)
        for kind in {**free, **target.free}:
            self.free_kinds.change(kind, free.get(kind, 0), target.free.get(kind, 0), rank)
        target.weigh(self._scale(target.capacity))
        self._note_most(capacity)
        self._set_usable(target, usable)

    def _note_most(self, capacity: Amounts) -> None:
        for kind, amount in capacity:
            if kind in self._weights and amount > self._most.get(kind, 0):
                self._most[kind] = amount
                self._least_factors = {}

    def _scale(self, capacity: Amounts) -> ShareScale:
        scale = self._scales.get(capacity)
        if scale is None:
            if len(self._scales) >= SCALES_MAX:
                self._scales.clear()
            scale = self._scales[capacity] = scale_of(capacity, self._weights)
        return scale

    def least_level(self, need: Amounts) -> int:
        """Return the least level whose targets can hold the need: on a lower one they cannot, since it would have a
        larger share free if it did.
        """
        if not self._least_factors:
            common = lcm(*self._most.values())
            self._least_factors = {kind: STEPS * self._weights[kind] * (common // n) for kind, n in self._most.items()}
            self._least_whole = common * sum(self._weights.values()) or 1
        factors, scaled = self._least_factors, 0
        for kind, amount in need:
            scaled += factors.get(kind, 0) * amount
        return min(scaled // self._least_whole, STEPS)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of kinds; linear in the targets."""
        self.weights, self._weights = dict(weights), _whole(weights)
        self._most.clear()
        self._scales.clear()
        self._least_factors = {}
        for target in self.by_rank.values():
            self._note_most(target.capacity)
            usable = target.usable
            self._set_usable(target, False)
            target.weigh(self._scale(target.capacity))
            self._set_usable(target, usable)

    def on(self, at: int, word: int) -> list[AmountTarget]:
        """Return the targets of a word that are in this pool."""
        base = at << WORD_SHIFT
        return [self.by_rank[base + id] for id in ids_of(word & self.members.at(at))]

    def set_up(self, at: int, word: int, up: bool) -> None:
        """Mark these targets of a word as up or down."""
        for target in self.on(at, word):
            target.up = up
            self._set_usable(target, up and not target.withheld)

    def withhold(self, rank: int, withheld: bool) -> None:
        """Mark a target as used by name only, or not. Raise KeyError if it is not in this pool."""
        target = self.by_rank[rank]
        target.withheld = withheld
        self._set_usable(target, target.up and not withheld)

    def _set_usable(self, target: AmountTarget, usable: bool) -> None:
        if usable != target.usable:
            target.usable = usable
            change = self.shares.put if usable else self.shares.drop
            change(target.level, target.at, target.bit)

    # ---- hosts and properties

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Add and remove properties; unknown ranks are ignored."""
        touched = 0
        for ranks in (*add.values(), *remove.values()):
            touched |= ranks.mask
        for rank in Idset(touched & self.members.mask()):
            gained = [name for name, ranks in add.items() if rank in ranks]
            lost = [name for name, ranks in remove.items() if rank in ranks]
            self.rename(rank, gained, lost)

    def rename(self, rank: int, add: Iterable[str], remove: Iterable[str]) -> None:
        """Add and remove properties of a target."""
        target = self.by_rank[rank]
        before, after = dict.fromkeys(target.names), dict.fromkeys((*target.names, *add))
        for name in remove:
            after.pop(name, None)
        self._unname(target, [name for name in before if name not in after])
        self._name(target, [name for name in after if name not in before])
        target.names = tuple(sorted(after))

    def _name(self, target: AmountTarget, names: Iterable[str]) -> None:
        for name in names:
            self.properties[name] = self.properties.get(name, EMPTY) | Idset.one(target.rank)

    def _unname(self, target: AmountTarget, names: Iterable[str]) -> None:
        for name in names:
            left = self.properties[name] - Idset.one(target.rank)
            if left:
                self.properties[name] = left
            else:
                del self.properties[name]

    def allowed(self, constraint: Constraint) -> Bits | None:
        """Return the targets that match, up or down; None if those are all."""
        if constraint is EVERYTHING or constraint == EVERYTHING:
            return None
        found = self._allowed.get(constraint)
        if found is None:
            if len(self._allowed) >= ALLOWED_MAX:
                self._allowed.clear()
            ranks = Idset(self.members.mask())
            found = self._allowed[constraint] = Bits.of(constraint.match(ranks, self.properties, self._on_host).mask)
        return found

    def renew(self) -> None:
        """Discard results of constraints, for a new generation."""
        self._allowed.clear()

    def _on_host(self, host: str) -> Idset:
        return self._ranks_by_host.get(host, EMPTY)

    def kinds(self) -> list[tuple[Amounts, tuple[str, ...], Idset]]:
        """Return targets with equal amounts and properties together: amounts, properties, and ranks."""
        found: dict[tuple[Amounts, tuple[str, ...]], list[int]] = {}
        for target in self.by_rank.values():
            found.setdefault((target.capacity, tuple(sorted(target.names))), []).append(target.rank)
        return [(*equal, Idset.of(ranks)) for equal, ranks in found.items()]

    @property
    def resources(self) -> ResourceSet:
        """Return all targets as R, with hosts if each has one; linear, for people."""
        targets = [self.by_rank[rank] for rank in sorted(self.by_rank)]
        entries, _ = merge([(target.rank, Children(amounts=target.capacity)) for target in targets])
        hosts = tuple([target.host for target in targets])
        return ResourceSet(entries, Hostlist(hosts if all(hosts) else ()), dict(self.properties))

    def check(self) -> None:
        """Assert that each target is where its free amounts put it, for tests and the simulator; linear in them."""
        listed = sum([level.count for level in self.shares.levels])
        assert listed == sum([target.usable for target in self.by_rank.values()]), "a target is listed that is gone"
        for rank, target in self.by_rank.items():
            level, usable = target.level, target.up and not target.withheld
            target.weigh(self._scale(target.capacity))
            assert target.level == level, f"rank {rank} has a free share of {target.level}/{STEPS}, not {level}"
            assert (rank in self.shares.levels[level]) == usable == target.usable, f"rank {rank} is in the wrong place"
        self.free_kinds.check({rank: target.free for rank, target in self.by_rank.items()})
        self.all_kinds.check({rank: dict(target.capacity) for rank, target in self.by_rank.items()})

    # ---- what is free (called by the pool)

    def take(self, at: int, word: int, amounts: Amounts) -> bool:
        """Take the amounts on each of these targets, if all are up and have them; else change nothing."""
        if word & (word - 1):
            return self._take_many(at, word, amounts)
        target = self.by_rank.get(at << WORD_SHIFT | word.bit_length() - 1)
        if target is None or not target.up:
            return False
        free = target.free
        for kind, amount in amounts:
            if free.get(kind, 0) < amount:
                return False
        self._move(target, amounts, -1)
        return True

    def _take_many(self, at: int, word: int, amounts: Amounts) -> bool:
        targets = self.on(at, word)
        if len(targets) < word.bit_count() or not all(target.up and target.holds(amounts) for target in targets):
            return False
        for target in targets:
            self._move(target, amounts, -1)
        return True

    def claim(self, at: int, word: int, amounts: Amounts) -> None:
        """Mark it busy whether it is free or not, and whether its target is up or not."""
        for target in self.on(at, word):
            self._move(target, amounts, -1)

    def give(self, at: int, word: int, amounts: Amounts) -> None:
        """Give back the amounts on the known ones of these targets."""
        base, word = at << WORD_SHIFT, word & self.members.words.get(at, 0)
        while word:
            low = word & -word
            word ^= low
            self._move(self.by_rank[base + low.bit_length() - 1], amounts, 1)

    def _move(self, target: AmountTarget, amounts: Amounts, sign: int) -> None:
        free, factors, scaled = target.free, target.factors, target.scaled
        for kind, amount in amounts:
            before = free.get(kind, 0)
            after = before + sign * amount
            free[kind] = after
            if before <= 0 or after <= 0 or (before ^ after) << 3 >= before:  # else the magnitude is the same
                self.free_kinds.change(kind, before, after, target.rank)
            factor = factors.get(kind, 0)
            if factor:
                scaled += factor * ((after if after > 0 else 0) - (before if before > 0 else 0))
        if factors:
            target.scaled = scaled
            level = scaled // target.whole
            if level != target.level:
                if target.usable:
                    self.shares.drop(target.level, target.at, target.bit)
                    self.shares.put(level, target.at, target.bit)
                target.level = level


def _whole(weights: Mapping[str, float]) -> dict[str, int]:
    """Return the weights that count, as whole numbers of the same proportions."""
    exact = {kind: Fraction(weight) for kind, weight in weights.items() if weight > 0}
    common = lcm(*[weight.denominator for weight in exact.values()])
    return {kind: int(weight * common) for kind, weight in exact.items()}


# ---- requests for them

DESCENDING: Final = (FAIR, WORST_FIT)
"""Placements that try the largest free share first."""


class AskedAmounts:
    """Request of amounts and its targets, as of a generation of the pool.

    `allowed` are the targets that its constraint allows, up or down, None for all. `tiers` are the targets that plugins
    leave of them now (no tiers: all), each before the next, and `ever` those that they leave at any time (None: all);
    both are masks.
    """

    __slots__ = ("_among", "_levels", "_narrowed", "_targets", "_tiers", "allowed", "need", "request")

    def __init__(self, targets: AmountTargets, request: Request, tiers: Sequence[int], ever: int | None) -> None:
        self.request = request
        self.need = total(request.amounts, request.node_amounts) if request.node_amounts else request.amounts
        allowed = targets.allowed(request.constraint)
        self._targets = targets
        self._levels = -1 << targets.least_level(self.need)
        self._tiers = [_common(allowed, mask) for mask in tiers] if ever is not None else [allowed]
        self.allowed = allowed if ever is None else _common(allowed, ever)
        self._among: Idset | None = None
        self._narrowed: list[Bits] = []  # to the last `among`, since a pass asks for the same one again and again

    def find(self, placement: str, among: Idset | None) -> AmountTarget | None:
        """Return the target where it fits now, or None."""
        if among is None:
            if len(self._tiers) == 1:
                return self._find(placement, self._tiers[0])
            tiers = self._tiers
        else:
            if self._among is not among:
                self._among, self._narrowed = among, [_common(tier, among.mask) for tier in self._tiers]
            tiers = [*self._narrowed]
        for tier in tiers:
            target = self._find(placement, tier)
            if target is not None:
                return target
        return None

    def _find(self, placement: str, only: Bits | None) -> AmountTarget | None:
        if placement == FIRST_FIT:
            return find_lowest(self._targets, self.need, only)
        return find_target(self._targets, self.need, self._levels, placement in DESCENDING, only)

    def find_on(self, rank: int) -> AmountTarget | None:
        """Return a named target, withheld or not, if the request fits on it now; else None."""
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or not any(tier is None or rank in tier for tier in self._tiers):
            return None
        return target if target.holds(self.need) else None

    def lacking_on(self, rank: int, withheld: bool) -> dict[str, int] | None:
        """Return the amount of each kind that would have to be freed on a target; empty if the request fits there.

        None if the target is down, not allowed, or too small even if idle; or withheld, unless `withheld` targets
        count.
        """
        target = self._targets.by_rank.get(rank)
        if target is None or not target.up or (target.withheld and not withheld):
            return None
        if not any(tier is None or rank in tier for tier in self._tiers):
            return None
        there, free = dict(target.offered()), target.free
        lacking = {}
        for kind, amount in self.need:
            if there.get(kind, 0) < amount:
                return None
            if free.get(kind, 0) < amount:
                lacking[kind] = amount - free.get(kind, 0)
        return lacking

    def could_ever(self) -> bool:
        """Return whether one of the targets could hold the request if it were idle and up."""
        return any(target.could_hold(self.need) for target in self._candidates())

    def _candidates(self) -> Iterator[AmountTarget]:
        """Yield the allowed targets that may have the amount of each kind, held or not."""
        targets = self._targets
        for rank in targets.all_kinds.ranks(self.need, targets.members if self.allowed is None else self.allowed):
            target = targets.by_rank.get(rank)
            if target is not None:
                yield target

    def largest(self) -> dict[str, int] | None:
        """Return the most that any of the targets has of each kind, None if there is no target; linear, for people."""
        found: dict[str, int] | None = None
        for rank in self.allowed or self._targets.members:
            target = self._targets.by_rank.get(rank)
            if target is not None:
                if found is None:
                    found = {}
                for kind, amount in target.capacity:
                    found[kind] = max(found.get(kind, 0), amount)
        return found

    def count(self) -> tuple[int, int, Idset]:
        """Return the numbers of targets that can hold it now and that could ever, and those that could but are down;
        linear, for people.
        """
        now, ever, down = 0, 0, list[int]()
        for target in self._candidates():
            if target.could_hold(self.need):
                ever += 1
                if not target.up:
                    down.append(target.rank)
                now += target.usable and target.holds(self.need)
        return now, ever, Idset.of(down)


def is_single(request: Request) -> bool:
    """Return whether a request without cores is one slot on one node, as required."""
    one_node = request.nodes is None or request.nodes.min == 1
    return request.slots.min == 1 and one_node and not request.exclusive


def _common(bits: Bits | None, mask: int) -> Bits:
    return Bits.of(mask) if bits is None else bits.common(Bits.of(mask))
