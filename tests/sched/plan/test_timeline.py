"""Numbers of fields against sets of ids, target by target."""

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.plan.earliest import IdLayout, Timeline
from fluxsched.sched.pool.placement import Part, blocks_of, parts_in
from tests.sched.site import limit, lowered

LOW_BITS, WORD_SHIFT = limit("LOW_BITS", "WORD_SHIFT")

CORES, GPUS = 5, 2

ranks = st.one_of(st.integers(0, 40), st.integers(0, 3000))
held = st.dictionaries(ranks, st.tuples(st.integers(0, (1 << CORES) - 1), st.integers(0, (1 << GPUS) - 1)), max_size=40)


def blocks_with(ids):
    return blocks_of([Part(rank, cores, gpus) for rank, (cores, gpus) in ids.items()])


@settings(max_examples=60)
@given(st.lists(held, max_size=4), st.sets(ranks))
def test_numbers_say_what_the_blocks_say(several, some):
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
    words = {}
    for rank in some:
        words[rank >> WORD_SHIFT] = words.get(rank >> WORD_SHIFT, 0) | 1 << (rank & LOW_BITS)
    known = set().union(*several)
    assert {rank for rank, *_ in layout.parts(layout.among(words))} == some & known
    assert not everything & ~layout.among(dict.fromkeys(range(8), -1))


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.sampled_from([0, limit("KEPT_BYTES_MAX")]))
def test_what_is_free_is_what_was_given_by_then_and_is_not_reserved(chance, kept_bytes):
    jobs = [
        (rank, 1 << core, chance.choice([inf, *map(float, range(1, 20))]))
        for rank in range(8)
        for core in range(CORES)
        if chance.random() < 0.6
    ]

    def project(ranks, soon_s):
        busy = {rank: sum(core for at, core, _ in jobs if at == rank) for rank in ranks}
        ends = {}
        for rank, core, end_s in jobs:
            if rank in busy and end_s < inf:
                ends.setdefault(max(end_s, soon_s), []).append((rank, core, 0))
        return [(rank, ((1 << CORES) - 1) & ~cores, 0) for rank, cores in busy.items()], ends

    layout = IdLayout(CORES, GPUS)
    reserved = []
    with lowered(KEPT_BYTES_MAX=kept_bytes):
        view = Timeline(layout, 0.0, None, project)
        for _ in range(chance.randint(1, 25)):
            start_s = float(chance.randint(0, 20))
            end_s = start_s + chance.choice([1.0, 4.5, inf])
            ids = layout.ids(blocks_with({rank: (chance.randrange(1 << CORES), 0) for rank in range(8)}))
            view.look_at(ids)
            now, ends = project(sorted(view.ranks), 0.0)
            free = layout.ids_of(now + [part for when_s, parts in ends.items() if when_s <= start_s for part in parts])
            for first_s, last_s, taken in reserved:
                free &= ~taken if first_s < end_s and last_s > start_s else -1
            assert view.between(start_s, end_s) == free
            if reserved and chance.random() < 0.3:
                view.give(*reserved.pop(chance.randrange(len(reserved))))
            elif free & ids:
                view.take(start_s, end_s, free & ids)
                reserved.append((start_s, end_s, free & ids))
                step, cores = view.times.index(start_s), chance.randint(1, 20)
                rest = view.between(start_s, end_s)
                assert view.free_for(step, end_s, cores) == (rest if rest.bit_count() >= cores else 0)
