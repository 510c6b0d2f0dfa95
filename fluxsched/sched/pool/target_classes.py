"""Who stands where: every target of a pool on the shelf of its equals, found by the word in which its rank is.

Law: a target stands on one shelf. Shelves differ by ids, amounts and properties; of these so many are told apart as a
machine of a few kinds has, the rest shares shelves, since every shelf is looked at whenever a job may stand on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.sched.pool.bitset import WORD_BITS, words_of
from fluxsched.sched.pool.target_class import Rests, Shelf

TRAITS_MAX = 64
"""So many sets of properties are told apart by shelf; further ones share shelves and are told apart by mask, slower."""

LAYOUTS_MAX = 16
"""So many sets of ids are told apart by shelf; targets with further ones share the mixed shelf of their counts."""

Layout = tuple[int, int, Amounts]
Key = tuple[int, int, Amounts, tuple[str, ...], bool]


class Shelves:
    """`homes` gives for a word of ranks which of its targets stand on which shelf, `sole` the shelf if it is just one.

    `rests` is shared by all shelves.
    """

    def __init__(self) -> None:
        self.rests: Rests = {}
        self.homes: dict[int, tuple[tuple[int, Shelf], ...]] = {}
        self.sole: dict[int, Shelf] = {}
        self._shelves: dict[Key, Shelf] = {}
        self._traits: set[tuple[str, ...]] = {()}
        self._layouts: set[Layout] = set()

    def __iter__(self) -> Iterator[Shelf]:
        return iter(self._shelves.values())

    def tidy(self) -> None:
        """Forgets shelves on which nobody stands."""
        self._shelves = {key: shelf for key, shelf in self._shelves.items() if shelf.members.count}
        self._traits = {()} | {key[3] for key in self._shelves}
        self._layouts = {key[:3] for key, shelf in self._shelves.items() if not shelf.mixed}

    def _shelf(self, layout: Layout, traits: tuple[str, ...], *, mixed: bool) -> Shelf:
        cores, gpus, amounts = layout
        key = (cores.bit_count(), gpus.bit_count(), amounts, traits, mixed) if mixed else (*layout, traits, mixed)
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(self.rests, cores, gpus, amounts, mixed=mixed)
        return shelf

    def join(self, mask: int, layout: Layout, traits: tuple[str, ...]) -> None:
        """New targets, which are down, find their shelf."""
        mixed = layout not in self._layouts and len(self._layouts) >= LAYOUTS_MAX
        if not mixed:
            self._layouts.add(layout)
        shelf = self._shelf(layout, traits, mixed=mixed)
        for at, word in words_of(mask):
            if at not in self.rests:
                self.rests[at] = [None] * WORD_BITS
            shelf.join(at, word, layout[0], layout[1])
            self._house(at, shelf)

    def quit(self, at: int, word: int) -> None:
        """Targets that are down go."""
        for members, shelf in self.homes.get(at, ()):
            if mine := members & word:
                shelf.quit(at, mine)
                self._house(at, shelf)

    def move(self, at: int, word: int, shelf: Shelf, traits: tuple[str, ...]) -> None:
        """Targets that are down get other traits."""
        other = self._shelf(shelf.layout, traits, mixed=shelf.mixed)
        if other is not shelf:
            shelf.hand_over(at, word, other)
            self._house(at, other)
            self._house(at, shelf)

    def _house(self, at: int, shelf: Shelf) -> None:
        """Notes which targets of a word stand on a shelf now."""
        others = tuple([home for home in self.homes.get(at, ()) if home[1] is not shelf])
        word = shelf.members.words.get(at)
        homes = (*others, (word, shelf)) if word else others
        self.sole.pop(at, None)
        if len(homes) == 1:
            self.sole[at] = homes[0][1]
        if homes:
            self.homes[at] = homes
        else:
            del self.homes[at], self.rests[at]

    def by_traits(self, properties: Mapping[str, Idset], ranks: Idset) -> list[tuple[tuple[str, ...], Idset]]:
        """The ranks, parted by the properties by which they are told apart; () is those of none, or of a set too many.
        """
        sets: list[tuple[Idset, tuple[str, ...]]] = [(ranks, ())]
        for name, having in sorted(properties.items()):
            split = [(part & having, (*names, name)) for part, names in sets]
            split = [(part, names) for part, names in split if part]
            if len(sets) + len(split) > 2 * TRAITS_MAX:
                break  # by further names no shelf is told apart: their constraints become masks
            sets = [(part - having, names) for part, names in sets] + split
            sets = [(part, names) for part, names in sets if part]
        found: dict[tuple[str, ...], Idset] = {}
        for part, names in sets:
            if names not in self._traits and len(self._traits) >= TRAITS_MAX:
                names = ()
            self._traits.add(names)
            found[names] = found.get(names, EMPTY) | part
        return list(found.items())

