"""The pool against a brute-force reference that keeps plain sets and sorts all targets for each request.

A hypothesis machine drives both, with what-ifs in between, and compares every outcome, part for part, after every step.
Ranks are spread over words, and few layouts are told apart, so that mixed classes are met too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluxsched.core.amounts import Amounts
from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.pool import target_classes
from fluxsched.sched.pool.place import find_fit, infeasible, place_now
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    FIRST_FIT,
    PLACEMENTS,
    Blocks,
    Fits,
    Infeasible,
    Outcome,
    Part,
    parts_in,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.pool.what_if import WhatIf
from fluxsched.sched.shape import Shapes

RANKS = (0, 1, 2, 3, 510, 511, 512, 513, 1023, 1024, 1500, 1501)
NAMES = ("gpu", "new", "ssd")
KINDS = ("disk", "memory")


@dataclass
class Plain:
    """One target, as sets."""

    cores: set[int]
    gpus: set[int]
    up: bool
    names: set[str]
    amounts: dict[str, int]
    busy: list[Part] = field(default_factory=list)

    @property
    def free(self) -> tuple[list[int], list[int]]:
        cores = sorted(id for id in self.cores if not any(part.cores >> id & 1 for part in self.busy))
        gpus = sorted(id for id in self.gpus if not any(part.gpus >> id & 1 for part in self.busy))
        return cores, gpus

    def left(self, kind: str) -> int:
        return self.amounts.get(kind, 0) - sum(dict(part.amounts).get(kind, 0) for part in self.busy)


class Reference:
    """What the pool should do, by looking at every target every time."""

    def __init__(self) -> None:
        self.targets: dict[int, Plain] = {}
        self.shared: dict[str, int] = {}
        self.shared_used: dict[str, int] = {}

    def slots_at(self, rank: int, request: Request, *, ever: bool = False) -> int:
        """How many slots fit there."""
        target = self.targets[rank]
        if not self.matches(rank, request.constraint) or not (ever or target.up):
            return 0
        cores, gpus = (target.cores, target.gpus) if ever else target.free
        left: Callable[[str], int] = (lambda kind: target.amounts.get(kind, 0)) if ever else target.left
        if request.exclusive and not ever and target.busy:
            return 0
        slots = len(cores) // request.cores
        if request.gpus:
            slots = min(slots, len(gpus) // request.gpus)
        for kind, amount in request.node_amounts:
            if left(kind) < amount:
                return 0
        for kind, amount in request.amounts:
            slots = min(slots, (left(kind) - dict(request.node_amounts).get(kind, 0)) // amount)
        return slots

    def matches(self, rank: int, constraint: Constraint) -> bool:
        values = constraint.values
        match constraint.operator:
            case "properties":
                names = self.targets[rank].names
                return all((v[1:] not in names) if v[0] == "^" else v in names for v in map(str, values))
            case "ranks":
                return any(isinstance(value, Idset) and rank in value for value in values)
            case "not":
                return not all(self.matches(rank, value) for value in values if isinstance(value, Constraint))
            case "or":
                return any(self.matches(rank, value) for value in values if isinstance(value, Constraint))
        return all(self.matches(rank, value) for value in values if isinstance(value, Constraint))

    def ordered(self, ranks: list[int], placement: str) -> list[int]:
        def key(rank: int) -> tuple[int, int, int]:
            cores, gpus = map(len, self.targets[rank].free)
            if placement == FIRST_FIT:
                return (0, 0, rank)
            return (gpus, cores, rank) if placement == BEST_FIT else (-cores, gpus, rank)

        return sorted(ranks, key=key)

    def part(self, rank: int, request: Request, slots: int) -> Part:
        target = self.targets[rank]
        cores, gpus = target.free
        amounts = dict(target.amounts)
        if not request.exclusive:
            cores, gpus = cores[: slots * request.cores], gpus[: slots * request.gpus]
            amounts = dict(request.node_amounts)
            for kind, amount in request.amounts:
                amounts[kind] = amounts.get(kind, 0) + slots * amount
        return Part(rank, sum(1 << id for id in cores), sum(1 << id for id in gpus), tuple(sorted(amounts.items())))

    def place(self, request: Request, placement: str) -> tuple[Part, ...]:
        if any(self.shared.get(kind, 0) - self.shared_used.get(kind, 0) < n for kind, n in request.shared):
            return ()
        able = {rank: self.slots_at(rank, request) for rank in self.targets}
        if request.nodes is None:
            wanted = max((n for n in range(1, sum(able.values()) + 1) if n in request.slots), default=0)
            parts = []
            for rank in self.ordered([rank for rank in able if able[rank]], placement):
                if wanted:
                    parts.append(self.part(rank, request, min(wanted, able[rank])))
                    wanted -= min(wanted, able[rank])
            return tuple(parts)
        for slots in range(20, 0, -1):
            ranks = [rank for rank in able if able[rank] >= slots] if slots in request.slots else []
            wanted = max((n for n in range(1, len(ranks) + 1) if n in request.nodes), default=0)
            if wanted:
                return tuple(self.part(r, request, slots) for r in self.ordered(ranks, placement)[:wanted])
        return ()

    def feasible(self, request: Request) -> bool:
        if any(self.shared.get(kind, 0) < n for kind, n in request.shared):
            return False
        ever = [self.slots_at(rank, request, ever=True) for rank in self.targets]
        if request.nodes is None:
            return sum(ever) >= request.slots.min
        return sum(slots >= request.slots.min for slots in ever) >= request.nodes.min


COUNTS = st.one_of(
    st.integers(1, 6).map(Count.fixed),
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 2)).map(lambda c: Count(c[0], c[0] + c[1], c[2])),
    st.just(Count(1, None)),
    st.just(Count(1, 8, 2, "*")),
)
CONSTRAINTS = st.sampled_from(
    [
        {}, {"properties": ["ssd"]}, {"properties": ["^ssd"]}, {"properties": ["gpu", "^new"]}, {"not": []},
        {"ranks": ["0-511"]}, {"ranks": ["3,513"]}, {"or": [{"properties": ["new"]}, {"ranks": ["1"]}]}, {"or": []},
    ]
).map(Constraint.parse)  # fmt: skip


def amounts_of(kinds: tuple[str, ...], most: int) -> st.SearchStrategy[Amounts]:
    some = st.dictionaries(st.sampled_from(kinds), st.integers(1, most), max_size=2)
    return st.just(()) | some.map(lambda found: tuple(sorted(found.items())))


def requests(
    nodes: st.SearchStrategy[Count | None], node_amounts: st.SearchStrategy[Amounts]
) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        nodes=nodes,
        slots=COUNTS,
        cores=st.integers(1, 3),
        gpus=st.integers(0, 2),
        exclusive=st.booleans(),
        constraint=st.just(EVERYTHING) | CONSTRAINTS,
        amounts=amounts_of(KINDS, 6),
        node_amounts=node_amounts,
        shared=amounts_of(("matlab",), 3),
    )


REQUESTS = requests(st.none(), st.just(())) | requests(COUNTS, amounts_of(KINDS, 6))
MASKS = st.sets(st.sampled_from(RANKS), min_size=1, max_size=6)


class PoolMachine(RuleBasedStateMachine):
    """Events of the resource module and of the ledger, in any order that those two could send."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = Shapes()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(target_classes, "LAYOUTS_MAX", 2)
        self.pool, self.reference = Pool(), Reference()
        self.jobs: list[Blocks] = []

    def teardown(self) -> None:
        self.patch.undo()

    @rule(
        ranks=MASKS,
        first=st.integers(0, 2),
        cores=st.integers(1, 4),
        gpus=st.integers(0, 2),
        down=MASKS,
        names=st.sets(st.sampled_from(NAMES)),
        amounts=amounts_of(KINDS, 12),
        shared=amounts_of(("matlab",), 4),
    )
    def grow(
        self, ranks: set[int], first: int, cores: int, gpus: int, down: set[int], names: set[str],
        amounts: Amounts, shared: Amounts,
    ) -> None:  # fmt: skip
        held = {part.rank for blocks in self.jobs for part in parts_in(blocks)}
        new = sorted(ranks - self.reference.targets.keys() - held)
        text = str(Idset.of(new))
        ids = {"core": str(Idset.span(first, first + cores - 1))}
        ids |= {"gpu": str(Idset.span(3, 2 + gpus))} if gpus else {}
        entry: dict[str, Any] = {"rank": text, "children": ids, "amounts": dict(amounts)}
        execution = {
            "R_lite": [entry] if new else [], "starttime": 0.0, "expiration": 0.0, "shared": dict(shared),
            "properties": dict.fromkeys(names, text) if new else {}, "nodelist": [f"n[{text}]"] if new else [""],
        }  # fmt: skip
        self.pool.add(ResourceSet.parse({"version": 1, "execution": execution}), Idset.of(set(new) - down))
        for rank in new:
            self.reference.targets[rank] = Plain(
                set(range(first, first + cores)), set(range(3, 3 + gpus)), rank not in down, set(names), dict(amounts)
            )
        for kind, amount in shared:
            self.reference.shared[kind] = self.reference.shared.get(kind, 0) + amount

    @rule(ranks=MASKS)
    def shrink(self, ranks: set[int]) -> None:
        leaving = ranks & self.reference.targets.keys()
        self.pool.remove(Idset.of(leaving))
        for rank in leaving:
            del self.reference.targets[rank]

    @rule(ranks=MASKS, up=st.booleans())
    def change_availability(self, ranks: set[int], up: bool) -> None:
        (self.pool.set_up if up else self.pool.set_down)(Idset.of(ranks))
        for rank in ranks & self.reference.targets.keys():
            self.reference.targets[rank].up = up

    @rule(ranks=MASKS, name=st.sampled_from(NAMES), add=st.booleans())
    def describe(self, ranks: set[int], name: str, add: bool) -> None:
        change = {name: Idset.of(ranks)}
        self.pool.describe(change if add else {}, {} if add else change)
        for rank in ranks & self.reference.targets.keys():
            names = self.reference.targets[rank].names
            self.reference.targets[rank].names = names | {name} if add else names - {name}

    @rule(request=REQUESTS, placement=st.sampled_from(PLACEMENTS))
    def start(self, request: Request, placement: str) -> None:
        outcome = place_now(self.pool, self.shapes.of(request), placement)
        self.compare(request, placement, outcome)
        if isinstance(outcome, Fits):
            assert self.pool.take(outcome.blocks)
            self.jobs.append(outcome.blocks)
            self.count(outcome.blocks, 1)
            assert not self.pool.take(outcome.blocks)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        blocks = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.pool.give(blocks)
        self.count(blocks, -1)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), request=REQUESTS, placement=st.sampled_from(PLACEMENTS), prefer=st.booleans())
    def what_if(self, data: st.DataObject, request: Request, placement: str, prefer: bool) -> None:
        """Some jobs end and others begin in a what-if: it places as the real pool would, and all is as before after."""
        ends = data.draw(st.lists(st.sampled_from(self.jobs), unique=True, max_size=3))
        before = [self.pool[rank] for rank in self.pool.ranks]
        with WhatIf(self.pool) as what_if:
            for blocks in ends:
                what_if.give(blocks)
                self.count(blocks, -1)
            fit = what_if.find(self.shapes.of(request), placement, prefer_given=prefer)
            want = self.reference.place(request, placement)
            assert (fit is not None) == bool(want)
            if fit is not None:
                assert prefer or fit.parts == tuple(sorted(want))
                what_if.take(fit.blocks)
                assert not prefer or find_fit(self.pool, self.shapes.of(request), placement, None) != fit
                what_if.back(what_if.mark() - 1)
                assert what_if.find(self.shapes.of(request), placement, avoid=fit.blocks) != fit
        for blocks in ends:
            self.count(blocks, 1)
        assert before == [self.pool[rank] for rank in self.pool.ranks]

    @rule(request=REQUESTS)
    def ask(self, request: Request) -> None:
        for placement in PLACEMENTS:
            self.compare(request, placement, place_now(self.pool, self.shapes.of(request), placement))

    @invariant()
    def same_free(self) -> None:
        assert self.reference.targets.keys() == set(self.pool.ranks)
        for rank, target in self.reference.targets.items():
            mine = self.pool[rank]
            cores, gpus = target.free
            assert (list(Idset(mine.cores)), list(Idset(mine.gpus))) == (cores, gpus)
            assert mine.up == target.up == (rank not in self.pool.down)
            assert dict(mine.amounts) == {kind: target.left(kind) for kind in target.amounts}
        used = tuple(sorted((k, n) for k, n in self.reference.shared_used.items() if n))
        assert self.pool.instance_countables.used() == used

    def count(self, blocks: Blocks, sign: int) -> None:
        """A job begins or ends, in the reference."""
        for part in parts_in(blocks):
            if part.rank in self.reference.targets:
                busy = self.reference.targets[part.rank].busy
                (busy.append if sign > 0 else busy.remove)(part)
        for at, *_, amounts in blocks:
            for kind, amount in amounts if at < 0 else ():
                self.reference.shared_used[kind] = self.reference.shared_used.get(kind, 0) + sign * amount

    def compare(self, request: Request, placement: str, outcome: Outcome) -> None:
        want = self.reference.place(request, placement)
        feasible = self.reference.feasible(request)
        assert (infeasible(self.pool, request) is None) == feasible
        if isinstance(outcome, Fits):
            assert outcome.parts == tuple(sorted(want))
            assert outcome.nslots >= 1
        else:
            assert want == ()
            assert isinstance(outcome, Infeasible) == (not feasible)
            assert str(request) in outcome.why


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestPool = PoolMachine.TestCase
