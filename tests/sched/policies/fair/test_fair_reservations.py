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
from tests.sched.site import Bench, make_r, spec

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


class Queues:
    """`batch` on ranks 0-1 and `debug` on the others; users have the letters of their accounts."""

    def __init__(self, policy):
        self.bench = Bench(policy)
        self.bench.grow(make_r("0-3", cores=1))

    def submit(self, jobid, user, queue, nodes, ranks, limit_s=100.0):
        kind = {"nodes": nodes, "exclusive": True, "duration": limit_s, "constraint": {"ranks": [ranks]}}
        bench = self.bench
        bench.did(bench.scheduler.alloc(jobid, 16, ord(user), float(jobid), spec(queue=queue, **kind), bench.now_s))

    def planned(self):
        self.bench.run()
        return sorted(made.jobid for made in self.bench.scheduler.planned())


def test_each_queue_has_one_head_the_first_in_fair_order():
    """Of `debug` the job of `b`, who uses less than `a`, until an account that uses nothing has a job."""
    site = Queues("fair:signal=decayed-usage")
    site.submit(1, "a", "batch", 2, "0-1", 1000.0)
    site.submit(2, "b", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "a", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    site.submit(5, "b", "debug", 2, "2-3")
    assert site.planned() == [3, 5]
    for jobid in (6, 7):
        site.submit(jobid, "a", "debug", 1, "2-3")
        assert site.planned() == [3, 5], "the job would delay the head"
    site.submit(8, "c", "debug", 2, "2-3")
    assert site.planned() == [3, 8]
    site.bench.now_s += 10.0
    site.bench.free(2)
    assert (site.planned(), site.bench.granted.keys()) == ([3, 8], {1, 5})  # both use nothing: by name


def test_where_a_limit_is_set_there_is_one_head():
    """A job over its cap holds back jobs behind it in its account, in whichever queue they are."""
    site = Queues("fair:cap=100")
    site.submit(1, "a", "batch", 2, "0-1", 1000.0)
    site.submit(2, "b", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "b", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3]
