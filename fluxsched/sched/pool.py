"""What is free in one group: targets on shelves of equals, found and changed in a time free of the machine's size.

Law: the pool counts what was grown and not shrunk, once. A usable target stands on its shelf, in the bucket of what is
free on it; one that is down or removed stands nowhere, so nothing is ever placed there. Only the ledger calls `take`
and `give`; events from the resource module call `add`, `remove`, `set_up`, `set_down` and `describe`, in time linear in
the targets that they name. A constraint becomes a mask once a generation (add, remove and describe start a new one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fluxsched.core.constraint import Constraint
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.bits import Bits
from fluxsched.sched.outcome import Part
from fluxsched.sched.shelf import Shelf

TRAITS_MAX = 64
"""So many sets of properties are told apart by shelf; further ones share shelves and are told apart by mask, slower."""

PLANS_MAX = 1024
"""Constraints remembered in a generation: at worst this many masks of a whole group, 16 MiB at 131,072 targets."""


class Target:
    """One target: its totals, what is free of them (bit masks of ids), and where it stands."""

    __slots__ = ("all_cores", "all_gpus", "cores", "gpus", "shelf", "up")

    def __init__(self, cores: int, gpus: int, shelf: Shelf, up: bool) -> None:
        self.all_cores = self.cores = cores
        self.all_gpus = self.gpus = gpus
        self.shelf = shelf
        self.up = up

    def stand(self, rank: int) -> None:
        self.shelf.insert(rank, self.cores.bit_count(), self.gpus.bit_count())

    def leave(self, rank: int) -> None:
        self.shelf.withdraw(rank, self.cores.bit_count(), self.gpus.bit_count())

    @property
    def idle(self) -> bool:
        return self.cores == self.all_cores and self.gpus == self.all_gpus


class Choice(NamedTuple):
    """A shelf that a constraint allows: `mask` of its allowed members, `only` is None when that is all of them."""

    shelf: Shelf
    mask: int
    only: Bits | None


class Pool:
    """The targets of one group. `ranks` and `down` are masks as Idsets; `generation` counts changes of what exists."""

    def __init__(self) -> None:
        self.targets: dict[int, Target] = {}
        self.down = EMPTY
        self.generation = 0
        self.trying = False  # a trial is open: nothing may be committed
        self._ranks = EMPTY
        self._source = EMPTY_R
        self._shelves: dict[tuple[int, int, tuple[str, ...]], Shelf] = {}
        self._traits: set[tuple[str, ...]] = {()}
        self._plans: dict[Constraint, tuple[Choice, ...]] = {}

    # ---- what exists

    @property
    def ranks(self) -> Idset:
        return self._ranks

    @property
    def source(self) -> ResourceSet:
        """Hosts and properties of all ranks; it may still name ranks that were removed."""
        return self._source

    @property
    def resources(self) -> ResourceSet:
        """What the pool counts, as R; linear in the group, for people."""
        return self._source.restrict(self._ranks)

    def add(self, resources: ResourceSet, up: Idset) -> None:
        """Counts new targets, idle; those not in `up` are down. Raises RemoteProtocolError for ranks already here."""
        if twice := resources.ranks & self._ranks:
            raise RemoteProtocolError(f"grow names ranks {twice}, which were acquired before and not shrunk since")
        kept = self._source if self._source.ranks == self._ranks else self.resources
        self._source = kept | resources
        self._ranks |= resources.ranks
        self.down |= resources.ranks - up
        traits = self._traits_of(resources.ranks)
        for entry in resources.entries:
            cores, gpus = entry.children.cores.mask, entry.children.gpus.mask
            for rank in entry.ranks:
                shelf = self._shelf(cores.bit_count(), gpus.bit_count(), traits.get(rank, ()))
                self.targets[rank] = Target(cores, gpus, shelf, False)
        self._join_shelves(resources.ranks)
        self._stand(resources.ranks & up)
        self._renew()

    def remove(self, ranks: Idset) -> None:
        """Forgets targets: nothing is placed there any more and feasibility does not count them."""
        self._fall(ranks - self.down)
        self._quit_shelves(ranks)
        for rank in ranks:
            del self.targets[rank]
        self._ranks -= ranks
        self.down -= ranks
        self._renew()

    def set_up(self, ranks: Idset) -> None:
        """Targets of this pool that may be used again; those that are up already are of no matter."""
        rising = ranks & self.down
        self.down -= rising
        self._stand(rising)

    def set_down(self, ranks: Idset) -> None:
        """Targets of this pool where nothing more may be placed; jobs there keep what they hold."""
        falling = (ranks & self._ranks) - self.down
        self.down |= falling
        self._fall(falling)

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
        self._fall(up)
        self._quit_shelves(touched)
        traits = self._traits_of(touched)
        for rank in touched:
            target = self.targets[rank]
            target.shelf = self._shelf(target.shelf.cores, target.shelf.gpus, traits.get(rank, ()))
        self._join_shelves(touched)
        self._stand(up)
        self._renew()

    # ---- what is free (called by the ledger alone)

    def holds_free(self, parts: Iterable[Part]) -> bool:
        """Whether every part may be taken now: its target usable, its ids free, no rank named twice."""
        targets, seen = self.targets, set()
        for rank, cores, gpus in parts:
            target = targets.get(rank)
            if target is None or not target.up or rank in seen:
                return False
            if cores & ~target.cores or gpus & ~target.gpus:
                return False
            seen.add(rank)
        return True

    def take(self, rank: int, cores: int, gpus: int) -> None:
        """Marks ids of a target busy; down or not, since a running job found by hello may sit on one that is down."""
        target = self.targets[rank]
        if cores & ~target.cores or gpus & ~target.gpus:
            raise LocalProtocolError(f"rank {rank}: some of {cores:#x} cores, {gpus:#x} gpus are not free")
        if target.up:
            target.leave(rank)
        target.cores ^= cores
        target.gpus ^= gpus
        if target.up:
            target.stand(rank)

    def give(self, rank: int, cores: int, gpus: int) -> None:
        """Marks ids of a target free."""
        target = self.targets[rank]
        if cores & target.cores or gpus & target.gpus:
            raise LocalProtocolError(f"rank {rank}: some of {cores:#x} cores, {gpus:#x} gpus are free already")
        if target.up:
            target.leave(rank)
        target.cores |= cores
        target.gpus |= gpus
        if target.up:
            target.stand(rank)

    # ---- what a constraint allows

    def plan(self, constraint: Constraint) -> tuple[Choice, ...]:
        """The shelves and ranks that match, whatever the weather; worked out once a generation."""
        plan = self._plans.get(constraint)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            plan = self._plans[constraint] = self._make_plan(constraint)
        return plan

    def _make_plan(self, constraint: Constraint) -> tuple[Choice, ...]:
        matching = constraint.match(self._ranks, self._source.properties, self._source.ranks_of).mask
        choices = []
        for shelf in self._shelves.values():
            mask = shelf.members & matching
            if mask:
                choices.append(Choice(shelf, mask, None if mask == shelf.members else Bits.of(mask)))
        return tuple(choices)

    # ---- shelves

    def _renew(self) -> None:
        self.generation += 1
        self._plans.clear()

    def _shelf(self, cores: int, gpus: int, traits: tuple[str, ...]) -> Shelf:
        key = (cores, gpus, traits)
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(cores, gpus)
        return shelf

    def _traits_of(self, ranks: Idset) -> dict[int, tuple[str, ...]]:
        """The properties by which each rank is told apart; ranks with none, or of a set too many, are left out."""
        sets: list[tuple[Idset, tuple[str, ...]]] = [(ranks, ())]
        for name, having in sorted(self._source.properties.items()):
            split = [(part & having, (*names, name)) for part, names in sets]
            split = [(part, names) for part, names in split if part]
            if len(sets) + len(split) > 2 * TRAITS_MAX:
                break  # by further names no shelf is told apart: their constraints become masks
            sets = [(part - having, names) for part, names in sets] + split
            sets = [(part, names) for part, names in sets if part]
        traits: dict[int, tuple[str, ...]] = {}
        for part, names in sets:
            if names not in self._traits and len(self._traits) < TRAITS_MAX:
                self._traits.add(names)
            if names and names in self._traits:
                traits.update(dict.fromkeys(part, names))
        return traits

    def _by_shelf(self, ranks: Idset) -> dict[Shelf, list[int]]:
        groups: dict[Shelf, list[int]] = {}
        for rank in ranks:
            groups.setdefault(self.targets[rank].shelf, []).append(rank)
        return groups

    def _join_shelves(self, ranks: Idset) -> None:
        for shelf, members in self._by_shelf(ranks).items():
            shelf.members |= Idset.of(members).mask

    def _quit_shelves(self, ranks: Idset) -> None:
        for shelf, members in self._by_shelf(ranks).items():
            shelf.members ^= Idset.of(members).mask
        self._shelves = {key: shelf for key, shelf in self._shelves.items() if shelf.members}
        self._traits = {()} | {traits for _, _, traits in self._shelves}

    def _stand(self, ranks: Idset) -> None:
        for rank in ranks:
            target = self.targets[rank]
            target.up = True
            target.stand(rank)

    def _fall(self, ranks: Idset) -> None:
        for rank in ranks:
            target = self.targets[rank]
            target.leave(rank)
            target.up = False
