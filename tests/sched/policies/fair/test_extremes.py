"""`fair` at the ends of what it is made for: as many accounts as there can be, and a clock that steps back."""

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.decisions import Denied, Granted
from tests.sched.site import limit, make_r, scheduler_of

ACCOUNTS_MAX = limit("ACCOUNTS_MAX")


def grown(cores):
    scheduler = scheduler_of("fair:backfill=easy", notify=False)
    resources = make_r("0", cores=cores)
    scheduler.grown("default", resources, resources.ranks, resources.ranks - resources.ranks)
    return scheduler


def started(scheduler, now_s):
    return [effect.jobid for effect in scheduler.schedule(now_s) if isinstance(effect, Granted)]


@pytest.mark.slow
def test_the_65537th_account_is_refused_and_all_others_go_on():
    """One bank and 65,535 users; one more is told of the limit."""
    scheduler = grown(cores=2)
    spec = Jobspec.from_command(["x"], duration_s=60.0)
    for user in range(1, ACCOUNTS_MAX):
        assert scheduler.alloc(user, 16, user, float(user), spec, 1.0) == []
    (denied,) = scheduler.alloc(ACCOUNTS_MAX, 16, ACCOUNTS_MAX, 1.0, spec, 1.0)
    assert isinstance(denied, Denied)
    assert f"there are {ACCOUNTS_MAX}, which is the limit" in denied.note
    assert scheduler.alloc(ACCOUNTS_MAX + 1, 16, 1, 1.0, spec, 1.0) == []
    first = started(scheduler, 1.0)
    assert len(first) == 2
    scheduler.free_all(first[0], 2.0)
    assert len(started(scheduler, 2.0)) == 1


def test_a_clock_that_steps_back_changes_no_order():
    """What was used stays used: `a` has had the machine for ten minutes, `b` since then, when no time seems to pass."""
    scheduler = grown(cores=2)
    made = {"ntasks": 2, "duration_s": 600.0}
    for jobid, bank in enumerate(("a", "a", "b", "b"), 1):
        scheduler.alloc(jobid, 16, 1, float(jobid), Jobspec.from_command(["x"], bank=bank, **made), 10_000.0)
    order, now_s = started(scheduler, 10_000.0), 10_600.0
    for step_s in (-9_000.0, 300.0, -1_000.0):
        scheduler.free_all(order[-1], now_s)
        order += started(scheduler, now_s)
        now_s += step_s
    assert order == [1, 3, 4, 2]
    scheduler.check()
