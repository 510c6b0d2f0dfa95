"""The target classes of a pool, found by the word in which a rank is.

Law: a target is in one class. Classes differ in ids, amounts and properties; as many are told apart as a machine of a
few kinds needs, and the remaining targets share classes, since placing a job looks at every class that it may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.pool.amounts.lost import LostWeights
from fluxsched.sched.pool.bitset import WORD_BITS, WORD_SHIFT, Bits, ids_of, words_of
from fluxsched.sched.pool.placement import Block
from fluxsched.sched.pool.target_class import Partials, TargetClass

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
        """Forgets classes without members."""
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
        """Adds new targets, which are down, to their class."""
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
        """Removes targets that are down."""
        for members, targets in self.by_word.get(at, ()):
            if mine := members & word:
                targets.remove(at, mine)
                self._note(at, targets)

    def move(self, at: int, word: int, targets: TargetClass, traits: tuple[str, ...]) -> None:
        """Gives targets that are down other traits."""
        other = self._class(targets.layout, traits, mixed=targets.mixed)
        if other is not targets:
            targets.transfer(at, word, other)
            self._note(at, other)
            self._note(at, targets)

    def _note(self, at: int, targets: TargetClass) -> None:
        """Takes over which targets of a word are members of a class now."""
        others = tuple([pair for pair in self.by_word.get(at, ()) if pair[1] is not targets])
        word = targets.members.words.get(at)
        found = (*others, (word, targets)) if word else others
        if found:
            self.by_word[at] = found
        else:
            del self.by_word[at], self.partials[at]
        self.settle(at)

    def settle(self, at: int) -> None:
        """Notes whether all targets of a word are of one class."""
        found = self.by_word.get(at, ())
        if len(found) == 1 and at not in self._others.words:
            self.single[at] = found[0][1]
        else:
            self.single.pop(at, None)

    def counted(self, blocks: Iterable[Block]) -> Iterator[Piece]:
        """What the pool counts of this, each piece of one class, and of ids and kinds that its targets have."""
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
        """The ranks by the properties that tell them apart; () for those with none, or above TRAITS_MAX."""
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
