"""Accounts as values: every number of the page, in parts, at any size."""

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.sched.fair.accounts import Bank, FairSettings, Signal
from tests.sched.site import limit, make_r, scheduler_of, spec

BANKS = {"physics": Bank(3.0), "optics": Bank(2.0, "physics", 1.0, {"ann": 2.0}), "standby": Bank()}


def scheduler_with(banks=BANKS, **settings):
    """100 cores and 10 GPUs under `fair`; users are ann and zoe."""
    fair = FairSettings(Signal.FLOW, 100.0, weights={"core": 1.0, "gpu": 10.0}, banks=banks, **settings)
    made = scheduler_of("fair", fair=fair, user_name={1: "ann", 2: "zoe"}.get, notify=False)
    resources = make_r("0", 100, 10)
    made.grown("default", resources, resources.ranks, EMPTY)
    return made


def rows_of(scheduler, now_s=0.0):
    return {row.path: row for row in scheduler.accounts_report(now_s).rows}


def test_every_number():
    scheduler = scheduler_with(cap=1.2, budget_min=600.0)
    optics = spec(cores=10, gpus=1, bank="optics")
    for jobid, asked in (
        (1, optics),
        (2, spec(cores=10, bank="optics")),
        (3, spec(bank="physics", nodes=1, cores=100)),
    ):
        scheduler.alloc(jobid, 16, 2 if jobid == 3 else 1, 0.0, asked)
    list(scheduler.schedule(0.0))
    scheduler.free_all(2, 0.0)
    report = scheduler.accounts_report(100.0)
    assert (report.capacity, report.next_start, report.settings.cap) == (200.0, None, 1.2)
    rows = {row.path: row for row in report.rows}
    ann = rows["physics", "optics", "ann"]
    assert (ann.is_user, ann.is_active, ann.weight, ann.share) == (True, True, 2.0, pytest.approx(2 / 3))
    assert (ann.usage, ann.level, ann.firm_usage, ann.firm_level) == (20.0, 25.0, 20.0, 25.0)
    assert (ann.held, ann.waiting, ann.running, ann.preempted) == ({"core": 10, "gpu": 1}, 0, 1, 0)
    assert (ann.fair_usage, ann.cap_usage) == (pytest.approx(400 / 3), pytest.approx(160.0))
    assert ann.budget_left_min == 600.0
    bank = rows["physics",]
    assert (bank.is_user, bank.waiting, bank.running, bank.preempted, bank.budget_left_min) == (False, 1, 1, 0, None)
    assert rows["physics", "optics"].cap_usage == pytest.approx(400 / 3)
    assert (rows["standby",].is_active, rows["standby",].held) == (False, {})


def test_budgets_and_what_is_preempted():
    scheduler = scheduler_with(banks={}, budget_min=600.0)
    scheduler.alloc(1, 2**32 - 1, 1, 0.0, spec(cores=100, gpus=10, preemptible_after=150.0))
    scheduler.alloc(2, 16, 2, 0.0, spec(cores=100))
    list(scheduler.schedule(0.0))
    assert rows_of(scheduler)["default", "ann"].budget_left_min == 600.0 - 2.5 * 100
    list(scheduler.schedule(150.0))
    assert rows_of(scheduler, 150.0)["default", "ann"].preempted == 1


def test_without_limits_there_are_none():
    scheduler = scheduler_with(banks={})
    scheduler.alloc(1, 16, 1, 0.0, spec())
    assert [(row.is_user, row.cap_usage, row.budget_left_min) for row in rows_of(scheduler).values()] == [
        (False, None, None), (True, None, None)
    ]  # fmt: skip


def test_parts_have_every_account_once():
    scheduler = scheduler_of("fair", notify=False)
    for user in range(2 * limit("ROWS_MAX")):
        scheduler.alloc(user, 16, user, 0.0, spec())
    found, start = [], 0
    while start is not None:
        part = scheduler.accounts_report(0.0, start)
        assert len(part.rows) <= limit("ROWS_MAX")
        found += [row.path for row in part.rows]
        start = part.next_start
    assert sorted(found) == sorted({("default",), *(("default", str(user)) for user in range(2 * limit("ROWS_MAX")))})
    assert scheduler.accounts_report(0.0, 5000).rows == []


def test_shares_of_all_count_what_is_configured_whatever_its_number():
    scheduler = scheduler_with(shares_of_all=True)
    shares = {path[-1]: row.share for path, row in rows_of(scheduler).items()}
    assert [shares[name] for name in BANKS] == [0.75, 0.75, 0.25]  # optics is alone in physics
    scheduler.alloc(1, 16, 2, 0.0, spec(bank="physics"))
    assert rows_of(scheduler)["physics", "zoe"].share == pytest.approx(0.75 / 3)  # one that is not configured


def test_a_bank_is_not_a_user_of_that_name():
    scheduler = scheduler_of("fair", fair=FairSettings(banks=BANKS), user_name=lambda userid: "optics")
    scheduler.alloc(1, 16, 1, 0.0, spec(bank="physics"))
    assert scheduler.accounts_report(0.0).rows[-1].path[-1] == "optics (user)"
    assert scheduler.accounts_report(0.0).rows[-1].is_user
