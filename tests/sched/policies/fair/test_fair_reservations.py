"""Reservations count: with an inner policy that makes one for each job that it cannot start, the order is a filling."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from math import inf
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.jobfields import EACH, SiteLimit
from fluxsched.sched.fair.accounts import Bank, Signal
from fluxsched.sched.hooks import with_limits
from fluxsched.sched.policy import Option, Reserve, Start
from tests.generated.share import examples
from tests.sched.progressive_filling import EXPEDITED, Asked, Filling, Site
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


@pytest.mark.slow
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

    def __init__(self, policy, ranks="0-3", **options):
        self.bench = Bench(policy, **options)
        self.bench.grow(make_r(ranks, cores=1))

    def submit(self, jobid, user, queue, nodes, ranks, limit_s=100.0):
        kind = {"nodes": nodes, "exclusive": True, "duration": limit_s, "constraint": {"ranks": [ranks]}}
        bench = self.bench
        bench.did(bench.scheduler.alloc(jobid, 16, ord(user), float(jobid), spec(queue=queue, **kind), bench.now_s))

    def planned(self):
        self.bench.run()
        return sorted(made.jobid for made in self.bench.scheduler.report.planned())


def test_each_queue_has_one_head_the_first_in_fair_order():
    """Of `debug` the job of `a`, until it has started: then of those that use nothing the first by name."""
    site = Queues("fair:signal=decayed-usage")
    site.submit(1, "a", "batch", 2, "0-1", 1000.0)
    site.submit(2, "b", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "a", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    site.submit(5, "b", "debug", 2, "2-3")
    assert site.planned() == [3, 4], "b uses less, but a's job has the reservation"
    for jobid in (6, 7):
        site.submit(jobid, "a", "debug", 1, "2-3")
        assert site.planned() == [3, 4], "the job would delay the head"
    site.submit(8, "c", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    site.bench.now_s += 10.0
    site.bench.free(2)
    assert (site.planned(), site.bench.granted.keys()) == ([3, 5], {1, 4})


MOVED = {
    "held": ((4, 0), 6),
    "behind another of its account": ((5, 20), 6),
    "behind one of urgency 31": ((6, EXPEDITED), 6),
    "urgent": ((4, 20), 4),
    "canceled": ((4, None), 6),
}
"""The new urgency of a job, None if it is canceled, and which is the head then."""


@pytest.mark.parametrize("change", MOVED)
def test_a_head_gives_way_to_no_account_but_to_what_users_want(change):
    (moved, urgency), head = MOVED[change]
    site = Queues("fair:signal=decayed-usage")
    site.submit(1, "a", "batch", 2, "0-1", 1000.0)
    site.submit(2, "c", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "a", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    site.submit(5, "a", "debug", 2, "2-3")
    site.submit(6, "b", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    if urgency is None:
        site.bench.cancel(moved)
    else:
        site.bench.did(site.bench.scheduler.prioritize([(moved, urgency)]))
    assert site.planned() == [3, head]


def test_a_head_to_which_a_site_limit_leaves_no_nodes_keeps_no_place():
    plugins = with_limits({}, [SiteLimit(user=EACH, running=1)])
    site = Queues("fair:signal=decayed-usage", plugins=plugins)
    site.submit(1, "a", "batch", 1, "0", 1000.0)
    site.submit(2, "c", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "b", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3, 4]
    site.bench.now_s += 10.0
    site.bench.free(2)
    assert site.planned() == [3, 4], "without a time"
    site.submit(5, "d", "debug", 2, "2-3")
    site.submit(6, "e", "debug", 2, "2-3")
    assert (site.planned(), site.bench.granted.keys()) == ([3, 6], {1, 5})


@pytest.mark.slow
def test_a_stream_of_another_queue_overtakes_no_queue_of_whole_node_jobs():
    """Jobs of one core end all the time, and so each time another account of `wide` comes first in fair order: the job
    with the reservation would lose it, and the core that was kept for it.
    """
    bench = Bench("fair", queues={"batch": "default", "wide": "default"})
    bench.grow(make_r("0-1", cores=4))
    users, ends = "abcdef", defaultdict(list)

    def turn(*jobs):
        for jobid, user, asked in jobs:
            bench.did(bench.scheduler.alloc(jobid, 16, ord(user), bench.now_s, asked, bench.now_s))
        before = set(bench.granted)
        bench.run()
        for jobid in bench.granted.keys() - before:
            ends[bench.now_s + 60.0 + jobid * 7 % 40].append(jobid)

    def small(jobid):
        return jobid, users[jobid % len(users)], spec(queue="batch", duration=100.0)

    turn(*map(small, range(100, 120)))
    wide = range(1, 1 + len(users))
    turn(*[(at, users[at - 1], spec(queue="wide", nodes=1, exclusive=True, duration=100.0)) for at in wide])
    started = set()
    for at in range(120, 120 + 100 * len(wide)):
        bench.now_s += 1.0
        for jobid in ends.pop(bench.now_s, ()):
            bench.free(jobid)
            turn()
        turn(*[small(at)] * (at % 4 == 0))
        started |= bench.granted.keys() & set(wide)
    assert started == set(wide), "one more starts at the latest when a node's jobs reach their limits, 100 s"


QUEUES = ["batch", "debug"]
JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(QUEUES), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2)),
    min_size=8,
    max_size=40,
)
"""User, queue, nodes and limit (10 s) of a job, and how many others end early after it has come."""


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(JOBS)
def test_no_head_starts_later_than_first_estimated(jobs):
    """`batch` and `debug` share some nodes; a job of `far` waits all the time."""
    site, nodes = Queues("fair:signal=decayed-usage", ranks="0-7"), {"batch": "0-4", "debug": "2-6"}
    bench, first_s, ends_s = site.bench, {}, {1: inf}
    site.submit(1, "d", "far", 1, "7", 1e6)
    assert site.planned() == []
    site.submit(2, "d", "far", 1, "7", 1e6)
    limits_s = {}
    for jobid, (user, queue, count, limit, ended) in enumerate(jobs, 3):
        limits_s[jobid] = 10.0 * limit
        site.submit(jobid, user, queue, count, nodes[queue], limits_s[jobid])
        for early in [0, *sorted(bench.granted.keys() - {1})[:ended]]:
            bench.now_s += 5.0
            for done in [each for each in bench.granted if each == early or ends_s[each] <= bench.now_s]:
                bench.free(done)
            site.planned()
            for each in bench.granted.keys() - ends_s.keys():
                ends_s[each] = bench.now_s + limits_s[each]
                assert bench.now_s <= first_s.get(each, bench.now_s)
            for made in bench.scheduler.report.planned():
                assert made.start_s <= first_s.setdefault(made.jobid, made.start_s)


def test_where_a_limit_is_set_there_is_one_head():
    """A job over its cap holds back jobs behind it in its account, in whichever queue they are."""
    site = Queues("fair:cap=100")
    site.submit(1, "a", "batch", 2, "0-1", 1000.0)
    site.submit(2, "b", "debug", 1, "2", 10.0)
    assert site.planned() == []
    site.submit(3, "b", "batch", 2, "0-1")
    site.submit(4, "a", "debug", 2, "2-3")
    assert site.planned() == [3]
