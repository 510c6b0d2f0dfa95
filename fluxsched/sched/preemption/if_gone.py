"""What would fit if all that are going were gone, and some more jobs with them.

Law: leaving the block undoes everything (`what_if`), so nothing may be yielded inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from types import TracebackType
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.accounts.tree import Account
from fluxsched.sched.holdings.elastic import ElasticPart
from fluxsched.sched.holdings.holding import Holding, without_ranks
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.amounts.asked import AskedAmounts
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT, words_of
from fluxsched.sched.pool.choice import Need, PartChoice, need_of, slots_of_idle, slots_on
from fluxsched.sched.pool.hops.network import Place
from fluxsched.sched.pool.parts.suited import choices_of
from fluxsched.sched.pool.place import asked_amounts, room_for
from fluxsched.sched.pool.placement import BEST_FIT, Blocks, Fits
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.select import count_nodes
from fluxsched.sched.pool.target_class import TargetClass
from fluxsched.sched.pool.what_if import WhatIf
from fluxsched.sched.preemption.lacking_parts import LackingParts, scarcest_first
from fluxsched.sched.shape import Shape

SWITCHES_TRIED: Final = 64
"""Switches under which a search for extras is tried, at most: each takes some milliseconds on a large machine."""


class Opening(NamedTuple):
    """What is free on a target (ids as masks), and how much must be so that one more node, or slot, fits there."""

    cores: int
    gpus: int
    amounts: Amounts
    need_cores: int
    need_gpus: int
    need_amounts: Amounts

    @property
    def fits(self) -> bool:
        """Whether so much is free."""
        if self.cores.bit_count() < self.need_cores or self.gpus.bit_count() < self.need_gpus:
            return False
        return enough(self.amounts, self.need_amounts)


class Leaving(NamedTuple):
    """Targets that a job leaves of a part together, what that loses, in units of weight x seconds, and what they use.

    The job may leave others without these, or (`needs_former`) only after those that come before them in the part.
    """

    work: float
    ranks: tuple[int, ...]
    jobid: int
    usage: float
    account: Account | None
    part: ElasticPart
    needs_former: bool = False


def merged(chosen: Sequence[Leaving]) -> dict[int, Idset]:
    """What each job leaves."""
    found: dict[int, list[int]] = {}
    for each in chosen:
        ranks = found.get(each.jobid)
        if ranks is None:
            found[each.jobid] = list(each.ranks)
        else:
            ranks += each.ranks
    return {jobid: Idset.of(ranks) for jobid, ranks in found.items()}


class IfGone:
    """Changes of a pool within a `with` block; `going` is what jobs hold that is taken to be gone."""

    __slots__ = ("_going", "_ledger", "_left", "_pool", "_what_if")

    def __init__(self, pool: Pool, ledger: Ledger, going: Iterable[Blocks]) -> None:
        self._pool = pool
        self._ledger = ledger
        self._going = going
        self._left: dict[int, Idset] = {}  # the targets that jobs have left that go on
        self._what_if = WhatIf(pool)

    def __enter__(self) -> IfGone:
        self._what_if.__enter__()
        for blocks in self._going:
            self._what_if.give(blocks)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self._what_if.__exit__(kind, fault, at)

    def give(self, jobids: Iterable[int]) -> None:
        """As if these jobs were gone, too."""
        for jobid in jobids:
            holding = self._ledger.get(jobid)
            if holding is not None:
                self._what_if.give(self._rest_of(holding))

    def leave_all(self, leaving: Sequence[Leaving]) -> None:
        """As if jobs, which go on, had left these targets, too."""
        for jobid, ranks in merged(leaving).items():
            self._what_if.give(self._ledger.holdings[jobid].on_ranks(ranks))
            self._left[jobid] = self._left.get(jobid, EMPTY) | ranks

    def come_back(self, leaving: Sequence[Leaving]) -> None:
        """As if they had stayed."""
        for jobid, ranks in merged(leaving).items():
            self._what_if.keep(self._ledger.holdings[jobid].on_ranks(ranks))
            self._left[jobid] -= ranks

    def fits_without(self, leaving: Sequence[Leaving], shape: Shape) -> bool:
        """Whether the shape fits if these had stayed."""
        mark = self.mark()
        self.come_back(leaving)
        fits = self.fits(shape)
        self.back(mark)
        return fits

    def mark(self) -> tuple[int, dict[int, Idset]]:
        """A point to go back to."""
        return self._what_if.mark(), dict(self._left)

    def back(self, mark: tuple[int, dict[int, Idset]]) -> None:
        """Undoes all since then."""
        self._what_if.back(mark[0])
        self._left = dict(mark[1])  # the mark may be gone back to again

    def missing(self, shape: Shape) -> int:
        """How many targets at least have to come free so that the shape fits, which it does not now."""
        request = shape.request
        if request.nodes is None or request.parts:
            return 1
        return request.nodes.min - count_nodes(self._pool.choice_of(shape), need_of(request, request.slots.min))

    def lacking_switches(self, shape: Shape, ranks: int) -> list[int]:
        """The targets under each switch where the shape may fit within its bound once `ranks` are free, as counted.

        Those that lack least come first; SWITCHES_TRIED at most.
        """
        request, network = shape.request, self._pool.rooms.network
        if request.max_hops is None or request.parts:
            return []
        room, _ = room_for(self._pool, shape)
        least = request.slots.min if request.nodes is None else request.nodes.min
        found: list[tuple[int, int, int, int]] = []
        for number, level in enumerate(network.switches.levels):
            for at in range(len(level.names)) if level.hops <= request.max_hops else ():
                under = network.under(Place(number, at)).mask()
                lacking, more = least - room.of(Place(number, at)), (under & ranks).bit_count()
                if more >= lacking or (more and request.nodes is None):
                    found.append((lacking, number, at, under))
        return [under for *_, under in nsmallest(SWITCHES_TRIED, found)]

    def _rest_of(self, holding: Holding) -> Blocks:
        """What a job has besides the targets that it has left, or is to leave."""
        left = self._left.get(holding.jobid)
        if left is None:
            return holding.staying
        return without_ranks(holding.staying, left)

    def seat(self, shape: Shape, wanted: Fits | None) -> None:
        """As if a job had started where it wants to, else anywhere; if it fits at all."""
        if wanted is not None and self._takes(wanted):
            return
        fit = self.find(shape)
        if fit is not None:
            self._what_if.take(fit.blocks)

    def _takes(self, fit: Fits) -> bool:
        try:
            self._what_if.take(fit.blocks)
        except LocalProtocolError:  # not all of it is free
            return False
        return True

    def find(self, shape: Shape) -> Fits | None:
        """Where the shape fits: where it is tight, and on what was given rather than on what is free already."""
        return self._what_if.find(shape, BEST_FIT, prefer_given=True)

    def fits(self, shape: Shape) -> bool:
        """Whether it fits at all."""
        return self._what_if.find(shape, BEST_FIT) is not None

    def spare(self, jobid: int, shape: Shape) -> bool:
        """Keeps a job that was given, if the shape fits all the same; whether it does."""
        what_if, holding = self._what_if, self._ledger.holdings[jobid]
        mark = what_if.mark()
        what_if.keep(self._rest_of(holding))
        if what_if.find(shape, BEST_FIT) is not None:
            return True
        what_if.back(mark)
        return False

    def openings(self, shape: Shape) -> Openings:
        """What the shape needs of one target."""
        return Openings(self._pool, shape)

    def asked(self, shape: Shape) -> AskedAmounts:
        """What a shape of amounts without cores asks for, and lacks on each target."""
        return asked_amounts(self._pool, shape.request, self._pool.narrowed.get(shape.number))


class Openings:
    """Where a node, or one more slot, of a shape would fit if jobs were gone, for one of its parts; as of now.

    It takes `need` cores of a target at least, and leaves others `left` at most.
    """

    __slots__ = ("_able", "_choices", "_pool", "_request", "left", "need")

    def __init__(self, pool: Pool, shape: Shape) -> None:
        request = self._request = shape.request
        self._pool = pool
        choices = self._choices = choices_of(pool, request, pool.narrowed.get(shape.number))
        if not choices:
            need = need_of(request, request.slots.min if request.nodes is not None else 1)
            choices = (PartChoice(need, pool.choice_of(shape)),)
        self._able = [(each, need) for need, able in choices for each in able if need.fits_ever(each.targets)]
        cores = [(each.targets.cores, need.on(each.targets)[0]) for each, need in self._able]
        self.need = min([mine for _, mine in cores], default=0)
        self.left = max([there - mine for there, mine in cores], default=0)

    def at(self, rank: int) -> Opening | None:
        """What has to come free on a target; None if it fits there already, or could not at all."""
        at, bit = rank >> WORD_SHIFT, 1 << (rank & LOW_BITS)
        suiting = self._suiting(at, bit)
        if suiting is None or not self._pool.is_up(rank):
            return None
        request, (targets, need) = self._request, suiting
        cores, gpus = targets.free_ids(rank)
        amounts = targets.free_amounts(rank) if targets.countables else ()
        if request.nodes is None and not request.exclusive:
            slots = slots_on(request, cores.bit_count(), gpus.bit_count(), amounts) + 1
            if slots > slots_of_idle(request, targets):
                return None
            need = need_of(request, slots)
        need_cores, need_gpus = need.on(targets)
        opening = Opening(cores, gpus, amounts, need_cores, need_gpus, need.amounts_on(targets))
        return None if opening.fits else opening

    def able(self) -> list[dict[int, int]]:
        """The usable targets that could hold a node, word by word; of several parts, of each, the scarcest first."""
        if self._choices:
            return [dict(words_of(mask)) for _, mask in scarcest_first(self._pool, self._choices)]
        found: dict[int, int] = {}
        for candidates, _ in self._able:
            targets, _, only, _ = candidates
            for at, word in targets.members.words.items():
                found[at] = found.get(at, 0) | (word if only is None else word & only.at(at))
        return [{at: word & ~self._pool.down_words.get(at, 0) for at, word in found.items()}]

    def lacking_parts(self) -> LackingParts:
        """What is lacking of several parts; nothing if there is one."""
        return LackingParts(self._pool, self._choices, [part.least_nodes for part in self._request.parts])

    def opened(self, ranks: Iterable[int]) -> list[int]:
        """Those of them where it is of no use if more came free."""
        return [rank for rank in ranks if self.at(rank) is None]

    def _suiting(self, at: int, bit: int) -> tuple[TargetClass, Need] | None:
        """The class of a target, and what a part needs there; None if it suits none."""
        for candidates, need in self._able:
            targets, _, only, _ = candidates
            if targets.members.at(at) & bit and (only is None or only.at(at) & bit):
                return targets, need
        return None


def enough(there: Amounts, need: Amounts) -> bool:
    """Whether there is as much of each kind as is needed."""
    if not need:
        return True
    have = dict(there)
    return all(have.get(kind, 0) >= amount for kind, amount in need)
