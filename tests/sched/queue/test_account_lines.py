"""Lines of accounts: which kinds of jobs are counted together."""

from math import inf

import pytest

from fluxsched.sched.queue import about


@pytest.mark.parametrize("limit_s", [60.0, 600.0, 5400.0, 86_400.0, 90_000.0, 604_800.0, inf])
def test_limits_as_people_write_them_are_kept(limit_s):
    assert about(limit_s) == limit_s


def test_there_are_few_others_and_each_is_near_its_lower_bound():
    limits = [0.001 + 0.37 * at for at in range(100_000)]
    for limit_s in limits:
        assert limit_s * 7 / 8 <= about(limit_s) <= limit_s
    assert len({about(limit_s) for limit_s in limits}) < 1000
