"""Who watches a policy: what is let pass as rounding, and that nobody waits for ever for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fluxsched.runtime.system.clock import interrupted
from fluxsched.sched.policy import Pending, Start
from fluxsched.sched.registry import make
from fluxsched.sim.conformance import suite as conformance
from fluxsched.sim.conformance.cases import spec_of
from fluxsched.sim.conformance.checker import LATE_S, RuleBroken
from fluxsched.sim.conformance.harness import Harness


def test_rounding_excuses_who_waits_as_it_excuses_who_starts() -> None:
    harness = Harness(make("fifo", {}), "1x1", 100.0)
    harness.checker.promises_hold = True
    for _ in range(2):
        harness.submit(spec_of(10.0))
    harness.checker.promised[2] = harness.now_s - LATE_S / 2
    harness.decide()
    harness.checker.promised[2] = harness.now_s - LATE_S * 2
    with pytest.raises(RuleBroken, match=r"job ƒ3, the first in line, was to start 2e-06 s ago and still waits"):
        harness.decide()


class Lost:
    """It looks for ever, once so many wait."""

    name = "lost"

    def __init__(self, waiting: int) -> None:
        self._waiting = waiting

    def schedule(self, view: Any, now_s: float) -> Iterator[Any]:
        queue = list(view.queue)
        while len(queue) >= self._waiting:
            pass
        for job in queue:
            fit = view.find(job)
            yield Pending(job.jobid, view.reason(job)) if fit is None else Start(job.jobid, fit)


@pytest.mark.parametrize(("waiting", "limit_s", "case"), [(2, 0.5, "ordinary"), (5000, 4.0, None)])
def test_a_policy_that_goes_nowhere_is_interrupted(
    waiting: int, limit_s: float, case: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "CASE_S", limit_s)
    policy: Any = Lost(waiting)
    verdicts = conformance.examine(policy, 7, lambda: 0.0, cases=1, sizes=(10, 5000), time_limit=interrupted)
    found = {one.rule: one for one in verdicts}
    (broken,) = [one for one in found.values() if one.verdict == "broken"]
    assert broken.rule == ("progress" if case else "cost")
    assert broken.finding is not None
    assert broken.finding.seed == 7
    assert broken.finding.what == f"it takes more than {limit_s:g} s" + (f" (case {case!r})" if case else "")
    assert str(broken.finding.line).startswith("test_checker.py:")
    assert (found["burst"].verdict == "unclear") == (case is not None)
