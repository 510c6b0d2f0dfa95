"""Extras that go for a job with a bound on hops go where it can fit, however little work others would lose."""

from random import Random

import pytest

from fluxsched.core.request import Count
from fluxsched.core.topology import Topology
from fluxsched.sched.decisions import Granted, Shrunk
from fluxsched.sched.fair.accounts import FairSettings
from tests.sched.elastic.elastic_site import ElasticSite, jobspec

TWO_LEAVES = Topology.parse([{"name": "a", "hosts": "n[0-3]"}, {"name": "b", "hosts": "n[4-7]"}])


def full(fair, largest="3-7"):
    """Rank 0 is held; an elastic job has all others, of which 4 may go: of the first leaf first, for their ranks."""
    policy = "fair:backfill=easy" if fair else "easy"
    site = ElasticSite(policy, "0-7", topology=TWO_LEAVES, fair=FairSettings())
    site.submit(9, jobspec(1, elastic=False))
    site.run()
    site.submit(1, jobspec(largest), 1000)
    site.run()
    assert str(site.held[1].ranks) == "1-7"
    site.now_s += 10
    return site


@pytest.mark.parametrize("fair", [False, True])
def test_those_go_that_are_under_one_switch(fair):
    site = full(fair)
    site.submit(2, jobspec(4, elastic=False, max_hops=2), 1001)
    (shrunk,) = site.run()
    assert isinstance(shrunk, Shrunk)
    assert (str(shrunk.ranks), shrunk.for_jobid) == ("4-7", 2)
    site.gone()
    assert str(site.held[2].ranks) == "4-7"


def test_what_goes_together_is_put_together_under_that_switch():
    site = full(False, "1-7:3:+")  # 7, 4 or 1: 3 go, or 6
    site.submit(2, jobspec(3, elastic=False, max_hops=2), 1001)
    (shrunk,) = site.run()
    assert isinstance(shrunk, Shrunk)
    assert len(shrunk.ranks) == 3
    site.gone()
    assert site.sizes(1, 2) == [4, 3]


def test_none_goes_where_no_switch_can_have_enough():
    site = full(False, "4-7")  # 3 may go
    site.submit(2, jobspec(4, elastic=False, max_hops=2), 1001)
    assert site.run() == []
    site.submit(3, jobspec(3, elastic=False, max_hops=2), 1001)
    assert site.run() == []  # it is not the first that waits


@pytest.mark.parametrize("seed", range(40))
def test_they_go_just_if_some_choice_of_them_would_do(seed):
    """Of machines that are tight: about as many may go as are wanted, and these fill a switch.

    Without the search by switch 6, 13, 29 and 39 fail.
    """
    chance = Random(seed)
    sizes = [chance.randint(2, 4) for _ in range(chance.randint(2, 3))]
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    leaves = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    switches = [{"name": f"l{at}", "hosts": f"n[{leaf[0]}-{leaf[-1]}]"} for at, leaf in enumerate(leaves)]
    if len(leaves) == 3:
        switches.append({"name": "top", "switches": "l[0-1]"})  # the third leaf is on its own
    bound = chance.choice([2, 2, 4])
    domains = leaves if bound == 2 or len(leaves) == 2 else [[*leaves[0], *leaves[1]], *leaves[2:]]
    wanted = max(map(len, domains)) - chance.choice([0, 0, 1])
    site = ElasticSite("easy", f"0-{ends[-1] - 1}", topology=Topology.parse(switches))
    elastic = {}

    def start(jobid, nodes):
        if isinstance(nodes, str):
            elastic[jobid] = Count.parse(nodes)
        site.submit(jobid, jobspec(nodes, elastic=isinstance(nodes, str)))
        site.now_s += chance.choice([0, 7])
        site.run()

    for jobid in range(1, chance.randint(1, 3)):
        start(jobid, chance.choice([1, 1, 2, "1-2", "2-3"]))
    left = ends[-1] - sum(site.sizes(*site.held))
    may_go = min(left - 1, max(1, wanted + chance.randint(-1, 1)))
    start(9, chance.choice([f"{max(1, left - may_go)}-12"] * 3 + ["1-9:2:+", "2-8:3:+"]))  # it fills the machine
    if any(jobid not in site.held for jobid in site.specs):
        return  # another one waits
    taken = {rank for held in site.held.values() for rank in held.ranks}
    could_go = {}
    for jobid, count in elastic.items():
        ranks = set(site.held[jobid].ranks)
        held = site.elastic(jobid)
        first = -1 if held is None else held.first
        could_go[jobid] = ranks - {first}, max(n for n in range(len(ranks)) if len(ranks) - n in count)
    free = [len(set(domain) - taken) for domain in domains]
    more = [sum(min(n, len(ranks & set(domain))) for ranks, n in could_go.values()) for domain in domains]
    there_is_room = any(a >= wanted for a in free)
    can_be = any(a + b >= wanted for a, b in zip(free, more, strict=True))
    site.submit(77, jobspec(wanted, elastic=False, max_hops=bound))
    effects = site.run()
    assert any(isinstance(one, Granted) and one.jobid == 77 for one in effects) == there_is_room
    if not there_is_room:
        assert any(isinstance(one, Shrunk) for one in effects) == can_be
        site.gone()
        assert (77 in site.held) == can_be
