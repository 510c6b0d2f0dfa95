"""`fair` in the long run: with endless backlog what accounts get comes to their weights, or to what the signal says."""

import heapq
from collections import Counter
from random import Random

import pytest

from fluxsched.core.idset import EMPTY
from fluxsched.sched.decisions import Granted
from fluxsched.sched.fair.accounts import Bank, FairSettings
from tests.sched.site import make_r, scheduler_of, spec

CORES = 100
BACKLOG = 3
"""Jobs that wait in each account at any time."""


class EndlessBacklog:
    """A machine on which as many jobs start as fit, and all users always have more."""

    def __init__(self, fair, users, policy="fair:backfill=easy"):
        self.chance = Random(1)
        self.now_s = 0.0
        self.core_s = Counter()
        self.starts = Counter()
        self._users = users
        self._scheduler = scheduler_of(policy, fair=fair, notify=False)
        resources = make_r("0", CORES)
        self._scheduler.grown("default", resources, resources.ranks, EMPTY)
        self._jobs = []
        self._ends = []

    def submit(self, user, cores, run_s):
        jobid = len(self._jobs)
        self._jobs.append((user, cores, run_s))
        self._scheduler.alloc(
            jobid, 16, user[1], float(jobid), spec(bank=user[0], cores=cores, duration=run_s), self.now_s
        )

    def again(self, user):
        """One more of small jobs, all different."""
        self.submit(user, self.chance.choice((1, 1, 2)), self.chance.uniform(300, 1500))

    def run(self, until_s):
        for user in self._users * BACKLOG:
            self.again(user)
        while self.now_s < until_s:
            self.step()

    def step(self):
        """The users whose jobs start at the next end."""
        started = []
        for effect in self._scheduler.schedule(self.now_s):
            if isinstance(effect, Granted):
                user, cores, run_s = self._jobs[effect.jobid]
                self.core_s[user] += round(cores * run_s)
                self.starts[user] += 1
                heapq.heappush(self._ends, (self.now_s + run_s, effect.jobid))
                started.append(user)
        self.now_s = self._ends[0][0]
        while self._ends and self._ends[0][0] <= self.now_s:
            self._scheduler.free_all(heapq.heappop(self._ends)[1], self.now_s)
        for user in started:
            self.again(user)
        return started


def test_core_seconds_come_to_the_weights():
    """Two levels: banks 3:2:1, and users of several weights in them; jobs are at most a fiftieth of the machine."""
    banks = {"a": Bank(3.0, users={"1": 2.0}), "b": Bank(2.0, users={"4": 0.5}), "c": Bank(1.0)}
    parts = {("a", 1): 6 / 18, ("a", 2): 3 / 18, ("b", 3): 4 / 18, ("b", 4): 2 / 18, ("c", 5): 3 / 18}
    site = EndlessBacklog(FairSettings(half_life_s=3600.0, banks=banks), list(parts))
    site.run(60_000.0)
    total = sum(site.core_s.values())
    assert total > 0.99 * CORES * 60_000.0
    assert {user: used / total for user, used in site.core_s.items()} == pytest.approx(parts, rel=0.05)


def test_the_past_is_made_up_for_within_some_half_lives():
    """One bank alone for a half-life: then the other gets more than half, until both have had the same of late."""
    banks = {"a": Bank(), "b": Bank()}
    site = EndlessBacklog(FairSettings(half_life_s=3600.0, banks=banks), [("a", 1)])
    site.run(3600.0)
    alone = site.core_s["a", 1]
    for _ in range(BACKLOG):
        site.again(("b", 2))
    while site.now_s < 7200.0:
        site.step()
    early = site.core_s["b", 2] / (site.core_s["a", 1] - alone)
    before = site.core_s.copy()
    while site.now_s < 40_000.0:
        site.step()
    later = (site.core_s["b", 2] - before["b", 2]) / (site.core_s["a", 1] - before["a", 1])
    assert early > 1.5
    assert later == pytest.approx(1.0, rel=0.05)
