"""Counting over time, against a loop that looks at every instant; bounds may be too low, but never too high."""

from __future__ import annotations

from math import inf, nextafter

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.plan.profile import CHUNK, FreeLevels, Profile, StartBounds
from fluxsched.sched.plan.releases import ReleaseIndex

NOW = 10.0
SIZES = st.integers(1, 12)
LIMITS = st.integers(1, 40).map(float) | st.just(inf)
RUNNING = st.lists(st.tuples(st.integers(5, 60).map(float) | st.just(inf), st.integers(0, 5)), max_size=15)
JOBS = st.lists(st.tuples(SIZES, LIMITS, st.sampled_from("tttg")), min_size=1, max_size=30)


class Loop:
    """The same by the definition."""

    def __init__(self, running: list[tuple[float, int]], free: int) -> None:
        self.ends = [(max(end_s, nextafter(NOW, inf)), cores) for end_s, cores in running]
        self.free = free
        self.taken: list[tuple[float, float, int]] = []

    def at(self, time_s: float) -> int:
        given_back = sum(cores for end_s, cores in self.ends if end_s <= time_s)
        return self.free + given_back - sum(cores for start_s, end_s, cores in self.taken if start_s <= time_s < end_s)

    def fits(self, start_s: float, limit_s: float, cores: int) -> bool:
        begins = [begin_s for begin_s, _, _ in self.taken if start_s < begin_s < start_s + limit_s]
        return all(self.at(time_s) >= cores for time_s in (start_s, *begins))

    def earliest(self, cores: int, limit_s: float) -> float:
        times = {NOW, *(end_s for end_s, _ in self.ends), *(end_s for _, end_s, _ in self.taken)}
        return next((time_s for time_s in sorted(times) if time_s < inf and self.fits(time_s, limit_s, cores)), inf)


def profile_of(running: list[tuple[float, int]], free: int) -> Profile:
    releases = ReleaseIndex()
    for jobid, (end_s, cores) in enumerate(running):
        releases.add(jobid, end_s, cores)
    return Profile(FreeLevels(releases, free, NOW), NOW)


@given(RUNNING, st.integers(0, 8), JOBS)
@settings(max_examples=80)
def test_like_a_loop_over_all_instants(
    running: list[tuple[float, int]], free: int, jobs: list[tuple[int, float, str]]
) -> None:
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


def test_many_steps_stand_in_several_chunks() -> None:
    running = [(20.0 + n, 1 + n % 3) for n in range(200)]
    profile, loop = profile_of(running, 2), Loop(running, 2)
    for n in range(4 * CHUNK):
        cores, limit_s = 1 + n * 7 % 11, float(1 + n * 13 % 37)
        start_s = profile.earliest(cores, limit_s)
        assert start_s == loop.earliest(cores, limit_s)
        profile.take(start_s, start_s + limit_s, cores)
        loop.taken.append((start_s, start_s + limit_s, cores))


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 50).map(float), st.integers(0, 99).map(float))))
@settings(max_examples=60)
def test_floors_know_what_no_smaller_or_shorter_job_could(learnt: list[tuple[int, float, float]]) -> None:
    bounds = StartBounds()
    for n, (cores, limit_s, start_s) in enumerate(learnt):
        before = learnt[:n]
        exact = max((at for c, limit, at in before if c <= cores and limit <= limit_s), default=-inf)
        equal = max((at for c, limit, at in before if c == cores and limit <= limit_s), default=-inf)
        known = bounds.of(cores, limit_s)
        assert known <= exact
        if cores < 8 or cores & (cores - 1) == 0:  # sizes that are not rounded are known exactly
            assert known >= equal
        bounds.add(cores, limit_s, start_s)
    bounds.clear()
    assert bounds.of(5000, inf) == -inf
