"""The queue: its order, its changes, and iteration while it changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import LimitExceeded, LocalProtocolError
from fluxsched.sched import queue as pending
from fluxsched.sched.pool.placement import Shape
from fluxsched.sched.queue import CHUNK, PendingJobs, Waiting
from tests.sched.site import request_of


@pytest.fixture(scope="session")
def waiting():
    one = Shape(request_of())

    def build(jobid, priority=16, t_submit_s=0.0):
        return Waiting(jobid, priority, 1000, t_submit_s, one, 0.0)

    return build


def ids(queue):
    return [job.jobid for job in queue]


def test_higher_priority_then_earlier_submit_then_lower_id(waiting):
    queue = PendingJobs()
    for job in (waiting(5, 16, 2.0), waiting(4, 16, 1.0), waiting(3, 16, 1.0), waiting(9, 17, 9.0)):
        queue.add(job)
    assert ids(queue) == [9, 3, 4, 5]
    assert [queue.ahead_of(jobid) for jobid in (9, 3, 4, 5)] == [0, 1, 2, 3]


def test_priority_0_is_held_and_comes_back(waiting):
    queue = PendingJobs()
    queue.add(waiting(1))
    queue.add(waiting(2, 0))
    assert ids(queue) == [1]
    assert [job.jobid for job in queue.everyone()] == [1, 2]
    assert queue.prioritize(2, 31)
    assert queue.prioritize(1, 0)
    assert ids(queue) == [2]
    assert not queue.prioritize(7, 1)


def test_limit_is_polite(monkeypatch, waiting):
    assert pending.WAITING_MAX > 1_000_000  # as RFC 27 asks for
    monkeypatch.setattr(pending, "WAITING_MAX", 2)
    queue = PendingJobs()
    queue.add(waiting(1))
    queue.add(waiting(2))
    with pytest.raises(LimitExceeded, match="2 jobs wait"):
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
    queue, want = PendingJobs(), dict[int, Waiting]()
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
