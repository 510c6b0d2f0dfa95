"""Countable resources through the whole scheduler: asked for, granted in R, freed, found again at hello, reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.effects import Annotated, Denied, Effect, Granted
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policies.easy import Easy
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policies.firstfit import FirstFit
from fluxsched.sched.pool.what_if import WhatIf
from fluxsched.sched.registry import load
from fluxsched.sched.shape import Shape

Ask = Callable[..., Jobspec]


def machine(targets: int = 2, memory: int = 16, matlab: int = 2) -> ResourceSet:
    """Targets of 8 cores."""
    ranks = str(Idset.span(0, targets - 1))
    entry = {"rank": ranks, "children": {"core": "0-7"}, "amounts": {"memory": memory}}
    execution = {"R_lite": [entry], "nodelist": [f"n[{ranks}]"], "shared": {"matlab": matlab}}
    return ResourceSet.parse({"version": 1, "execution": execution})


class Bench:
    def __init__(self, policy: Any, resources: ResourceSet) -> None:
        self.scheduler = Scheduler(policy)
        self.scheduler.grown("default", resources, resources.ranks, EMPTY)
        self.now_s = 100.0

    def submit(self, jobid: int, duration_s: float = 0.0, **ask: Any) -> list[Effect]:
        spec = Jobspec.from_command(["a"], duration_s=duration_s, **ask)
        return self.scheduler.alloc(jobid, 16, 1000, float(jobid), spec)

    def run(self) -> dict[int, ResourceSet]:
        effects = list(self.scheduler.schedule(self.now_s))
        self.scheduler.check()
        return {effect.jobid: ResourceSet.parse(effect.R) for effect in effects if isinstance(effect, Granted)}

    def why(self, jobid: int) -> str:
        return self.scheduler.why(jobid, 0.0).reason


@pytest.fixture
def bench() -> Bench:
    return Bench(FirstFit(), machine())


def test_memory_runs_out_before_cores(bench: Bench) -> None:
    for jobid in range(1, 6):
        bench.submit(jobid, amounts_per_task={"memory": 8})
    granted = bench.run()
    assert sorted(granted) == [1, 2, 3, 4]
    assert all(r.count("memory") == 8 and r.count("core") == 1 for r in granted.values())
    assert "needs 1 slot of 1 core, 8 memory; none is free" in bench.why(5)
    bench.scheduler.free(2, granted[2], True)
    assert list(bench.run()) == [5]


def test_a_licence_is_taken_once_a_job_whatever_its_size(bench: Bench) -> None:
    bench.submit(1, nodes=2, shared={"matlab": 1})
    bench.submit(2, shared={"matlab": 2})
    granted = bench.run()
    assert granted[1].shared == (("matlab", 1),)
    assert "only 1 matlab is left" in bench.why(2)
    # the ranks come back one by one, the licence with the last of them, although no partial R names it
    bench.scheduler.free(1, granted[1].restrict(Idset.parse("0")), False)
    assert bench.run() == {}
    bench.scheduler.free(1, granted[1].restrict(Idset.parse("1")), True)
    assert list(bench.run()) == [2]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        ({"amounts_per_task": {"memory": 17}}, "large enough: the largest that matches has 8 cores and 16 memory"),
        ({"amounts_per_task": {"fpga": 1}}, "8 cores and 16 memory and no fpga (see `amounts` in the configuration)"),
        ({"ntasks": 3, "nodes": 1, "amounts_per_task": {"memory": 6}}, "no node is large enough"),
        ({"ntasks": 5, "amounts_per_task": {"memory": 8}}, "the group has only 4 such slots"),
        ({"shared": {"matlab": 3}}, "the instance has only 2 matlab"),
        ({"shared": {"comsol": 1}}, "the instance has only 0 comsol"),
    ],
)
def test_what_can_never_be_is_denied(bench: Bench, ask: dict[str, Any], words: str) -> None:
    (denied,) = bench.submit(1, **ask)
    assert isinstance(denied, Denied)
    assert words in denied.note


def test_an_exclusive_node_gives_all_it_has(bench: Bench) -> None:
    bench.submit(1, nodes=1, exclusive=True)
    assert bench.run()[1].summary() == "rank0/core[0-7],memory:16"
    total, _, allocated = bench.scheduler.resource_status()
    assert (total.count("memory"), allocated.count("memory")) == (32, 16)


def test_hello_finds_amounts_and_licences_again(bench: Bench) -> None:
    bench.submit(1, amounts_per_task={"memory": 12}, shared={"matlab": 2})
    held = bench.run()[1]
    again = Bench(Fifo(), machine())
    again.scheduler.hello(1, 16, 1000, 1.0, held)
    again.submit(2, nodes=2, amounts_per_task={"memory": 8})
    assert again.run() == {}
    again.submit(3, shared={"matlab": 1})
    again.scheduler.free(1, held, True)
    assert sorted(again.run()) == [2, 3]


def test_a_job_that_holds_more_than_there_is_blocks_until_it_ends() -> None:
    bench = Bench(FirstFit(), machine(matlab=2))
    held = machine(1, matlab=5).restrict(Idset.parse("0")).with_shared((("matlab", 5),))
    bench.scheduler.hello(1, 16, 1000, 1.0, held)
    bench.submit(2, shared={"matlab": 1})
    assert bench.run() == {}
    bench.scheduler.free(1, held, True)
    assert list(bench.run()) == [2]


def test_a_free_with_other_amounts_is_refused(bench: Bench) -> None:
    bench.submit(1, amounts_per_task={"memory": 8})
    held = bench.run()[1]
    less = ResourceSet.parse({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}})
    with pytest.raises(RemoteProtocolError, match="does not hold this on ranks 0"):
        bench.scheduler.free(1, less, True)
    bench.scheduler.check()
    bench.scheduler.free(1, held, True)


def test_backfill_leaves_the_licence_that_the_head_waits_for() -> None:
    bench = Bench(Easy(), machine(matlab=2))
    bench.submit(1, 50.0, shared={"matlab": 1})
    assert list(bench.run()) == [1]
    bench.submit(2, 100.0, shared={"matlab": 2})  # the head: at 150
    bench.submit(3, 500.0, shared={"matlab": 1})  # would hold a licence past 150
    bench.submit(4, 500.0, amounts_per_task={"memory": 4})
    bench.submit(5, 20.0, shared={"matlab": 1})
    assert sorted(bench.run()) == [4, 5]


def test_backfill_leaves_the_memory_that_the_head_waits_for() -> None:
    bench = Bench(Easy(), machine(1))
    bench.submit(1, 50.0, amounts_per_task={"memory": 10})
    assert list(bench.run()) == [1]
    bench.submit(2, 100.0, amounts_per_task={"memory": 14})
    bench.submit(3, 500.0, amounts_per_task={"memory": 3})
    bench.submit(4, 50.0, amounts_per_task={"memory": 6})
    bench.submit(5, 500.0)
    effects = list(bench.scheduler.schedule(bench.now_s))
    assert [effect.jobid for effect in effects if isinstance(effect, Granted)] == [4, 5]
    assert any(isinstance(effect, Annotated) and effect.jobid == 2 for effect in effects)


@pytest.mark.parametrize("policy", ["fifo", "easy", "hybrid:depth=3", "conservative", "conservative:compress"])
def test_whole_nodes_are_foreseen_with_what_is_counted_there(policy: str) -> None:
    bench = Bench(load(policy)[0], machine())
    for jobid in (1, 2, 3):
        bench.submit(jobid, 50.0, nodes=2, exclusive=True)
    bench.submit(4, 50.0)  # a part of a node: from now on free cores are not told by their number
    assert list(bench.run()) == [1]
    assert bench.scheduler.why(2, bench.now_s).earliest_s == 150.0
    bench.scheduler.free_all(1)
    assert list(bench.run()) == [2]


def test_a_what_if_gives_everything_back(bench: Bench) -> None:
    bench.submit(1, nodes=2, amounts_per_task={"memory": 16}, shared={"matlab": 2})
    bench.run()
    pool = bench.scheduler._groups["default"].pool
    holding = bench.scheduler._ledger.get(1)
    assert holding is not None
    request = Jobspec.from_command(["a"], amounts_per_task={"memory": 8}, shared={"matlab": 1}).request
    with WhatIf(pool) as what_if:
        assert what_if.find(Shape(request), "best-fit") is None
        what_if.give(holding.blocks)
        fit = what_if.find(Shape(request), "best-fit", prefer_given=True)
        assert fit is not None
        assert what_if.find(Shape(request), "best-fit", avoid=holding.blocks) is None
        what_if.take(fit.blocks)
    bench.scheduler.check()
    assert pool.instance_countables.left("matlab") == 0
    assert pool[0].amounts == (("memory", 0),)
