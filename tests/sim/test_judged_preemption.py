"""Simulated weeks with outages through the production session, job by job and attempt by attempt, under the checker.

The checker (tests/sched/preemption_judge.py) shares nothing with the policy; what it needs is written down as the
scheduler is asked and answers.
"""

from collections import Counter
from fractions import Fraction
from random import Random

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.registry import load
from fluxsched.sim import Trace, generate
from fluxsched.sim.simulation import Simulation
from fluxsched.sim.site import OUTAGE, SiteEvent, site_of
from tests.sched.preemption_judge import Judge, watch
from tests.sched.progressive_filling import Site

NODES, CORES, JOBS = 8, 4, 300
GRACE_S = 3.0

pytestmark = pytest.mark.plain_only("the methods of a scheduler are watched")


def standby(chance):
    """A busy trace of four banks; most jobs may be preempted, and are submitted again."""
    busy = generate(JOBS, nodes=NODES, cores=CORES, seed=chance.randrange(100), load=0.95, banks=4)
    jobs = [
        job._replace(
            preemptible_after_s=chance.choice((None, 0.0, 0.0, 600.0)),
            requeue=chance.choice((0, 1, 5)),
            limit_s=max(job.limit_s or 0.0, job.run_s),
        )
        for job in busy.jobs
    ]
    return Trace.of(jobs, "standby", busy.machine)


def outages(trace, chance):
    found = []
    for _ in range(10):
        at_s, targets = chance.uniform(0, trace.jobs[-1].submit_s), Idset.of([chance.randrange(NODES)])
        found += [SiteEvent(at_s, OUTAGE, targets), SiteEvent(at_s + 2000.0, "online", targets)]
    return sorted(found, key=lambda step: step.when_s)


class Attempts(Judge):
    """Also judges that of a job at most one attempt runs, and no more than it asked for."""

    def __init__(self, site, rate, simulation, trace):
        super().__init__(site, rate)
        self._row_of = simulation._attempts.row
        self._jobs = trace.jobs
        self._begun = Counter()

    def started(self, jobid, places, now_s):
        row = self._row_of(jobid)
        if row in [self._row_of(other) for other in self.filling.holding]:
            self.fault(f"two attempts of row {row} run")
        self._begun[row] += 1
        if self._begun[row] > self._jobs[row].requeue + 1:
            self.fault(f"row {row} begins once more than it may")
        super().started(jobid, places, now_s)


@pytest.mark.parametrize("policy", ["fair:backfill=easy", "fair:backfill=easy,rate=5", "fair:backfill=fifo"])
def test_no_preemption_breaks_a_law(policy):
    chance = Random(policy)
    trace = standby(chance)
    place = site_of(trace, nodes=NODES, cores=CORES)
    simulation = Simulation(
        trace, place, load(policy)[0], policy, outages(trace, chance), check=True, preempt_grace_s=GRACE_S
    )
    judge = Attempts(Site(Fraction(0)), 5 if "rate" in policy else 60, simulation, trace)
    judge.has(set(range(NODES)), CORES)
    judge.usable(set(range(NODES)), True)
    watch(simulation.system.scheduler, judge, lambda bank, user: (bank or "default", str(user)))
    result = simulation.run()
    assert judge.faults == []
    assert judge.counts["preempted"] >= 4
    assert {*result.jobs.state} <= {"completed", "timeout", "failed", "preempted", "denied"}
    assert not judge.filling.holding
