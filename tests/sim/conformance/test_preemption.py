"""The judge of preemptions: each thing that a policy may not do, and what excuses it."""

import pytest

from fluxsched.sched.fair.accounts import RATE_WINDOW_S, FairSettings
from fluxsched.sched.policy import Preempt
from fluxsched.sched.registry import make
from fluxsched.sim.harness import Preemptible, PreemptionJudge, RuleBroken, line_of, rate_of

FOR = 9


@pytest.fixture
def running():
    return {1: Preemptible(0.0), 2: Preemptible(50.0), 3: None, 4: Preemptible(0.0)}


@pytest.fixture
def users():
    return {1: 1, 2: 1, 3: 1, 4: 1, FOR: 2}


@pytest.fixture
def judge(running, users):
    return PreemptionJudge(2, running, users)


def preempt(judge, jobid, now_s=10.0, waits=True):
    judge.judge(Preempt(jobid, FOR, "it has waited"), waits, now_s, "mine.py:7")


@pytest.mark.parametrize(
    ("jobid", "why"),
    [(5, "job ƒ6 is preempted, although it does not run"), (3, "job ƒ4 is preempted, although it may never be"),
     (2, "job ƒ3 is preempted 40 s before it may be")],
)  # fmt: skip
def test_a_job_that_does_not_allow_it(judge, jobid, why):
    with pytest.raises(RuleBroken, match=why) as caught:
        preempt(judge, jobid)
    assert caught.value.law == "allowed"
    assert judge.preempted == 0


def test_a_job_is_preempted_once(judge):
    preempt(judge, 1)
    with pytest.raises(RuleBroken, match="job ƒ2 is preempted again, although it is being preempted already"):
        preempt(judge, 1)


def test_so_many_in_a_minute(judge):
    preempt(judge, 1, 0.0)
    preempt(judge, 4, 30.0)
    with pytest.raises(RuleBroken, match="the 3th within 60 s: the rate is 2") as caught:
        preempt(judge, 2, RATE_WINDOW_S - 1)
    assert caught.value.law == "rate"
    preempt(judge, 2, RATE_WINDOW_S)


def test_for_a_job_that_does_not_wait(judge):
    with pytest.raises(RuleBroken, match="job ƒ2 is preempted for job ƒA, which does not wait") as caught:
        preempt(judge, 1, waits=False)
    assert caught.value.law == "in-vain"


def test_the_other_job_waits_on(judge):
    preempt(judge, 1)
    preempt(judge, 4)
    judge.ended(1)
    judge.passed({FOR: None})  # another one still goes
    judge.ended(4)
    with pytest.raises(RuleBroken, match="job ƒA waits on, although all jobs preempted for it have ended") as caught:
        judge.passed({FOR: None})
    assert (caught.value.law, caught.value.line) == ("in-vain", "mine.py:7")
    judge.passed({FOR: None})  # told once


def test_it_starts_or_leaves_or_shares_have_changed(judge, users):
    preempt(judge, 1)
    judge.ended(1)
    judge.passed({})
    preempt(judge, 4)
    judge.ended(4)
    users[10] = 3
    judge.passed({FOR: None})


def test_the_rate_is_the_policy_s_own_where_it_has_one():
    assert rate_of(make("fifo", {}), FairSettings(rate=7)) == 7
    assert rate_of(make("fair", {"rate": "3"}), FairSettings(rate=7)) == 3


def test_the_line_of_a_generator_is_the_innermost_one():
    def inner():
        yield 1

    def outer():
        yield from inner()

    numbers = outer()
    next(numbers)
    assert line_of(numbers) == f"test_preemption.py:{inner.__code__.co_firstlineno + 1}"
    assert line_of(iter([1])) is None
