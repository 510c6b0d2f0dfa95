"""Trees of accounts for tests."""

import pytest

from fluxsched.sched.fair.accounts import Accounts, Measure, Signal

BOTH = pytest.mark.parametrize("signal", list(Signal))


def cores(capacity, signal=Signal.FLOW, half_life_s=600.0, **options):
    accounts = Accounts(Measure({"core": 1.0}), signal, half_life_s, 0.0, **options)
    accounts.set_capacity((capacity,), 0.0)
    return accounts


def account(accounts, *path, weight=1.0, active=0):
    found = accounts.account(path)
    accounts.configure(found, weight)
    accounts.activate(found, active)
    return found
