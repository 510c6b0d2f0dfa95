"""What ends a pass, and what is left of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError
from fluxsched.sched.engine.passes import REFUSALS_MAX
from fluxsched.sched.policy import NOTHING, Start
from fluxsched.sched.registry import load

MakeR = Callable[..., ResourceSet]
Spec = Callable[..., dict[str, Any]]


class Stubborn:
    """Starts its first job again and again."""

    name = "stubborn"
    OPTIONS: dict[str, Any] = {}  # noqa: RUF012

    def schedule(self, view: Any, now_s: float) -> Iterator[Any]:
        job = view.first
        fit = view.find(job)
        while True:
            yield Start(job.jobid, fit)


def test_a_policy_whose_decisions_are_refused_does_not_go_on_for_ever(
    bench_of: Any, make_r: MakeR, spec: Spec
) -> None:
    bench = bench_of(Stubborn())
    bench.grow(make_r("0"))
    bench.submit(1, spec())
    bench.submit(2, spec())
    with pytest.raises(LocalProtocolError, match=f"'stubborn': over {REFUSALS_MAX} decisions refused in one pass"):
        bench.run()
    assert bench.scheduler.stats()["refused"] == REFUSALS_MAX + 1
    assert bench.scheduler.stats()["granted"] == 1, "what was committed before stands"


def test_an_arrival_that_can_change_nothing_makes_no_pass_of_its_policy(
    bench_of: Any, make_r: MakeR, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load("fifo")[0]
    assert getattr(policy, "ARRIVALS", None) == NOTHING
    passes: list[float] = []
    schedule = type(policy).schedule
    monkeypatch.setattr(
        type(policy), "schedule", lambda self, view, now_s: (passes.append(now_s), schedule(self, view, now_s))[1]
    )
    bench = bench_of(policy)
    bench.grow(make_r("0"))
    bench.submit(1, spec(cores=4))
    bench.submit(2, spec(cores=2))
    bench.run()
    assert len(passes) == 1
    for jobid in range(3, 9):
        bench.submit(jobid, spec())
        bench.run()
    assert len(passes) == 1, "job 2 still waits, and the others are behind it"
    bench.scheduler.prioritize([(8, 31)])
    bench.run()
    assert len(passes) == 2
