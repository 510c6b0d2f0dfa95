"""Countable resources through the whole scheduler: asked for, granted in R, freed, found again at hello, reserved."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import RemoteProtocolError
from fluxsched.sched.decisions import Annotated, Denied
from tests.sched.site import Bench, started


def machine(targets=2, memory=16, matlab=2):
    """Targets of 8 cores."""
    ranks = str(Idset.span(0, targets - 1))
    entry = {"rank": ranks, "children": {"core": "0-7"}, "amounts": {"memory": memory}}
    execution = {"R_lite": [entry], "nodelist": [f"n[{ranks}]"], "shared": {"matlab": matlab}}
    return ResourceSet.parse({"version": 1, "execution": execution})


def bench_on(resources, policy="firstfit"):
    made = Bench(policy)
    made.grow(resources)
    return made


@pytest.fixture
def bench():
    return bench_on(machine())


def ask(duration_s=0.0, **more):
    return Jobspec.from_command(["a"], duration_s=duration_s, **more)


def test_memory_runs_out_before_cores(bench):
    for jobid in range(1, 6):
        bench.submit(jobid, ask(amounts_per_task={"memory": 8}))
    bench.run()
    granted = dict(bench.granted)
    assert sorted(granted) == [1, 2, 3, 4]
    assert all(r.count("memory") == 8 and r.count("core") == 1 for r in granted.values())
    assert "needs 1 slot of 1 core, 8 memory; none is free" in bench.why(5)
    bench.free(2)
    assert list(bench.starts()) == [5]


def test_a_licence_is_taken_once_a_job_whatever_its_size(bench):
    bench.submit(1, ask(nodes=2, shared={"matlab": 1}))
    bench.submit(2, ask(shared={"matlab": 2}))
    bench.run()
    assert bench.granted[1].shared == (("matlab", 1),)
    assert "only 1 matlab is left" in bench.why(2)
    # the ranks come back one by one, the licence with the last of them, although no partial R names it
    bench.free(1, "0")
    assert bench.starts() == {}
    bench.free(1, "1")
    assert list(bench.starts()) == [2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"amounts_per_task": {"memory": 17}}, "large enough: the largest that matches has 8 cores and 16 memory"),
        ({"amounts_per_task": {"fpga": 1}}, "8 cores and 16 memory and no fpga (see `amounts` in the configuration)"),
        ({"ntasks": 3, "nodes": 1, "amounts_per_task": {"memory": 6}}, "no node is large enough"),
        ({"ntasks": 5, "amounts_per_task": {"memory": 8}}, "the group has only 4 such slots"),
        ({"shared": {"matlab": 3}}, "the instance has only 2 matlab"),
        ({"shared": {"comsol": 1}}, "the instance has only 0 comsol"),
    ],
)
def test_what_can_never_be_is_denied(bench, asked, words):
    (denied,) = bench.submit(1, ask(**asked))
    assert isinstance(denied, Denied)
    assert words in denied.note


def test_an_exclusive_node_gives_all_it_has(bench):
    bench.submit(1, ask(nodes=1, exclusive=True))
    bench.run()
    assert bench.granted[1].summary() == "rank0/core[0-7],memory:16"
    total, _, allocated = bench.scheduler.report.resource_status()
    assert (total.count("memory"), allocated.count("memory")) == (32, 16)


def test_hello_finds_amounts_and_licences_again(bench):
    bench.submit(1, ask(amounts_per_task={"memory": 12}, shared={"matlab": 2}))
    bench.run()
    held = bench.granted[1]
    again = bench_on(machine(), "fifo")
    again.scheduler.hello(1, 16, 1000, 1.0, held)
    again.submit(2, ask(nodes=2, amounts_per_task={"memory": 8}))
    assert again.starts() == {}
    again.submit(3, ask(shared={"matlab": 1}))
    again.scheduler.free(1, held, True)
    assert sorted(again.starts()) == [2, 3]


def test_a_job_that_holds_more_than_there_is_blocks_until_it_ends():
    bench = bench_on(machine(matlab=2), "firstfit")
    held = machine(1, matlab=5).restrict(Idset.parse("0")).with_shared((("matlab", 5),))
    bench.scheduler.hello(1, 16, 1000, 1.0, held)
    bench.submit(2, ask(shared={"matlab": 1}))
    assert bench.starts() == {}
    bench.scheduler.free(1, held, True)
    assert list(bench.starts()) == [2]


def test_a_free_with_other_amounts_is_refused(bench):
    bench.submit(1, ask(amounts_per_task={"memory": 8}))
    bench.run()
    held = bench.granted[1]
    less = ResourceSet.parse({"version": 1, "execution": {"R_lite": [{"rank": "0", "children": {"core": "0"}}]}})
    with pytest.raises(RemoteProtocolError, match="does not hold this on ranks 0"):
        bench.scheduler.free(1, less, True)
    bench.scheduler.check()
    bench.scheduler.free(1, held, True)


def test_backfill_leaves_the_licence_that_the_head_waits_for():
    bench = bench_on(machine(matlab=2), "easy")
    bench.submit(1, ask(50.0, shared={"matlab": 1}))
    assert list(bench.starts()) == [1]
    bench.submit(2, ask(100.0, shared={"matlab": 2}))  # the head: at 150
    bench.submit(3, ask(500.0, shared={"matlab": 1}))  # would hold a licence past 150
    bench.submit(4, ask(500.0, amounts_per_task={"memory": 4}))
    bench.submit(5, ask(20.0, shared={"matlab": 1}))
    assert sorted(bench.starts()) == [4, 5]


def test_backfill_leaves_the_memory_that_the_head_waits_for():
    bench = bench_on(machine(1), "easy")
    bench.submit(1, ask(50.0, amounts_per_task={"memory": 10}))
    assert list(bench.starts()) == [1]
    bench.submit(2, ask(100.0, amounts_per_task={"memory": 14}))
    bench.submit(3, ask(500.0, amounts_per_task={"memory": 3}))
    bench.submit(4, ask(50.0, amounts_per_task={"memory": 6}))
    bench.submit(5, ask(500.0))
    effects = bench.run()
    assert list(started(effects)) == [4, 5]
    assert any(isinstance(effect, Annotated) and effect.jobid == 2 for effect in effects)


@pytest.mark.parametrize("policy", ["fifo", "easy", "hybrid:depth=3", "conservative", "conservative:compress"])
def test_whole_nodes_are_foreseen_with_what_is_counted_there(policy):
    bench = bench_on(machine(), policy)
    for jobid in (1, 2, 3):
        bench.submit(jobid, ask(50.0, nodes=2, exclusive=True))
    bench.submit(4, ask(50.0))  # a part of a node: from now on free cores are not told by their number
    assert list(bench.starts()) == [1]
    assert bench.scheduler.why(2, bench.now_s).earliest_s == 150.0
    bench.scheduler.free_all(1)
    assert list(bench.starts()) == [2]
