"""Accounts as values: every number of the page, in parts, at any size."""

import pytest

from fluxsched.sched.fair.accounts import AccountLimits, Accounts, Bank, FairSettings, Measure, Signal
from fluxsched.sched.fair.usage import AccountRow, Counts, report

BANKS = {"physics": Bank(3.0), "optics": Bank(2.0, "physics", 1.0, {"ann": 2.0}), "standby": Bank()}
NO_JOBS = Counts({}, {}, {})


class Site:
    """A tree of 100 cores, as a scheduler makes it of settings."""

    def __init__(self, *, shares_of_all=False):
        self.settings = FairSettings(
            Signal.FLOW, 100.0, weights={"core": 1.0, "gpu": 10.0}, cap=1.2, budget_min=600.0, banks=BANKS
        )
        self.tree = Accounts(Measure(self.settings.weights), Signal.FLOW, 100.0, 0.0, shares_of_all)
        self.tree.set_capacity((100, 0), 0.0)
        self.limits = AccountLimits(self.tree, 1.2, 600.0)
        for name, bank in BANKS.items():
            account = self.tree.account(self.settings.path(name))
            self.tree.configure(account, bank.weight)
            self.limits.set_cap(account, bank.cap)

    def report(self, counts=NO_JOBS, now_s=0.0, **part):
        return report(self.tree, self.limits, self.settings, counts, now_s, **part)


@pytest.fixture
def site():
    return Site()


def test_every_number(site):
    ann = site.tree.account(site.settings.account_path("optics", "ann"))
    zoe = site.tree.account(("physics", "zoe"))
    for account in (ann, zoe):
        site.tree.activate(account, 1)
    site.tree.book(ann, (20, 2), 1, firm=True, now_s=0.0)
    site.tree.book(ann, (20, 1), -1, firm=True, now_s=0.0)
    site.limits.pay("ann", 250.0)
    found = site.report(Counts({zoe: 4}, {ann: 1}, {ann: 2, zoe: 1}), 100.0)
    assert (found.capacity, found.next_start, found.settings) == (100.0, None, site.settings)
    rows = {row.path: row for row in found.rows}
    assert list(rows) == [("physics",), ("physics", "optics"), ("standby",), ann.path, zoe.path]
    assert rows[ann.path] == AccountRow(
        path=("physics", "optics", "ann"), is_user=True, is_active=True, weight=1.0, share=2 / 3,
        fair_usage=pytest.approx(200 / 3), usage=10.0, level=25.0, firm_usage=10.0, firm_level=25.0,
        cap_usage=pytest.approx(80.0), budget_left_min=350.0, held={"gpu": 1}, waiting=0, running=1, preempted=2,
    )  # fmt: skip
    bank = rows[("physics",)]
    assert (bank.is_user, bank.waiting, bank.running, bank.preempted, bank.budget_left_min) == (False, 4, 1, 3, None)
    assert (rows[("physics", "optics")].cap_usage, rows[zoe.path].budget_left_min) == (pytest.approx(200 / 3), 600.0)
    assert (rows[("standby",)].is_active, rows[("standby",)].held) == (False, {})


def test_without_limits_there_are_none():
    tree = Accounts(Measure({"core": 1.0}), Signal.FLOW, 100.0, 0.0)
    tree.account(("default", "ann"))
    (bank, user) = report(tree, AccountLimits(tree), FairSettings(), NO_JOBS, 0.0).rows
    assert [(row.is_user, row.cap_usage, row.budget_left_min) for row in (bank, user)] == [
        (False, None, None), (True, None, None)
    ]  # fmt: skip


def test_parts_have_every_account_once_also_while_others_are_made(site):
    found = []
    start = 0
    while start is not None:
        site.tree.account(("physics", f"u{start}"))
        part = site.report(start=start, limit=2)
        assert len(part.rows) <= 2
        found += [row.path for row in part.rows]
        start = part.next_start
    assert found == [account.path for account in site.tree.made]
    assert site.report(start=1000).rows == []


def test_shares_of_all_count_what_is_configured_whatever_its_number():
    site = Site(shares_of_all=True)
    assert [row.share for row in site.report().rows] == [0.75, 0.75, 0.25]  # optics is alone in physics
    site.tree.configure(site.tree.account(("standby",)), 5.0)
    assert [row.share for row in site.report().rows] == [0.375, 0.375, 0.625]
    site.tree.account(("physics", "guest"))
    assert site.report().rows[-1].share == pytest.approx(0.375 / 3)  # one that is not configured, beside optics


def test_a_bank_is_not_a_user_of_that_name(site):
    site.tree.account(site.settings.account_path("physics", "optics"))
    assert [(row.path[-1], row.is_user) for row in site.report().rows[-1:]] == [("optics (user)", True)]
