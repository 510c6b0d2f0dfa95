"""Outages as the scheduler knows them: what it places beside them, when it plans, and what it tells owners.

The judge at the end knows the outages as numbers alone: it shares no code with what it judges.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, NamedTuple

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.outages import OUTAGES_MAX, Outage, Outages
from fluxsched.core.reasons import WaitKind
from fluxsched.core.request import Request
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import LimitExceeded
from tests.chaos.mutations.sabotage import Sabotage, sabotaged
from tests.generated.share import DEAR, first
from tests.sched.elastic.elastic_site import jobspec
from tests.sched.living_site import LivingSite
from tests.sched.site import Bench, limit, make_r, spec

REMAINING_MAX, RESERVATIONS_MAX = limit("REMAINING_MAX", "RESERVATIONS_MAX")
POLICIES = (
    "fifo", "firstfit", "firstfit:order=sjf", "easy", "easy:order=saf", "hybrid:depth=3", "conservative",
    "conservative:compress", "fair:backfill=easy", "fair:backfill=fifo", "fair:backfill=firstfit",
    "fair:backfill=conservative",
)  # fmt: skip


def planned(*outages: tuple[str, float, float] | tuple[str, float, float, float]) -> Outages:
    """Return outages of targets, from and until, which may recur."""
    return Outages([
        Outage(f"o{at}", Idset.parse(targets), *times) for at, (targets, *times) in enumerate(outages)
    ])  # fmt: skip


def bench_of(policy: str, ranks: str, *outages: Any) -> Bench:
    bench = Bench(policy)
    bench.grow(ranks)
    tell(bench, *outages)
    return bench


def tell(bench: Bench, *outages: Any) -> None:
    bench.did(bench.scheduler.updated("default", now_s=bench.now_s, outages=planned(*outages)))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_starts_where_it_crosses_no_outage(policy: str) -> None:
    bench = bench_of(policy, "0-2", ("0-1", 160.0, 200.0))  # it is 100 s
    bench.submit(1, nodes=1, exclusive=True, duration=61.0)
    bench.submit(2, nodes=1, exclusive=True, duration=60.0)
    bench.submit(3, nodes=1, exclusive=True, duration=60.0)
    assert sorted(bench.starts().items()) == [(1, "2"), (2, "0"), (3, "1")]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_without_a_limit_waits_for_the_end_of_the_outage(policy: str) -> None:
    bench = bench_of(policy, "0-1", ("0-1", 1000.0, 2000.0))
    bench.submit(1, nodes=1)
    assert bench.starts() == {}
    bench.did(bench.scheduler.went_offline(Idset(3), 1000.0))
    bench.now_s = 1500.0
    assert bench.starts() == {}
    bench.now_s = 2000.0
    bench.did(bench.scheduler.went_online(Idset(3), 2000.0))
    assert list(bench.starts()) == [1]


@pytest.mark.parametrize("policy", [each for each in POLICIES if "fifo" not in each])
def test_a_shorter_job_of_the_same_shape_is_tried_after_a_longer_one(policy: str) -> None:
    bench = bench_of(policy, "0-1", ("0-1", 160.0, 200.0))
    bench.submit(1, nodes=1, exclusive=True, duration=600.0)
    bench.submit(2, nodes=1, exclusive=True, duration=50.0)
    assert list(bench.starts()) == [2]


@pytest.mark.parametrize("policy", ["easy", "hybrid", "conservative", "fair:backfill=easy"])
def test_a_plan_sees_the_targets_until_the_outage_and_after_it(policy: str) -> None:
    bench = bench_of(policy, "0-3", ("0-3", 1000.0, 2000.0))
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    assert list(bench.starts()) == [1]
    bench.submit(2, nodes=4, exclusive=True, duration=500.0)
    bench.run()
    assert bench.scheduler.why(2, 100.0).earliest_s == 200.0  # before it
    bench.did(bench.scheduler.cancel(2))
    bench.submit(3, nodes=4, exclusive=True, duration=900.0)
    bench.run()
    assert bench.scheduler.why(3, 100.0).earliest_s == 2000.0


@pytest.mark.parametrize("policy", ["easy", "hybrid", "conservative", "fair:backfill=easy"])
def test_a_plan_counts_on_targets_that_an_outage_will_give_back(policy: str) -> None:
    bench = bench_of(policy, "0-3", ("0-2", 50.0, 2000.0))
    bench.did(bench.scheduler.went_offline(Idset(7), 100.0))
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    bench.submit(2, nodes=1, exclusive=True, duration=3000.0)  # would delay the first
    bench.submit(3, nodes=1, exclusive=True, duration=1900.0)
    starts = bench.starts()
    assert bench.scheduler.why(1, 100.0).earliest_s == 2000.0
    assert starts == {3: "3"}


def test_a_job_is_told_which_outage_keeps_it_and_with_which_limit_it_fits() -> None:
    bench = bench_of("easy", "0-1", ("0-1", 100.0 + 180.0, 100.0 + 780.0))
    bench.submit(1, nodes=2, duration=600.0)
    bench.run()
    assert bench.why(1) == (
        "outage o0 keeps n[0-1] from Jan01 00:04 UTC to Jan01 00:14 UTC; the limit of 10m crosses it; "
        "it fits with --time-limit 3m"
    )
    assert bench.scheduler.why(1, 100.0).kind is WaitKind.OUTAGE
    bench.submit(2, nodes=1, exclusive=True, duration=60.0)
    bench.submit(3, nodes=2, exclusive=True, duration=600.0)
    assert list(bench.starts()) == [2]
    assert "outage" not in bench.why(3)


def test_of_several_outages_the_one_is_named_before_which_it_would_fit() -> None:
    bench = bench_of("fifo", "0-1", ("0", 150.0, 160.0), ("1", 400.0, 500.0))
    bench.submit(1, nodes=1, duration=600.0)
    bench.run()
    assert "outage o1 keeps n1 " in bench.why(1)
    assert bench.why(1).endswith("it fits with --time-limit 5m")


def test_feasibility_ignores_outages() -> None:
    bench = bench_of("easy", "0-1", ("0-1", 50.0, 1e9))
    assert bench.submit(1, nodes=2, duration=60.0) == []
    bench.run()
    assert bench.scheduler.why(1, 100.0).earliest_s == 1e9


def test_an_outage_that_is_called_off_keeps_nothing() -> None:
    bench = bench_of("firstfit", "0", ("0", 150.0, 160.0))
    bench.submit(1, nodes=1, duration=60.0)
    assert bench.starts() == {}
    tell(bench)
    assert list(bench.starts()) == [1]


def test_an_outage_that_recurs_keeps_targets_each_time() -> None:
    bench = bench_of("firstfit", "0", ("0", 50.0, 60.0, 100.0))
    bench.submit(1, nodes=1, duration=50.0)
    bench.submit(2, nodes=1, duration=51.0)
    assert list(bench.starts()) == [1]
    bench.free(1)
    assert bench.starts() == {}
    bench.now_s = 159.0
    assert bench.starts() == {}
    assert bench.scheduler.next_notice_s == 160.0  # a pass comes by itself when it ends
    bench.now_s = 160.0
    bench.submit(3, nodes=1, duration=91.0)
    assert list(bench.starts()) == [2]


def test_an_elastic_job_does_not_grow_onto_what_an_outage_will_take() -> None:
    bench = bench_of("easy", "0-3", ("2-3", 150.0, 160.0))
    bench.submit(1, jobspec("1-4", duration=600.0))
    bench.submit(2, jobspec("1-4", duration=50.0))
    bench.run()
    bench.now_s = 110.0
    bench.run()
    assert set(Idset.parse(bench.places[1])) <= {0, 1}


def test_so_many_outages_are_known_at_most() -> None:
    one = Outage("o", Idset(1), 0.0, 1.0)
    assert len(Outages([one] * OUTAGES_MAX).all) == OUTAGES_MAX
    with pytest.raises(LimitExceeded, match=str(OUTAGES_MAX)):
        Outages([one] * (OUTAGES_MAX + 1))


def test_what_is_left_of_so_many_shapes_is_remembered_at_most() -> None:
    bench = bench_of("firstfit", "0", ("0", 150.0, 160.0))
    pool = bench.scheduler.group("default").pool
    for jobid in range(REMAINING_MAX + 2):
        bench.submit(jobid, nodes=1, duration=60.0, constraint={"hostlist": [f"n[0,{jobid + 1}]"]})
    bench.run()
    assert 0 < len(pool.remaining) <= REMAINING_MAX


def test_how_it_is_inside_so_many_reservations_is_remembered_at_most() -> None:
    bench = bench_of("firstfit", "0")
    pool = bench.scheduler.group("default").pool
    for number in range(RESERVATIONS_MAX + 2):
        assert pool.outages_for(Request(reservation=f"r{number}")).barred(0.0, 1.0) == 1
    assert 0 < len(pool._inside) <= RESERVATIONS_MAX


# ---- the judge


class MadeJob(NamedTuple):
    """A job of a made-up site; `limit_s` 0 for none, `lasts_s` is how long it runs."""

    jobid: int
    at_s: float
    limit_s: float
    lasts_s: float
    wanted: dict[str, Any]
    inside: int | None = None
    """The number of the reservation that it names."""


class MadeSite(LivingSite):
    """A made-up site under a policy: outages drain their targets and give them back, jobs come and end.

    The scheduler `knows` the outages, or it does not. With `reserves`, the first ones are reservations; jobs that name
    one come when it begins, and leave when it is over.
    """

    def __init__(self, seed: int, policy: str, *, knows: bool = True, reserves: bool = False) -> None:
        super().__init__(policy)
        self._knows = knows
        chance = random.Random(f"{seed} {policy}")
        self.targets = chance.randint(2, 8)
        self.outages: list[tuple[set[int], float, float, float]] = []
        recurs = chance.random() < 0.4 and not reserves
        for _ in range(chance.randint(1, 6)):
            some = set(chance.sample(range(self.targets), chance.randint(1, self.targets)))
            from_s, lasts_s = chance.choice((chance.uniform(0, 4000), chance.randint(0, 40) * 100.0)), 0.0
            lasts_s = chance.choice((chance.uniform(1, 600), 300.0))
            every_s = 2500.0 + lasts_s if recurs and len(self.outages) == 0 else 0.0
            self.outages.append((some, from_s, from_s + lasts_s, every_s))
        self.reserved = range(chance.randint(1, len(self.outages)) if reserves else 0)
        self.jobs = [self._job(chance, jobid, recurs) for jobid in range(1, 26)]
        if reserves:
            self.jobs = [self._inside(chance, job) if chance.random() < 0.5 else job for job in self.jobs]
        self.starts: dict[int, float] = {}
        self.crossings: list[str] = []

    def _job(self, chance: random.Random, jobid: int, recurs: bool) -> MadeJob:
        wanted: dict[str, Any] = chance.choice((
            {"nodes": chance.randint(1, self.targets), "exclusive": True},
            {"nodes": chance.randint(1, self.targets), "cores": chance.randint(1, 4)},
            {"nslots": chance.randint(1, 4 * self.targets)},
            {"nslots": chance.randint(1, 2), "gpus": 1},
            {"nodes": 1, "constraint": {"properties": ["ssd"]}},
        ))  # fmt: skip
        limit_s = float(chance.choice((50, 100, 300, 600, 1200)))
        if not recurs and chance.random() < 0.1:
            limit_s = 0.0
        lasts_s = chance.uniform(1, 800) if not limit_s else limit_s * chance.choice((1.0, 1.0, 0.5, 0.1))
        return MadeJob(jobid, chance.choice((0.0, chance.uniform(0, 3000))), limit_s, lasts_s, wanted)

    def _inside(self, chance: random.Random, job: MadeJob) -> MadeJob:
        number = chance.choice(self.reserved)
        _, from_s, until_s, _ = self.outages[number]
        limit_s = (until_s - from_s) * chance.choice((1.0, 0.9, 0.5, 0.1))
        at_s = from_s + chance.choice((0.0, chance.uniform(0.0, until_s - from_s)))
        return job._replace(inside=number, at_s=at_s, limit_s=limit_s, lasts_s=limit_s * chance.choice((1.0, 0.3)))

    def run(self) -> None:
        known = [
            Outage(f"o{at}", Idset.of(some), *times, is_reservation=at in self.reserved)
            for at, (some, *times) in enumerate(self.outages)
        ]  # fmt: skip
        outages = Outages(known if self._knows else ())
        self.at(0.0, lambda: self.scheduler.updated("default", now_s=0.0, outages=outages))
        for job in self.jobs:
            self.at(job.at_s, partial(self._submit, job))
            if job.inside is not None:
                self.at(self.outages[job.inside][2], partial(self.scheduler.cancel, job.jobid))
        for number, (some, from_s, until_s, every_s) in enumerate(self.outages):
            some = set() if number in self.reserved else some  # a reservation drains nothing
            for time in range(6 if every_s else 1):
                self.at(from_s + time * every_s, partial(self._turn, some))
                self.at(until_s + time * every_s, partial(self._turn, some))
        self.live(make_r(f"0-{self.targets - 1}", cores=4, gpus=1, ssd="0"))

    def _submit(self, job: MadeJob) -> None:
        asked = spec(duration=job.limit_s, **job.wanted)
        if job.inside is not None:
            asked["attributes"]["system"]["fluxsched"] = {"reservation": f"o{job.inside}"}
        self.scheduler.alloc(job.jobid, 16, job.jobid % 3, job.at_s, asked, self.now_s)

    def _turn(self, some: set[int]) -> None:
        """An outage of these targets begins or ends."""
        down = {rank for rank in some if self._is_out(rank, self.now_s)}
        self.scheduler.went_offline(Idset.of(down), self.now_s)
        self.scheduler.went_online(Idset.of(some - down), self.now_s)

    def _is_out(self, rank: int, now_s: float) -> bool:
        for some, from_s, until_s, every_s in self.outages[len(self.reserved) :]:
            for time in range(6 if every_s else 1):
                if rank in some and from_s + time * every_s <= now_s < until_s + time * every_s:
                    return True
        return False

    def started(self, jobid: int, held: ResourceSet) -> None:
        job, ranks, now_s = self.jobs[jobid - 1], held.ranks, self.now_s
        self.starts[jobid] = now_s
        self.at(now_s + job.lasts_s, partial(self.end, jobid))
        end_s = now_s + job.limit_s if job.limit_s else 1e12
        if job.inside is not None:
            some, from_s, until_s, _ = self.outages[job.inside]
            if not (set(ranks) <= some and from_s <= now_s and end_s <= until_s + 1e-6):
                self.crossings.append(f"job {job.jobid} on {ranks} from {now_s} to {end_s} is outside {job.inside}")
        for number, (some, from_s, until_s, every_s) in enumerate(self.outages):
            if number == job.inside:
                continue
            for time in range(20 if every_s else 1):
                begin_s = from_s + time * every_s
                if some & set(ranks) and begin_s < end_s and now_s < until_s + time * every_s:
                    self.crossings.append(f"job {job.jobid} on {ranks} from {now_s} to {end_s}: {begin_s}")


CASES = [(seed, policy) for seed in range(84) for policy in POLICIES]


@pytest.mark.parametrize("part", range(8))
def test_no_start_crosses_an_outage_and_all_that_waits_starts(part: int) -> None:
    for seed, policy in first(CASES, DEAR)[part::8]:
        site = MadeSite(seed, policy)
        site.run()
        assert not site.crossings, f"{policy}, seed {seed}: {site.crossings}"
        assert len(site.starts) == len(site.jobs), f"{policy}, seed {seed}: {site.jobs} started {site.starts}"


@pytest.mark.parametrize("part", range(4))
def test_in_a_reservation_run_its_jobs_alone_and_these_nowhere_else(part: int) -> None:
    ran = 0
    for seed, policy in first(CASES, DEAR)[part::4]:
        site = MadeSite(seed, policy, reserves=True)
        site.run()
        assert not site.crossings, f"{policy}, seed {seed}: {site.crossings}"
        others = {job.jobid for job in site.jobs if job.inside is None}
        assert others <= site.starts.keys(), f"{policy}, seed {seed}: {site.jobs} started {site.starts}"
        ran += len(site.starts.keys() - others)
    assert ran


_INSIDE = "fluxsched.core.outages:Outages.inside"
SABOTAGES = [
    Sabotage("let all jobs run in a reservation", "fluxsched.core.outages:Outages.crossed", "is not None]",
             "is not None and not outage.is_reservation]"),
    Sabotage("let its jobs run elsewhere", "fluxsched.sched.pool.pool:Pool.outages_for", "if not name", "if True"),
    Sabotage("let its jobs run on other targets", _INSIDE, "targets=ranks - each.targets", "targets=EMPTY"),
    Sabotage("let its jobs run on after its end", _INSIDE, "if until_s > each.until_s:", "if False:"),
    Sabotage("let its jobs run in another one", _INSIDE, "or not each.is_reservation]", "and not each.is_reservation]"),
]  # fmt: skip


@pytest.mark.plain_only("exchanges the code of functions")
@pytest.mark.parametrize("one", SABOTAGES, ids=lambda one: one.name)
def test_the_judge_sees_what_is_wrong_with_a_reservation(one: Sabotage) -> None:
    with sabotaged(one):
        for seed in range(40):
            site = MadeSite(seed, "firstfit", reserves=True)
            site.run()
            if site.crossings:
                return
    raise AssertionError(f"not noticed: {one.name}")


def test_a_job_is_told_what_it_waits_for_in_its_reservation() -> None:
    def named(name: str, duration: float, **options: Any) -> dict[str, Any]:
        return spec(duration=duration, fluxsched={"reservation": name}, **options)

    bench = bench_of("firstfit", "0-3")
    course = Outage("course", Idset(6), 160.0, 400.0, is_reservation=True)
    bench.did(bench.scheduler.updated("default", now_s=100.0, outages=Outages([course])))
    for jobid, job in enumerate((
        named("course", 60.0), named("curse", 60.0), named("course", 241.0), named("course", 60.0, nodes=3),
        spec(nodes=4, duration=90.0), spec(nodes=2, duration=0.0),
    ), 1):  # fmt: skip
        bench.did(bench.scheduler.alloc(jobid, 16, 0, 100.0, job, 100.0))
    assert list(bench.starts()) == [6]
    assert bench.why(1) == "reservation course begins at Jan01 00:02 UTC"
    assert bench.why(2) == "there is no reservation 'curse', or it is over: cancel the job, or submit it without"
    assert {bench.scheduler.why(jobid, 100.0).kind for jobid in (1, 2, 5)} == {WaitKind.RESERVATION}
    assert bench.why(5).startswith("reservation course keeps n[1-2] from Jan01 00:02 UTC to Jan01 00:06 UTC; the limit")
    bench.now_s = 160.0
    assert bench.scheduler.next_notice_s == 160.0
    assert list(bench.starts()) == [1]
    assert bench.why(3) == "reservation course ends at Jan01 00:06 UTC; the limit of 241s crosses that"
    assert bench.why(4) == "reservation course has n[1-2], where not enough is free"


def test_the_judge_sees_a_start_that_crosses() -> None:
    site = MadeSite(1, "firstfit", knows=False)
    site.run()
    assert site.crossings
