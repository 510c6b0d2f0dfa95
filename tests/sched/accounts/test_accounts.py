"""Amounts, signals, shares and progressive filling: the numbers of the design, beside a brute-force filling."""

import math
import random
from types import MappingProxyType

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.fair import accounts as tree
from fluxsched.sched.fair.accounts import (
    DEPTH_MAX,
    HALF_LIFE_MIN_S,
    REBASE_HALF_LIVES,
    RESOURCES_MAX,
    Measure,
    Signal,
    UsageMeter,
)

from .conftest import BOTH, account, cores

GIB = 2**30


class TestAmounts:
    WEIGHTS = MappingProxyType({"core": 1, "gpu": 10, "memory": 0.25 / GIB})

    def test_four_cores_a_gpu_and_8_gib_count_16(self):
        measure = Measure(self.WEIGHTS)
        assert measure.usage(measure.amounts({"core": 4, "gpu": 1, "memory": 8 * GIB, "license": 3})) == 16

    def test_the_dominant_resource_counts(self):
        measure = Measure(self.WEIGHTS, dominant=True)
        measure.set_capacity((100, 10, 400 * GIB))
        assert measure.total == 300
        assert measure.usage((10, 4, 0)) == 300 * 0.4

    def test_a_resource_that_there_is_none_of_counts_whole(self):
        assert Measure({"core": 1}, dominant=True).usage((1,)) == 0.0
        measure = Measure(self.WEIGHTS, dominant=True)
        measure.set_capacity((100, 0, 0))
        assert measure.usage((0, 1, 0)) == 100

    @pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
    def test_weights_are_numbers_of_at_least_0(self, weight):
        with pytest.raises(InvalidValue, match=r"weight .* of resource 'core' must be a number of at least 0"):
            Measure({"core": weight})

    def test_kinds_are_limited(self):
        Measure(dict.fromkeys(map(str, range(RESOURCES_MAX)), 1.0))
        with pytest.raises(InvalidValue, match=f"the limit is {RESOURCES_MAX}"):
            Measure(dict.fromkeys(map(str, range(RESOURCES_MAX + 1)), 1.0))


class TestSignals:
    @pytest.mark.parametrize(
        ("signal", "level", "usage", "later"),
        [
            (Signal.FLOW, 100, 0, 50),
            (Signal.FLOW, 100, 20, 60),
            (Signal.FLOW, 25, 80, 80),
            (Signal.DECAYED_USAGE, 0, 100, 50),
            (Signal.DECAYED_USAGE, 25, 80, 52.5),
        ],
    )
    @pytest.mark.parametrize("steps", [1, 2, 7])
    def test_after_a_half_life(self, signal, level, usage, later, steps):
        meter = UsageMeter(1, signal)
        meter.set_level(level, usage, 1.0)
        for step in range(1, steps + 1):
            meter.set_usage(usage, 0.5 ** (step / steps))
        assert meter.level(0.5) == pytest.approx(later)

    def test_a_flow_rises_at_once_and_is_never_below_the_usage(self):
        meter = UsageMeter(1, Signal.FLOW)
        meter.set_level(25, 25, 1.0)
        meter.set_usage(80, 1.0)
        assert meter.level(1.0) == 80
        meter.set_usage(0, 1.0)
        assert meter.level(1.0) == 80

    @pytest.mark.parametrize("half_life_s", [0.0, HALF_LIFE_MIN_S / 2, -1.0, math.nan, math.inf])
    def test_half_lives_have_a_least(self, half_life_s):
        with pytest.raises(InvalidValue, match="half-life"):
            cores(1, half_life_s=half_life_s)

    @BOTH
    def test_a_clock_that_steps_back_changes_nothing(self, signal):
        accounts = cores(100, signal)
        user = account(accounts, "ann")
        accounts.book(user, (50,), 1, True, 600.0)
        level = user.all_jobs.level(accounts.advance(1200.0))
        assert user.all_jobs.level(accounts.advance(0.0)) == level

    @BOTH
    def test_many_half_lives_later_the_scale_begins_anew(self, signal):
        accounts = cores(100, signal)
        user = account(accounts, "ann")
        accounts.book(user, (64,), 1, True, 0.0)
        accounts.advance(600.0)
        accounts.book(user, (64,), -1, True, 600.0)
        before = user.all_jobs.level(accounts.decay.scale)
        origin = accounts.decay.origin_s
        for step in range(2, 3 * int(REBASE_HALF_LIVES)):
            accounts.advance(600.0 * step)
        assert accounts.decay.origin_s > origin
        assert user.all_jobs.level(accounts.decay.scale) == pytest.approx(before * 0.5 ** (step - 1), rel=1e-9)

    @BOTH
    def test_signals_are_kept_and_restored_over_what_is_used_by_then(self, signal):
        accounts, again = cores(100, signal), cores(100, signal)
        for tree_ in (accounts, again):
            tree_.book(account(tree_, "physics", "ann"), (20,), 1, False, 0.0)
        user = accounts.account(("physics", "ann"))
        accounts.book(user, (60,), 1, True, 0.0)
        accounts.book(user, (60,), -1, True, 300.0)
        again.restore(accounts.levels(300.0), 300.0, 900.0)
        scale = accounts.advance(900.0)
        for path in ((), ("physics",), ("physics", "ann")):
            mine, theirs = accounts.account(path), again.account(path)
            assert theirs.all_jobs.level(again.decay.scale) == pytest.approx(mine.all_jobs.level(scale))
            assert theirs.firm.level(again.decay.scale) == pytest.approx(mine.firm.level(scale))
        assert accounts.account(("b",)).path not in accounts.levels(900.0)


class TestShares:
    def test_by_weight_among_the_active(self):
        accounts = cores(1000)
        a, b, c = (account(accounts, name, weight=w, active=1) for name, w in (("a", 1), ("b", 1), ("c", 2)))
        assert [accounts.fair_usage(one) for one in (a, b, c)] == [250, 250, 500]
        accounts.activate(c, -1)
        assert [accounts.fair_usage(one) for one in (a, b)] == [500, 500]

    def test_among_all_configured_where_that_is_said(self):
        accounts = cores(1000, shares_of_all=True)
        a = account(accounts, "a", active=1)
        account(accounts, "b", weight=3)
        accounts.account(("unknown",))
        assert accounts.fair_usage(a) == 250

    def test_down_the_tree(self):
        accounts = cores(1200)
        a = account(accounts, "physics", "a", weight=2, active=1)
        account(accounts, "physics", "b", active=1)
        account(accounts, "optics", "c", active=1)
        accounts.configure(accounts.account(("physics",)), 3.0)
        assert accounts.fair_usage(a) == pytest.approx(1200 * 3 / 4 * 2 / 3)

    def test_of_one_that_is_not_active_is_what_it_would_have(self):
        accounts = cores(100)
        account(accounts, "a", active=1)
        assert accounts.fair_usage(account(accounts, "b")) == 50

    def test_a_weight_may_change_while_it_is_active(self):
        accounts = cores(100)
        a = account(accounts, "a", active=1)
        account(accounts, "b", active=1)
        accounts.configure(a, 3.0)
        assert accounts.fair_usage(a) == 75

    def test_sums_of_weights_do_not_drift(self):
        accounts = cores(1)
        ones = [account(accounts, str(n), weight=w) for n, w in enumerate((0.1, 0.2, 0.7, 1e9))]
        chance = random.Random(1)
        for _ in range(2000):
            one = chance.choice(ones[1:])
            accounts.activate(one, -1 if one.active else 1)
        accounts.activate(ones[0], 1)
        for one in ones[1:]:
            accounts.activate(one, -one.active)
        assert accounts.share(ones[0]) == 1.0

    @pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
    def test_weights_are_numbers_above_0(self, weight):
        accounts = cores(1)
        with pytest.raises(InvalidValue, match=r"weight .* of account 'physics/ann' must be a number above 0"):
            accounts.configure(accounts.account(("physics", "ann")), weight)

    def test_depth_and_number_are_limited(self, monkeypatch):
        accounts = cores(1)
        accounts.account(["x"] * DEPTH_MAX)
        with pytest.raises(InvalidValue, match=f"the limit is {DEPTH_MAX}"):
            accounts.account(["x"] * (DEPTH_MAX + 1))
        monkeypatch.setattr(tree, "ACCOUNTS_MAX", DEPTH_MAX + 1)
        accounts.account(("y",))
        accounts.account(("y",))
        with pytest.raises(InvalidValue, match=f"there are {DEPTH_MAX + 1}, which is the limit"):
            accounts.account(("z",))
