"""The order under `fair`, against one that is worked out job by job, with every key, share and limit anew for each.

And with one account, `fair` is the policy inside of it, start for start.
"""

from __future__ import annotations

import random
from math import inf
from typing import NamedTuple

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import Granted
from fluxsched.sched.fair.accounts import Bank, FairSettings, Signal
from tests.generated.share import first
from tests.sched.site import make_r, scheduler_of, simulate, spec

HALF_LIFE_S = 600.0
CORES = 64
BANKS = {
    "x": Bank(2.0, None, None, {"1": 3.0, "2": 0.5}),
    "y": Bank(1.0, "x", 0.9, {"3": 2.0}),
    "z": Bank(1.0, None, None, {"1": 1.0}),
}
PATHS = {"x": ("x",), "y": ("x", "y"), "z": ("z",)}


class Asked(NamedTuple):
    """One job, as the reference sees it."""

    jobid: int
    priority: int
    path: tuple[str, ...]
    cores: int
    after_s: float | None

    @property
    def turn(self):
        return -self.priority, self.jobid


class Reference:
    """All that `fair` remembers, worked out from lists."""

    def __init__(self, signal, cap, budget):
        self.signal, self.cap, self.budget = signal, cap, budget
        self.waiting = []
        self.held = {}
        self.charged = {}
        self.levels = {}
        self.at_s = 0.0
        self.came = 0

    # ---- what accounts use

    def usage(self, path, firm=False):
        return sum(
            job.cores
            for job in self.held.values()
            if job.path[: len(path)] == path and (not firm or job.after_s is None)
        )

    def now(self, path, now_s):
        """The signal and the flow of firm usage, as they are by now."""
        level, firm = self.levels.get(path, (0.0, 0.0))
        beta = 0.5 ** (max(now_s - self.at_s, 0.0) / HALF_LIFE_S)
        used, used_firm = self.usage(path), self.usage(path, firm=True)
        rest = max(level - used, 0.0) if self.signal is Signal.FLOW else level - used
        level = used + rest * beta
        return level, used_firm + max(firm - used_firm, 0.0) * beta

    def happens(self, now_s, change):
        paths = {path[:depth] for path in self.all_paths() for depth in range(1, len(path) + 1)}
        levels = {path: self.now(path, now_s) for path in paths}
        self.levels, self.at_s = levels, max(self.at_s, now_s)
        change()
        for path, (level, firm) in levels.items():  # a flow is never below the usage
            used = self.usage(path) if self.signal is Signal.FLOW else 0.0
            self.levels[path] = max(level, used), max(firm, self.usage(path, firm=True))

    def all_paths(self):
        return {*self.levels, *(job.path for job in [*self.waiting, *self.held.values()])}

    # ---- shares

    def active(self):
        jobs = [*self.held.values(), *(job for job in self.waiting if job.priority)]
        return {job.path[:depth] for job in jobs for depth in range(1, len(job.path) + 1)}

    @staticmethod
    def weight(path):
        own = {PATHS[name]: bank.weight for name, bank in BANKS.items()}
        users = {(*PATHS[name], user): weight for name, bank in BANKS.items() for user, weight in bank.users.items()}
        return own.get(path) or users.get(path, 1.0)

    def share(self, path):
        found, active = float(CORES), self.active()
        for depth in range(1, len(path) + 1):
            own, above = path[:depth], path[: depth - 1]
            beside = [other for other in active | {own} if other[:-1] == above and len(other) == depth]
            found *= self.weight(own) / sum(self.weight(other) for other in beside)
        return found

    # ---- a pass of firstfit

    def key(self, path, asked, now_s):
        level, used, weight = self.now(path, now_s)[0], self.usage(path), self.weight(path)
        first = max(used + asked, level) if self.signal is Signal.FLOW else used + level
        second = level if self.signal is Signal.FLOW else used
        return first / weight, second / weight, path[-1]

    def next_of(self, path, left, now_s):
        below = [job for job in left if job.path[: len(path)] == path]
        children = {job.path[: len(path) + 1] for job in below}
        if children == {path}:
            return min(below, key=lambda job: job.turn)
        offers = [(self.next_of(path, below, now_s), path) for path in children]
        keys = {path: self.key(path, job.cores, now_s) for job, path in offers}
        least = min(keys.values())
        for job, child in offers:  # keys that differ by rounding alone may come either way
            comes = any(each.jobid == self.came and each.path[: len(child)] == child for each in below)
            if comes and keys[child][:2] == pytest.approx(least[:2], rel=1e-9, abs=1e-9):
                return job
        return min(offers, key=lambda offer: keys[offer[1]])[0]

    def blocks(self, job, now_s):
        if job.after_s is None:
            for depth in range(len(job.path), 0, -1):
                path = job.path[:depth]
                own = {PATHS[name]: bank.cap for name, bank in BANKS.items() if bank.cap is not None}
                cap = own.get(path, self.cap)
                if cap is not None:
                    most = max(self.usage(path, firm=True) + job.cores, self.now(path, now_s)[1])
                    if most > cap * self.share(path) * (1 + 1e-9):
                        return "cap"
            return None
        charge = self.charge(job)
        spent = sum(charge for jobid, charge in self.charged.items() if self.held[jobid].path[-1] == job.path[-1])
        over = self.budget is not None and charge > 0 and spent + charge > self.budget * (1 + 1e-9)
        return "budget" if over else None

    def charge(self, job):
        beyond = self.usage(job.path) + job.cores - self.share(job.path)
        return (job.after_s or 0.0) / 60 * min(job.cores, max(0.0, beyond))

    def starts(self, now_s, came):
        """The jobs that start, where the others said that these do."""
        left = sorted((job for job in self.waiting if job.priority), key=lambda job: job.turn)
        blocked = set()
        found = []
        while left:
            self.came = came[len(found)] if len(found) < len(came) else 0
            job = self.next_of((), left, now_s)
            left.remove(job)
            if job.after_s is None and (job.path, "cap") in blocked:
                continue
            if job.after_s is not None and self.charge(job) and (job.path, "budget") in blocked:
                continue
            limit = self.blocks(job, now_s)
            if limit is not None:
                blocked.add((job.path, limit))
            elif self.usage(()) + job.cores <= CORES:
                found.append(job.jobid)
                if job.after_s:
                    self.charged[job.jobid] = self.charge(job)
                self.happens(now_s, lambda job=job: self.begin(job))
        return found

    def begin(self, job):
        self.waiting.remove(job)
        self.held[job.jobid] = job


@pytest.mark.parametrize("seed", first(range(40)))
def test_the_order_is_progressive_filling(seed):
    chance = random.Random(seed)
    signal = chance.choice(list(Signal))
    cap, budget = chance.choice([None, 1.0, 1.5]), chance.choice([None, 20.0, 200.0])
    settings = FairSettings(
        signal=signal, half_life_s=HALF_LIFE_S, cap=cap, budget_min=budget, rate=0, banks=BANKS, weights={"core": 1.0}
    )
    scheduler = scheduler_of("fair:backfill=firstfit", fair=settings, notify=False)
    resources = make_r("0", cores=CORES)
    scheduler.grown("default", resources, resources.ranks, Idset())
    reference, now_s, jobid = Reference(signal, cap, budget), 0.0, 0
    for _ in range(30):
        now_s += chance.choice([0.0, 1.0, 100.0, 5000.0, -30.0])
        now_s = max(now_s, 0.0)
        for _ in range(chance.randrange(8)):
            jobid += 1
            bank, user = chance.choice("xyz"), chance.randrange(1, 4)
            cores, priority = chance.choice([1, 2, 5, 16, 40]), chance.choice([0, 16, 16, 16, 20])
            after_s = chance.choice([None, None, 0.0, 600.0, 3600.0])
            system = {"duration": 0.0, "bank": bank}
            if after_s is not None:
                system["preemptible-after"] = after_s
            scheduler.alloc(jobid, priority, user, 0.0, job_of(cores, system), now_s)
            job = Asked(jobid, priority, (*PATHS[bank], str(user)), cores, after_s)
            reference.happens(now_s, lambda job=job: reference.waiting.append(job))
        for ended in chance.sample(sorted(reference.held), min(len(reference.held), chance.randrange(6))):
            scheduler.free_all(ended, now_s)
            reference.happens(now_s, lambda ended=ended: reference.held.pop(ended))
            reference.charged.pop(ended, None)
        scheduler._groups["default"].invalidate_pass()
        came = [each.jobid for each in scheduler.schedule(now_s) if isinstance(each, Granted)]
        assert reference.starts(max(now_s, reference.at_s), came) == came
        scheduler.check()


def job_of(cores, system):
    return {
        "version": 1,
        "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": system},
    }


# ---- one account

INNER = [
    "fifo", "firstfit", "easy", "conservative", "hybrid:depth=3", "firstfit:order=sjf", "easy:order=lxf",
    "conservative:compress", "conservative:order=saf", "hybrid:depth=2,order=ljf", "easy:placement=best-fit",
]  # fmt: skip


@pytest.mark.parametrize("inner", INNER)
def test_with_one_account_it_is_the_policy_inside(inner):
    name, _, options = inner.partition(":")
    for whole, signal in enumerate(("flow", "decayed-usage")):
        chance = random.Random(whole)
        jobs = []
        for _ in range(40):
            size = {"nodes": chance.randrange(1, 5), "exclusive": True} if whole else {"cores": chance.randrange(1, 5)}
            limit_s = chance.choice([0.0, 10.0, 20.0, 50.0, 77.0])
            jobs.append((float(chance.randrange(40)), chance.uniform(1.0, 60.0), spec(duration=limit_s, **size)))
        alone = simulate(inner, make_r("0-3", cores=4), jobs)
        around = f"fair:backfill={name},signal={signal}" + (f",{options}" if options else "")
        assert simulate(around, make_r("0-3", cores=4), jobs).starts == alone.starts
        assert max(alone.starts.values()) < inf
