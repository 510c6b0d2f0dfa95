"""Bounds on hops in the scheduler: what is waited for, what is denied, and another network while it runs."""

from fluxsched.core.topology import EMPTY_TOPOLOGY, Topology
from fluxsched.sched.decisions import Denied
from tests.sched.elastic.elastic_site import ElasticSite, jobspec
from tests.sched.site import make_r, spec

TWO_LEAVES = Topology.parse(
    [{"name": "l0", "hosts": "n[0-3]"}, {"name": "l1", "hosts": "n[4-7]"}, {"name": "s", "switches": "l[0-1]"}]
)
ONE_LEAF = Topology.parse([{"name": "all", "hosts": "n[0-7]"}])


def bounded(spec, max_hops):
    spec["attributes"]["system"].setdefault("fluxsched", {})["max-hops"] = max_hops
    return spec


def test_a_job_waits_for_room_within_its_bound(bench):
    bench.grow(make_r("0-7").with_topology(TWO_LEAVES))
    for jobid, n in enumerate((2, 2, 1)):
        bench.submit(jobid, nodes=n, exclusive=True)
    bench.run()
    assert [str(bench.granted[jobid].ranks) for jobid in range(3)] == ["0-1", "2-3", "4"]
    bench.submit(3, bounded(spec(nodes=4, exclusive=True), 2))
    bench.run()
    assert bench.why(3).endswith("; 3 nodes fit now, 5 nodes are busy")
    bench.free(1, "3")
    bench.run()
    assert bench.why(3).endswith("; at most 3 nodes are under one switch of 2 hops (l1)")
    bench.free(2)
    bench.run()
    granted = bench.granted[3]
    assert str(granted.ranks) == "4-7"
    assert granted.topology.to_json() == [{"name": "l1", "hosts": "n[4-7]"}, {"name": "s", "switches": "l1"}]
    assert bench.granted[0].topology.lowest_common(["n0", "n1"]) == "l0"


def test_a_bound_that_can_never_be_met_is_denied(bench):
    bench.grow(make_r("0-7").with_topology(TWO_LEAVES))
    (denied,) = bench.submit(1, bounded(spec(nodes=5, exclusive=True), 2))
    assert isinstance(denied, Denied)
    assert "within 2 hops; at most 4 nodes are under one switch of 2 hops (l0 or l1)" in denied.note


def test_another_network_is_taken_while_jobs_wait(bench):
    bench.grow(make_r("0-7").with_topology(TWO_LEAVES), offline="3,7")
    bench.submit(1, bounded(spec(nodes=4, exclusive=True), 2))
    bench.run()
    assert 1 not in bench.granted
    bench.did(bench.scheduler.updated("default", topology=ONE_LEAF))
    bench.run()
    assert str(bench.granted[1].ranks) == "0-2,4"
    assert bench.granted[1].topology.lowest_common(["n0", "n4"]) == "all"
    bench.submit(2, bounded(spec(nodes=2, exclusive=True), 2))
    bench.did(bench.scheduler.updated("default", topology=EMPTY_TOPOLOGY))
    bench.run()
    assert 2 not in bench.granted  # it was accepted, and waits until there is a network again
    assert "since there is no [topology]" in bench.why(2)


def test_an_elastic_job_grows_within_its_bound():
    site = ElasticSite("easy", "0-7")
    site.did(site.scheduler.updated("default", now_s=site.now_s, topology=TWO_LEAVES))
    site.submit(1, bounded(jobspec(1, elastic=False), 2))
    site.submit(2, bounded(jobspec("2-8"), 2))
    site.run()
    assert str(site.held[2].ranks) == "4-7"
    assert site.held[2].topology.lowest_common(["n4", "n7"]) == "l1"
    site.submit(3, bounded(jobspec("1-8"), 4))
    site.run()
    assert str(site.held[3].ranks) == "1-3"


def test_a_job_that_began_on_one_target_knows_its_switches_when_it_grows():
    site = ElasticSite("easy", "0-7")
    site.did(site.scheduler.updated("default", now_s=site.now_s, topology=TWO_LEAVES))
    for jobid, n in enumerate((4, 3), 1):
        site.submit(jobid, jobspec(n, elastic=False))
    site.submit(3, jobspec("1-2"))
    site.run()
    assert str(site.held[3].ranks) == "7"
    site.end(1)
    site.now_s += 100.0
    site.run()
    assert site.held[3].topology.hops("n0", "n7") == 4


def test_an_elastic_job_grows_where_it_is_near():
    """Gangs over leaves of 1 and 8: the smaller is used last, though its rank is the lowest."""
    leaves = [{"name": "l0", "hosts": "n0"}, {"name": "l1", "hosts": "n[1-8]"}, {"name": "s", "switches": "l[0-1]"}]
    site = ElasticSite("easy", "0-8")
    site.did(site.scheduler.updated("default", now_s=site.now_s, topology=Topology.parse(leaves)))
    site.submit(1, jobspec(9, elastic=False, duration=60.0))
    site.run()
    site.submit(2, jobspec("2-6"))
    site.submit(3, jobspec(3, elastic=False))
    site.end(1)
    site.run()
    assert [str(site.held[jobid].ranks) for jobid in (2, 3)] == ["0-2,6-8", "3-5"]
    site.end(2)
    site.end(3)
    site.submit(2, jobspec("2-6:2"))
    site.submit(3, jobspec(1, elastic=False))
    site.run()
    assert [str(site.held[jobid].ranks) for jobid in (2, 3)] == ["1-6", "0"]
