"""Numbers of fields against sets of ids, target by target."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.resources import ResourceSet
from fluxsched.sched.ledger import Ledger
from fluxsched.sched.plan.earliest_start import BusyTargets
from fluxsched.sched.plan.timeline import IdLayout
from fluxsched.sched.pool.bitset import LOW_BITS, WORD_SHIFT
from fluxsched.sched.pool.placement import Blocks, Part, blocks_of, parts_in
from fluxsched.sched.pool.pool import Pool

CORES, GPUS = 5, 2

ranks = st.one_of(st.integers(0, 40), st.integers(0, 3000))
held = st.dictionaries(ranks, st.tuples(st.integers(0, (1 << CORES) - 1), st.integers(0, (1 << GPUS) - 1)), max_size=40)


def blocks_with(ids: dict[int, tuple[int, int]]) -> Blocks:
    return blocks_of([Part(rank, cores, gpus) for rank, (cores, gpus) in ids.items()])


@settings(max_examples=60)
@given(st.lists(held, max_size=4), st.sets(ranks))
def test_numbers_say_what_the_blocks_say(several: list[dict[int, tuple[int, int]]], some: set[int]) -> None:
    layout = IdLayout(CORES, GPUS)
    numbers = [layout.ids(blocks_with(each)) for each in several]
    everything = 0
    for number, each in zip(numbers, several, strict=True):
        mine = {rank: ids for rank, ids in each.items() if any(ids)}
        assert {rank: (cores, gpus) for rank, cores, gpus in layout.parts(number)} == mine
        assert {part[0]: part[1:3] for part in parts_in(layout.blocks(number))} == mine
        assert {rank for rank, *_ in layout.parts(layout.whole(number))} == mine.keys()
        full = {((1 << CORES) - 1, (1 << GPUS) - 1)} if mine else set()
        assert {(cores, gpus) for _, cores, gpus in layout.parts(layout.whole(number))} == full
        assert (number & layout.cores).bit_count() == sum([cores.bit_count() for cores, _ in mine.values()])
        everything |= number
    words: dict[int, int] = {}
    for rank in some:
        words[rank >> WORD_SHIFT] = words.get(rank >> WORD_SHIFT, 0) | 1 << (rank & LOW_BITS)
    known = set().union(*several)
    assert {rank for rank, *_ in layout.parts(layout.among(words))} == some & known
    assert not everything & ~layout.among(dict.fromkeys(range(8), -1))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sets(st.integers(0, 7), min_size=1), st.integers(0, 3), st.sampled_from([0.0, 5.0, 9.0]))))
def test_what_is_given_is_the_same_job_by_job_and_target_by_target(
    make_r: Callable[..., ResourceSet], wanted: list[tuple[set[int], int, float]]
) -> None:
    pool = Pool()
    resources = make_r("0-7", 4, 0)
    pool.add(resources, resources.ranks)
    ledger = Ledger([pool])
    for jobid, (where, core, end_s) in enumerate(wanted):
        free = [rank for rank in where if pool.free_ids(rank)[0] >> core & 1]
        if free:
            ledger.adopt(jobid, blocks_of([Part(rank, 1 << core, 0) for rank in free]), end_s)
    busy = BusyTargets(pool, ledger)
    busy.timeline(busy.layout(), 0.0)
    for until_s in (0.0, 5.0, 9.0):
        assert set(parts_in(busy._given_by_jobs(range(8), until_s))) == set(parts_in(busy._given(range(8), until_s)))
