"""Reservations count: with an inner policy that makes one for each job that it cannot start, the order is a filling."""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

import pytest

from fluxsched.sched.fair.accounts import Bank, Signal
from fluxsched.sched.policy import Option, Reserve, Start
from tests.sched.progressive_filling import Asked, Filling, Site

BANKS = {"x": Bank(2.0), "y": Bank(1.0, "x"), "z": Bank(1.0, users={"a": 3.0})}
PATHS = {"x": ("x",), "y": ("x", "y"), "z": ("z",)}
WEIGHTS = {("x",): 2.0, ("x", "y"): 1.0, ("z",): 1.0, ("z", "a"): 3.0}
CORES = 40


class Recorded:
    """A policy, and the jobs that it starts or reserves for, in that order."""

    name = "recorded"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, policy):
        self.policy = policy
        self.jobs = []

    def schedule(self, view, now_s):
        self.jobs.clear()
        for decision in self.policy.schedule(view, now_s):
            if isinstance(decision, Start):
                self.jobs.append(decision.jobid)
            elif isinstance(decision, Reserve):
                self.jobs.append(decision.reservation.jobid)
            yield decision


@pytest.mark.parametrize("inner", ["conservative", "hybrid,depth=100"])
@pytest.mark.parametrize("signal", list(Signal))
@pytest.mark.parametrize("seed", range(6))
def test_jobs_come_in_the_order_of_a_filling_in_which_reservations_count(shared, inner, signal, seed):
    chance = random.Random(seed)
    site = shared(
        CORES, f"fair:backfill={inner}", signal=signal, half_life_s=600.0, banks=BANKS, rate=0, weights={"core": 1.0}
    )
    fair = site.scheduler.policy
    recorded = fair.inner = Recorded(fair.inner)
    filling = Filling(Site(Fraction(CORES), signal.value, 600.0, WEIGHTS))
    for _ in range(6):
        site.now_s += chance.choice([1.0, 50.0, 700.0])
        for _ in range(chance.randrange(1, 8)):
            bank, user, cores = chance.choice("xyz"), chance.choice("abc"), chance.choice([1, 3, 10, 25, CORES])
            priority, limit_s = chance.choice([16, 16, 20]), chance.choice([100.0, 500.0, 1000.0])
            (jobid,) = site.submit(user, cores, 1, bank, limit=limit_s, priority=priority)
            filling.waits(Asked(jobid, (*PATHS[bank], user), Fraction(cores), priority, float(jobid)))
        for jobid in [jobid for jobid in filling.holding if chance.random() < 0.4]:
            site.scheduler.free_all(jobid, site.now_s)
            filling.frees(jobid, site.now_s)
        site.scheduler.group("default").invalidate_pass()
        check(filling, recorded.jobs, site.starts(), site.now_s)


def check(filling, jobs, started, now_s):
    """Every waiting job came, and each when it was its turn."""
    filling.planned.clear()
    reserved = set()
    for jobid in jobs:
        meant = [job.jobid for job in filling.next(now_s, reserved)]
        assert jobid in meant
        if jobid in started:
            filling.starts(jobid, now_s)
        else:
            filling.plans(jobid)
            reserved.add(jobid)
    assert not filling.next(now_s, reserved)
