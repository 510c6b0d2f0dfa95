"""The points of a job that is to start: reserve, permit, bind, and what is taken back."""

from fluxsched.core.idset import Idset
from fluxsched.sched.decisions import Granted
from fluxsched.sched.hooks import LATERS_MAX, PASS, SKIP, Later, Wait
from tests.sched.site import spec, started

from .conftest import told


def test_reserve_holds_back_and_is_taken_back_in_reverse(bench_with, plugin, calls):
    says = [Later("no")]
    plugins = [plugin(name, reserve=PASS, unreserve=None) for name in ("a", "b")]
    bench = bench_with(*plugins, plugin("c", reserve=lambda job, fit: says[0], unreserve=None), policy="fifo")
    bench.submit(1, spec())
    bench.submit(2, spec())
    found = bench.run()
    assert started(found) == {}
    assert told(found) == {1: "plugin 'c': no"}  # it is first in line, and fifo is strict
    points = [(name, point) for name, point, _ in calls]
    assert points == [("a", "reserve"), ("b", "reserve"), ("c", "reserve"), ("b", "unreserve"), ("a", "unreserve")]
    assert not bench.allocated.ranks
    says[0] = PASS
    bench.submit(3, spec())
    bench.scheduler.went_offline(Idset.parse("3"), 100.0)
    assert set(started(bench.run())) == {1, 2, 3}


def test_a_later_holds_back_its_job_and_not_its_equals(bench_with, plugin):
    asked = plugin(reserve=lambda job, fit: Later("not this one") if job.jobid % 2 else PASS)
    bench = bench_with(asked)
    for jobid in range(1, 9):
        bench.submit(jobid, spec())
    assert set(started(bench.run())) == {2, 4, 6, 8}
    for policy in ("firstfit", "easy", "fifo"):
        many = plugin(policy, reserve=Later("none of them"))
        bench = bench_with(many, policy=policy)
        for jobid in range(3 * LATERS_MAX):
            bench.submit(jobid, duration=10.0)
        assert started(bench.run()) == {}
        assert many.count("reserve") <= LATERS_MAX


def test_a_planned_head_that_a_plugin_refuses_holds_back_none_of_its_queue(bench_with, plugin):
    """Under `fair` it would stay the head as long as it is refused."""
    asked = plugin(reserve=lambda job, fit: Later("not this one") if job.jobid == 4 else PASS)
    bench = bench_with(asked, policy="fair")

    def submit(jobid, queue, nodes, limit_s):
        kind = spec(queue=queue, nodes=nodes, exclusive=True, duration=limit_s)
        bench.did(bench.scheduler.alloc(jobid, 16, 1000 + jobid, float(jobid), kind, bench.now_s))
        bench.run()
        return {made.jobid for made in bench.scheduler.report.planned()}

    submit(1, "batch", 2, 10.0)
    submit(2, "debug", 2, 20.0)
    assert submit(3, "batch", 4, 10.0) == {3}
    assert submit(4, "debug", 4, 10.0) == {3, 4}
    assert submit(5, "debug", 4, 10.0) == {3, 4}
    bench.cancel(3)
    for jobid in (1, 2):
        bench.free(jobid)
    submit(6, "batch", 4, 10.0)
    assert 4 not in bench.granted
    assert bench.granted


def test_permits_wait_are_given_refused_and_time_out(bench_with, plugin):
    asked = plugin("door", reserve=PASS, unreserve=None, permit=Wait(60.0, "knock"), on_free=None)
    bench = bench_with(asked)
    for jobid in (1, 2, 3):
        bench.submit(jobid, nodes=1, exclusive=True, duration=100.0)
    found = bench.run()
    assert started(found) == {}
    assert told(found) == dict.fromkeys((1, 2, 3), "plugin 'door': knock")
    assert len(bench.allocated.ranks) == 3
    assert bench.scheduler.why(1, 100.0).reason == "waits for a permit; plugin 'door': knock"
    bench.now_s = 130.0
    (grant,) = bench.did(bench.scheduler.permit(1, "door", True, "", 130.0))
    assert (grant.starttime_s, grant.expiration_s) == (130.0, 230.0)
    asked.permit = None
    assert asked.count("unreserve") == 0
    bench.did(bench.scheduler.permit(2, "door", False, "go away", 130.0))
    assert asked.count("unreserve") == 1
    assert len(bench.allocated.ranks) == 2
    assert len(bench.scheduler.cancel(3)) == 1
    assert len(bench.allocated.ranks) == 1
    assert asked.count("unreserve") == 2
    assert asked.count("on_free") == 0
    bench.free(1)
    assert asked.count("on_free") == 1


def test_a_permit_that_is_not_given_in_time_is_asked_for_again(bench_with, plugin):
    says = [Wait(60.0)]
    asked = plugin("door", reserve=PASS, unreserve=None, permit=lambda job, fit, now_s: says[0])
    bench = bench_with(asked)
    bench.submit(1, spec())
    bench.run()
    assert bench.scheduler.next_notice_s == 160.0
    bench.now_s, says[0] = 160.0, PASS
    assert started(bench.run()) == {1: "0"}
    assert (asked.count("reserve"), asked.count("unreserve")) == (2, 1)


def test_jobs_that_start_together_wait_for_each_other(bench_with, plugin):
    here = set()

    def permit(job, fit, now_s):
        here.add(job.jobid)
        return PASS if len(here) == 3 else Wait(60.0, "for its partners")

    bench = bench_with(plugin(permit=permit, reserve=PASS))
    bench.submit(1, spec())
    bench.submit(2, spec())
    assert started(bench.run()) == {}
    bench.submit(3, spec())
    assert set(started(bench.run())) == {1, 2, 3}


def test_what_waits_for_a_permit_goes_back_when_its_target_goes(bench_with, plugin):
    asked = plugin("door", reserve=PASS, unreserve=None, permit=Wait(60.0))
    bench = bench_with(asked)
    bench.submit(1, spec())
    bench.run()
    bench.did(bench.scheduler.shrunk("default", Idset.parse("0"), True, 100.0))
    assert asked.count("unreserve") == 1
    bench.run()
    assert str(bench.allocated.ranks) == "1"
    bench.did(bench.scheduler.went_offline(Idset.parse("1"), 100.0))
    assert not bench.allocated.ranks


def test_binding(bench_with, plugin, calls):
    says = [Later("not yet")]
    plugins = [
        plugin("a", reserve=PASS, unreserve=None, pre_bind=lambda job, fit: says[0], bind=SKIP, post_bind=None),
        plugin("b", bind=lambda job, fit: {"node": fit.parts[0].rank}, on_free=None),
        plugin("c", bind={"never": 1}),
    ]
    bench = bench_with(*plugins)
    bench.submit(1, spec())
    assert started(bench.run()) == {}
    assert not bench.allocated.ranks
    says[0] = PASS
    bench.scheduler.went_offline(Idset.parse("3"), 100.0)
    (grant,) = [each for each in bench.run() if isinstance(each, Granted)]
    assert grant.annotations["b"] == {"node": 0}
    assert "c" not in grant.annotations
    assert [point for name, point, _ in calls if name == "a"][-4:] == ["reserve", "pre_bind", "bind", "post_bind"]
    bench.free(1)
    assert plugins[1].count("on_free") == 1
