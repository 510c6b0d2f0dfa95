"""The pool of one group: its targets in classes of equals, found and changed in a time that does not grow with them.

Law: the pool counts what was grown and not shrunk, once. A usable target is on the level of what is free on it; one
that is down or removed is on none, so nothing is ever placed there. Only the ledger and a what-if take and give; events
from the resource module call `add`, `remove`, `set_up`, `set_down` and `describe`, in time linear in the targets that
they name. A constraint is resolved once a generation (add, remove and describe start a new one).

Targets of which parts are drained are in the pool without these, so nothing is placed on them. A job that holds a
drained part keeps it: as the pool does not count the ids, it ignores them when the job frees them, like those of
targets that it does not have. Feasibility counts them: it is judged by the targets as they were (`whole`). A target of
which no core is left is not cut: it is kept down, `usable` or not, until that changes.

A spare is a target like any other, but feasibility counts it only where the target that it replaces has left the pool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from math import inf

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.outages import NO_OUTAGES, Outages
from fluxsched.core.quantities import Amounts, less
from fluxsched.core.resources import NO_SPARES, GrowingResources, ResourceSet
from fluxsched.core.rlite import NO_PARTS, Children, PartsByRank, RlitePart, merge
from fluxsched.core.topology import Topology
from fluxsched.errors import InvalidValue, LocalProtocolError, RemoteProtocolError
from fluxsched.sched.pool.amounts import AmountTargets, AskedAmounts, InstanceCountables
from fluxsched.sched.pool.placement import (
    LOW_BITS,
    NO_TARGET,
    WORD_SHIFT,
    Bits,
    Block,
    Blocks,
    Shape,
    UsualGrant,
    ids_of,
    instance_amounts,
    instance_block,
    mask_of,
    misplaced,
    words_of,
)
from fluxsched.sched.pool.select_targets import Candidates, Choice, Narrowed, Prepared, Remaining, restricted
from fluxsched.sched.pool.switches import Rooms
from fluxsched.sched.pool.target_class import LEVELS_MAX, Target, TargetClass, TargetClasses

CHOICES_MAX = 1024
"""Constraints remembered in a generation: at worst this many masks of a whole group, 16 MiB at 131,072 targets."""

REMAINING_MAX = 1024
"""Shapes whose choice without targets of some outages is remembered, at worst as large as those of constraints."""

RESERVATIONS_MAX = 64
"""Reservations for which it is kept how outages are inside: those for which jobs wait at a time."""


class Pool:
    """The targets of one group. `ranks` and `down` are masks as Idsets; `generation` counts changes of what exists."""

    def __init__(self) -> None:
        self.generation = 0
        self.instance_countables = InstanceCountables()  # one object for all pools of a ledger
        self.what_if_open = False  # then nothing may be committed
        self.prepared: dict[int, Prepared] = {}  # by number of the shape, in this generation
        self.narrowed: dict[int, Narrowed] = {}  # by number of the shape; what plugins say, in this generation
        self.shut: set[int] = set()  # the shapes to which they leave nothing
        self.outages = NO_OUTAGES
        self._inside: dict[str, tuple[Outages, Idset, Outages]] = {}  # by reservation: of which outages and targets
        self.drained = DrainedParts()
        self.spares = NO_SPARES
        self._whole: Pool | None = None  # with the drained parts, in this generation
        self.remaining: dict[tuple[int, int], Remaining] = {}  # by shape, and mask of what is left out (`LeftOut`)
        self.ranks = EMPTY
        self.rooms = Rooms()
        self.amount_targets = AmountTargets()  # those without cores
        self._described = GrowingResources()  # targets with cores; it may still name ranks that were removed
        self._joined: ResourceSet | None = None
        self.usual_grants: dict[tuple[Blocks, int], UsualGrant] = {}
        """Grants out of `source` as it is now, by their blocks and slots (`decisions.usual_grant`)."""
        self._has_hosts = False
        self.down_words: dict[int, int] = {}
        self.classes = TargetClasses(self.amount_targets.members)
        self._single = self.classes.single
        self.partials = self.classes.partials
        self._choices: dict[Constraint, Choice] = {}
        self._feasible: dict[Constraint, tuple[Choice, int]] = {}

    # ---- what exists

    @property
    def down(self) -> Idset:
        return Idset(mask_of(self.down_words))

    @property
    def source(self) -> ResourceSet:
        """Hosts and properties of all ranks as R; it may still name ranks that were removed."""
        if self._joined is None:
            whole = self._described.whole
            self._joined = whole | self.amount_targets.resources if self.amount_targets.by_rank else whole
        return self._joined

    @property
    def resources(self) -> ResourceSet:
        """Return the resources that the pool counts, as R; linear in the group, for people."""
        return self.source.restrict(self.ranks)

    def __contains__(self, rank: int) -> bool:
        return bool(self.members_at(rank >> WORD_SHIFT) >> (rank & LOW_BITS) & 1)

    def __getitem__(self, rank: int) -> Target:
        """Return one target. Raise KeyError if it is not counted in this pool."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        for word, targets in self.classes.by_word.get(at, ()):
            if word & bit:
                up = not self.down_words.get(at, 0) & bit
                amounts = targets.amounts, targets.free_amounts(rank)
                return Target(*targets.ids(rank), *targets.free_ids(rank), up, *amounts)
        target = self.amount_targets.by_rank.get(rank)
        if target is not None:
            return Target(0, 0, 0, 0, target.up, target.offered(), tuple(sorted(target.free.items())))
        raise KeyError(rank)

    def all_ids(self, rank: int) -> tuple[int, int]:
        """Return all cores and GPUs of a target; none if it is not counted in this pool."""
        targets = self._class_of(rank)
        return (0, 0) if targets is None else targets.ids(rank)

    def free_ids(self, rank: int) -> tuple[int, int]:
        """Return the cores and GPUs of a target that are free, whether the target may be used or not."""
        targets = self._class_of(rank)
        return (0, 0) if targets is None else targets.free_ids(rank)

    def is_up(self, rank: int) -> bool:
        """Return whether a target that is counted here may be used."""
        return not self.down_words.get(rank >> WORD_SHIFT, 0) >> (rank & LOW_BITS) & 1

    def _class_of(self, rank: int) -> TargetClass | None:
        for word, targets in self.classes.by_word.get(rank >> WORD_SHIFT, ()):
            if word >> (rank & LOW_BITS) & 1:
                return targets
        return None

    def members_at(self, at: int) -> int:
        """Return the targets of a word that are counted."""
        return sum([members for members, _ in self.classes.by_word.get(at, ())]) | self.amount_targets.members.at(at)

    def add(self, resources: ResourceSet, up: Idset) -> None:
        """Add targets, idle; those not in `up` are down.

        Raise RemoteProtocolError for ranks that are in the pool already.
        """
        if twice := resources.ranks & self.ranks:
            raise RemoteProtocolError(f"grow names ranks {twice}, which were acquired before and not shrunk since")
        resources = self.drained.cut(resources)
        without_cores = EMPTY
        for entry in resources.entries:
            cores, gpus = len(entry.children.cores), len(entry.children.gpus)
            if not cores and not gpus:
                without_cores |= entry.ranks
            if (cores + 1) * (gpus + 1) > LEVELS_MAX:
                raise RemoteProtocolError(
                    f"grow: ranks {entry.ranks} have {cores} cores and {gpus} gpus each; cores+1 times gpus+1 may be "
                    f"{LEVELS_MAX} at most: describe such a machine as several targets"
                )
        if self.ranks and resources.ranks and bool(resources.nodelist.hosts) != self._has_hosts:
            raise InvalidValue("grow: the hosts of some ranks are known and those of others are not: name all or none")
        if resources.ranks:
            self._has_hosts = bool(resources.nodelist.hosts)
        if resources.ranks != without_cores or not resources.ranks:
            self._add_to_classes(resources.without(without_cores) if without_cores else resources)
        self.ranks |= resources.ranks
        self.rooms.network.add(resources)
        if without_cores:
            self.amount_targets.add_all(resources, without_cores)
            for at, _ in words_of(without_cores.mask):
                self.classes.settle(at)
        self.instance_countables.add(resources.shared)
        for at, word in words_of(resources.ranks.mask):
            self.down_words[at] = self.down_words.get(at, 0) | word
        self.set_up(up & resources.ranks)
        self._renew()

    def _add_to_classes(self, resources: ResourceSet) -> None:
        kept = self.ranks - Idset(self.amount_targets.members.mask()) if self.amount_targets.by_rank else self.ranks
        self._described.add(resources, kept)
        for traits, ranks in self.classes.by_traits(resources.properties, resources.ranks):
            for entry in resources.entries:
                ids = (entry.children.cores.mask, entry.children.gpus.mask, entry.children.amounts)
                if having := entry.ranks.mask & ranks.mask:
                    self.classes.add(having, ids, traits)

    def resize(self, rank: int, amounts: Amounts, occupied: Amounts = ()) -> None:
        """Set the amounts of a target without cores, of which others occupy some; jobs keep what they hold.

        Raise LocalProtocolError if there is no such target in the pool.
        """
        self._check_amount_target(rank)
        self.amount_targets.resize(rank, amounts, occupied)
        self._renew()

    def withhold(self, rank: int) -> None:
        """Restrict a target without cores to use by name; jobs there keep what they hold. Raise as `resize`."""
        self._check_amount_target(rank)
        self.amount_targets.withhold(rank, True)

    def offer(self, rank: int) -> None:
        """Has it be used by any request again. Raises as `resize`."""
        self._check_amount_target(rank)
        self.amount_targets.withhold(rank, False)

    def _check_amount_target(self, rank: int) -> None:
        if rank not in self.amount_targets.by_rank:
            raise LocalProtocolError(f"rank {rank} is no target without cores of this pool")

    @property
    def weights(self) -> Mapping[str, float]:
        """Return the weight of each kind in the free share, by which targets without cores are ordered."""
        return self.amount_targets.weights

    @weights.setter
    def weights(self, weights: Mapping[str, float]) -> None:
        self.amount_targets.weigh(weights)
        self._renew()

    def remove(self, ranks: Idset) -> None:
        """Forgets targets: nothing is placed there any more and feasibility does not count them."""
        self.set_down(ranks)
        self.drained.forget(ranks)
        for at, word in words_of(ranks.mask):
            self.classes.remove(at, word)
            if word & self.amount_targets.members.at(at):
                self.amount_targets.remove(at, word)
                self.classes.settle(at)
            self._drop_down(at, word)
        self.ranks -= ranks
        self.classes.tidy()
        self._renew()

    def set_up(self, ranks: Idset) -> None:
        """Targets of this pool that may be used again; those that are up already are ignored."""
        if self.drained.emptied:
            ranks = self.drained.keep_down(ranks)
        for at, word in words_of(ranks.mask):
            rising = word & self.down_words.get(at, 0)
            if rising:
                self._drop_down(at, rising)
                for members, targets in self.classes.by_word.get(at, ()):
                    if members & rising:
                        targets.set_up(at, members & rising)
                self.amount_targets.set_up(at, rising, True)

    def set_down(self, ranks: Idset) -> None:
        """Mark targets of this pool as down, so that no job is placed there; jobs there keep what they hold."""
        if self.drained.emptied:
            self.drained.went_down(ranks)
        for at, word in words_of(ranks.mask):
            before = self.down_words.get(at, 0)
            for members, targets in self.classes.by_word.get(at, ()):
                falling = word & members & ~before
                if falling:
                    targets.set_down(at, falling)
                    self.down_words[at] = self.down_words.get(at, 0) | falling
            falling = word & self.amount_targets.members.at(at) & ~before
            if falling:
                self.amount_targets.set_up(at, falling, False)
                self.down_words[at] = self.down_words.get(at, 0) | falling

    def drain(self, parts: PartsByRank) -> Idset:
        """Take these parts, all that are drained, from the targets that have them; return those of this pool on which
        that is a change: they are idle then, so what jobs hold there is to be claimed again.
        """
        changed = parts.changed(self.drained.parts) & self.ranks - Idset(self.amount_targets.members.mask())
        whole = self.drained.whole(self.source.restrict(changed)).with_shared(())
        up = changed - self.down | self.drained.usable(changed)
        self.remove(changed)
        self.drained.parts = parts
        if changed:
            self.add(whole, up)
        return changed

    def stand_in(self, spares: Mapping[int, int]) -> None:
        """Set the spares, each with the target that it replaces; targets that are not in the pool are no fault."""
        self.spares = spares
        self._renew()

    def feasible(self, constraint: Constraint) -> tuple[Choice, int]:
        """Return the choice that feasibility counts, and the mask of all that it does: without spares beside what they
        replace. Worked out once a generation.
        """
        found = self._feasible.get(constraint)
        if found is None:
            if len(self._feasible) >= CHOICES_MAX:
                self._feasible.clear()
            beside = [rank for rank, replaced in self.spares.items() if replaced in self]
            mask = (self.ranks - Idset.of(beside)).mask
            found = self._feasible[constraint] = restricted(self.choice(constraint), mask), mask
        return found

    @property
    def whole(self) -> Pool:
        """Return a pool with the drained parts of its targets, by which it is judged what could ever fit."""
        if not self.drained:
            return self
        if self._whole is None:
            self._whole = Pool()
            self._whole.instance_countables = self.instance_countables
            self._whole.add(self.drained.whole(self.resources).with_shared(()), EMPTY)
        return self._whole

    def describe(self, add: Mapping[str, Idset], remove: Mapping[str, Idset]) -> None:
        """Change properties of targets of this pool; unknown names and ranks are ignored."""
        if self.amount_targets.by_rank:
            self.amount_targets.describe(add, remove)
        self._describe_classes(add, remove, self.ranks - Idset(self.amount_targets.members.mask()))
        self._renew()

    def _describe_classes(self, add: Mapping[str, Idset], remove: Mapping[str, Idset], mine: Idset) -> None:
        source, touched = self._described.whole, EMPTY
        for name, ranks in add.items():
            source = source.add_property(name, ranks & mine)
            touched |= ranks & mine
        for name, ranks in remove.items():
            having = ranks & source.properties.get(name, EMPTY)
            source = source.remove_property(name, having)
            touched |= having & mine
        self._described.replace(source)
        up = touched - self.down | self.drained.usable(touched)
        self.set_down(touched)
        for traits, ranks in self.classes.by_traits(source.properties, touched):
            for at, word in words_of(ranks.mask):
                for members, targets in self.classes.by_word[at]:
                    if members & word:
                        self.classes.move(at, members & word, targets, traits)
        self.set_up(up)
        self.classes.tidy()

    def connect(self, topology: Topology) -> None:
        """Take another topology for all targets."""
        self._described.replace(self._described.whole.with_topology(topology))
        self.rooms.network.change(topology, self.source)
        self._renew()

    # ---- what is free (called by the ledger and by what-ifs)

    def take(self, blocks: Blocks) -> bool:
        """Mark all of this busy, if all of it is free and may be used; else change nothing and return False."""
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
        """Give back blocks; those that the pool does not count (foreign, shrunk) are ignored.

        Raise LocalProtocolError where something is free already.
        """
        single = self._single
        for at, word, cores, gpus, amounts in blocks:
            targets = single.get(at)
            if targets is None or not targets.give(at, word, cores, gpus, amounts):
                self._give_cut(at, word, cores, gpus, amounts)

    def _take_cut(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> bool:
        """Take one block class by class."""
        counted = word & self.amount_targets.members.words.get(at, 0)
        if counted == word and word:
            return not cores and not gpus and self.amount_targets.take(at, word, amounts)
        if at == NO_TARGET:
            return self.instance_countables.take(amounts)
        done = 0
        for members, targets in self.classes.by_word.get(at, ()):
            mine = word & members
            if mine:
                if not targets.take(at, mine, cores, gpus, amounts):
                    break
                done |= mine
        ids_fit = done | counted == word and not (counted and (cores or gpus))
        if ids_fit and (not counted or self.amount_targets.take(at, counted, amounts)):
            return True
        self._give_cut(at, done, cores, gpus, amounts)
        return False

    def _give_cut(self, at: int, word: int, cores: int, gpus: int, amounts: Amounts) -> None:
        """Give back one block class by class; what is not counted is ignored."""
        if at == NO_TARGET:
            self.instance_countables.give(amounts)
        self.amount_targets.give(at, word, amounts)
        for members, targets in self.classes.by_word.get(at, ()):
            mine = word & members
            if mine and not targets.give(at, mine, cores, gpus, amounts):
                raise misplaced(at, mine, cores, gpus, "are free already")

    def claim(self, blocks: Blocks) -> None:
        """Take the counted part of blocks, down or not: what `give` frees, and the resources of a job at hello.

        Raise LocalProtocolError where something is not free.
        """
        self.instance_countables.claim(instance_amounts(blocks))
        single = self._single
        for block in blocks:
            targets = single.get(block.at)
            if targets is None or not targets.take(*block):
                self._claim_cut(block)

    def _claim_cut(self, block: Block) -> None:
        self.amount_targets.claim(block.at, block.word, block.amounts)
        for targets, at, word, cores, gpus, amounts in self.classes.counted((block,)):
            up = word & ~self.down_words.get(at, 0)
            if up and (cores or gpus) and not targets.take(at, up, cores, gpus):
                raise misplaced(at, up, cores, gpus, "are not free")
            for id in ids_of(word ^ up):
                if not targets.take_down(at, 1 << id, cores, gpus):
                    raise misplaced(at, 1 << id, cores, gpus, "are not free")
            if amounts and not targets.take_amounts(at, word, amounts):
                raise misplaced(at, word, cores, gpus, "do not have that amount left")

    # ---- what a constraint allows

    def choice(self, constraint: Constraint) -> Choice:
        """Return the classes and ranks that match, up or down; worked out once a generation."""
        choice = self._choices.get(constraint)
        if choice is None:
            if len(self._choices) >= CHOICES_MAX:
                self._choices.clear()
            choice = self._choices[constraint] = self._choose(constraint)
        return choice

    def choice_of(self, shape: Shape) -> Choice:
        """Return the targets that a shape may choose from now: those its constraint allows and plugins leave."""
        narrowed = self.narrowed.get(shape.number) if self.narrowed else None
        return self.choice(shape.request.constraint) if narrowed is None else narrowed.now

    def asked_amounts(self, request: Request, narrowed: Narrowed | None) -> AskedAmounts:
        """Return a request of amounts with the targets that plugins leave it."""
        if narrowed is None:
            return AskedAmounts(self.amount_targets, request, [], None)
        return AskedAmounts(self.amount_targets, request, narrowed.tiers, narrowed.ever_ranks)

    def narrow(self, shape: Shape, narrowed: Narrowed | None) -> None:
        """Set what plugins leave of the shape's choice (None: all), until the targets change."""
        if narrowed is None:
            self.narrowed.pop(shape.number, None)
        else:
            self.narrowed[shape.number] = narrowed
        if narrowed is None or (narrowed.ranks if shape.request.is_of_amounts else narrowed.now):
            self.shut.discard(shape.number)
        else:
            self.shut.add(shape.number)
        self.prepared.pop(shape.number, None)

    def keep_remaining(self, shape: Shape, barred: int, base: Narrowed | None) -> Remaining:
        """Work out, and remember, what is left of a shape's choice without the targets of a mask."""
        choice = self.choice_of(shape)
        if base is None:
            left = self.ranks.mask & ~barred
            made = Narrowed(restricted(choice, left), choice, left, "", "", self.ranks.mask)
        else:
            left = self.ranks.mask & base.ranks & ~barred
            now = restricted(choice, left)
            made = Narrowed(now, base.ever, left, base.later, base.never, base.ever_ranks, base.scores)
        if len(self.remaining) >= REMAINING_MAX:
            self.remaining.clear()
        kept = self.remaining[shape.number, barred] = Remaining(base, made)
        return kept

    def outages_for(self, request: Request) -> Outages:
        """Return the outages as they are for a request: from inside the reservation that it names, if it does."""
        name = request.reservation
        if not name:
            return self.outages
        of, ranks, found = self._inside.get(name, (NO_OUTAGES, EMPTY, NO_OUTAGES))
        if not found or of is not self.outages or ranks != self.ranks:
            if len(self._inside) >= RESERVATIONS_MAX:
                self._inside.clear()
            found = self.outages.inside(name, self.ranks)
            self._inside[name] = self.outages, self.ranks, found
        return found

    def is_barred(self, request: Request, blocks: Iterable[Block], start_s: float, end_s: float) -> bool:
        """Return whether outages keep some target of the blocks at some time from `start_s` to before `end_s`."""
        outages = self.outages_for(request)
        if not outages:
            return False
        barred = outages.barred(start_s, end_s or inf)
        return bool(barred) and any(at != NO_TARGET and barred >> (at << WORD_SHIFT) & word for at, word, *_ in blocks)

    def _choose(self, constraint: Constraint) -> Choice:
        source = self._described.whole
        matching = Bits.of(constraint.match(source.ranks, source.properties, source.ranks_of).mask)
        found = []
        for targets in self.classes:
            count = targets.members.count_common(matching)
            if count:
                found.append(Candidates(targets, count, None if count == targets.members.count else matching))
        return tuple(found)

    # ---- within

    def _renew(self) -> None:
        self.generation += 1
        self._joined = self._whole = None
        self.usual_grants.clear()
        self._choices.clear()
        self._feasible.clear()
        self.amount_targets.renew()
        self.prepared.clear()
        self.narrowed.clear()
        self.shut.clear()
        self.remaining.clear()

    def _drop_down(self, at: int, word: int) -> None:
        left = self.down_words.get(at, 0) & ~word
        if left:
            self.down_words[at] = left
        else:
            self.down_words.pop(at, None)


# ---- lists of what is busy, free or down


def busy(pool: Pool) -> list[Block]:
    """Return the taken part of every target that is not idle; linear in the group, for people."""
    found: list[Block] = []
    for at, pairs in pool.classes.by_word.items():
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
    for target in pool.amount_targets.by_rank.values():
        if held := target.held():
            found.append(Block(target.at, target.bit, 0, 0, tuple(held.items())))
    return found


def free_of(pool: Pool, blocks: Blocks) -> list[Block]:
    """Return the part of the blocks that is free and may be used; of an amount as much as there is, up to all of it."""
    shared = [(kind, min(n, pool.instance_countables.left(kind))) for kind, n in instance_amounts(blocks)]
    found = list(instance_block(tuple([one for one in shared if one[1] > 0])))
    for at, word, _, _, amounts in blocks:
        for target in pool.amount_targets.on(at, word & ~pool.down_words.get(at, 0)):
            if left_there := target.free_of(amounts):
                found.append(Block(at, target.bit, 0, 0, left_there))
    for targets, at, word, cores, gpus, amounts in pool.classes.counted(blocks):
        idle = word & targets.idle.words.get(at, 0) if not amounts else 0
        if idle:
            found.append(Block(at, idle, cores, gpus, amounts))
        for id in ids_of((word ^ idle) & ~pool.down_words.get(at, 0)):
            rank = at << WORD_SHIFT | id
            free_cores, free_gpus = targets.free_ids(rank)
            left = [(kind, min(n, targets.countables[kind].left(rank))) for kind, n in amounts]
            mine = tuple([one for one in left if one[1]])
            if free_cores & cores or free_gpus & gpus or mine:
                found.append(Block(at, 1 << id, free_cores & cores, free_gpus & gpus, mine))
    return found


def down_in(pool: Pool, candidates: Candidates) -> Idset:
    """Return the down targets among the candidates; linear in the words with such targets."""
    members, only = candidates.targets.members.words, candidates.only
    found = {
        at: word & members.get(at, 0) & (word if only is None else only.words.get(at, 0))
        for at, word in pool.down_words.items()
    }
    return Idset(mask_of(found))


# ---- targets of which parts are drained


class DrainedParts:
    """Parts that are drained, by target, `of` this pool or not; `emptied` are those of it that have no core left."""

    def __init__(self) -> None:
        self.parts: PartsByRank = NO_PARTS
        self.emptied = EMPTY
        self._usable = EMPTY  # of these
        self._full: dict[int, Children] = {}  # of the targets that were cut

    def __bool__(self) -> bool:
        """Return whether some target of the pool was cut."""
        return bool(self._full)

    def cut(self, resources: ResourceSet) -> ResourceSet:
        """Return targets that join the pool without their drained parts."""
        found: list[RlitePart] = []
        for rank in [rank for rank in self.parts.of if rank in resources.ranks]:
            children = resources.children(rank)
            left = children - self.parts.of[rank]
            if left.cores:
                self._full[rank] = children
                found.append((rank, left))
            elif children.cores:
                self.emptied |= Idset.one(rank)
        return _replaced(resources, found) if found else resources

    def whole(self, resources: ResourceSet) -> ResourceSet:
        """Return resources of the pool with their drained parts."""
        return _replaced(resources, [(rank, full) for rank, full in self._full.items() if rank in resources.ranks])

    def forget(self, ranks: Idset) -> None:
        """Forget targets that leave the pool."""
        for rank in [rank for rank in self._full if rank in ranks]:
            del self._full[rank]
        self.emptied -= ranks
        self._usable -= ranks

    def keep_down(self, ranks: Idset) -> Idset:
        """Note that targets are usable; return those of them that are, with what is left of them."""
        self._usable |= ranks & self.emptied
        return ranks - self.emptied

    def went_down(self, ranks: Idset) -> None:
        """Note that targets are not usable."""
        self._usable -= ranks

    def usable(self, ranks: Idset) -> Idset:
        """Return the targets of these that are down only since nothing of them is left."""
        return self._usable & ranks


def _replaced(resources: ResourceSet, parts: Iterable[RlitePart]) -> ResourceSet:
    """Return the resources with other children on some of their targets."""
    other = merge(parts)
    kept = resources.without(other.ranks)
    both = merge([(ranks, children) for ranks, children in (*kept.entries, *other.entries)])
    return dataclasses.replace(resources, entries=both.entries)
