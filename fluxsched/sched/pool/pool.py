"""What is free in one group: targets in classes of equals, found and changed in a time that does not grow with them.

Law: the pool counts what was grown and not shrunk, once. A usable target is on the level of what is free on it; one
that is down or removed is on none, so nothing is ever placed there. Only the ledger and a what-if take and give; events
from the resource module call `add`, `remove`, `set_up`, `set_down` and `describe`, in time linear in the targets that
they name. A constraint is resolved once a generation (add, remove and describe start a new one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fluxsched.core.amounts import Amounts, less
from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, Bits, ids_of, words_of
from fluxsched.sched.pool.choice import Candidates, Choice, Narrowed, Prepared
from fluxsched.sched.pool.countables import InstanceCountables
from fluxsched.sched.pool.free_index import LEVELS_MAX
from fluxsched.sched.pool.placement import NO_TARGET, Block, Blocks, instance_amounts, instance_block
from fluxsched.sched.pool.target_class import TargetClass
from fluxsched.sched.pool.target_classes import TargetClasses
from fluxsched.sched.shape import Shape

CHOICES_MAX = 1024
"""Constraints remembered in a generation: at worst this many masks of a whole group, 16 MiB at 131,072 targets."""

Piece = tuple[TargetClass, int, int, int, int, Amounts]


class Target(NamedTuple):
    """One target as it is now: what it has, what of that is free, and whether it may be used. A copy, for people."""

    all_cores: int
    all_gpus: int
    cores: int
    gpus: int
    up: bool
    all_amounts: Amounts
    amounts: Amounts

    @property
    def idle(self) -> bool:
        return self.cores == self.all_cores and self.gpus == self.all_gpus


class Pool:
    """The targets of one group. `ranks` and `down` are masks as Idsets; `generation` counts changes of what exists."""

    def __init__(self) -> None:
        self.generation = 0
        self.instance_countables = InstanceCountables()  # one object for all pools of a ledger
        self.what_if_open = False  # then nothing may be committed
        self.prepared: dict[int, Prepared] = {}  # by number of the shape, in this generation
        self.narrowed: dict[int, Narrowed] = {}  # by number of the shape; what plugins say, in this generation
        self.ranks = EMPTY
        self.source = EMPTY_R  # hosts and properties of all ranks; it may still name ranks that were removed
        self._down: dict[int, int] = {}
        self._classes = TargetClasses()
        self._single = self._classes.single
        self.partials = self._classes.partials
        self._choices: dict[Constraint, Choice] = {}

    # ---- what exists

    @property
    def down(self) -> Idset:
        down = Bits()
        down.words = self._down
        return Idset(down.mask())

    @property
    def resources(self) -> ResourceSet:
        """What the pool counts, as R; linear in the group, for people."""
        return self.source.restrict(self.ranks)

    def __contains__(self, rank: int) -> bool:
        return any(word >> (rank & LOW_BITS) & 1 for word, _ in self._classes.by_word.get(rank >> WORD_SHIFT, ()))

    def __getitem__(self, rank: int) -> Target:
        """One target; KeyError if it is not counted here."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        for word, targets in self._classes.by_word.get(at, ()):
            if word & bit:
                up = not self._down.get(at, 0) & bit
                amounts = targets.amounts, targets.free_amounts(rank)
                return Target(*targets.ids(rank), *targets.free_ids(rank), up, *amounts)
        raise KeyError(rank)

    def all_ids(self, rank: int) -> tuple[int, int]:
        """All cores and GPUs of a target; none if it is not counted here."""
        targets = self._class_of(rank)
        return (0, 0) if targets is None else targets.ids(rank)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """Those of them that are free, whether the target may be used or not."""
        targets = self._class_of(rank)
        return (0, 0) if targets is None else targets.free_ids(rank)

    def is_up(self, rank: int) -> bool:
        """Whether a target that is counted here may be used."""
        return not self._down.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1

    def _class_of(self, rank: int) -> TargetClass | None:
        for word, targets in self._classes.by_word.get(rank >> WORD_SHIFT, ()):
            if word >> (rank & LOW_BITS) & 1:
                return targets
        return None

    def members_at(self, at: int) -> int:
        """Which targets of a word are counted."""
        return sum([members for members, _ in self._classes.by_word.get(at, ())])

    def busy(self) -> list[Block]:
        """What is taken of every target that is not idle; linear in the group, for people."""
        found: list[Block] = []
        for at, pairs in self._classes.by_word.items():
            for members, targets in pairs:
                busy = 0 if targets.countables else targets.busy.words.get(at, 0) & members
                if busy:
                    found.append(Block(at, busy, targets.all_cores, targets.all_gpus, ()))
                for id in ids_of(members ^ busy):
                    rank = at << WORD_SHIFT | id
                    (all_cores, all_gpus), (cores, gpus) = targets.ids(rank), targets.free_ids(rank)
                    taken = less(targets.amounts, targets.free_amounts(rank)) if targets.countables else ()
                    if all_cores != cores or all_gpus != gpus:
                        found.append(Block(at, 1 << id, all_cores ^ cores, all_gpus ^ gpus, taken))
        return found

    def add(self, resources: ResourceSet, up: Idset) -> None:
        """Counts new targets, idle; those not in `up` are down. Raises RemoteProtocolError for ranks already here."""
        if twice := resources.ranks & self.ranks:
            raise RemoteProtocolError(f"grow names ranks {twice}, which were acquired before and not shrunk since")
        for entry in resources.entries:
            cores, gpus = len(entry.children.cores), len(entry.children.gpus)
            if (cores + 1) * (gpus + 1) > LEVELS_MAX:
                raise RemoteProtocolError(
                    f"grow: ranks {entry.ranks} have {cores} cores and {gpus} gpus each; cores+1 times gpus+1 may be "
                    f"{LEVELS_MAX} at most: describe such a machine as several targets"
                )
        kept = self.source if self.source.ranks == self.ranks else self.resources
        self.source = kept | resources
        self.ranks |= resources.ranks
        for traits, ranks in self._classes.by_traits(self.source.properties, resources.ranks):
            for entry in resources.entries:
                ids = (entry.children.cores.mask, entry.children.gpus.mask, entry.children.amounts)
                if having := entry.ranks.mask & ranks.mask:
                    self._classes.add(having, ids, traits)
        self.instance_countables.add(resources.shared)
        self._add_down(resources.ranks.mask)
        self.set_up(up & resources.ranks)
        self._renew()

    def remove(self, ranks: Idset) -> None:
        """Forgets targets: nothing is placed there any more and feasibility does not count them."""
        self.set_down(ranks)
        for at, word in words_of(ranks.mask):
            self._classes.remove(at, word)
            self._drop_down(at, word)
        self.ranks -= ranks
        self._classes.tidy()
        self._renew()

    def set_up(self, ranks: Idset) -> None:
        """Targets of this pool that may be used again; those that are up already are ignored."""
        for at, word in words_of(ranks.mask):
            rising = word & self._down.get(at, 0)
            if rising:
                self._drop_down(at, rising)
                for members, targets in self._classes.by_word[at]:
                    if members & rising:
                        targets.set_up(at, members & rising)

    def set_down(self, ranks: Idset) -> None:
        """Targets of this pool where nothing more may be placed; jobs there keep what they hold."""
        for at, word in words_of(ranks.mask):
            before = self._down.get(at, 0)
            for members, targets in self._classes.by_word.get(at, ()):
                falling = word & members & ~before
                if falling:
                    targets.set_down(at, falling)
                    self._down[at] = self._down.get(at, 0) | falling

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Changes properties of targets of this pool; unknown names and ranks are ignored."""
        source, touched = self.source, EMPTY
        for name, ranks in add.items():
            source = source.add_property(name, ranks & self.ranks)
            touched |= ranks & self.ranks
        for name, ranks in remove.items():
            having = ranks & source.properties.get(name, EMPTY)
            source = source.remove_property(name, having)
            touched |= having & self.ranks
        self.source = source
        up = touched - self.down
        self.set_down(touched)
        for traits, ranks in self._classes.by_traits(self.source.properties, touched):
            for at, word in words_of(ranks.mask):
                for members, targets in self._classes.by_word[at]:
                    if members & word:
                        self._classes.move(at, members & word, targets, traits)
        self.set_up(up)
        self._classes.tidy()
        self._renew()

    # ---- what is free (called by the ledger and by what-ifs)

    def take(self, blocks: Blocks) -> bool:
        """Marks all of this busy, if all of it is free and may be used; else changes nothing and returns False."""
        single = self._single
        for block in blocks:
            at, word, cores, gpus, amounts = block
            targets = single.get(at)
            if targets is None:
                taken = self._take_cut(at, word, cores, gpus, amounts)
            else:
                taken = targets.take(at, word, cores, gpus, amounts)
            if not taken:
                self.give(blocks[: blocks.index(block)])
                return False
        return True

    def give(self, blocks: Iterable[Block]) -> None:
        """Marks all of this free; what the pool does not count (foreign, shrunk) is ignored.

        Raises LocalProtocolError where something is free already.
        """
        single = self._single
        for at, word, cores, gpus, amounts in blocks:
            targets = single.get(at)
            if targets is None or not targets.give(at, word, cores, gpus, amounts):
                self._give_cut(at, word, cores, gpus, amounts)

    def _take_cut(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        """Takes one block class by class."""
        if at == NO_TARGET:
            if self.instance_countables.lacking(amounts):
                return False
            self.instance_countables.claim(amounts)
            return True
        done = 0
        for members, targets in self._classes.by_word.get(at, ()):
            mine = word & members
            if mine:
                if not targets.take(at, mine, cores, gpus, amounts):
                    break
                done |= mine
        if done == word:
            return True
        self._give_cut(at, done, cores, gpus, amounts)
        return False

    def _give_cut(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> None:
        """Gives one block class by class, and ignores what is not counted."""
        if at == NO_TARGET:
            self.instance_countables.give(amounts)
        for members, targets in self._classes.by_word.get(at, ()):
            mine = word & members
            if mine and not targets.give(at, mine, cores, gpus, amounts):
                raise _bug(at, mine, cores, gpus, "are free already")

    def claim(self, blocks: Blocks) -> None:
        """Marks busy what the pool counts of this, down or not: what `give` frees, and what a job has at hello.

        Raises LocalProtocolError where something is not free.
        """
        self.instance_countables.claim(instance_amounts(blocks))
        single = self._single
        for block in blocks:
            targets = single.get(block.at)
            if targets is None or not targets.take(*block):
                self._claim_cut(block)

    def _claim_cut(self, block: Block) -> None:
        for targets, at, word, cores, gpus, amounts in self._counted((block,)):
            up = word & ~self._down.get(at, 0)
            if up and (cores or gpus) and not targets.take(at, up, cores, gpus):
                raise _bug(at, up, cores, gpus, "are not free")
            for id in ids_of(word ^ up):
                if not targets.take_down(at, 1 << id, cores, gpus):
                    raise _bug(at, 1 << id, cores, gpus, "are not free")
            if amounts and not targets.take_amounts(at, word, amounts):
                raise _bug(at, word, cores, gpus, "have not that amount left")

    def free_of(self, blocks: Blocks) -> list[Block]:
        """What of this is free and may be used; of an amount as much as there is, up to all of it."""
        shared = [(kind, min(n, self.instance_countables.left(kind))) for kind, n in instance_amounts(blocks)]
        found = list(instance_block(tuple([one for one in shared if one[1] > 0])))
        for targets, at, word, cores, gpus, amounts in self._counted(blocks):
            idle = word & targets.idle.words.get(at, 0) if not amounts else 0
            if idle:
                found.append(Block(at, idle, cores, gpus, amounts))
            for id in ids_of((word ^ idle) & ~self._down.get(at, 0)):
                rank = at << WORD_SHIFT | id
                free_cores, free_gpus = targets.free_ids(rank)
                left = [(kind, min(n, targets.countables[kind].left(rank))) for kind, n in amounts]
                mine = tuple([one for one in left if one[1]])
                if free_cores & cores or free_gpus & gpus or mine:
                    found.append(Block(at, 1 << id, free_cores & cores, free_gpus & gpus, mine))
        return found

    def _counted(self, blocks: Iterable[Block]) -> Iterator[Piece]:
        """What the pool counts of this, each piece of one class, and of ids and kinds that its targets have."""
        for at, word, cores, gpus, amounts in blocks:
            for members, targets in self._classes.by_word.get(at, ()):
                if not (mine := word & members):
                    continue
                kept = tuple([one for one in amounts if one[0] in targets.countables]) if amounts else ()
                if not targets.mixed:
                    yield targets, at, mine, cores & targets.all_cores, gpus & targets.all_gpus, kept
                    continue
                for id in ids_of(mine):
                    all_cores, all_gpus = targets.ids(at << WORD_SHIFT | id)
                    yield targets, at, 1 << id, cores & all_cores, gpus & all_gpus, kept

    # ---- what a constraint allows

    def choice(self, constraint: Constraint) -> Choice:
        """The classes and ranks that match, up or down; worked out once a generation."""
        choice = self._choices.get(constraint)
        if choice is None:
            if len(self._choices) >= CHOICES_MAX:
                self._choices.clear()
            choice = self._choices[constraint] = self._choose(constraint)
        return choice

    def choice_of(self, shape: Shape) -> Choice:
        """What a shape may choose from now: what its constraint allows, and plugins leave of that."""
        narrowed = self.narrowed.get(shape.number) if self.narrowed else None
        return self.choice(shape.request.constraint) if narrowed is None else narrowed.now

    def narrow(self, shape: Shape, narrowed: Narrowed | None) -> None:
        """From now on plugins leave this of the shape's choice (None: all), until what exists changes."""
        if narrowed is None:
            self.narrowed.pop(shape.number, None)
        else:
            self.narrowed[shape.number] = narrowed
        self.prepared.pop(shape.number, None)

    def _choose(self, constraint: Constraint) -> Choice:
        matching = Bits.of(constraint.match(self.ranks, self.source.properties, self.source.ranks_of).mask)
        found = []
        for targets in self._classes:
            count = targets.members.count_common(matching)
            if count:
                found.append(Candidates(targets, count, None if count == targets.members.count else matching))
        return tuple(found)

    def down_in(self, candidates: Candidates) -> int:
        """How many targets of a candidates are down; linear in the words with such targets."""
        members, only = candidates.targets.members.words, candidates.only
        return sum(
            (word & members.get(at, 0) & (word if only is None else only.words.get(at, 0))).bit_count()
            for at, word in self._down.items()
        )

    # ---- within

    def _renew(self) -> None:
        self.generation += 1
        self._choices.clear()
        self.prepared.clear()
        self.narrowed.clear()

    def _add_down(self, mask: int) -> None:
        for at, word in words_of(mask):
            self._down[at] = self._down.get(at, 0) | word

    def _drop_down(self, at: int, word: int) -> None:
        left = self._down.get(at, 0) & ~word
        if left:
            self._down[at] = left
        else:
            self._down.pop(at, None)


def _bug(at: int, word: int, cores: int, gpus: int, what: str) -> LocalProtocolError:
    ranks = Idset(word << (at << WORD_SHIFT))
    return LocalProtocolError(f"ranks {ranks}: some of {cores:#x} cores, {gpus:#x} gpus {what}")
