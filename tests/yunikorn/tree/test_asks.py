"""Asks in the engine: certain nodes, facts beyond capacity, hand-over, nodes that come and go, dropped passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Count, Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LocalProtocolError, RemoteProtocolError
from fluxsched.sched.decisions import Granted
from fluxsched.sched.hooks import PASS, Later
from fluxsched.sched.loading import Option
from fluxsched.yunikorn.tree.queues import RUNNING, STARTING, AskOptions, AskTerms

from .site import TreeSite, amounts, leaf, parent

DEFAULT_GROUP, GATE, NODE, RESERVED = "default", "gate", "node", "reserved"


@pytest.fixture
def site():
    return TreeSite(parent("root", leaf("default")))


def kind(site, jobid):
    found = site.scheduler.report.why_waiting(jobid)
    return None if found is None else found.kind


def test_an_ask_waits_for_the_first_node_and_is_never_denied(site):
    one = site.application("one")
    (large, small) = (*site.ask(one, amounts(vcore=9)), *site.ask(one, amounts(vcore=1)))
    assert site.run() == []
    site.node(amounts(vcore=2))
    assert site.run() == [small]
    assert kind(site, large) == NODE
    why = site.scheduler.why(large, site.now_s)
    assert "9 vcore" in why.reason
    assert why.rule == "of application one in queue root.default, under tree"
    site.node(amounts(vcore=9))
    assert site.run() == [large]


def test_an_ask_that_needs_a_node_has_it_kept_at_once(site):
    for _ in range(3):
        site.node(amounts(vcore=10))
    one = site.application("one")
    filling = site.ask(one, amounts(vcore=6), times=3)
    assert site.run() == filling
    rank = site.ranks[filling[1]]
    (there,) = site.ask(one, amounts(vcore=8), options=AskOptions(node=rank))
    assert site.run() == []
    assert kind(site, there) == RESERVED
    others = site.ask(one, amounts(vcore=4), times=3)
    assert site.run() == others[:2], "none goes to the node that is kept"
    site.free(filling[1])
    assert site.run() == [there]
    assert site.ranks[there] == rank


def test_a_node_that_an_ask_needs_and_that_is_absent_comes(site):
    site.node(amounts(vcore=10))
    one = site.application("one")
    (there,) = site.ask(one, amounts(vcore=8), options=AskOptions(node=1))
    assert site.run(until_s=10.0) == []
    site.node(amounts(vcore=10))
    assert site.run() == [there]
    assert site.ranks[there] == 1


@pytest.mark.parametrize("how", ["down", "gone", "cancel"])
def test_a_node_is_no_longer_kept_when_it_or_the_ask_goes(site, how):
    site.node(amounts(vcore=10)), site.node(amounts(vcore=10))
    one = site.application("one")
    assert len(site.ask(one, amounts(vcore=6), times=2) and site.run()) == 2
    (there,) = site.ask(one, amounts(vcore=8), options=AskOptions(node=0))
    assert site.run() == []
    if how == "cancel":
        site.scheduler.cancel(there)
    elif how == "down":
        site.scheduler.went_offline(Idset(1))
    else:
        site.free(*[jobid for jobid, rank in site.ranks.items() if rank == 0])
        site.scheduler.shrunk(DEFAULT_GROUP, Idset(1), typed=False)
    assert site.run() == []
    assert kind(site, there) == (None if how == "cancel" else NODE)
    if how == "down":
        site.scheduler.went_online(Idset(1))
        assert site.run() == []
        assert kind(site, there) == RESERVED


def test_what_a_resource_manager_has_is_a_fact(site):
    """Beyond the queue's maximum and the node's capacity; nothing more starts there until there is room again."""
    site = TreeSite(parent("root", leaf("default", maximum=amounts(vcore=5))))
    rank = site.node(amounts(vcore=10))
    one = site.application("one")
    for jobid in (101, 102):
        site.scheduler.adopt(jobid, rank, amounts(vcore=8), AskTerms(one), 0.0)
    assert one.usage == amounts(vcore=16)
    (small,) = site.ask(one, amounts(vcore=1))
    assert site.run() == []
    site.free(101)
    assert site.run() == []
    site.free(102)
    assert site.run() == [small]
    with pytest.raises(RemoteProtocolError, match="exists already"):
        site.scheduler.adopt(small, rank, amounts(vcore=8), AskTerms(one), 0.0)


def test_a_placeholder_hands_over_in_one_step(site):
    rank = site.node(amounts(vcore=10, memory=10))
    one = site.application("one")
    (placeholder,) = site.ask(one, amounts(vcore=8, memory=4))
    assert site.run() == [placeholder]
    (real,) = site.ask(one, amounts(vcore=5, memory=4))
    (other,) = site.ask(one, amounts(vcore=5))
    assert site.run() == []
    with pytest.raises(RemoteProtocolError, match="cannot hand over"):
        site.scheduler.replace(placeholder, real, amounts(vcore=9))
    assert one.usage == amounts(vcore=8, memory=4)
    site.scheduler.replace(placeholder, real, amounts(vcore=5, memory=4))
    assert one.usage == amounts(vcore=5, memory=4)
    assert one.allocations == {real: amounts(vcore=5, memory=4)}
    assert site.run() == [other]
    assert site.ranks[other] == rank
    assert kind(site, real) is None


def test_capacity_may_fall_below_what_is_held(site):
    rank = site.node(amounts(vcore=10))
    one = site.application("one")
    held = site.ask(one, amounts(vcore=4), times=2)
    assert site.run() == held
    site.scheduler.resized(rank, amounts(vcore=5))
    (small,) = site.ask(one, amounts(vcore=1))
    assert site.run() == []
    site.free(held[0])
    assert site.run() == [small]


def test_an_ask_within_a_pass_is_served_in_it(site):
    """A resource manager asks for the next of the same as soon as one is granted."""
    site.node(amounts(vcore=10))
    one = site.application("one")
    site.ask(one, amounts(vcore=1))
    granted = 0
    for effect in site.scheduler.schedule(0.0):
        if isinstance(effect, Granted):
            granted += 1
            if granted < 5:
                site.ask(one, amounts(vcore=1))
    assert granted == 5


def test_a_pass_that_is_dropped_goes_on_where_it_was(site):
    site.node(amounts(vcore=10))
    one = site.application("one")
    site.ask(one, amounts(vcore=1), times=12)
    found = []
    while True:
        effects = site.scheduler.schedule(0.0)
        granted = next((effect.jobid for effect in effects if isinstance(effect, Granted)), None)
        if granted is None:
            break
        found.append(granted)
        effects.close()
        site.scheduler.check()
    assert found == list(range(1, 11))


def test_in_a_stateaware_leaf_one_application_begins_after_the_other():
    site = TreeSite(parent("root", leaf("default", sort="stateaware")))
    site.node(amounts(vcore=20))
    first, second, third = (site.application(id) for id in ("a", "b", "c"))
    asked = [site.ask(each, amounts(vcore=1), times=2) for each in (first, second, third)]
    granted = [
        effect.jobid
        for effect in site.scheduler.schedule(0.0)
        if isinstance(effect, Granted) and not site.tree.set_stage(first, STARTING)
    ]
    assert granted == asked[0], "no other one begins while the first is starting"
    site.tree.set_stage(first, RUNNING)
    assert site.run() == asked[1] + asked[2]


class OddOnes:
    """Lets asks of even ids wait until it is told otherwise."""

    name = "odd-ones"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}
    strict = True

    def look(self, job, rank):
        return Later("even") if self.strict and not job.jobid % 2 else PASS


def test_an_ask_that_a_plugin_holds_back_is_passed_over_and_its_equals_are_not():
    plugin = OddOnes()
    site = TreeSite(parent("root", leaf("default")), {"": [plugin]})
    site.node(amounts(vcore=10))
    one, two = site.application("one"), site.application("two")
    asked = [*site.ask(one, amounts(vcore=1), times=5), *site.ask(two, amounts(vcore=1), times=3)]
    assert site.run() == [1, 3, 5, 7]
    assert kind(site, 2) == GATE
    assert kind(site, asked[-1]) == GATE
    assert site.ask(one, amounts(vcore=1)) == [9]
    assert site.run() == [9]
    site.scheduler.cancel(4)
    plugin.strict = False
    site.free(1)
    assert site.run() == [2, 6, 8]


def test_originators_and_priorities_come_first(site):
    site.node(amounts(vcore=10))
    one = site.application("one")
    plain = site.ask(one, amounts(vcore=1))
    originator = site.ask(one, amounts(vcore=1), options=AskOptions(is_originator=True))
    high = site.ask(one, amounts(vcore=1), priority=2)
    older = site.ask(one, amounts(vcore=1), t_s=-1.0)
    assert site.run() == [*high, *originator, *older, *plain]


# ---- nodes; `tests/sched/pool/test_pool_model.py` compares where asks are placed with a reference


def mixed(*entries):
    """Nodes of (ranks, cores, amounts)."""
    made = [
        {"rank": ranks, "children": {"core": f"0-{cores - 1}"} if cores else {}, "amounts": own}
        for ranks, cores, own in entries
    ]
    ranks = ",".join(ranks for ranks, *_ in entries)
    execution = {"R_lite": made, "starttime": 0, "expiration": 0, "nodelist": [f"n[{ranks}]"]}
    return ResourceSet.parse({"version": 1, "execution": execution})


def test_one_grow_brings_nodes_with_cores_and_without(site):
    site.do(site.scheduler.grown(DEFAULT_GROUP, r := mixed(("0", 2, {}), ("1-2", 0, {"vcore": 4})), r.ranks, Idset()))
    one = site.application("one")
    asked = site.ask(one, amounts(vcore=3), times=3)
    assert site.run() == asked[:2]
    assert [site.ranks[id] for id in asked[:2]] == [1, 2]
    assert [part.count("vcore") for part in site.scheduler.report.resource_status()[::2]] == [8, 6]
    with pytest.raises(LocalProtocolError, match="no target without cores"):
        site.scheduler.resized(0, ())
    site.scheduler.shrunk(DEFAULT_GROUP, Idset.parse("1-2"), typed=False)
    site.free(*asked[:2])
    assert site.run() == []


def test_more_than_one_slot_without_cores_never_fits(site):
    site.node(amounts(vcore=4))
    several = Request(slots=Count.fixed(2), cores=0, amounts=amounts(vcore=1))
    site.scheduler.enter(1, 1, 0.0, several, AskTerms(site.application("one")))
    assert site.run() == []
    assert "one slot on one node" in site.scheduler.why(1, 0.0).reason


def test_a_search_skips_thousands_of_nodes_that_are_too_small(site):
    added = mixed(("0-8999,9001-9999", 0, {"memory": 10, "vcore": 4}), ("9000,16384", 0, {"memory": 11, "vcore": 4}))
    site.do(site.scheduler.grown(DEFAULT_GROUP, added, added.ranks, Idset()))
    ids = site.ask(site.application("one"), amounts(memory=11), times=3)
    assert site.run() == ids[:2]
    assert [site.ranks[id] for id in ids[:2]] == [9000, 16384]
