"""Counting over time, against a loop that looks at every instant."""

from math import inf, nextafter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.plan.counted_plan import CHUNK, Profile, least_beyond
from fluxsched.sched.plan.running_jobs import ReleaseIndex
from tests.generated.share import examples

NOW = 10.0
SIZES = st.integers(1, 12)
LIMITS = st.integers(1, 40).map(float) | st.just(inf)
RUNNING = st.lists(st.tuples(st.integers(5, 60).map(float) | st.just(inf), st.integers(0, 5)), max_size=15)
JOBS = st.lists(st.tuples(SIZES, LIMITS, st.sampled_from("tttg")), min_size=1, max_size=30)


class Loop:
    """The same by the definition."""

    def __init__(self, running, free):
        self.ends = [(max(end_s, nextafter(NOW, inf)), cores) for end_s, cores in running]
        self.free = free
        self.taken = []

    def at(self, time_s):
        given_back = sum(cores for end_s, cores in self.ends if end_s <= time_s)
        return self.free + given_back - sum(cores for start_s, end_s, cores in self.taken if start_s <= time_s < end_s)

    def fits(self, start_s, limit_s, cores):
        begins = [begin_s for begin_s, _, _ in self.taken if start_s < begin_s < start_s + limit_s]
        return all(self.at(time_s) >= cores for time_s in (start_s, *begins))

    def earliest(self, cores, limit_s, now_s=NOW):
        times = {now_s, *(end_s for end_s, _ in self.ends), *(end_s for _, end_s, _ in self.taken)}
        later = sorted(time_s for time_s in times if now_s <= time_s < inf)
        return next((time_s for time_s in later if self.fits(time_s, limit_s, cores)), inf)


def profile_of(running, free):
    releases = ReleaseIndex()
    for jobid, (end_s, cores) in enumerate(running):
        releases.add(jobid, end_s, cores)
    return Profile(releases, free, NOW)


@given(RUNNING, st.integers(0, 8), JOBS)
@settings(max_examples=examples(80))
def test_like_a_loop_over_all_instants(running, free, jobs):
    profile, loop = profile_of(running, free), Loop(running, free)
    for cores, limit_s, what in jobs:
        start_s = profile.earliest(cores, limit_s)
        assert start_s == loop.earliest(cores, limit_s)
        until_s = profile.free_until_s(cores)
        assert (until_s >= NOW + limit_s) == loop.fits(NOW, limit_s, cores)
        if start_s == inf:
            continue
        assert profile.fits(start_s, limit_s, cores)
        if what == "t":
            profile.take(start_s, start_s + limit_s, cores)
            loop.taken.append((start_s, start_s + limit_s, cores))
        elif loop.taken:
            begin_s, end_s, given_back = loop.taken.pop(len(loop.taken) // 2)
            profile.take(begin_s, end_s, -given_back)


@pytest.mark.slow
def test_many_steps_stand_in_several_chunks():
    running = [(20.0 + n, 1 + n % 3) for n in range(200)]
    profile, loop = profile_of(running, 2), Loop(running, 2)
    for n in range(4 * CHUNK):
        cores, limit_s = 1 + n * 7 % 11, float(1 + n * 13 % 37)
        start_s = profile.earliest(cores, limit_s)
        assert start_s == loop.earliest(cores, limit_s)
        profile.take(start_s, start_s + limit_s, cores)
        loop.taken.append((start_s, start_s + limit_s, cores))


@given(RUNNING, st.integers(0, 8), JOBS, st.integers(1, 20))
@settings(max_examples=examples(80))
def test_it_holds_at_a_later_time(running, free, jobs, later):
    """As long as no job has ended meanwhile, and no reservation has begun."""
    now_s = NOW + later
    running = [(end_s + 100, cores) for end_s, cores in running]
    profile, loop = profile_of(running, free), Loop(running, free)
    loop.taken.append((NOW + 50, NOW + 70, 3))
    profile.take(NOW + 50, NOW + 70, 3)
    profile.advance(now_s)
    for cores, limit_s, _ in jobs:
        start_s = profile.earliest(cores, limit_s)
        assert start_s == loop.earliest(cores, limit_s, now_s)
        until_s = profile.free_until_s(cores)
        assert (until_s >= now_s + limit_s) == loop.fits(now_s, limit_s, cores)


# ---- the least that carries a sum over a time

times = st.floats(0, 2.0**33)


@given(times, times)
def test_it_is_beyond_and_nothing_less_is(until_s, part_s):
    least_s = least_beyond(until_s, part_s)
    assert least_s + part_s > until_s
    assert nextafter(least_s, -inf) + part_s <= until_s


@pytest.mark.parametrize(("until_s", "part_s"), [(2.0**31, 2.0**31 - 0.3), (2.0**18, 2.0**18 - 400), (5.39, 5.3)])
def test_across_a_power_of_two(until_s, part_s):
    test_it_is_beyond_and_nothing_less_is.hypothesis.inner_test(until_s, part_s)


def test_never():
    assert least_beyond(inf, 5.0) == inf
