"""Plugins under the policy `tree`: asks of amounts are filtered, scored, looked at and gated like jobs."""

from fluxsched.sched.hooks import PASS, Gate, Later, Never
from fluxsched.yunikorn.tree.asks import QuotaAdmission
from tests.sched.site import limit, scheduler_of

from .site import TreeSite, amounts, leaf, parent

GATE = limit("GATE")


def site_with(**points):
    """Nodes 0 to 2 of 10, 3 of 20, under a plugin with these points."""
    plugin = type("Plugin", (), {"name": "p", **{name: staticmethod(point) for name, point in points.items()}})()
    site = TreeSite(parent("root", leaf("default")))
    site.scheduler = scheduler_of("tree", notify=False, admission=QuotaAdmission(site.tree), plugins={"": [plugin]})
    for memory in (10, 10, 10, 20):
        site.node(amounts(memory=memory))
    return site


def test_filters_and_scores_know_nodes_by_their_amounts():
    site = site_with(filter=lambda shape, kind: Later("small") if kind.amounts == amounts(memory=10) else PASS)
    ids = site.ask(site.application("a"), amounts(memory=10), times=3)
    assert site.run() == ids[:2]
    assert set(site.ranks.values()) == {3}
    lacking = site.scheduler.report.why_waiting(ids[2])
    assert lacking is not None
    assert (lacking.kind, lacking.text) == (GATE, "plugin 'p': small")
    site = site_with(score=lambda shape, kind: 90 if kind.amounts == amounts(memory=20) else 10)
    (first, second) = site.ask(site.application("a"), amounts(memory=20)) + site.ask(
        site.application("b"), amounts(memory=5)
    )
    assert site.run() == [first, second]
    assert (site.ranks[first], site.ranks[second]) == (3, 0)


def test_the_next_node_after_an_objection():
    site = site_with(look=lambda job, rank: PASS if rank == 2 else Later("not that"))
    ids = site.ask(site.application("a"), amounts(memory=5), times=3)
    assert site.run() == ids[:2]
    assert set(site.ranks.values()) == {2}


def test_asks_are_never_denied():
    site = site_with(pre_filter=lambda shape, group: Never("no"))
    site.ask(site.application("a"), amounts(memory=5))
    assert site.run() == []
    site = site_with(pre_enqueue=lambda job: Gate("closed", at_s=50.0) if job.now_s < 50.0 else PASS)
    (id,) = site.ask(site.application("a"), amounts(memory=5))
    assert site.run() == []
    lacking = site.scheduler.report.why_waiting(id)
    assert lacking is not None
    assert lacking.text == "plugin 'p': closed"
    assert site.run(60.0) == [id]
