"""Caps on firm usage and budgets of preemptible usage: the numbers of the design."""

import math

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.sched.fair.accounts import BUDGET, CAP, AccountLimits, Blocked

from .conftest import account, cores


def test_a_cap_of_1_2_of_a_share_of_250():
    accounts = cores(250)
    user = account(accounts, "bank", "user", active=1)
    limits = AccountLimits(accounts, cap=1.2)
    accounts.book(user, (290,), 1, True, 0.0)
    assert limits.over_cap(user, 10, 0.0) is None
    assert limits.over_cap(user, 20, 0.0) == Blocked(CAP, ("bank", "user"), 290, 20, 300)


def test_preemptible_jobs_do_not_count_against_the_cap():
    accounts = cores(250)
    user = account(accounts, "user", active=1)
    accounts.book(user, (250,), 1, False, 0.0)
    assert AccountLimits(accounts, cap=1.0).over_cap(user, 250, 0.0) is None


def test_a_cap_holds_in_every_account_above():
    accounts = cores(100)
    ann, bob = account(accounts, "bank", "ann", active=1), account(accounts, "bank", "bob", active=1)
    account(accounts, "other", "c", active=1)
    limits = AccountLimits(accounts)
    limits.set_cap(accounts.account(("bank",)), 1.0)
    accounts.book(ann, (45,), 1, True, 0.0)
    assert limits.over_cap(bob, 5, 0.0) is None
    assert limits.over_cap(bob, 6, 0.0) == Blocked(CAP, ("bank",), 45, 6, 50)
    limits.set_cap(accounts.account(("bank",)), None)
    assert limits.over_cap(bob, 6, 0.0) is None


def test_what_time_alone_lifts_says_when():
    """A flow of 200 over nothing falls to a cap of 100 in one half-life."""
    accounts = cores(100)
    user = account(accounts, "user", active=1)
    accounts.book(user, (200,), 1, True, 0.0)
    accounts.book(user, (200,), -1, True, 50.0)
    limits = AccountLimits(accounts, cap=1.0)
    blocked = limits.over_cap(user, 10, 50.0)
    assert blocked is not None
    assert (blocked.used, blocked.until_s) == (pytest.approx(200), pytest.approx(650))
    assert limits.over_cap(user, 10, blocked.until_s - 1) is not None
    assert limits.over_cap(user, 10, blocked.until_s) is None


def test_what_only_an_end_lifts_says_no_time():
    accounts = cores(100)
    user = account(accounts, "user", active=1)
    accounts.book(user, (100,), 1, True, 0.0)
    blocked = AccountLimits(accounts, cap=1.0).over_cap(user, 1, 0.0)
    assert blocked is not None
    assert math.isinf(blocked.until_s)


def test_the_budget_at_its_share():
    accounts = cores(100)
    user = account(accounts, "user", active=1)
    accounts.book(user, (100,), 1, False, 0.0)
    limits = AccountLimits(accounts, budget=600)
    assert limits.over_budget(user, "user", 10, 30) is None
    limits.pay("user", limits.charge(user, 10, 30))
    assert limits.left("user") == 300
    assert limits.over_budget(user, "user", 10, 40) == Blocked(BUDGET, ("user",), 300, 400, 600)
    assert limits.over_budget(user, "user", 1e6, 0) is None
    limits.pay("user", -300)
    assert limits.over_budget(user, "user", 10, 40) is None


def test_only_what_is_beyond_the_share_is_charged():
    accounts = cores(250)
    user = account(accounts, "user", active=1)
    accounts.book(user, (240,), 1, True, 0.0)
    limits = AccountLimits(accounts, budget=600)
    assert limits.charge(user, 20, 30) == 300
    assert limits.charge(user, 10, 30) == 0
    accounts.book(user, (60,), 1, False, 0.0)
    assert limits.charge(user, 20, 30) == 600


def test_without_a_budget_all_is_free():
    accounts = cores(1)
    limits = AccountLimits(accounts)
    assert math.isinf(limits.left("user"))
    assert limits.over_budget(account(accounts, "user"), "user", 1e9, 1e9) is None


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", [CAP, BUDGET])
def test_limits_are_numbers_of_at_least_0(name, value):
    with pytest.raises(InvalidValue, match=f"{name} .* must be a number of at least 0"):
        AccountLimits(cores(1), **{name: value})
