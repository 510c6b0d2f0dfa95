"""Drained parts of targets as the scheduler knows them: what it places beside them, plans, and thinks feasible.

The judge at the end knows the parts as numbers alone: it shares no code with what it judges.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import PartsByRank
from tests.generated.share import DEAR, first
from tests.sched.elastic.elastic_site import ElasticSite, jobspec
from tests.sched.living_site import LivingSite
from tests.sched.policies.preemption_site import Site as FairSite
from tests.sched.site import Bench, holding, make_r, spec

POLICIES = (
    "fifo", "firstfit", "firstfit:order=sjf", "easy", "easy:order=saf", "hybrid:depth=3", "conservative",
    "conservative:compress", "fair:backfill=easy", "fair:backfill=conservative",
)  # fmt: skip


def parts_of(drained: dict[int, tuple[set[int], set[int]]]) -> PartsByRank:
    return PartsByRank.parse([
        {"rank": str(rank), "children": {"core": str(Idset.of(cores)), "gpu": str(Idset.of(gpus))}}
        for rank, (cores, gpus) in drained.items() if cores or gpus
    ])  # fmt: skip


def tell(bench: Bench, **cores: str) -> None:
    """Tell which cores are drained: `r0="2-3"`."""
    drained = {int(rank[1:]): (set(Idset.parse(text)), set[int]()) for rank, text in cores.items()}
    bench.did(bench.scheduler.updated("default", now_s=bench.now_s, parts=parts_of(drained)))


def cores_of(bench: Bench, jobid: int) -> str:
    return bench.granted[jobid].summary()


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_placed_on_a_drained_part(policy: str) -> None:
    bench = Bench(policy)
    bench.grow("0-1")
    tell(bench, r0="1-3", r1="0-1")
    bench.submit(1, nslots=3)
    assert list(bench.starts()) == [1]
    assert bench.granted[1].count("core") == 3
    assert not bench.granted[1] & make_r("0-1").restrict(Idset(1)) - make_r("0", cores=1)
    tell(bench)
    bench.submit(2, nslots=5)
    assert list(bench.starts()) == [2]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_holds_a_drained_part_runs_on_and_no_other_gets_it(policy: str) -> None:
    bench = Bench(policy)
    bench.grow("0")
    bench.submit(1, nslots=4, duration=1000.0)
    assert list(bench.starts()) == [1]
    tell(bench, r0="2-3")
    assert cores_of(bench, 1) == "rank0/core[0-3]"
    bench.submit(2, nslots=3, duration=10.0)
    bench.submit(3, nslots=2, duration=10.0)
    assert bench.starts() == {}
    bench.free(1)
    found = bench.starts()
    assert found == {} if policy == "fifo" else list(found) == [3]
    tell(bench)
    while bench.granted:
        bench.free(next(iter(bench.granted)))
    bench.starts()
    assert 2 in bench.granted


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_for_more_than_is_left_is_feasible_and_waits(policy: str) -> None:
    bench = Bench(policy)
    bench.grow(make_r("0-1", gpus=1, ssd="0"))
    tell(bench, r0="3", r1="0-3")
    bench.submit(1, cores=4, nodes=2)
    bench.submit(2, cores=4, constraint={"properties": ["ssd"]})
    assert bench.starts() == {}
    assert "none is free" in bench.why(1)
    bench.submit(3, cores=5, nodes=1)
    assert bench.starts() == {}
    assert 3 not in bench.granted
    tell(bench)
    assert list(bench.starts()) == [1]


def test_a_target_without_a_core_left_is_not_used_until_it_has_one() -> None:
    bench = Bench("firstfit")
    bench.grow(make_r("0", gpus=1))
    tell(bench, r0="0-3")
    bench.did(bench.scheduler.went_offline(Idset(1), 1.0))
    bench.submit(1)
    assert bench.starts() == {}
    bench.did(bench.scheduler.went_online(Idset(1), 2.0))
    assert bench.starts() == {}
    tell(bench, r0="0-2")
    assert bench.starts() == {1: "0"}
    assert cores_of(bench, 1) == "rank0/core3"


def test_one_that_went_offline_stays_so_when_its_parts_come_back() -> None:
    bench = Bench("firstfit")
    bench.grow("0")
    tell(bench, r0="0-3")
    bench.did(bench.scheduler.went_offline(Idset(1), 1.0))
    tell(bench)
    bench.submit(1)
    assert bench.starts() == {}
    bench.did(bench.scheduler.went_online(Idset(1), 2.0))
    assert bench.starts() == {1: "0"}


def test_an_exclusive_job_gets_what_is_left_of_the_target() -> None:
    bench = Bench("easy")
    bench.grow("0")
    tell(bench, r0="2-3")
    bench.submit(1, nodes=1, exclusive=True)
    assert bench.starts() == {1: "0"}
    assert cores_of(bench, 1) == "rank0/core[0-1]"


def test_a_job_found_running_on_a_drained_part_keeps_it() -> None:
    bench = Bench("easy")
    bench.grow("0-1")
    tell(bench, r0="0-1", r1="0-3")
    held = make_r("0", cores=3)
    bench.did(bench.scheduler.hello(7, 16, 1000, 0.0, held, Idset(0), spec(nslots=3)))
    bench.submit(1, nslots=2)
    assert bench.starts() == {}
    assert bench.allocated.summary() == "rank0/core2"  # the part of it that the group counts
    bench.did(bench.scheduler.free(7, held, True))
    assert list(bench.starts()) == [1]
    assert cores_of(bench, 1) == "rank0/core[2-3]"


def test_parts_survive_a_shrink_and_a_grow_of_their_target() -> None:
    bench = Bench("firstfit")
    bench.grow("0-1")
    tell(bench, r0="0-2")
    bench.shrink("0", typed=False)
    bench.grow("0")
    bench.submit(1, constraint={"ranks": ["0"]})
    assert bench.starts() == {1: "0"}
    assert cores_of(bench, 1) == "rank0/core3"


def test_a_plan_ends_no_job_early_on_drained_parts() -> None:
    """A reservation waits for the cores that come back, not for those that do not."""
    bench = Bench("easy")
    bench.grow("0-1")
    bench.submit(1, nslots=8, duration=100.0)
    bench.starts()
    tell(bench, r0="0-3")
    bench.submit(2, nslots=5, duration=50.0)
    bench.starts()
    assert bench.scheduler.why(2, bench.now_s).earliest_s is None
    bench.submit(3, nslots=4, duration=50.0)
    bench.cancel(2)
    bench.starts()
    assert bench.scheduler.why(3, bench.now_s).earliest_s == 200.0


def test_an_elastic_job_grows_by_no_drained_part() -> None:
    site = ElasticSite("easy", "0-3")
    site.submit(1, jobspec(2, elastic=False))
    site.submit(2, jobspec("1-4", cores=4))
    site.submit(3, jobspec("1-4", cores=3))
    site.run()
    site.did(site.scheduler.updated("default", now_s=site.now_s, parts=parts_of({0: ({3}, set()), 1: ({0}, set())})))
    before = {jobid: site.held[jobid].ranks for jobid in (2, 3)}
    site.end(1)
    site.run()
    assert site.held[2].ranks == before[2], "it needs four cores of each"
    assert site.held[3].ranks - before[3] == Idset.parse("0-1")
    assert site.held[3].restrict(Idset.parse("0-1")).summary() == "rank0/core[0-2] rank1/core[1-3]"


@pytest.mark.parametrize("is_drained", [False, True])
def test_no_job_is_preempted_for_cores_that_are_drained(is_drained: bool) -> None:
    """Of three that hold a target each, the one on the lowest rank goes, unless what it would leave is too small."""
    site = FairSite(3, 4)
    lowest, other, _ = site.submit("a", 3, nodes=1)
    site.passes()
    (rank,) = holding(site.scheduler, lowest).parts
    if is_drained:
        site.scheduler.updated("default", parts=parts_of({rank: ({0}, set())}))
    site.submit("b", nodes=1, cores=4)
    assert site.passes(60) == [other if is_drained else lowest]


# ---- any site, any policy, and the judge


class MadeSite(LivingSite):
    """A site of some targets where jobs come and end and parts are drained and undrained at random."""

    def __init__(self, seed: int, policy: str, *, knows: bool = True) -> None:
        super().__init__(policy)
        self.knows = knows
        self.chance = random.Random(f"{seed} {policy}")
        self.targets = self.chance.randint(1, 6)
        self.drained: dict[int, tuple[set[int], set[int]]] = {}
        self.faults: list[str] = []
        self.starts: set[int] = set()

    def run(self, jobs: int = 30) -> None:
        chance = self.chance
        for jobid in range(1, jobs + 1):
            self.at(chance.choice((0.0, chance.uniform(0, 2000))), partial(self._submit, jobid, self._job()))
        for _ in range(30):
            self.at(chance.uniform(0, 3000), self._drain)
        self.at(3000.0, lambda: self._tell({}))
        self.live(make_r(f"0-{self.targets - 1}" if self.targets > 1 else "0", cores=4, gpus=1))

    def _job(self) -> dict[str, Any]:
        chance = self.chance
        limit_s = float(chance.choice((0, 400, 400, 800, 1200)))
        return {"duration": limit_s, **chance.choice((
            {"nodes": chance.randint(1, self.targets), "exclusive": True},
            {"nodes": chance.randint(1, self.targets), "cores": chance.randint(1, 4)},
            {"nslots": chance.randint(1, 4 * self.targets)},
            {"nslots": 1, "gpus": 1},
            {"nslots": 1, "cores": 4},
        ))}  # fmt: skip

    def _submit(self, jobid: int, wanted: dict[str, Any]) -> None:
        self.scheduler.alloc(jobid, 16, jobid % 3, self.now_s, spec(**wanted), self.now_s)

    def _drain(self) -> None:
        chance = self.chance
        rank = chance.randrange(self.targets)
        some = set(chance.sample(range(4), chance.randint(0, 4))), set(chance.sample([0], chance.randint(0, 1)))
        self._tell({**self.drained, rank: some})

    def _tell(self, drained: dict[int, tuple[set[int], set[int]]]) -> None:
        self.drained = drained
        if self.knows:
            self.scheduler.updated("default", now_s=self.now_s, parts=parts_of(drained))

    def started(self, jobid: int, held: ResourceSet) -> None:
        self.starts.add(jobid)
        self.at(self.now_s + self.chance.uniform(1, 400), partial(self.end, jobid))
        for rank, (cores, gpus) in self.drained.items():
            if rank in held.ranks:
                mine = held.children(rank)
                if set(mine.cores) & cores or set(mine.gpus) & gpus:
                    self.faults.append(f"job {jobid} started on {mine} of rank {rank}, drained {cores} {gpus}")


CASES = [(seed, policy) for seed in range(40) for policy in POLICIES]


@pytest.mark.parametrize("part", range(8))
def test_no_start_uses_a_drained_part_and_all_that_waits_starts(part: int) -> None:
    for seed, policy in first(CASES, DEAR)[part::8]:
        site = MadeSite(seed, policy)
        site.run()
        assert not site.faults, f"{policy}, seed {seed}: {site.faults}"
        assert len(site.starts) == 30, f"{policy}, seed {seed}: {sorted(site.starts)}"


def test_the_judge_sees_a_start_on_a_drained_part() -> None:
    site = MadeSite(1, "firstfit", knows=False)
    site.run()
    assert site.faults
