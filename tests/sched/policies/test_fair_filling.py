"""`fair` on made-up histories: a pass starts jobs in the order of a brute-force filling, with room for all or for few.

Both signals, trees, ties, weights, shares of the active and of all, caps, budgets, urgency 31, and jobs on hold.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY
from fluxsched.sched.decisions import Granted
from fluxsched.sched.fair.accounts import Bank, FairSettings, Signal
from tests.generated.share import examples
from tests.sched.progressive_filling import EXPEDITED, Asked, Filling, Site, filled
from tests.sched.site import make_r, scheduler_of, spec

ROOM = [("fifo", 2000), ("firstfit", 64)]
"""The policy inside and the cores: more than all jobs of a history ask for, and few."""

SHAPES = [{"cores": 1}, {"cores": 3}, {"cores": 40}, {"cores": 1, "gpus": 1}]
USAGES = [1, 3, 40, 11]


class Step(NamedTuple):
    what: str
    bank: str
    user: int
    shape: int
    jobs: int
    after_s: float | None
    limit_s: float
    pause_s: float


STEPS = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(["submit", "submit", "submit", "pass", "pass", "end", "cancel", "hold", "urge", "wake"]),
        bank=st.sampled_from("abcd"),
        user=st.integers(1, 3),
        shape=st.integers(0, 3),
        jobs=st.sampled_from([1, 1, 2, 5]),
        after_s=st.sampled_from([None, None, 0.0, 60.0, 3600.0]),
        limit_s=st.sampled_from([0.0, 600.0]),
        pause_s=st.sampled_from([0.0, 0.0, 0.5, 7.0, 60.0, 600.0, 86400.0]),
    ),
    min_size=2,
    max_size=25,
)


def site(signal, shares_of_all, limited):
    banks = {
        "a": Bank(2.0, users={"1": 3.0, "2": 0.1}),
        "b": Bank(),
        "c": Bank(0.5, parent="b", cap=0.05 if limited else None),
        "d": Bank(parent="c", users={"3": 2.0}),
    }
    limits = {"cap": 0.1, "budget_min": 500.0} if limited else {}
    return FairSettings(signal=signal, half_life_s=300.0, banks=banks, shares_of_all=shares_of_all, **limits)


class Beside:
    """A scheduler under `fair`, and a filling that is told the same."""

    def __init__(self, fair, inner, cores):
        self.fair = fair
        self.cores = cores
        self.asked = {}
        self.now_s = 1000.0
        self.scheduler = scheduler_of(f"fair:backfill={inner}", fair=fair, user_name=str)
        resources = make_r("0", cores, 100)
        self.scheduler.grown("default", resources, resources.ranks, EMPTY, self.now_s)
        banks = fair.banks or {}
        weights = {fair.path(name): bank.weight for name, bank in banks.items()}
        weights |= {(*fair.path(name), user): w for name, bank in banks.items() for user, w in bank.users.items()}
        caps = {fair.path(name): bank.cap for name, bank in banks.items() if bank.cap is not None}
        self.filling = Filling(
            Site(
                Fraction(cores + 1000), fair.signal.value, fair.half_life_s, weights, fair.shares_of_all,
                fair.cap, caps, fair.budget_min,
            )
        )  # fmt: skip
        self.jobs = 0

    def do(self, step):
        self.now_s += step.pause_s
        waiting, holding = sorted(self.filling.waiting), sorted(self.filling.holding)
        match step.what:
            case "submit":
                for _ in range(step.jobs):
                    self._submit(step)
            case "end" if holding:
                jobid = holding[step.user * 7 % len(holding)]
                self.scheduler.free_all(jobid, self.now_s)
                self.filling.frees(jobid, self.now_s)
            case "cancel" if waiting:
                self.scheduler.cancel(waiting[0])
                self.filling.leaves(waiting[0])
            case "hold" if waiting:
                self._prioritize(waiting[-1], 0 if step.jobs > 1 else 20)
            case "urge" if waiting:
                self._prioritize(waiting[-1], EXPEDITED)
            case "wake" if self.now_s < self.scheduler.next_notice_s < inf:
                self.now_s = self.scheduler.next_notice_s
                self._pass()
            case "pass":
                self._pass()

    def _submit(self, step):
        self.jobs += 1
        path = (*self.fair.path(step.bank), str(step.user))
        job = Asked(
            self.jobs, path, Fraction(USAGES[step.shape]), 16, self.now_s, step.after_s, step.limit_s,
        )  # fmt: skip
        self.filling.waits(job)
        self.asked[self.jobs] = SHAPES[step.shape]["cores"]
        asked = {"duration": step.limit_s, "bank": step.bank, "preemptible_after": step.after_s, **SHAPES[step.shape]}
        self.scheduler.alloc(self.jobs, 16, step.user, self.now_s, spec(**asked), self.now_s)

    def _prioritize(self, jobid, priority):
        job = self.filling.waiting[jobid]
        self.filling.leaves(jobid)
        self.filling.waits(Asked(job.jobid, job.path, job.usage, priority, *_rest(job)))
        self.scheduler.prioritize([(jobid, priority)])

    def _fits(self, job):
        return sum(self.asked[jobid] for jobid in [*self.filling.holding, job.jobid]) <= self.cores

    def _pass(self):
        self.scheduler.updated("default", 0.0)  # all is examined, as the filling does
        started = [one.jobid for one in self.scheduler.schedule(self.now_s) if isinstance(one, Granted)]
        expected = filled(self.filling, self.now_s, self._fits)
        for at, jobid in enumerate(started):
            meant = [job.jobid for job in next(expected, [])]
            assert jobid in meant, f"{at} jobs started, {jobid} is next and not {meant} at {self.now_s} s"
            self.filling.starts(jobid, self.now_s)
        assert not next(expected, []), f"only {started} started at {self.now_s} s"
        self.scheduler.check()


def _rest(job):
    return job.submit_s, job.preemptible_after_s, job.limit_s


@pytest.mark.parametrize(("inner", "cores"), ROOM)
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("signal", list(Signal))
@settings(max_examples=examples(30), deadline=None)
@given(steps=STEPS, shares_of_all=st.booleans())
def test_a_pass_is_a_progressive_filling(signal, limited, inner, cores, steps, shares_of_all):
    beside = Beside(site(signal, shares_of_all, limited), inner, cores)
    for step in [*steps, Step("pass", "a", 1, 0, 1, None, 0.0, 1.0)]:
        beside.do(step)
