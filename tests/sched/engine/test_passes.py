"""What ends a pass, and what is left of one."""

import pytest

from fluxsched.errors import LocalProtocolError
from fluxsched.sched.policy import NOTHING, Start
from tests.sched.site import Bench, limit, policy_of, spec

REFUSALS_MAX = limit("REFUSALS_MAX")


class Stubborn:
    """Starts its first job again and again."""

    name = "stubborn"
    OPTIONS = {}  # noqa: RUF012

    def schedule(self, view, now_s):
        job = view.first
        fit = view.find(job)
        while True:
            yield Start(job.jobid, fit)


def test_a_policy_whose_decisions_are_refused_does_not_go_on_for_ever():
    bench = Bench(Stubborn())
    bench.grow("0")
    bench.submit(1, spec())
    bench.submit(2, spec())
    with pytest.raises(LocalProtocolError, match=f"'stubborn': over {REFUSALS_MAX} decisions refused in one pass"):
        bench.run()
    assert bench.scheduler.stats()["refused"] == REFUSALS_MAX + 1
    assert bench.scheduler.stats()["granted"] == 1, "what was committed before stands"


def test_an_arrival_that_can_change_nothing_makes_no_pass_of_its_policy(monkeypatch):
    policy = policy_of("fifo")
    assert getattr(policy, "ARRIVALS", None) == NOTHING
    passes = []
    schedule = type(policy).schedule
    monkeypatch.setattr(
        type(policy), "schedule", lambda self, view, now_s: (passes.append(now_s), schedule(self, view, now_s))[1]
    )
    bench = Bench(policy)
    bench.grow("0")
    bench.submit(1, cores=4)
    bench.submit(2, cores=2)
    bench.run()
    assert len(passes) == 1
    for jobid in range(3, 9):
        bench.submit(jobid, spec())
        bench.run()
    assert len(passes) == 1, "job 2 still waits, and the others are behind it"
    bench.scheduler.prioritize([(8, 31)])
    bench.run()
    assert len(passes) == 2
