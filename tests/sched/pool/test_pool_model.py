"""The pool against a brute-force reference that keeps plain sets and sorts all targets for each request.

A hypothesis machine drives both, with what-ifs in between, and compares every outcome, part for part, after every step.
Ranks are spread over words, and few layouts are told apart, so that mixed classes are met too.
"""

from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.pool.find_fit import WhatIf, find_fit, find_on, infeasible, place_now
from fluxsched.sched.pool.placement import LIKE, PLACEMENTS, Fits, Infeasible, Part, Shapes, blocks_of, parts_in
from fluxsched.sched.pool.pool import Pool
from tests.generated.share import examples
from tests.sched.pool.plain_pool import Plain, Reference
from tests.sched.site import lowered

RANKS = (0, 1, 2, 3, 510, 511, 512, 513, 1023, 1024, 8191, 8192)
NAMES = ("gpu", "new", "ssd")
KINDS = ("disk", "memory")

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


def amounts_of(kinds, most):
    some = st.dictionaries(st.sampled_from(kinds), st.integers(1, most), max_size=2)
    return st.just(()) | some.map(lambda found: tuple(sorted(found.items())))


def requests(nodes, node_amounts):
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


OF_AMOUNTS = st.builds(Request.of_amounts, amounts_of(KINDS, 6), st.just(EVERYTHING) | CONSTRAINTS)
REQUESTS = requests(st.none(), st.just(())) | requests(COUNTS, amounts_of(KINDS, 6)) | OF_AMOUNTS
ALL_PLACEMENTS = st.sampled_from((*PLACEMENTS, *LIKE))
SOME_AMOUNTS = st.dictionaries(st.sampled_from(KINDS), st.integers(1, 12), min_size=1).map(
    lambda found: tuple(sorted(found.items()))
)
MASKS = st.sets(st.sampled_from(RANKS), min_size=1, max_size=6)


class PoolMachine(RuleBasedStateMachine):
    """Events of the resource module and of the ledger, in any order that those two could send."""

    def __init__(self):
        super().__init__()
        self.shapes = Shapes()
        self.patch = ExitStack()
        self.patch.enter_context(lowered(LAYOUTS_MAX=2))
        self.pool, self.reference = Pool(), Reference()
        self.jobs = []

    def teardown(self):
        self.patch.close()

    @initialize(ranks=MASKS, amounts=SOME_AMOUNTS, some=st.booleans())
    def begin(self, ranks, amounts, some):
        """Half of the runs begin with equal targets without cores."""
        if some:
            self.grow(ranks, 0, 0, 0, set(), set(), amounts, ())

    @rule(
        ranks=MASKS,
        first=st.integers(0, 2),
        cores=st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
        gpus=st.integers(0, 2),
        down=MASKS,
        names=st.sets(st.sampled_from(NAMES)),
        amounts=amounts_of(KINDS, 12),
        shared=amounts_of(("matlab",), 4),
    )
    def grow(
        self, ranks, first, cores, gpus, down, names,
        amounts, shared,
    ):  # fmt: skip
        gpus = gpus if cores or first else 0
        held = {part.rank for blocks in self.jobs for part in parts_in(blocks)}
        new = sorted(ranks - self.reference.targets.keys() - held)
        text = str(Idset.of(new))
        ids = {"core": str(Idset.of(range(first, first + cores)))}
        ids |= {"gpu": str(Idset.span(3, 2 + gpus))} if gpus else {}
        entry = {"rank": text, "children": ids, "amounts": dict(amounts)}
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
    def shrink(self, ranks):
        leaving = ranks & self.reference.targets.keys()
        self.pool.remove(Idset.of(leaving))
        for rank in leaving:
            del self.reference.targets[rank]

    @rule(ranks=MASKS, up=st.booleans())
    def change_availability(self, ranks, up):
        (self.pool.set_up if up else self.pool.set_down)(Idset.of(ranks))
        for rank in ranks & self.reference.targets.keys():
            self.reference.targets[rank].up = up

    @rule(ranks=MASKS, name=st.sampled_from(NAMES), add=st.booleans())
    def describe(self, ranks, name, add):
        change = {name: Idset.of(ranks)}
        self.pool.describe(change if add else {}, {} if add else change)
        for rank in ranks & self.reference.targets.keys():
            names = self.reference.targets[rank].names
            self.reference.targets[rank].names = names | {name} if add else names - {name}

    @rule(request=REQUESTS, placement=ALL_PLACEMENTS)
    def start(self, request, placement):
        outcome = place_now(self.pool, self.shapes.of(request), placement)
        self.compare(request, placement, outcome)
        if isinstance(outcome, Fits):
            assert self.pool.take(outcome.blocks)
            self.jobs.append(outcome.blocks)
            self.count(outcome.blocks, 1)
            assert request.is_of_amounts or not self.pool.take(outcome.blocks)

    @precondition(lambda self: self.without_cores())
    @rule(data=st.data(), request=OF_AMOUNTS, among=MASKS, placement=ALL_PLACEMENTS)
    def name_targets(self, data, request, among, placement):
        """One target by its name, withheld or not; or any of some."""
        rank = data.draw(st.sampled_from(self.without_cores()))
        fit = find_on(self.pool, self.shapes.of(request), rank)
        assert (fit is not None) == bool(self.reference.slots_at(rank, request))
        if fit is not None:
            assert fit.parts == (Part(rank, 0, 0, request.amounts),)
            assert self.pool.take(fit.blocks)
            self.jobs.append(fit.blocks)
            self.count(fit.blocks, 1)
        some = find_fit(self.pool, self.shapes.of(request), placement, among=Idset.of(among))
        assert (() if some is None else some.parts) == self.reference.place(request, placement, among)

    @rule(request=REQUESTS, among=MASKS, placement=ALL_PLACEMENTS)
    def ask_among(self, request, among, placement):
        fit = find_fit(self.pool, self.shapes.of(request), placement, among=Idset.of(among))
        assert (() if fit is None else fit.parts) == tuple(sorted(self.reference.place(request, placement, among)))

    @precondition(lambda self: self.without_cores())
    @rule(data=st.data(), amounts=SOME_AMOUNTS, occupied=amounts_of(KINDS, 3))
    def resize(self, data, amounts, occupied):
        """What a target without cores has changes, also to less than is held."""
        rank = data.draw(st.sampled_from(self.without_cores()))
        self.pool.resize(rank, amounts, occupied)
        target = self.reference.targets[rank]
        target.amounts, target.occupied = dict(amounts), dict(occupied)

    @precondition(lambda self: self.without_cores())
    @rule(data=st.data(), withheld=st.booleans())
    def withhold(self, data, withheld):
        rank = data.draw(st.sampled_from(self.without_cores()))
        (self.pool.withhold if withheld else self.pool.offer)(rank)
        self.reference.targets[rank].withheld = withheld

    @precondition(lambda self: self.without_cores())
    @rule(data=st.data(), amounts=SOME_AMOUNTS)
    def adopt(self, data, amounts):
        """A job is found running on a target without cores, which may be down, with whatever it has."""
        blocks = blocks_of([Part(data.draw(st.sampled_from(self.without_cores())), 0, 0, amounts)])
        self.pool.claim(blocks)
        self.jobs.append(blocks)
        self.count(blocks, 1)

    @rule(weights=st.dictionaries(st.sampled_from(KINDS), st.sampled_from((0.0, 0.1, 1.0, 3.0))))
    def weigh(self, weights):
        self.pool.weights = self.reference.weights = weights

    def without_cores(self):
        return sorted(rank for rank, target in self.reference.targets.items() if not target.has_ids)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def finish(self, data):
        blocks = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.pool.give(blocks)
        self.count(blocks, -1)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), request=REQUESTS, placement=ALL_PLACEMENTS, prefer=st.booleans())
    def what_if(self, data, request, placement, prefer):
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
                once_more = find_fit(self.pool, self.shapes.of(request), placement)
                assert request.is_of_amounts or not prefer or once_more != fit
                what_if.back(what_if.mark() - 1)
                again = what_if.find(self.shapes.of(request), placement, avoid=fit.blocks)
                assert request.is_of_amounts or again != fit
        for blocks in ends:
            self.count(blocks, 1)
        assert before == [self.pool[rank] for rank in self.pool.ranks]

    @rule(request=REQUESTS)
    def ask(self, request):
        for placement in (*PLACEMENTS, *LIKE):
            self.compare(request, placement, place_now(self.pool, self.shapes.of(request), placement))

    @invariant()
    def same_free(self):
        self.pool.amount_targets.check()
        assert self.reference.targets.keys() == set(self.pool.ranks)
        for rank, target in self.reference.targets.items():
            mine = self.pool[rank]
            cores, gpus = target.free
            assert (list(Idset(mine.cores)), list(Idset(mine.gpus))) == (cores, gpus)
            assert mine.up == target.up == (rank not in self.pool.down)
            kinds = target.amounts if target.has_ids else KINDS
            left = dict(mine.amounts)
            assert {kind: left.get(kind, 0) for kind in kinds} == {kind: target.left(kind) for kind in kinds}
        used = tuple(sorted((k, n) for k, n in self.reference.shared_used.items() if n))
        assert self.pool.instance_countables.used() == used

    def count(self, blocks, sign):
        """A job begins or ends, in the reference."""
        for part in parts_in(blocks):
            if part.rank in self.reference.targets:
                busy = self.reference.targets[part.rank].busy
                (busy.append if sign > 0 else busy.remove)(part)
        for at, *_, amounts in blocks:
            for kind, amount in amounts if at < 0 else ():
                self.reference.shared_used[kind] = self.reference.shared_used.get(kind, 0) + sign * amount

    def compare(self, request, placement, outcome):
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


PoolMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestPool = PoolMachine.TestCase
