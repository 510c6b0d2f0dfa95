"""What an elastic job that runs may have more or fewer of: its parts, their targets, and how many these may be.

Law: nothing is held here: the ledger changes holdings, and has this follow in the same step. A target that the job is
to leave counts no more, though the job holds it until it is freed (law 5). The target of its first task is no extra:
without that the job would go on without what leads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.amounts import Amounts
from fluxsched.core.count import Count
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.request import Request
from fluxsched.sched.pool.choice import need_of
from fluxsched.sched.pool.placement import NO_TARGET, WORST_FIT, Fits, parts_in, ranks_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.shape import Shape

SHRINK_PAUSE_S: Final = 60.0
"""How long a job does not grow after it was shrunk (seconds)."""

SETTLED: Final = "its size does not change any more: it is at its end, or keeps its size where it runs"


class ElasticPart:
    """One part: `ranks` are its targets but for those that it is to leave, which are `leaving`.

    `base` are those that count as its minimum.
    """

    __slots__ = ("base", "leaving", "nodes", "ranks", "request")

    def __init__(self, request: Request, ranks: Idset) -> None:
        assert request.nodes is not None, "a part of an elastic job asks for nodes"
        self.request = request
        self.nodes: Count = request.nodes
        self.ranks = ranks
        self.leaving = EMPTY
        self.base = EMPTY

    def __str__(self) -> str:
        return f"part {self.request.label}" if self.request.label else "it"

    @property
    def size(self) -> int:
        """How many targets it has."""
        return len(self.ranks)

    @property
    def beyond_minimum(self) -> int:
        """How many more than its minimum."""
        return len(self.ranks) - self.nodes.min

    @property
    def step(self) -> int:
        """How many more make the next value of its range; 0 if it is at the largest."""
        after = self.nodes.after(len(self.ranks))
        return 0 if after is None else after - len(self.ranks)

    def rounded(self, count: int) -> int | None:
        """How many must go so that it has a value of its range, if so many do at least; None below its minimum."""
        size = len(self.ranks)
        left = self.nodes.largest(size - count)
        return None if left is None else size - left

    def choose_base(self, first: int) -> None:
        """Its highest targets are its minimum, as they go last of equals, and the one of the first task."""
        chosen = self.base & self.ranks
        missing = self.nodes.min - len(chosen)
        if missing > 0 and first in self.ranks and first not in chosen:
            chosen |= Idset.one(first)
            missing -= 1
        if missing > 0:
            chosen |= highest_of(self.ranks - chosen, missing)
        self.base = chosen


class Extras(NamedTuple):
    """Of the targets `ranks` of a part, `spare` may go; `ElasticPart.rounded` says how many must if some do."""

    part: ElasticPart
    ranks: Idset
    spare: int


class Elastic:
    """What an elastic job has, part by part. Times are wall time in seconds.

    `first` is the target of its first task; `unstored` are targets that the job manager has not stored yet, `asked` the
    same grow by grow. It grows by `placement` (one of PLACEMENTS), as it was started, but not before `paused_until_s`;
    it is not shrunk before `kept_until_s`, since that was refused; what it is to leave it has left by `leave_by_s`.
    `is_settled`: neither happens any more, since it frees what it has, or has a size of its own where it runs.
    """

    __slots__ = (
        "asked", "first", "grown", "is_settled", "kept_until_s", "leave_by_s", "leaving", "parts", "paused_until_s",
        "placement", "shape", "unstored",
    )  # fmt: skip

    def __init__(self, shape: Shape, by_part: Sequence[Idset], first: int) -> None:
        self.shape = shape
        self.parts = [
            ElasticPart(request, ranks) for request, ranks in zip(shape.request.each_part, by_part, strict=True)
        ]
        self.first = first
        self.placement: str = WORST_FIT
        self.leaving = EMPTY
        self.unstored = EMPTY
        self.asked: deque[Idset] = deque()
        self.grown: list[tuple[float, Idset]] = []  # when which targets came after the start
        self.leave_by_s = inf
        self.paused_until_s = self.kept_until_s = -inf
        self.is_settled = False
        self.choose_base()

    # ---- questions

    @property
    def can_grow(self) -> bool:
        """Whether a part of it is not at the largest value of its range."""
        return not self.is_settled and any(part.step for part in self.parts)

    @property
    def base(self) -> Idset:
        """The targets that count as its minima."""
        found = EMPTY
        for part in self.parts:
            found |= part.base
        return found

    @property
    def held(self) -> Idset:
        """All targets that it is not to leave."""
        found = EMPTY
        for part in self.parts:
            found |= part.ranks
        return found

    def extras(self, now_s: float) -> Iterator[Extras]:
        """What may go of each part at `now_s`; nothing if that was refused a short while ago."""
        if self.is_settled or now_s < self.kept_until_s:
            return
        for part in self.parts:
            spare = part.beyond_minimum - len(part.ranks & self.unstored)  # a grow that is not stored may be refused
            if spare > 0:
                ranks = part.ranks - self.unstored - Idset.one(self.first)
                if ranks:
                    yield Extras(part, ranks, spare)

    def ages(self, started_s: float) -> Iterator[tuple[float, Idset | None]]:
        """When which targets came, the last first; at last None for all others."""
        yield from reversed(self.grown)
        yield started_s, None

    def refuses_grow(self, fit: Fits, pool: Pool) -> str:
        """Why the job must not get this: too many targets, or not what its part has of each; empty if it may."""
        by_part = targets_of(fit)
        if self.is_settled:
            return SETTLED
        if self.leaving:
            return f"it is leaving ranks {self.leaving}"
        if len(by_part) != len(self.parts):
            return f"the fit is of {len(by_part)} parts, the job has {len(self.parts)}"
        of_rank: dict[int, ElasticPart] = {}
        for part, ranks in zip(self.parts, by_part, strict=True):
            size, bound = part.size + len(ranks), part.request.max_hops
            if ranks and size not in part.nodes:
                return f"{part} would have {size} nodes, and asks for {part.nodes}"
            if ranks and bound is not None and not ranks <= pool.rooms.network.within(part.ranks, bound):
                return f"ranks {ranks} are more than {bound} hops from what {part} has"
            of_rank.update(dict.fromkeys(ranks, part))
        for rank, cores, gpus, amounts in parts_in(fit.blocks):
            of = of_rank.pop(rank, None)
            if of is None:
                return f"the fit has rank {rank} in no part"
            if not _is_node_of(of.request, pool, rank, (cores, gpus), amounts):
                return f"on rank {rank} the fit has other cores, GPUs or amounts than {of} has of each target"
        if of_rank or any(block.at == NO_TARGET for block in fit.blocks):
            return "the parts of the fit name other targets than its blocks"
        return ""

    def refuses_shrink(self, ranks: Idset) -> str:
        """Why the job must not leave these targets: it has not all, or too few would be left; empty if it may."""
        if self.is_settled:
            return SETTLED
        if not ranks:
            return "no ranks are named"
        for part in self.parts:
            mine = part.ranks & ranks
            ranks -= mine
            size = part.size - len(mine)
            if mine and size not in part.nodes:
                return f"{part} would have {size} nodes, and asks for {part.nodes}"
        if again := ranks & self.leaving:
            return f"it is leaving ranks {again} already"
        return f"it does not hold ranks {ranks}" if ranks else ""

    def to_leave(self, lost: Idset) -> Idset | None:
        """What it has to leave if it must leave these: with more of a part, down to a value of its range.

        None if it would have less than a minimum. Where just the last grow is not stored, that goes later.
        """
        lost -= self.unstored
        found = EMPTY
        for part in self.parts:
            mine = part.ranks & lost
            count = part.rounded(len(mine)) if mine else 0
            if count is None:
                return None
            more = count - len(mine)
            left = part.ranks - mine - self.unstored
            if more > len(left):
                return None
            spared = left - Idset.one(self.first)
            found |= mine | (highest_of(spared if more <= len(spared) else left, more) if more else EMPTY)
        return found

    # ---- what the ledger has changed

    def choose_base(self) -> None:
        """Which targets count as minima, after some have come or gone."""
        for part in self.parts:
            part.choose_base(self.first)

    def add(self, fit: Fits, now_s: float) -> Idset:
        """The job has these targets, too; all of them."""
        added = EMPTY
        for part, ranks in zip(self.parts, targets_of(fit), strict=True):
            part.ranks |= ranks
            added |= ranks
        self.unstored |= added
        if self.grown and self.grown[-1][0] == now_s:
            self.grown[-1] = now_s, self.grown[-1][1] | added
        else:
            self.grown.append((now_s, added))
        return added

    def stored(self) -> Idset:
        """The job manager has stored the oldest grow; these targets."""
        ranks = self.asked.popleft() if self.asked else EMPTY
        self.unstored -= ranks
        return ranks

    def stored_not(self, ranks: Idset) -> None:
        """The job manager has refused the grow by these."""
        self.asked = deque([asked for asked in self.asked if asked != ranks])

    def leave(self, ranks: Idset, by_s: float) -> None:
        """The job is to leave these targets by then."""
        for part in self.parts:
            mine = part.ranks & ranks
            part.ranks -= mine
            part.leaving |= mine
        self.leave_by_s = max(self.leave_by_s, by_s) if self.leaving else by_s
        self.leaving |= ranks
        self.choose_base()

    def stay(self, ranks: Idset) -> Idset:
        """The job is not to leave these targets; those of them that it was to leave."""
        found = self.leaving & ranks
        for part in self.parts:
            mine = part.leaving & ranks
            part.leaving -= mine
            part.ranks |= mine
        self.leaving -= ranks
        self.choose_base()
        return found

    def lost(self, ranks: Idset) -> None:
        """The job holds these targets no more. One that frees what it need not leave is at its end."""
        if ranks - self.leaving - self.unstored:
            self.is_settled = True
        for part in self.parts:
            part.leaving -= ranks
            part.ranks -= ranks
        self.leaving -= ranks
        self.unstored -= ranks
        self.asked = deque([asked - ranks for asked in self.asked])
        self.grown = [(since_s, left) for since_s, some in self.grown if (left := some - ranks)]
        for part in self.parts:
            part.base -= ranks
        if not self.is_settled:
            self.choose_base()


def targets_of(fit: Fits) -> tuple[Idset, ...]:
    """The targets of each part in a fit."""
    return fit.by_part or (ranks_in(fit.blocks),)


def _is_node_of(request: Request, pool: Pool, rank: int, ids: tuple[int, int], amounts: Amounts) -> bool:
    """Whether just this is what such a request has of the target."""
    if request.exclusive:
        return rank in pool and pool.all_ids(rank) == ids and pool[rank].all_amounts == amounts
    need = need_of(request, request.slots.min)
    return (ids[0].bit_count(), ids[1].bit_count(), amounts) == (need.cores, need.gpus, need.amounts)


def highest_of(ranks: Idset, count: int) -> Idset:
    """The highest of them, so many."""
    return ranks - ranks.first(len(ranks) - count) if count < len(ranks) else ranks
