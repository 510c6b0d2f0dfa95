"""Where other schedulers break, by the name of the defect: each of these killed or corrupted one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.resources import ResourceSet
from fluxsched.sched.effects import Denied, Granted
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policies.firstfit import FirstFit

MakeR = Callable[..., ResourceSet]
Spec = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("policy", [Fifo, FirstFit])
def test_burst(bench_of: Any, make_r: MakeR, spec: Spec, policy: type[Fifo | FirstFit]) -> None:
    """60 submits at once behind a blocked head: no job is granted twice, and idle nodes do not stay idle."""
    bench = bench_of(policy())
    bench.grow(make_r("0-63"))
    bench.submit(1, spec(nodes=3, exclusive=True))
    bench.run()
    bench.submit(2, spec(nodes=64, exclusive=True))
    bench.run()
    for jobid in range(3, 63):
        bench.submit(jobid, spec(nodes=1, exclusive=True))
    bench.run()  # the bench fails on a second grant
    assert len(bench.granted) == (61 if policy is FirstFit else 1)
    for _ in range(3):
        for jobid in list(bench.granted):
            bench.free(jobid)
        bench.run()
    assert bench.scheduler.stats()["granted"] == 62


@pytest.mark.parametrize("policy", [Fifo, FirstFit])
def test_recursion(bench_of: Any, make_r: MakeR, spec: Spec, policy: type[Fifo | FirstFit]) -> None:
    """2,000 jobs become runnable in one instant, in one pass."""
    bench = bench_of(policy())
    scheduler = bench.scheduler
    one = spec()
    for jobid in range(2000):
        scheduler.alloc(jobid, 16, 1000, float(jobid), one)
    bench.grow(make_r("0-999", 2))
    effects = bench.run()
    assert [effect.jobid for effect in effects] == list(range(2000))
    assert all(isinstance(effect, Granted) for effect in effects)
    assert scheduler.stats()["passes"] == 1


@pytest.mark.parametrize("policy", [Fifo, FirstFit])
def test_not_nothing(bench_of: Any, make_r: MakeR, spec: Spec, policy: type[Fifo | FirstFit]) -> None:
    """`{"not":[]}` matches nothing and is denied, `{"or":[]}` matches everything; nobody dies."""
    bench = bench_of(policy())
    bench.submit(1, spec(constraint={"not": []}))
    (denied,) = bench.grow(make_r("0"))
    assert isinstance(denied, Denied)
    assert "nothing" in denied.note
    (denied,) = bench.submit(2, spec(constraint={"not": []}))
    assert isinstance(denied, Denied)
    bench.submit(3, spec(constraint={"or": []}))
    assert [effect.jobid for effect in bench.run()] == [3]
