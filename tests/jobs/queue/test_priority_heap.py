"""Job ids by priority."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.jobs.queue.priority_heap import STALE_SLACK, PriorityHeap


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("+-!"), st.integers(0, 8), st.integers(0, 5)), max_size=60))
def test_it_orders_like_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    heap, model = PriorityHeap(), dict[int, tuple[float, ...]]()
    for what, jobid, rank in steps:
        if what == "+":
            heap.push(jobid, (rank, jobid))
            model[jobid] = (rank, jobid)
        elif what == "-":
            heap.discard(jobid)
            model.pop(jobid, None)
        elif model:
            first = min(model, key=lambda one: model[one])
            assert heap.pop() == first
            del model[first]
        assert len(heap) == len(model)
        assert heap.head() == (min((key, one) for one, key in model.items()) if model else None)
    assert all(jobid in heap for jobid in model)


def test_draining_takes_out_what_is_live() -> None:
    heap = PriorityHeap()
    for jobid, key in ((1, 5.0), (2, 3.0), (1, 1.0), (3, 0.0)):
        heap.push(jobid, (key,))
    heap.discard(3)
    assert sorted(heap.drain()) == [((1.0,), 1), ((3.0,), 2)]
    assert (len(heap), heap.head(), heap.drain()) == (0, None, [])


def test_a_heap_of_replaced_entries_stays_small() -> None:
    heap = PriorityHeap()
    for turn in range(1000):
        for jobid in range(3):
            heap.push(jobid, (turn,))
    assert len(heap._heap) <= 2 * 3 + STALE_SLACK + 1
    with pytest.raises(IndexError):
        PriorityHeap().pop()
