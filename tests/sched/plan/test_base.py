"""The least that carries a sum over a time, held against the sum itself."""

from math import inf, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.sched.plan.counted import least_beyond

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
