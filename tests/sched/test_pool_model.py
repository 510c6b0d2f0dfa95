"""The pool against a brute-force reference that keeps plain sets and sorts all targets for each request.

A hypothesis machine drives both and compares every outcome, part for part, after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.outcome import Blocks, Fits, Infeasible, Outcome, Part, parts_in
from fluxsched.sched.placing import infeasible, place
from fluxsched.sched.pool import Pool
from fluxsched.sched.shelf import BEST_FIT, FIRST_FIT, PLACEMENTS

RANKS = 12
NAMES = ("gpu", "new", "ssd")


@dataclass
class Plain:
    """One target, as sets."""

    cores: set[int]
    gpus: set[int]
    up: bool
    names: set[str]
    busy: list[Part] = field(default_factory=list)

    @property
    def free(self) -> tuple[list[int], list[int]]:
        cores = sorted(id for id in self.cores if not any(part.cores >> id & 1 for part in self.busy))
        gpus = sorted(id for id in self.gpus if not any(part.gpus >> id & 1 for part in self.busy))
        return cores, gpus


class Reference:
    """What the pool should do, by looking at every target every time."""

    def __init__(self) -> None:
        self.targets: dict[int, Plain] = {}

    def fitting(self, request: Request, slots: int, *, ever: bool = False) -> list[int]:
        return [rank for rank in self.targets if self.slots_at(rank, request, ever=ever) >= slots]

    def slots_at(self, rank: int, request: Request, *, ever: bool = False) -> int:
        target = self.targets[rank]
        if not self.matches(rank, request.constraint) or not (ever or target.up):
            return 0
        cores, gpus = (target.cores, target.gpus) if ever else target.free
        if request.exclusive and (len(cores), len(gpus)) != (len(target.cores), len(target.gpus)):
            return 0
        by_gpus = len(gpus) // request.gpus if request.gpus else RANKS * 100
        return min(len(cores) // request.cores, by_gpus)

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
        cores, gpus = self.targets[rank].free
        if not request.exclusive:
            cores, gpus = cores[: slots * request.cores], gpus[: slots * request.gpus]
        return Part(rank, sum(1 << id for id in cores), sum(1 << id for id in gpus))

    def place(self, request: Request, placement: str) -> tuple[Part, ...]:
        if request.nodes is None:
            able = {rank: self.slots_at(rank, request) for rank in self.targets}
            wanted = max((n for n in range(1, sum(able.values()) + 1) if n in request.slots), default=0)
            parts = []
            for rank in self.ordered([rank for rank in able if able[rank]], placement):
                if wanted:
                    parts.append(self.part(rank, request, min(wanted, able[rank])))
                    wanted -= min(wanted, able[rank])
            return tuple(parts)
        for slots in range(20, 0, -1):
            ranks = self.fitting(request, slots) if slots in request.slots else []
            wanted = max((n for n in range(1, len(ranks) + 1) if n in request.nodes), default=0)
            if wanted:
                return tuple(self.part(r, request, slots) for r in self.ordered(ranks, placement)[:wanted])
        return ()

    def feasible(self, request: Request) -> bool:
        if request.nodes is None:
            whole = sum(self.ever(rank, request) for rank in self.targets)
            return whole >= request.slots.min
        return sum(self.ever(rank, request) >= request.slots.min for rank in self.targets) >= request.nodes.min

    def ever(self, rank: int, request: Request) -> int:
        return self.slots_at(rank, request, ever=True)


COUNTS = st.one_of(
    st.integers(1, 6).map(Count.fixed),
    st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(1, 2)).map(lambda c: Count(c[0], c[0] + c[1], c[2])),
    st.just(Count(1, None)),
    st.just(Count(1, 8, 2, "*")),
)
CONSTRAINTS = st.sampled_from(
    [
        {}, {"properties": ["ssd"]}, {"properties": ["^ssd"]}, {"properties": ["gpu", "^new"]}, {"not": []},
        {"ranks": ["0-5"]}, {"ranks": ["3,7-8"]}, {"or": [{"properties": ["new"]}, {"ranks": ["1"]}]}, {"or": []},
    ]
).map(Constraint.parse)  # fmt: skip
REQUESTS = st.builds(
    Request,
    nodes=st.none() | COUNTS,
    slots=COUNTS,
    cores=st.integers(1, 3),
    gpus=st.integers(0, 2),
    exclusive=st.booleans(),
    constraint=st.just(EVERYTHING) | CONSTRAINTS,
)
MASKS = st.sets(st.integers(0, RANKS - 1), min_size=1, max_size=5)


class PoolMachine(RuleBasedStateMachine):
    """Events of the resource module and of the ledger, in any order that those two could send."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.reference = Pool(), Reference()
        self.jobs: list[Blocks] = []

    @rule(
        ranks=MASKS, cores=st.integers(1, 4), gpus=st.integers(0, 2), down=MASKS, names=st.sets(st.sampled_from(NAMES))
    )
    def grow(self, ranks: set[int], cores: int, gpus: int, down: set[int], names: set[str]) -> None:
        held = {part.rank for blocks in self.jobs for part in parts_in(blocks)}
        new = sorted(ranks - self.reference.targets.keys() - held)
        text = str(Idset.of(new))
        children = {"core": str(Idset.span(0, cores - 1))} | ({"gpu": str(Idset.span(3, 2 + gpus))} if gpus else {})
        entries = [{"rank": text, "children": children}] if new else []
        properties = dict.fromkeys(names, text) if new else {}
        execution = {
            "R_lite": entries, "starttime": 0.0, "expiration": 0.0, "properties": properties,
            "nodelist": [f"n[{text}]"] if new else [""],
        }  # fmt: skip
        self.pool.add(ResourceSet.parse({"version": 1, "execution": execution}), Idset.of(set(new) - down))
        for rank in new:
            self.reference.targets[rank] = Plain(
                set(range(cores)), set(range(3, 3 + gpus)), rank not in down, set(names)
            )

    @rule(ranks=MASKS)
    def shrink(self, ranks: set[int]) -> None:
        leaving = ranks & self.reference.targets.keys()
        self.pool.remove(Idset.of(leaving))
        for rank in leaving:
            del self.reference.targets[rank]

    @rule(ranks=MASKS, up=st.booleans())
    def weather(self, ranks: set[int], up: bool) -> None:
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
        outcome = place(self.pool, request, placement)
        self.compare(request, placement, outcome)
        if isinstance(outcome, Fits):
            assert self.pool.take(outcome.blocks)
            for part in outcome.parts:
                self.reference.targets[part.rank].busy.append(part)
            self.jobs.append(outcome.blocks)
            assert not self.pool.take(outcome.blocks)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        blocks = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.pool.give(blocks)
        for part in parts_in(blocks):
            if part.rank in self.reference.targets:
                self.reference.targets[part.rank].busy.remove(part)

    @rule(request=REQUESTS)
    def ask(self, request: Request) -> None:
        for placement in PLACEMENTS:
            self.compare(request, placement, place(self.pool, request, placement))

    @invariant()
    def same_free(self) -> None:
        assert self.reference.targets.keys() == set(self.pool.ranks)
        for rank, target in self.reference.targets.items():
            mine = self.pool[rank]
            cores, gpus = target.free
            assert (list(Idset(mine.cores)), list(Idset(mine.gpus))) == (cores, gpus)
            assert mine.up == target.up == (rank not in self.pool.down)

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


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestPool = PoolMachine.TestCase
