"""Accounts beside a filling that knows only the formulas, on made-up histories: signals, shares, limits, order."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.sched.fair.account_order import FairOrder
from fluxsched.sched.fair.accounts import AccountLimits, Accounts, Measure
from tests.generated.share import examples
from tests.sched.progressive_filling import Asked, Filling, Site

from .conftest import BOTH

LEAVES = [
    ("a", "ann"), ("a", "bob"), ("b", "ann"), ("b", "c", "cyd"), ("b", "c", "dan"), ("b", "e", "f", "eve"),
    ("g", "ann"),
]  # fmt: skip
CORES = 100


class Step(NamedTuple):
    what: str
    which: int
    cores: int
    gpus: int
    after_s: float | None
    pause_s: float


STEPS = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(["wait", "wait", "start", "start", "start", "end", "leave", "plan", "forget"]),
        which=st.integers(0, 50),
        cores=st.sampled_from([1, 1, 1, 2, 3, 8, 30]),
        gpus=st.sampled_from([0, 0, 0, 1]),
        after_s=st.sampled_from([None, None, 0.0, 60.0, 1800.0]),
        pause_s=st.sampled_from([0.0, 0.0, 0.5, 1.0, 7.0, 60.0, 600.0, 86400.0]),
    ),
    max_size=50,
)
WEIGHTS = st.dictionaries(
    st.sampled_from([*LEAVES, ("a",), ("b",), ("b", "c"), ("h",)]), st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0])
)


class Both:
    """The accounts under test and the filling, told the same."""

    def __init__(self, signal, weights, shares_of_all, cap):
        self.now_s = 0.0
        self.accounts = Accounts(Measure({"core": 1.0, "gpu": 10.0}), signal, 100.0, 0.0, shares_of_all)
        self.accounts.set_capacity((CORES, 4), 0.0)
        self.order = FairOrder(self.accounts)
        self.limits = AccountLimits(self.accounts, cap, None if cap is None else 20.0)
        for path, weight in weights.items():
            self.accounts.configure(self.accounts.account(path), weight)
        caps = {} if cap is None else {("b",): 0.7}
        for path, own in caps.items():
            self.limits.set_cap(self.accounts.account(path), own)
        self.filling = Filling(
            Site(Fraction(CORES + 40), signal.value, 100.0, weights, shares_of_all, cap, caps, self.limits.budget)
        )
        self.amounts = {}
        self.jobs = 0

    def do(self, step):
        self.now_s += step.pause_s
        waiting, holding = sorted(self.filling.waiting), sorted(self.filling.holding)
        if step.what == "wait":
            self._wait(step)
        elif step.what == "end" and holding:
            self._end(holding[step.which % len(holding)])
        elif step.what == "forget":
            self.order.forget_plans()
            self.filling.planned.clear()
        elif waiting and step.what in ("start", "leave", "plan"):
            job = self.filling.waiting[waiting[step.which % len(waiting)]]
            getattr(self, f"_{step.what}")(job, self.accounts.account(job.path))
        for path in LEAVES:
            jobs = self.filling.free_to_start(path, self.now_s)
            if jobs:
                self.order.offer(self.accounts.account(path), float(jobs[0].usage))
            else:
                self.order.withdraw(self.accounts.account(path))

    def _wait(self, step):
        self.jobs += 1
        path = LEAVES[step.which % len(LEAVES)]
        usage = Fraction(step.cores + 10 * step.gpus)
        self.filling.waits(Asked(self.jobs, path, usage, preemptible_after_s=step.after_s))
        self.amounts[self.jobs] = step.cores, step.gpus
        self.accounts.activate(self.accounts.account(path), 1)

    def _start(self, job, account):
        if not job.is_firm:
            self.limits.pay(job.path[-1], self.limits.charge(account, float(job.usage), float(job.safe_minutes)))
        self.filling.starts(job.jobid, self.now_s)
        self.accounts.book(account, self.amounts[job.jobid], 1, job.is_firm, self.now_s)
        self.order.changed(account)

    def _leave(self, job, account):
        self.filling.leaves(job.jobid)
        self.accounts.activate(account, -1)

    def _plan(self, job, account):
        self.filling.plans(job.jobid)
        self.order.plan(account, float(job.usage))

    def _end(self, jobid):
        job, account = self.filling.holding[jobid], self.accounts.account(self.filling.holding[jobid].path)
        if jobid in self.filling.charges:
            self.limits.pay(job.path[-1], -float(self.filling.charges[jobid]))
        self.filling.frees(jobid, self.now_s)
        self.accounts.book(account, self.amounts[jobid], -1, job.is_firm, self.now_s)
        self.accounts.activate(account, -1)
        self.order.changed(account)

    def compare(self):
        self._compare_accounts()
        self._compare_limits()
        found = self.order.first(self.now_s)
        best = self.filling.next(self.now_s, set())
        assert (() if found is None else found.path) in ([job.path for job in best] or [()])

    def _compare_accounts(self):
        scale = self.accounts.advance(self.now_s)
        for path in [*LEAVES, ("a",), ("b",), ("b", "c"), ("b", "e"), ("g",)]:
            account = self.accounts.account(path)
            assert account.all_jobs.usage == self.filling.usage(path)
            assert account.firm.usage == self.filling.usage(path, firm_alone=True)
            assert account.all_jobs.level(scale) == pytest.approx(self.filling.signal(path, self.now_s), abs=1e-9)
            assert account.firm.level(scale) == pytest.approx(self.filling.firm_flow(path, self.now_s), abs=1e-9)
            assert self.accounts.fair_usage(account) == pytest.approx(float(self.filling.fair_usage(path)))

    def _compare_limits(self):
        for job in self.filling.waiting.values():
            account, usage = self.accounts.account(job.path), float(job.usage)
            if job.is_firm:
                blocked = self.limits.over_cap(account, usage, self.now_s)
                assert (blocked and blocked.account) == self.filling.over_cap(job, self.now_s)
            else:
                minutes = float(job.safe_minutes)
                assert self.limits.charge(account, usage, minutes) == pytest.approx(float(self.filling.charge(job)))
                over = self.limits.over_budget(account, job.path[-1], usage, minutes)
                assert (over is not None) == self.filling.over_budget(job)


@BOTH
@pytest.mark.parametrize("cap", [None, 1.2])
@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, weights=WEIGHTS, shares_of_all=st.booleans())
def test_accounts_are_what_the_formulas_say(signal, cap, steps, weights, shares_of_all):
    both = Both(signal, weights, shares_of_all, cap)
    for step in steps:
        both.do(step)
        both.compare()
