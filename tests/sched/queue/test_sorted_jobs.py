"""Walks over sorted jobs: what is skipped, that they pause, and orders other than the queue's."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.queue import PendingJobs, Skips, Waiting
from fluxsched.sched.sorted_jobs import CHUNK, CHUNKS_SKIPPED, ORDERS, cores_asked, key_of
from tests.sched.site import request_of


@pytest.fixture(scope="session")
def shapes():
    return [Shape(request_of(slots=slots)) for slots in (1, 2, 4)]


def full(shapes, n):
    queue = PendingJobs()
    for jobid in range(n):
        queue.add(Waiting(jobid, 16, 1000, 0.0, shapes[jobid % len(shapes)], 10.0 * (1 + jobid % 7)))
    return queue


def test_a_shape_that_failed_is_not_met_again(shapes):
    queue, skips = full(shapes, 3 * CHUNK), Skips()
    met = []
    for job in queue.walk(skips):
        assert job is not None
        met.append(job.jobid)
        skips.fits_nowhere(job)
    assert met == [0, 1, 2]


def test_a_limit_that_was_too_long_leaves_the_shorter_ones(shapes):
    queue, skips = full(shapes, 500), Skips()
    for job in list(queue)[: len(shapes)]:
        skips.too_long(job, 50.0)
        skips.too_long(job, 30.0)
        skips.too_long(job, 40.0)  # a longer one that fails later adds nothing
    assert {job.duration_s for job in queue.walk(skips) if job is not None} == {10.0, 20.0}


def test_a_job_without_a_limit_is_longer_than_any():
    queue, skips = PendingJobs(), Skips()
    queue.add(Waiting(1, 16, 1000, 0.0, Shape(request_of()), 0.0))
    skips.too_long(next(iter(queue)), 1e9)
    assert list(queue.walk(skips)) == []


def test_a_long_walk_without_a_job_pauses(shapes):
    queue, skips = full(shapes, (2 * CHUNKS_SKIPPED + 2) * 2 * CHUNK), Skips()
    skips.unfit.update([shape.number for shape in shapes])
    walk = queue.walk(skips)
    assert next(walk) is None
    queue.remove(0)  # what happens meanwhile does no harm
    assert set(walk) == {None}


JOBS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)), max_size=30)


@given(JOBS, st.sampled_from(ORDERS))
@settings(max_examples=60)
def test_orders_are_total_and_stable(shapes, jobs, order):
    queue = PendingJobs()
    for jobid, (priority, hours, kind) in enumerate(jobs):
        queue.add(Waiting(jobid, priority, 1000, float(jobid % 4), shapes[kind], 3600.0 * hours))
    met = [job for job in queue.walk(Skips(), order, 10.0) if job is not None]
    assert sorted(job.jobid for job in met) == list(range(len(jobs)))
    assert met == sorted(queue, key=key_of(order, 10.0))
    if order == "saf":
        areas = [job.limit_s * cores_asked(job.request) for job in met]
        assert all(one <= other for one, other in pairwise(areas))


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_follows_changes(shapes, order):
    queue = full(shapes, 20)
    list(queue.walk(Skips(), order))  # asked for once, it is kept
    for jobid in range(0, 20, 3):
        queue.remove(jobid)
    queue.prioritize(1, 0)
    queue.prioritize(2, 31)
    queue.add(Waiting(99, 16, 1000, 5.0, shapes[0], 15.0))
    assert list(queue.walk(Skips(), order, 50.0)) == sorted(queue, key=key_of(order, 50.0))


def test_shapes_are_counted_held_or_not(shapes):
    queue = full(shapes, 3 * CHUNK)
    queue.add(Waiting(10_000, 0, 1000, 0.0, shapes[0], 10.0))
    queue.remove(1)
    counted = dict.fromkeys(shapes, 0)
    for shape, waiting in queue.shapes():
        counted[shape] += waiting
    assert [counted[shape] for shape in shapes] == [CHUNK + 1, CHUNK - 1, CHUNK]
