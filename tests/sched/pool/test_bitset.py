"""Two-level bit sets against Python's own sets."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import Idset
from fluxsched.sched.pool.placement import WORD_BITS, Bits, ids_of, lowest, mask_of, words_of

IDS = st.integers(0, 3 * WORD_BITS)


def place(id):
    return id // WORD_BITS, 1 << id % WORD_BITS


def bits_of(mask):
    return Idset(mask)


@given(st.lists(st.tuples(st.booleans(), IDS), max_size=60), st.sets(IDS, max_size=30))
@settings(max_examples=60)
def test_bits_are_a_set(changes, others):
    bits, want = Bits(), set[int]()
    for put, id in changes:
        if put and id not in want:
            bits.put(*place(id))
            want.add(id)
        elif not put and id in want:
            bits.drop(*place(id))
            want.remove(id)
    other = Bits.of(sum(1 << id for id in others))
    assert list(bits) == sorted(want)
    assert bits.count == len(want)
    assert list(other) == sorted(others)
    assert list(bits_of(bits.mask())) == sorted(want)
    assert bits.count_common(other) == len(want & others)
    assert all((id in bits) == (id in want) for id, _ in enumerate(range(0, 3 * WORD_BITS, 97)))


def test_adding_twice_and_removing_nothing_are_bugs():
    bits = Bits.of(0b101)
    with pytest.raises(AssertionError, match="already"):
        bits.put(0, 0b110)
    with pytest.raises(AssertionError, match="not in"):
        bits.drop(0, 0b011)
    with pytest.raises(KeyError):
        bits.drop(5, 1)
    assert list(bits) == [0, 2]


@given(st.sets(st.integers(0, 5 * WORD_BITS)))
@settings(max_examples=40)
def test_words_are_a_mask_cut(ids):
    mask = sum(1 << id for id in ids)
    words = dict(words_of(mask))
    assert all(0 < word < 1 << WORD_BITS for word in words.values())
    assert mask_of(words) == mask


@given(st.integers(1, 1 << 70), st.data())
@settings(max_examples=60)
def test_lowest(mask, data):
    n = data.draw(st.integers(1, mask.bit_count()))
    assert list(ids_of(lowest(mask, n))) == list(ids_of(mask))[:n]
