"""What-ifs: everything is undone, reservations are kept free, and EASY's counting rule holds on one-core targets."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.decisions import Start
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.pool.place import WhatIf, place_now
from fluxsched.sched.pool.placement import (
    BEST_FIT,
    WORST_FIT,
    Block,
    Fits,
    Insufficient,
    Part,
    Shape,
    blocks_of,
    parts_in,
)
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJobs, Waiting
from tests.sched.site import make_r, request_of


@pytest.fixture
def pool():
    made = Pool()
    made.add(make_r("0-3", 4, 2), Idset.parse("0-3"))
    return made


def state(pool):
    return [(rank, pool[rank].cores, pool[rank].gpus) for rank in pool.ranks]


def start(pool, request, placement=BEST_FIT):
    fit = place_now(pool, Shape(request), placement)
    assert isinstance(fit, Fits)
    assert pool.take(fit.blocks)
    return fit


def test_leaving_undoes_everything(pool):
    job = start(pool, request_of(nodes=2, cores=3, gpus=1))
    before = state(pool)
    with suppress(KeyError), WhatIf(pool) as what_if:
        what_if.give(job.blocks)
        mark = what_if.mark()
        fit = what_if.find(Shape(request_of(nodes=4, cores=4)), WORST_FIT)
        assert fit is not None
        what_if.take(fit.blocks)
        assert what_if.find(Shape(request_of()), WORST_FIT) is None
        what_if.back(mark)
        assert what_if.find(Shape(request_of(nodes=4, cores=4)), WORST_FIT) is not None
        raise KeyError
    assert state(pool) == before
    assert isinstance(place_now(pool, Shape(request_of(nodes=4, cores=4)), BEST_FIT), Insufficient)


def test_what_the_pool_does_not_count_is_passed_over(pool):
    with WhatIf(pool) as what_if:
        what_if.take((Block(0, 1, 0b11, 0),))
        what_if.give((Block(0, 1, 0b110011, 0), Block(0, 1 << 77, 1, 0)))
        assert state(pool)[0] == (0, 0b1111, 0b11)
        what_if.take((Block(0, 1, 1, 0),))
        with pytest.raises(LocalProtocolError, match="not free"):
            what_if.take((Block(0, 1, 1, 0),))
    assert state(pool)[0] == (0, 0b1111, 0b11)


def test_what_is_reserved_is_avoided(pool):
    start(pool, request_of(nodes=1, cores=4))
    before = state(pool)
    # rank 0 is busy: nothing to keep there
    reserved = blocks_of([Part(0, 0b1111, 0), Part(1, 0b1111, 0b11), Part(2, 0b0011, 0)])
    with WhatIf(pool) as what_if:
        fit = what_if.find(Shape(request_of(slots=6)), BEST_FIT, avoid=reserved)
        assert fit is not None
        assert {part.rank: part.cores for part in fit.parts} == {2: 0b1100, 3: 0b1111}
        outcome = what_if.place(Shape(request_of(slots=7)), BEST_FIT, avoid=reserved)
        assert isinstance(outcome, Insufficient)
        assert "reserved for a job ahead" in outcome.why
        assert isinstance(what_if.place(Shape(request_of(slots=7)), BEST_FIT), Fits)
    assert state(pool) == before


def test_a_reservation_prefers_what_is_busy_now(pool):
    start(pool, request_of(nodes=1, cores=1))
    job = start(pool, request_of(slots=3, cores=2), BEST_FIT)  # rank 0: cores 1-2, rank 1: cores 0-3
    with WhatIf(pool) as what_if:
        what_if.give(job.blocks)
        fit = what_if.find(Shape(request_of(slots=2, cores=2)), WORST_FIT, prefer_given=True)
        assert fit is not None
        assert {part.rank: part.cores for part in fit.parts} == {1: 0b1111}
        fit = what_if.find(Shape(request_of(nodes=Count.fixed(3), cores=2)), WORST_FIT, prefer_given=True)
        assert fit is not None
        assert {part.rank: part.cores for part in fit.parts} == {0: 0b0110, 1: 0b0011, 2: 0b0011}


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.booleans())
@settings(max_examples=60)
def test_one_core_targets_follow_the_counting_rule(targets, busy, head, early, by_node):
    """What may run past the shadow time is `free at the shadow - needed by the head`, whatever the ranks."""
    busy, head = min(busy, targets), min(head, targets)
    pool = Pool()
    pool.add(make_r(f"0-{targets - 1}" if targets > 1 else "0", 1), Idset.span(0, targets - 1))

    def ask(n):
        return Request(Count.fixed(n)) if by_node else Request(slots=Count.fixed(n))

    jobs = [start(pool, ask(n)) for n in (min(early, busy), busy - min(early, busy)) if n]
    if targets - busy >= head:
        return  # the head starts: nothing to reserve
    with WhatIf(pool) as what_if:
        free = targets - busy
        for job in jobs:
            what_if.give(job.blocks)
            free += len(job.parts)
            fit = what_if.find(Shape(ask(head)), WORST_FIT, prefer_given=True)
            assert (fit is not None) == (free >= head)
            if fit is not None:
                break
    assert fit is not None
    extra = min(free - head, targets - busy)
    with WhatIf(pool) as what_if:
        assert extra == 0 or what_if.find(Shape(ask(extra)), BEST_FIT, avoid=fit.blocks) is not None
        assert what_if.find(Shape(ask(extra + 1)), BEST_FIT, avoid=fit.blocks) is None


def test_nothing_is_committed_inside(pool):
    queue, ledger, request = PendingJobs(), Ledger([pool]), request_of()
    queue.add(Waiting(1, 16, 1000, 0.0, Shape(request), 0.0))
    fit = place_now(pool, Shape(request), BEST_FIT)
    assert isinstance(fit, Fits)
    with WhatIf(pool) as what_if:
        with pytest.raises(LocalProtocolError, match="inside a what-if"):
            ledger.commit(Start(1, fit), queue, pool, 0.0)
        with pytest.raises(LocalProtocolError, match="is open"), WhatIf(pool):
            pass
        assert what_if.find(Shape(request), BEST_FIT) is not None
    assert ledger.commit(Start(1, fit), queue, pool, 0.0) is not None


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 3), st.integers(0, 1)), unique_by=lambda p: p[0]))
@settings(max_examples=40)
def test_blocks_and_parts_say_the_same(parts):
    want = [Part(*part) for part in parts]
    assert sorted(parts_in(blocks_of(want))) == sorted(want)
