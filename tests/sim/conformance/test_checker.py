"""The checker of decisions: what it lets pass as rounding, and that neither a pass nor a case goes on forever."""

from contextlib import nullcontext

import pytest

from fluxsched.sched.policies.backfill import Easy
from fluxsched.sched.policy import LEAST_LOST, Pending, Start, placement_of
from fluxsched.sched.registry import make
from fluxsched.sim import conformance as suite
from fluxsched.sim import harness as module
from fluxsched.sim.conformance import spec_of
from fluxsched.sim.harness import DECISIONS_EACH_MAX, DECISIONS_MORE_MAX, LATE_S, Harness, RuleBroken
from fluxsched.system.clock import interrupted


def test_rounding_excuses_who_waits_as_it_excuses_who_starts():
    harness = Harness(make("fifo", {}), "1x1", 100.0)
    harness.checker.promises_hold = True
    for _ in range(2):
        harness.submit(spec_of(10.0))
    harness.checker.promised[2] = harness.now_s - LATE_S / 2
    harness.decide()
    harness.checker.promised[2] = harness.now_s - LATE_S * 2
    with pytest.raises(RuleBroken, match=r"job ƒ3, the first in line, should have started 2e-06 s ago and still waits"):
        harness.decide()


def test_what_the_engine_asks_of_a_policy_it_learns_of_the_one_that_is_checked():
    class Growing(Easy):
        GROWS = True

    checker = Harness(Growing(placement=LEAST_LOST), "1x1").checker
    assert (checker.GROWS, placement_of(checker)) == (True, LEAST_LOST)


class Talkative:
    """It yields so many decisions in a pass."""

    name = "talkative"

    def __init__(self, decisions):
        self._decisions = decisions

    def schedule(self, view, now_s):
        for job in list(view.queue):
            yield from [Pending(job.jobid, "why not")] * self._decisions


def test_a_pass_may_have_so_many_decisions_and_no_more():
    limit = DECISIONS_EACH_MAX + DECISIONS_MORE_MAX  # with one waiting job
    for decisions in (limit, limit + 1):
        harness = Harness(Talkative(decisions), "1x1", 100.0)
        harness.submit(spec_of(10.0))
        with nullcontext() if decisions == limit else pytest.raises(RuleBroken, match="too many decisions"):
            harness.decide()


def test_a_case_may_have_so_many_instants_and_no_more(monkeypatch):
    monkeypatch.setattr(module, "INSTANTS_MAX", 3)
    for jobs in (2, 3):
        harness = Harness(make("fifo", {}), "1x1", 100.0)
        for _ in range(jobs):
            harness.submit(spec_of(10.0))
        with nullcontext() if jobs == 2 else pytest.raises(RuleBroken, match="after 3 instants"):
            harness.finish()


class Lost:
    """It searches forever, once so many jobs wait."""

    name = "lost"

    def __init__(self, waiting):
        self._waiting = waiting

    def schedule(self, view, now_s):
        queue = list(view.queue)
        while len(queue) >= self._waiting:
            pass
        for job in queue:
            fit = view.find(job)
            yield Pending(job.jobid, view.reason(job)) if fit is None else Start(job.jobid, fit)


@pytest.mark.parametrize(("waiting", "limit_s", "case"), [(2, 0.5, "ordinary"), (100, 1.5, None)])
def test_a_policy_that_goes_nowhere_is_interrupted(waiting, limit_s, case, monkeypatch):
    monkeypatch.setattr(suite, "CASE_S", limit_s)
    short = ("ordinary", "burst")  # far shorter than the limit
    policy = Lost(waiting)
    verdicts = suite.examine(policy, 7, lambda: 0.0, cases=1, rules=short, sizes=(10, 100), time_limit=interrupted)
    found = {one.rule: one for one in verdicts}
    (broken,) = [one for one in found.values() if one.verdict == "broken"]
    assert broken.rule == ("progress" if case else "cost")
    assert broken.finding is not None
    assert broken.finding.seed == 7
    assert broken.finding.what == f"it takes more than {limit_s:g} s" + (f" (case {case!r})" if case else "")
    assert str(broken.finding.line).startswith("test_checker.py:")
    assert (found["burst"].verdict == "unclear") == (case is not None)
