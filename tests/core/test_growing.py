"""An R in pieces is the same as the union of them, whenever it is read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, GrowingResources, ResourceSet
from fluxsched.core.rlite import Children, Entry


def piece(ranks: Idset, cores: int) -> ResourceSet:
    children = Children(Idset((1 << cores) - 1), amounts=(("memory", cores),))
    hosts = Hostlist(tuple([f"n{rank}-{cores}" for rank in ranks]))
    return ResourceSet((Entry(ranks, children),), hosts, {f"p{cores % 3}": ranks})


STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 12), min_size=1), st.integers(1, 4), st.sets(st.integers(0, 12)), st.booleans())
)


@settings(max_examples=50)
@given(STEPS)
def test_pieces_are_the_whole(steps: list[tuple[set[int], int, set[int], bool]]) -> None:
    """Each step removes some ranks and adds a piece of others; removed ones may come back as something else."""
    growing, plain, kept = GrowingResources(), EMPTY_R, EMPTY
    for added, cores, removed, read in steps:
        kept -= Idset.of(removed)
        new = Idset.of(added) - kept
        if not new:
            continue
        plain = plain.restrict(kept) | piece(new, cores)
        growing.add(piece(new, cores), kept)
        kept |= new
        assert kept <= growing.ranks
        if read:
            assert growing.whole.restrict(kept) == plain
    assert growing.whole.restrict(kept).to_json() == plain.restrict(kept).to_json()
