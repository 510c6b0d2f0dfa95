"""Levels and their orders, against sorting all targets."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.pool.placement import BEST_FIT, WORD_BITS, WORST_FIT
from fluxsched.sched.pool.target_class import FreeIndex
from tests.sched.site import limit

CORES, GPUS = 3, 2
PLACES = st.tuples(st.integers(0, CORES), st.integers(0, GPUS))
RANKS = st.sampled_from([0, 1, 2, WORD_BITS, 7 * WORD_BITS, 8 * WORD_BITS + 1, 9 * WORD_BITS, 70 * WORD_BITS + 5])


@given(st.lists(st.tuples(RANKS, PLACES | st.none()), max_size=30), PLACES, st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=100)
def test_orders(changes, need, early, late):
    """The indexes of first-fit and worst-fit are made when first asked for, so that is done at any time in between."""
    index, stands = FreeIndex(CORES, GPUS), dict[int, tuple[int, int]]()
    for step, (rank, place) in enumerate(changes):
        at, bit = rank // WORD_BITS, 1 << rank % WORD_BITS
        if rank in stands:
            index.level(*stands.pop(rank)).drop(at, bit)
        if place is not None:
            index.level(*place).put(at, bit)
            stands[rank] = place
        able = sorted(rank for rank, (cores, gpus) in stands.items() if cores >= need[0] and gpus >= need[1])
        places = {stands[rank] for rank in able}
        assert shown(index.in_use(*need, BEST_FIT)) == sorted(places, key=lambda place: (place[1], place[0]))
        if step >= early:
            word_number = able[0] // WORD_BITS if able else 0
            word = sum(1 << rank % WORD_BITS for rank in able if rank // WORD_BITS == word_number)
            assert index.first(index.fitting(*need)[0]) == (word_number, word)
        if step >= late:
            assert shown(index.in_use(*need, WORST_FIT)) == sorted(places, key=lambda place: (-place[0], place[1]))


def shown(levels):
    return [(level.cores, level.gpus) for level in levels]


def test_needs_beyond_the_totals_fit_nowhere():
    index = FreeIndex(CORES, GPUS)
    index.level(CORES, GPUS).put(0, 1)
    assert index.fitting(CORES + 1, 0) == index.fitting(0, GPUS + 1) == (0, 0)
    assert index.first(0) == (0, 0)


def test_remembered_needs_are_bounded(lower):
    assert limit("FITTING_MAX") > 2
    lower(FITTING_MAX=2)
    index = FreeIndex(CORES, GPUS)
    for _ in range(2):
        for cores in range(CORES + 1):
            assert index.fitting(cores, 0)[0].bit_count() == (CORES + 1 - cores) * (GPUS + 1)
            assert len(index._fitting) <= 2
