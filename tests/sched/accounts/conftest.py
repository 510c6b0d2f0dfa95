"""Trees of accounts for tests."""

from __future__ import annotations

import pytest

from fluxsched.sched.accounts.measure import Measure
from fluxsched.sched.accounts.signal import Signal
from fluxsched.sched.accounts.tree import Account, Accounts

BOTH = pytest.mark.parametrize("signal", list(Signal))


def cores(capacity: int, signal: Signal = Signal.FLOW, half_life_s: float = 600.0, **options: bool) -> Accounts:
    accounts = Accounts(Measure({"core": 1.0}), signal, half_life_s, 0.0, **options)
    accounts.set_capacity((capacity,), 0.0)
    return accounts


def account(accounts: Accounts, *path: str, weight: float = 1.0, active: int = 0) -> Account:
    found = accounts.account(path)
    accounts.configure(found, weight)
    accounts.activate(found, active)
    return found
