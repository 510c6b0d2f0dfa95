"""What is free in one group: targets on shelves of equals, found and changed in a time free of the machine's size.

Law: the pool counts what was grown and not shrunk, once. A usable target stands on its shelf, in the bucket of what is
free on it; one that is down or removed stands nowhere, so nothing is ever placed there. Only the ledger and a trial
take and give; events from the resource module call `add`, `remove`, `set_up`, `set_down` and `describe`, in time linear
in the targets that they name. A constraint becomes a mask once a generation (add, remove, describe start a new one).
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
from fluxsched.sched.pool.choice import Choice, Plan, Wish
from fluxsched.sched.pool.countables import Shared
from fluxsched.sched.pool.free_index import BUCKETS_MAX
from fluxsched.sched.pool.placement import SHARED, Block, Blocks, shared_block, shared_in
from fluxsched.sched.pool.target_class import Shelf
from fluxsched.sched.pool.target_classes import Shelves

PLANS_MAX = 1024
"""Constraints remembered in a generation: at worst this many masks of a whole group, 16 MiB at 131,072 targets."""

Piece = tuple[Shelf, int, int, int, int, Amounts]


class Target(NamedTuple):
    """How one target is just now: what it has, what of that is free, and whether it may be used. A copy, for people."""

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
        self.shared = Shared()  # the ledger gives all its pools the same
        self.trying = False  # a trial is open: nothing may be committed
        self.wishes: dict[int, Wish] = {}  # kept by placing, for this generation
        self._ranks = EMPTY
        self._source = EMPTY_R
        self._down: dict[int, int] = {}
        self._shelves = Shelves()
        self._sole = self._shelves.sole
        self.rests = self._shelves.rests
        self._plans: dict[Constraint, Plan] = {}

    # ---- what exists

    @property
    def ranks(self) -> Idset:
        return self._ranks

    @property
    def down(self) -> Idset:
        down = Bits()
        down.words = self._down
        return Idset(down.mask())

    @property
    def source(self) -> ResourceSet:
        """Hosts and properties of all ranks; it may still name ranks that were removed."""
        return self._source

    @property
    def resources(self) -> ResourceSet:
        """What the pool counts, as R; linear in the group, for people."""
        return self._source.restrict(self._ranks)

    def __contains__(self, rank: int) -> bool:
        return any(word >> (rank & LOW_BITS) & 1 for word, _ in self._shelves.homes.get(rank >> WORD_SHIFT, ()))

    def __getitem__(self, rank: int) -> Target:
        """One target; KeyError if it is not counted here."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        for word, shelf in self._shelves.homes.get(at, ()):
            if word & bit:
                up = not self._down.get(at, 0) & bit
                return Target(*shelf.ids(rank), *shelf.free_ids(rank), up, shelf.amounts, shelf.free_amounts(rank))
        raise KeyError(rank)

    def all_ids(self, rank: int) -> tuple[int, int]:
        """All cores and GPUs of a target; none if it is not counted here."""
        shelf = self._shelf_of(rank)
        return (0, 0) if shelf is None else shelf.ids(rank)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """Those of them that are free, whether the target may be used or not."""
        shelf = self._shelf_of(rank)
        return (0, 0) if shelf is None else shelf.free_ids(rank)

    def is_up(self, rank: int) -> bool:
        """Whether a target that is counted here may be used."""
        return not self._down.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1

    def _shelf_of(self, rank: int) -> Shelf | None:
        for word, shelf in self._shelves.homes.get(rank >> WORD_SHIFT, ()):
            if word >> (rank & LOW_BITS) & 1:
                return shelf
        return None

    def members_at(self, at: int) -> int:
        """Which targets of a word are counted."""
        return sum([members for members, _ in self._shelves.homes.get(at, ())])

    def busy(self) -> list[Block]:
        """What is taken of every target that is not idle; linear in the group, for people."""
        found: list[Block] = []
        for at, home in self._shelves.homes.items():
            for members, shelf in home:
                spent = 0 if shelf.stocks else shelf.spent.words.get(at, 0) & members
                if spent:
                    found.append((at, spent, shelf.all_cores, shelf.all_gpus, ()))
                for id in ids_of(members ^ spent):
                    rank = at << WORD_SHIFT | id
                    (all_cores, all_gpus), (cores, gpus) = shelf.ids(rank), shelf.free_ids(rank)
                    taken = less(shelf.amounts, shelf.free_amounts(rank)) if shelf.stocks else ()
                    if all_cores != cores or all_gpus != gpus:
                        found.append((at, 1 << id, all_cores ^ cores, all_gpus ^ gpus, taken))
        return found

    def add(self, resources: ResourceSet, up: Idset) -> None:
        """Counts new targets, idle; those not in `up` are down. Raises RemoteProtocolError for ranks already here."""
        if twice := resources.ranks & self._ranks:
            raise RemoteProtocolError(f"grow names ranks {twice}, which were acquired before and not shrunk since")
        for entry in resources.entries:
            cores, gpus = len(entry.children.cores), len(entry.children.gpus)
            if (cores + 1) * (gpus + 1) > BUCKETS_MAX:
                raise RemoteProtocolError(
                    f"grow: ranks {entry.ranks} have {cores} cores and {gpus} gpus each; cores+1 times gpus+1 may be "
                    f"{BUCKETS_MAX} at most: describe such a machine as several targets"
                )
        kept = self._source if self._source.ranks == self._ranks else self.resources
        self._source = kept | resources
        self._ranks |= resources.ranks
        for traits, ranks in self._shelves.by_traits(self._source.properties, resources.ranks):
            for entry in resources.entries:
                ids = (entry.children.cores.mask, entry.children.gpus.mask, entry.children.amounts)
                if having := entry.ranks.mask & ranks.mask:
                    self._shelves.join(having, ids, traits)
        self.shared.add(resources.shared)
        self._add_down(resources.ranks.mask)
        self.set_up(up & resources.ranks)
        self._renew()

    def remove(self, ranks: Idset) -> None:
        """Forgets targets: nothing is placed there any more and feasibility does not count them."""
        self.set_down(ranks)
        for at, word in words_of(ranks.mask):
            self._shelves.quit(at, word)
            self._drop_down(at, word)
        self._ranks -= ranks
        self._shelves.tidy()
        self._renew()

    def set_up(self, ranks: Idset) -> None:
        """Targets of this pool that may be used again; those that are up already are of no matter."""
        for at, word in words_of(ranks.mask):
            rising = word & self._down.get(at, 0)
            if rising:
                self._drop_down(at, rising)
                for members, shelf in self._shelves.homes[at]:
                    if members & rising:
                        shelf.rise(at, members & rising)

    def set_down(self, ranks: Idset) -> None:
        """Targets of this pool where nothing more may be placed; jobs there keep what they hold."""
        for at, word in words_of(ranks.mask):
            before = self._down.get(at, 0)
            for members, shelf in self._shelves.homes.get(at, ()):
                falling = word & members & ~before
                if falling:
                    shelf.fall(at, falling)
                    self._down[at] = self._down.get(at, 0) | falling

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Changes properties of targets of this pool; names and ranks that are not here are of no matter."""
        source, touched = self._source, EMPTY
        for name, ranks in add.items():
            source = source.add_property(name, ranks & self._ranks)
            touched |= ranks & self._ranks
        for name, ranks in remove.items():
            having = ranks & source.properties.get(name, EMPTY)
            source = source.remove_property(name, having)
            touched |= having & self._ranks
        self._source = source
        up = touched - self.down
        self.set_down(touched)
        for traits, ranks in self._shelves.by_traits(self._source.properties, touched):
            for at, word in words_of(ranks.mask):
                for members, shelf in self._shelves.homes[at]:
                    if members & word:
                        self._shelves.move(at, members & word, shelf, traits)
        self.set_up(up)
        self._shelves.tidy()
        self._renew()

    # ---- what is free (called by the ledger and by trials alone)

    def take(self, blocks: Blocks) -> bool:
        """Marks all of this busy, if all of it is free and may be used; else changes nothing and returns False."""
        sole, done = self._sole, 0
        for block in blocks:
            shelf = sole.get(block[0])
            if not (self._take_cut(block) if shelf is None else shelf.take(block)):
                self.give(blocks[:done])
                return False
            done += 1  # noqa: SIM113 - enumerate makes two objects a call, and most calls are of one block
        return True

    def give(self, blocks: Iterable[Block]) -> None:
        """Marks all of this free; what the pool does not count (foreign, shrunk) is passed over.

        Raises LocalProtocolError where something is free already.
        """
        sole = self._sole
        for block in blocks:
            shelf = sole.get(block[0])
            if shelf is None or not shelf.give(block):
                self._give_cut(block)

    def _take_cut(self, block: Block) -> bool:
        """Takes one block shelf by shelf."""
        at, word, cores, gpus, amounts = block
        if at == SHARED:
            if self.shared.lacking(amounts):
                return False
            self.shared.claim(amounts)
            return True
        done = 0
        for members, shelf in self._shelves.homes.get(at, ()):
            mine = word & members
            if mine:
                if not shelf.take((at, mine, cores, gpus, amounts)):
                    break
                done |= mine
        if done == word:
            return True
        self._give_cut((at, done, cores, gpus, amounts))
        return False

    def _give_cut(self, block: Block) -> None:
        """Gives one block shelf by shelf, and passes over what is not counted."""
        at, word, cores, gpus, amounts = block
        if at == SHARED:
            self.shared.give(amounts)
        for members, shelf in self._shelves.homes.get(at, ()):
            mine = word & members
            if mine and not shelf.give((at, mine, cores, gpus, amounts)):
                raise _bug(at, mine, cores, gpus, "are free already")

    def claim(self, blocks: Blocks) -> None:
        """Marks busy what the pool counts of this, down or not: what `give` gives back, and what a job has at hello.

        Raises LocalProtocolError where something is not free.
        """
        self.shared.claim(shared_in(blocks))
        sole = self._sole
        for block in blocks:
            shelf = sole.get(block[0])
            if shelf is None or not shelf.take(block):
                self._claim_cut(block)

    def _claim_cut(self, block: Block) -> None:
        for shelf, at, word, cores, gpus, amounts in self._counted((block,)):
            up = word & ~self._down.get(at, 0)
            if up and (cores or gpus) and not shelf.take((at, up, cores, gpus, ())):
                raise _bug(at, up, cores, gpus, "are not free")
            for id in ids_of(word ^ up):
                if not shelf.take_down(at, 1 << id, cores, gpus):
                    raise _bug(at, 1 << id, cores, gpus, "are not free")
            if amounts and not shelf.take_amounts(at, word, amounts):
                raise _bug(at, word, cores, gpus, "have not that amount left")

    def free_of(self, blocks: Blocks) -> list[Block]:
        """What of this is free and may be used; of an amount as much as there is, up to all of it."""
        shared = [(kind, min(n, self.shared.left(kind))) for kind, n in shared_in(blocks)]
        found = list(shared_block(tuple([one for one in shared if one[1] > 0])))
        for shelf, at, word, cores, gpus, amounts in self._counted(blocks):
            idle = word & shelf.idle.words.get(at, 0) if not amounts else 0
            if idle:
                found.append((at, idle, cores, gpus, amounts))
            for id in ids_of((word ^ idle) & ~self._down.get(at, 0)):
                rank = at << WORD_SHIFT | id
                free_cores, free_gpus = shelf.free_ids(rank)
                left = [(kind, min(n, shelf.stocks[kind].left(rank))) for kind, n in amounts]
                mine = tuple([one for one in left if one[1]])
                if free_cores & cores or free_gpus & gpus or mine:
                    found.append((at, 1 << id, free_cores & cores, free_gpus & gpus, mine))
        return found

    def _counted(self, blocks: Iterable[Block]) -> Iterator[Piece]:
        """What the pool counts of this, each piece on one shelf, and of ids and kinds that its targets have."""
        for at, word, cores, gpus, amounts in blocks:
            for members, shelf in self._shelves.homes.get(at, ()):
                if not (mine := word & members):
                    continue
                kept = tuple([one for one in amounts if one[0] in shelf.stocks]) if amounts else ()
                if not shelf.mixed:
                    yield shelf, at, mine, cores & shelf.all_cores, gpus & shelf.all_gpus, kept
                    continue
                for id in ids_of(mine):
                    all_cores, all_gpus = shelf.ids(at << WORD_SHIFT | id)
                    yield shelf, at, 1 << id, cores & all_cores, gpus & all_gpus, kept

    # ---- what a constraint allows

    def plan(self, constraint: Constraint) -> Plan:
        """The shelves and ranks that match, whatever the weather; worked out once a generation."""
        plan = self._plans.get(constraint)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            plan = self._plans[constraint] = self._make_plan(constraint)
        return plan

    def _make_plan(self, constraint: Constraint) -> Plan:
        matching = Bits.of(constraint.match(self._ranks, self._source.properties, self._source.ranks_of).mask)
        choices = []
        for shelf in self._shelves:
            count = shelf.members.count_common(matching)
            if count:
                choices.append(Choice(shelf, count, None if count == shelf.members.count else matching))
        return tuple(choices)

    def down_in(self, choice: Choice) -> int:
        """How many targets of a choice are down; linear in the words with such targets."""
        members, only = choice.shelf.members.words, choice.only
        return sum(
            (word & members.get(at, 0) & (word if only is None else only.words.get(at, 0))).bit_count()
            for at, word in self._down.items()
        )

    # ---- shelves

    def _renew(self) -> None:
        self.generation += 1
        self._plans.clear()
        self.wishes.clear()

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
