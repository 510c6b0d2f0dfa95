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
from fluxsched.sim.conformance.checker import LATE_S, Broken
from fluxsched.sim.conformance.harness import Stage


def test_rounding_excuses_who_waits_as_it_excuses_who_starts() -> None:
    stage = Stage(make("fifo", {}), "1x1", 100.0)
    stage.witness.promises_hold = True
    for _ in range(2):
        stage.submit(spec_of(10.0))
    stage.witness.promised[2] = stage.now_s - LATE_S / 2
    stage.decide()
    stage.witness.promised[2] = stage.now_s - LATE_S * 2
    with pytest.raises(Broken, match=r"job ƒ3, the first in line, was to start 2e-06 s ago and still waits"):
        stage.decide()


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
    verdicts = conformance.examine(policy, 7, lambda: 0.0, cases=1, sizes=(10, 5000), patience=interrupted)
    found = {one.rule: one for one in verdicts}
    (broken,) = [one for one in found.values() if one.verdict == "broken"]
    assert broken.rule == ("progress" if case else "cost")
    assert broken.finding is not None
    assert broken.finding.seed == 7
    assert broken.finding.what == f"it takes more than {limit_s:g} s" + (f" (case {case!r})" if case else "")
    assert str(broken.finding.line).startswith("test_checker.py:")
    assert (found["burst"].verdict == "unclear") == (case is not None)
