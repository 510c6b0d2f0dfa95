"""The policy `tree` beside planned outages: asks have no time limit, so none starts where an outage is ahead or on."""

from __future__ import annotations

from random import Random

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.outages import Outage, Outages
from tests.generated.share import first
from tests.yunikorn.tree.site import TreeSite, amounts, leaf, parent

OutageAsNumbers = tuple[set[int], float, float]


def play(seed: int, *, knows: bool = True) -> list[str]:
    """Return the starts that cross an outage, in a made-up site that starts all its asks in the end."""
    chance, faults = Random(seed), list[str]()
    site = TreeSite(parent("root", leaf("default"), leaf("other")))
    nodes = chance.randint(2, 6)
    for _ in range(nodes):
        site.node(amounts(vcore=4))
    outages: list[OutageAsNumbers] = []
    for _ in range(chance.randint(1, 4)):
        from_s = chance.uniform(10, 500)
        some = set(chance.sample(range(nodes), chance.randint(1, nodes)))
        outages.append((some, from_s, from_s + chance.uniform(1, 200)))
    known = [Outage(f"o{at}", Idset.of(some), *times) for at, (some, *times) in enumerate(outages)]
    site.do(site.scheduler.updated("default", now_s=0.0, outages=Outages(known if knows else ())))
    turns = sorted({at for _, *times in outages for at in times} | {chance.uniform(0, 900) for _ in range(20)})
    applications = [site.application("a"), site.application("b", "root.other", "bob")]
    for turn_s in turns:
        site.now_s = turn_s
        down = set().union(*[some for some, from_s, until_s in outages if from_s <= turn_s < until_s])
        site.do(site.scheduler.went_offline(Idset.of(down), turn_s))
        site.do(site.scheduler.went_online(Idset.of(set(range(nodes)) - down), turn_s))
        if chance.random() < 0.7:
            site.ask(chance.choice(applications), amounts(vcore=chance.randint(1, 4)), chance.randint(1, 3))
        site.free(*[id for id in list(site.held) if chance.random() < 0.4])
        for id in site.run():
            for some, _, until_s in outages:
                if site.ranks[id] in some and turn_s < until_s:
                    faults.append(f"ask {id} on {site.ranks[id]} at {turn_s}: {until_s}")
    while site.held:
        site.free(*list(site.held))
        site.run()
    assert len(site.ranks) == site.last_id, "an ask waits though no outage is ahead"
    return faults


@pytest.mark.parametrize("part", range(4))
def test_no_ask_starts_where_an_outage_is_ahead_and_all_start_in_the_end(part: int) -> None:
    for seed in first(range(200))[part::4]:
        assert not play(seed), f"seed {seed}"


def test_the_judge_sees_an_ask_that_starts_there() -> None:
    assert play(1, knows=False)
