"""Limits under policy `fair` through the real scheduler: caps, budgets, and why a job waits."""

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.reasons import WaitKind
from fluxsched.sched.fair.accounts import Bank, FairSettings
from tests.sched.site import make_r, scheduler_of, spec

# ---- limits


def test_a_cap_holds_back_those_that_draw_on_it(shared):
    site = shared(1000, cap=1.2, banks={"x": Bank(users={"d": 2.0})})
    site.submit("b", 1, 1, "x")
    site.submit("a", 290, 1, "x")
    site.submit("d", 500, 1, "x")
    assert len(site.starts()) == 3
    blocked, behind = site.submit("a", 20, 1, "x")[0], site.submit("a", 10, 1, "x")[0]
    (last,) = site.submit("a", 10, 1, "x", after=0.0)
    site.submit("b", 1000, 1, "x")
    assert last in site.starts()
    assert {blocked, behind} <= site.scheduler.group("default").queues[""].jobs.by_id.keys()
    assert "290 of 300" in site.told[blocked]
    assert "20" in site.told[blocked]
    assert behind not in site.told


def test_a_job_that_is_held_back_is_passed_over_at_its_turn(shared):
    """Under `flow` the turn depends on the job: what is behind the 40 cores comes after those that come before them."""
    site = shared(100, "fair:signal=flow,cap=0.6")
    site.submit("a", 1, 3)
    site.submit("a", 20)
    site.submit("b", 40)
    site.submit("b", 1, after=0.0)
    assert site.sequence() == ["A1", "A2", "A3", "A23", "B1"]


def test_ten_would_start(shared):
    site = shared(1000, cap=1.2, banks={"x": Bank(users={"d": 2.0})})
    for user in "bd":
        site.submit(user, 1, 1, "x")
    site.submit("a", 290, 1, "x")
    assert len(site.starts()) == 3
    (ten,) = site.submit("a", 10, 1, "x")
    assert site.starts() == [ten]


def test_a_flow_lifts_a_cap_by_itself_and_a_pass_comes_then(shared):
    site = shared(100, cap=1.0, half_life_s=600.0)
    (first,) = site.submit("a", 100)
    assert site.starts() == [first]
    site.submit("b", 60)
    site.scheduler.free_all(first, 10.0)
    (second,) = site.submit("a", 10)
    assert site.starts(10.0) == [], "both have a share of 50: b's job is over it, and a's flow is 100"
    wake_s = site.scheduler.next_notice_s
    assert wake_s == pytest.approx(610.0)
    assert site.starts(wake_s) == [second]


def test_a_budget_is_charged_at_the_start_and_comes_back_at_the_end(shared):
    site = shared(1000, budget_min=600.0, banks={"x": Bank(users={"a": 1.0}), "y": Bank(weight=3.0)})
    site.submit("b", 1, 1, "y")
    site.submit("a", 250, 1, "x", after=0.0)
    site.starts()
    book = site.scheduler.accounts
    assert book is not None
    (charged,) = site.submit("a", 10, 1, "x", after=1800.0)
    assert site.starts() == [charged]
    assert book.limits.left("a") == 300.0
    (waits,) = site.submit("a", 10, 1, "x", after=2400.0)
    (free,) = site.submit("a", 10, 1, "x", after=0.0)
    assert site.starts() == [free]
    assert "300 of 600" in site.told[waits]
    assert "400" in site.told[waits]
    site.scheduler.free_all(charged, 0.0)
    assert book.limits.left("a") == 600.0
    assert site.starts() == [waits]


def test_a_user_has_one_budget_in_all_banks(shared):
    site = shared(1000, budget_min=600.0, banks={"x": Bank(), "y": Bank(weight=3.0)})
    site.submit("b", 1, 1, "y")
    site.submit("a", 250, 1, "x", after=0.0)
    site.submit("a", 10, 1, "x", after=1800.0)
    site.submit("a", 375, 1, "y", after=0.0)
    assert len(site.starts()) == 4
    (waits,) = site.submit("a", 10, 1, "y", after=2400.0)
    assert site.starts() == []
    assert "budget of a: 300 of 600 resource minutes are charged, and the job would be charged 400" in site.told[waits]


def test_budgets_are_charged_anew_from_hello_in_the_order_of_start(shared):
    settings = FairSettings(budget_min=1000.0)
    scheduler = scheduler_of("fair", fair=settings)
    resources = make_r("0-3", cores=10)
    scheduler.grown("default", resources, resources.ranks, Idset())
    asked = spec(cores=10, duration=600.0, preemptible_after=600.0)
    for jobid, started_s in ((1, 50.0), (2, 10.0), (3, 30.0), (4, 20.0)):
        held = resources.restrict(Idset.of([jobid - 1])).with_expiration(started_s, 0.0)
        scheduler.hello(jobid, 16, 1 if jobid == 2 else 2, 0.0, held, EMPTY, asked, now_s=60.0)
    list(scheduler.schedule(60.0))
    book = scheduler.accounts
    assert book is not None
    assert [book.charged(jobid) for jobid in (1, 2, 3, 4)] == [100, 0, 0, 0], "the last of three to start is beyond 20"
    assert book.limits.left("2") == 900
    scheduler.free_all(1, 70.0)
    assert book.limits.left("2") == 1000


# ---- why a job waits


def test_why_says_which_account_comes_first(shared):
    site = shared(8)
    site.submit("a", 6, 1, limit=100.0)
    site.starts()
    site.submit("a", 4, 2, limit=100.0)
    (other,) = site.submit("b", 4, 1, limit=100.0)
    last = site.submit("a", 4, 1, limit=100.0)[0]
    assert site.starts() == []
    why = site.scheduler.why(last, 0.0)
    assert why.rule.startswith("2 ahead of it in account default/a; account default/b comes first: its usage and")
    assert "is 0, that of default/a 6" in why.rule
    assert "4 core" in why.reason
    assert why.earliest_s == 100.0
    first = site.scheduler.why(other, 0.0)
    assert first.rule.startswith(
        "first in account default/b, which comes first; under fair: The account that uses least"
    )
    assert first.rule.endswith("under the policy easy.")
    assert first.earliest_s == 100.0


def test_why_says_which_limit_and_when_time_lifts_it(shared):
    site = shared(100, cap=1.0, half_life_s=600.0)
    (first,) = site.submit("a", 100)
    site.starts()
    site.submit("b", 60)
    site.scheduler.free_all(first, 10.0)
    second, third = site.submit("a", 10, 2)
    why = site.scheduler.why(second, 10.0)
    assert why.reason.startswith("account default/a is at its cap: jobs that may not be preempted use 100 of 50 ")
    assert why.kind is WaitKind.LIMIT_OF_ACCOUNT
    assert why.earliest_s == pytest.approx(610.0)
    behind = site.scheduler.why(third, 10.0)
    assert behind.reason.startswith("waits behind job ")
    assert behind.reason.endswith(why.reason)
    assert behind.earliest_s == why.earliest_s
    (urgent,) = site.submit("c", 10, priority=4294967295)
    assert site.scheduler.why(urgent, 10.0).rule.startswith("comes before all accounts")


def test_jobs_that_ask_for_more_than_their_cap_wait_for_accounts_to_run_out_of_jobs(shared):
    site = shared(10, cap=1.0)
    (one,), (other,) = site.submit("a", 6), site.submit("b", 6)
    assert site.starts() == []
    why = site.scheduler.why(one, 0.0)
    assert why.reason.startswith("account default/a is at its cap: jobs that may not be preempted use 0 of 5 ")
    assert why.when.startswith("not before the share of the account grows")
    assert why.earliest_s is None
    site.scheduler.cancel(other)
    assert site.starts() == [one]


def test_why_of_a_budget(shared):
    site = shared(10, budget_min=10.0)
    site.submit("a", 4)
    site.submit("b", 4)
    site.starts()
    waits, free = site.submit("a", 2, 1, after=3600.0)[0], site.submit("a", 2, 2, after=0.0)[1]
    why = site.scheduler.why(waits, 0.0)
    assert why.reason == "budget of a: 0 of 10 resource minutes are charged, and the job would be charged 60"
    assert why.kind is WaitKind.LIMIT_OF_ACCOUNT
    assert why.earliest_s is None
    assert "budget" not in site.scheduler.why(free, 0.0).reason
