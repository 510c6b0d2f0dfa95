"""The R of a grant: out of blocks, with equal children joined, and no more children remembered than the limit."""

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import CHILDREN_CACHED_MAX, children, grouped
from fluxsched.sched.pool.placement import Block


def test_targets_with_equal_children_are_joined():
    blocks = [Block(0, 0b110, 3, 0), Block(0, 0b1000, 1, 0), Block(1, 0b1, 3, 0)]
    assert grouped(blocks) == [(Idset.parse("1-2,512"), children(3, 0)), (3, children(1, 0))]


def test_remembered_children_are_bounded():
    for cores in range(1, CHILDREN_CACHED_MAX + 10):
        assert children(cores, 0).cores.mask == cores
    assert children.cache_info().currsize == CHILDREN_CACHED_MAX
