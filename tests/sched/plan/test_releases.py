"""The release index against a sorted list."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.plan.running_jobs import JobRelease, ReleaseIndex
from tests.sched.site import lowered

STEPS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from([0.0, 1.5, 2.0, 3.0, 7.25, inf]), st.integers(0, 9)), max_size=120
)


@given(STEPS, st.sampled_from([1, 3, 256]))
@settings(max_examples=60)
def test_releases_are_a_sorted_list(steps, chunk):
    with lowered(CHUNK=chunk):  # so that few jobs make many chunks
        mine, want = ReleaseIndex(), dict[int, JobRelease]()
        for jobid, end_s, weight in steps:
            if jobid in want:
                assert mine.remove(jobid) == want.pop(jobid)
            else:
                mine.add(jobid, end_s, weight)
                want[jobid] = JobRelease(end_s, jobid, weight)
        order = sorted(want.values())
        assert list(mine) == order
        assert (len(mine), mine.weight) == (len(want), sum(release.weight for release in order))
        for end_s in (0.0, 1.0, 2.0, 100.0, inf):
            assert mine.given_by(end_s) == sum(release.weight for release in order if release.end_s <= end_s)
        for weight in (1, 5, 30, 200):
            ends = sorted({release.end_s for release in order})
            when_s = next((end_s for end_s in ends if mine.given_by(end_s) >= weight), inf)
            assert mine.when(weight) == (when_s, mine.given_by(when_s))
        assert mine.when(0) == (-inf, 0)


def test_changing_and_asking_for_what_is_not_there():
    running = ReleaseIndex()
    running.add(1, 10.0, 4)
    running.add(2, 5.0, 1)
    with pytest.raises(LocalProtocolError, match="job 1"):
        running.add(1, 3.0, 1)
    assert running.change(1, end_s=4.0)
    assert running.change(2, weight=0)
    assert not running.change(3, end_s=1.0)
    assert running.remove(3) is None
    assert [release.jobid for release in running] == [1, 2]
    assert running.get(2) == JobRelease(5.0, 2, 0)
    assert 3 not in running
