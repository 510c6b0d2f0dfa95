"""Amounts, signals and trees of accounts: their limits, and what the passing of time does to them."""

import math
import random

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.fair.accounts import Measure
from tests.sched.site import limit, lowered

from .conftest import BOTH, account, cores


def test_a_resource_that_there_is_none_of_counts_whole():
    assert Measure({"core": 1}, dominant=True).usage((1,)) == 0.0
    measure = Measure({"core": 1, "gpu": 10}, dominant=True)
    measure.set_capacity((100, 0))
    assert measure.usage((0, 1)) == 100


@BOTH
def test_a_clock_that_steps_back_changes_nothing(signal):
    accounts = cores(100, signal)
    user = account(accounts, "ann")
    accounts.book(user, (50,), 1, True, 600.0)
    level = user.all_jobs.level(accounts.advance(1200.0))
    assert user.all_jobs.level(accounts.advance(0.0)) == level


@BOTH
def test_many_half_lives_later_the_scale_begins_anew(signal):
    accounts = cores(100, signal)
    user = account(accounts, "ann")
    accounts.book(user, (64,), 1, True, 0.0)
    accounts.advance(600.0)
    accounts.book(user, (64,), -1, True, 600.0)
    before, origin = user.all_jobs.level(accounts.decay.scale), accounts.decay.origin_s
    for step in range(2, 3 * int(limit("REBASE_HALF_LIVES"))):
        accounts.advance(600.0 * step)
    assert accounts.decay.origin_s > origin
    assert user.all_jobs.level(accounts.decay.scale) == pytest.approx(before * 0.5 ** (step - 1), rel=1e-9)


@BOTH
def test_signals_are_restored_over_what_is_used_by_then(signal):
    accounts, again = cores(100, signal), cores(100, signal)
    for tree in (accounts, again):
        tree.book(account(tree, "physics", "ann"), (20,), 1, False, 0.0)
    user = accounts.account(("physics", "ann"))
    accounts.book(user, (60,), 1, True, 0.0)
    accounts.book(user, (60,), -1, True, 300.0)
    again.restore(accounts.levels(300.0), 300.0, 900.0)
    scale = accounts.advance(900.0)
    for path in ((), ("physics",), ("physics", "ann")):
        mine, theirs = accounts.account(path), again.account(path)
        assert theirs.all_jobs.level(again.decay.scale) == pytest.approx(mine.all_jobs.level(scale))
        assert theirs.firm.level(again.decay.scale) == pytest.approx(mine.firm.level(scale))


def test_sums_of_weights_do_not_drift():
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


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_is_no_such_number_is_refused(value):
    accounts = cores(1)
    with pytest.raises(InvalidValue, match=r"weight .* of resource 'core' must be a number of at least 0"):
        Measure({"core": value})
    with pytest.raises(InvalidValue, match=r"weight .* of account 'physics/ann' must be a number above 0"):
        accounts.configure(accounts.account(("physics", "ann")), value)
    with pytest.raises(InvalidValue, match="half-life"):
        cores(1, half_life_s=value)


def test_zeros_and_numbers_beyond_limits_are_refused():
    accounts, kinds, depth = cores(1), limit("RESOURCES_MAX"), limit("DEPTH_MAX")
    Measure(dict.fromkeys(map(str, range(kinds)), 1.0))
    accounts.account(["x"] * depth)
    with lowered(ACCOUNTS_MAX=depth + 1):
        accounts.account(("y",))
        accounts.account(("y",))
        for words, call in (
            (f"the limit is {kinds}", lambda: Measure(dict.fromkeys(map(str, range(kinds + 1)), 1.0))),
            (f"the limit is {depth}", lambda: accounts.account(["x"] * (depth + 1))),
            (f"there are {depth + 1}, which is the limit", lambda: accounts.account(("z",))),
            ("a number above 0", lambda: accounts.configure(accounts.account(("y",)), 0.0)),
            ("half-life", lambda: cores(1, half_life_s=limit("HALF_LIFE_MIN_S") / 2)),
        ):
            with pytest.raises(InvalidValue, match=words):
                call()
