"""Where other schedulers break, by the name of the defect: each of these killed or corrupted one."""

import pytest

from fluxsched.sched.decisions import Denied, Granted, Paused
from tests.sched.site import Bench, make_r, spec

POLICIES = ["fifo", "firstfit", "easy", "easy:order=sjf", "hybrid:depth=3", "conservative", "conservative:compress"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_recursion(policy):
    """2,000 jobs become runnable in one instant, in one pass."""
    bench = Bench(policy)
    scheduler = bench.scheduler
    one = spec()
    for jobid in range(2000):
        scheduler.alloc(jobid, 16, 1000, float(jobid), one)
    bench.grow(make_r("0-999", 2))
    effects = [effect for effect in bench.run() if not isinstance(effect, Paused)]
    assert [effect.jobid for effect in effects] == list(range(2000))
    assert all(isinstance(effect, Granted) for effect in effects)
    assert scheduler.report.stats()["passes"] == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_not_nothing(policy):
    """`{"not":[]}` matches nothing and is denied, `{"or":[]}` matches everything; nobody dies."""
    bench = Bench(policy)
    bench.submit(1, constraint={"not": []})
    (denied,) = bench.grow("0")
    assert isinstance(denied, Denied)
    assert "nothing" in denied.note
    (denied,) = bench.submit(2, constraint={"not": []})
    assert isinstance(denied, Denied)
    bench.submit(3, constraint={"or": []})
    assert [effect.jobid for effect in bench.run()] == [3]


@pytest.mark.parametrize("policy", [one for one in POLICIES if one not in ("fifo", "firstfit")])
def test_frozen_reservation(policy):
    """The head's reservation is not that of the moment it was made: a job that ends early brings it forward."""
    bench = Bench(policy)
    bench.grow("0-3")
    bench.submit(1, nodes=2, exclusive=True, duration=1000.0)
    bench.submit(2, nodes=1, exclusive=True, duration=100.0)
    bench.run()
    bench.submit(3, nodes=4, exclusive=True, duration=10.0)
    bench.run()  # at 100 s; reserved for 1100
    bench.now_s = 150.0
    bench.free(1)
    bench.run()  # now for 200
    bench.submit(4, nodes=1, exclusive=True, duration=900.0)  # would end before 1100
    bench.submit(5, nodes=1, exclusive=True, duration=50.0)
    bench.run()
    assert set(bench.granted) == {2, 5}
    bench.now_s = 200.0
    bench.free(2)
    bench.free(5)
    bench.run()
    assert 3 in bench.granted
