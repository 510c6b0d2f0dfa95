"""The queue: its order, its changes, and walks while it changes."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.queue import (
    CHUNK,
    CHUNKS_SKIPPED,
    ORDERS,
    PendingJob,
    PendingJobs,
    Skips,
    about,
    cores_asked,
    key_of,
)
from tests.sched.site import limit, lowered, request_of


@pytest.fixture(scope="session")
def waiting():
    one = Shape(request_of())

    def build(jobid, priority=16, t_submit_s=0.0):
        return PendingJob(jobid, priority, 1000, t_submit_s, one, 0.0)

    return build


def ids(queue):
    return [job.jobid for job in queue]


def test_limit_is_polite(waiting):
    assert limit("WAITING_MAX") > 1_000_000  # as RFC 27 asks for
    queue = PendingJobs()
    queue.add(waiting(1))
    queue.add(waiting(2))
    with lowered(WAITING_MAX=2), pytest.raises(LimitExceeded, match="2 jobs wait"):
        queue.add(waiting(3))
    queue.remove(1)
    queue.add(waiting(3))
    assert ids(queue) == [2, 3]


def test_adding_a_job_twice_is_a_bug(waiting):
    queue = PendingJobs()
    queue.add(waiting(1))
    with pytest.raises(LocalProtocolError):
        queue.add(waiting(1, 3))


def test_iteration_survives_every_change(waiting):
    queue = PendingJobs()
    for jobid in range(3 * CHUNK):
        queue.add(waiting(jobid))
    met = []
    for job in queue:
        met.append(job.jobid)
        if job.jobid < 100:
            queue.remove(job.jobid)
            queue.remove(job.jobid + 1)  # the next one is withdrawn meanwhile
        if job.jobid == 10:
            queue.prioritize(1000, 31)  # it has moved to before us
            queue.prioritize(1002, 1)  # and this one to the very end
    want = [*range(0, 100, 2), *range(100, 1000), 1001, *range(1003, 3 * CHUNK), 1002]
    assert met == want


CHANGES = st.lists(st.tuples(st.sampled_from("arp"), st.integers(0, 40), st.integers(0, 5)), max_size=80)


@given(CHANGES)
@settings(max_examples=60)
def test_like_a_sorted_list(waiting, changes):
    queue, want = PendingJobs(), dict[int, PendingJob]()
    for what, jobid, priority in changes:
        if what == "a" and jobid not in want:
            want[jobid] = waiting(jobid, priority, float(jobid % 3))
            queue.add(want[jobid])
        elif what == "r":
            assert queue.remove(jobid) == want.pop(jobid, None)
        elif what == "p" and queue.prioritize(jobid, priority):
            want[jobid] = want[jobid]._replace(priority=priority)
    in_order = sorted(want.values(), key=lambda job: (-job.priority, job.t_submit_s, job.jobid))
    assert queue.everyone() == in_order
    assert list(queue) == [job for job in in_order if job.priority]
    assert [queue.ahead_of(job.jobid) for job in in_order] == list(range(len(in_order)))


def test_many_chunks_keep_the_order(waiting):
    queue = PendingJobs()
    for at in range(5 * CHUNK):
        queue.add(waiting(at * 7919 % (5 * CHUNK)))
    assert ids(queue) == list(range(5 * CHUNK))
    assert queue.ahead_of(3 * CHUNK + 1) == 3 * CHUNK + 1


# ---- walks: what is skipped, that they pause, and other orders


@pytest.fixture(scope="session")
def shapes():
    return [Shape(request_of(slots=slots)) for slots in (1, 2, 4)]


def full(shapes, n):
    queue = PendingJobs()
    for jobid in range(n):
        queue.add(PendingJob(jobid, 16, 1000, 0.0, shapes[jobid % len(shapes)], 10.0 * (1 + jobid % 7)))
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
    queue.add(PendingJob(1, 16, 1000, 0.0, Shape(request_of()), 0.0))
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
        queue.add(PendingJob(jobid, priority, 1000, float(jobid % 4), shapes[kind], 3600.0 * hours))
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
    queue.add(PendingJob(99, 16, 1000, 5.0, shapes[0], 15.0))
    assert list(queue.walk(Skips(), order, 50.0)) == sorted(queue, key=key_of(order, 50.0))


def test_shapes_are_counted_held_or_not(shapes):
    queue = full(shapes, 3 * CHUNK)
    queue.add(PendingJob(10_000, 0, 1000, 0.0, shapes[0], 10.0))
    queue.remove(1)
    counted = dict.fromkeys(shapes, 0)
    for shape, waiting in queue.shapes():
        counted[shape] += waiting
    assert [counted[shape] for shape in shapes] == [CHUNK + 1, CHUNK - 1, CHUNK]


# ---- lines of accounts: which limits are counted together


@pytest.mark.parametrize("limit_s", [60.0, 600.0, 5400.0, 86_400.0, 90_000.0, 604_800.0, inf])
def test_limits_as_people_write_them_are_kept(limit_s):
    assert about(limit_s) == limit_s


def test_there_are_few_others_and_each_is_near_its_lower_bound():
    limits = [0.001 + 0.37 * at for at in range(100_000)]
    for limit_s in limits:
        assert limit_s * 7 / 8 <= about(limit_s) <= limit_s
    assert len({about(limit_s) for limit_s in limits}) < 1000
