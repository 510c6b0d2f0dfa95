"""Countables of targets and of the instance, against plain numbers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.pool.countables import Countable, InstanceCountables, magnitude
from fluxsched.sched.pool.placement import WORD_BITS

TOTAL = 40
RANKS = st.integers(WORD_BITS, WORD_BITS + 7)


@given(st.lists(st.tuples(RANKS, st.integers(0, TOTAL)), max_size=30), st.integers(0, TOTAL + 1), st.integers(0, 255))
@settings(max_examples=120)
def test_which_targets_have_enough(changes, need, word):
    countable, left = Countable(TOTAL), dict.fromkeys(range(WORD_BITS, WORD_BITS + 8), TOTAL)
    for rank, amount in changes:
        countable.set_left(rank, amount)
        left[rank] = amount
    want = sum(1 << bit for bit in range(8) if word >> bit & 1 and left[WORD_BITS + bit] >= need)
    assert countable.enough(1, word, need) == want
    assert countable.enough(0, word, need) == (word if need <= TOTAL else 0)  # nothing was taken there
    assert all(countable.left(rank) == amount for rank, amount in left.items())
    for rank in left:
        countable.forget(rank)
    assert countable.enough(1, word, TOTAL) == word


def test_levels_grow_with_the_amount():
    levels = [magnitude(amount) for amount in range(2000)]
    assert levels == sorted(levels)
    assert len({*levels}) < 50


def test_shared_is_counted_across_jobs():
    shared = InstanceCountables()
    shared.add((("comsol", 1), ("matlab", 2)))
    shared.add((("matlab", 1),))
    assert shared.lacking((("comsol", 1), ("matlab", 3))) == ()
    shared.claim((("matlab", 2),))
    assert shared.lacking((("matlab", 2),)) == (("matlab", 1),)
    assert shared.lacking((("matlab", 2), ("x", 1)), ever=True) == (("x", 0),)
    shared.claim((("matlab", 4),))  # a job found at hello
    assert (shared.left("matlab"), shared.lacking((("matlab", 1),))) == (-3, (("matlab", 0),))
    shared.give((("matlab", 6),))
    assert shared.used() == ()
    with pytest.raises(LocalProtocolError, match="1 matlab freed, of which only 0 is taken"):
        shared.give((("matlab", 1),))
