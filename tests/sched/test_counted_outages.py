"""EASY beside outages where jobs hold targets whole, so that its plan counts, against one that tries all instants."""

from __future__ import annotations

import random
from math import inf

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.outages import Outage, Outages
from fluxsched.sched.plan.counted_plan import CountedPlan
from tests.generated.share import first
from tests.sched.site import Bench, limit

WaitingJob = tuple[int, float]
"""Nodes and time limit (seconds)."""


class Site:
    """A made-up site of whole targets under EASY; all about it is known as numbers.

    With `reserves` some outages are reservations: their targets stay up, and some jobs come while one is on and name
    it.
    """

    def __init__(self, seed: int, *, reserves: bool = False) -> None:
        chance = self.chance = random.Random(seed)
        self.targets = chance.randint(2, 9)
        self.bench = Bench("easy")
        self.bench.grow(f"0-{self.targets - 1}")
        self.outages = [self._outage() for _ in range(chance.randint(1, 5))]
        self.reserved = [at for at in range(len(self.outages)) if reserves and (chance.random() < 0.6 or not at)]
        self.inside: dict[int, int] = {}  # jobs and the reservation that they name
        self.counted = 0  # passes that ended with a plan that counts
        known = [
            Outage(f"o{at}", Idset.of(some), *times, is_reservation=at in self.reserved)
            for at, (some, *times) in enumerate(self.outages)
        ]
        self.bench.did(self.bench.scheduler.updated("default", now_s=100.0, outages=Outages(known)))
        self.waiting: dict[int, WaitingJob] = {}
        self.running: dict[int, tuple[set[int], float]] = {}

    def _outage(self) -> tuple[set[int], float, float]:
        some = set(self.chance.sample(range(self.targets), self.chance.randint(1, self.targets)))
        from_s = 100.0 + self.chance.randint(1, 40) * 50.0
        return some, from_s, from_s + self.chance.randint(1, 6) * 50.0

    def submit(self, jobid: int) -> None:
        nodes, limit_s, more = self.chance.randint(1, self.targets), self.chance.randint(1, 12) * 50.0, {}
        on = [at for at in self.reserved if self.outages[at][1] <= self.bench.now_s < self.outages[at][2]]
        if on and self.chance.random() < 0.7:
            at = self.inside[jobid] = self.chance.choice(on)
            some, _, until_s = self.outages[at]
            nodes, limit_s = (
                self.chance.randint(1, len(some)),
                (until_s - self.bench.now_s) * self.chance.choice((1, 0.4)),
            )
            more = {"fluxsched": {"reservation": f"o{at}"}}
        self.waiting[jobid] = nodes, limit_s
        self.bench.submit(jobid, nodes=nodes, exclusive=True, duration=limit_s, **more)

    def drop_late(self) -> None:
        """Cancel the jobs that can no longer be over when their reservation ends."""
        for jobid, at in self.inside.items():
            if jobid in self.waiting and self.bench.now_s + self.waiting[jobid][1] > self.outages[at][2]:
                del self.waiting[jobid]
                self.bench.cancel(jobid)

    def look(self) -> None:
        """Run a pass, and see that no start crosses an outage or makes the first that waits start later."""
        first = min(self.waiting, default=None)
        expected_s = None if first is None else self.earliest_s(first)
        now_s = self.bench.now_s
        for jobid, ranks in self.bench.starts().items():
            _, limit_s = self.waiting.pop(jobid)
            some = set(Idset.parse(ranks))
            assert not some & self.out(now_s, now_s + limit_s, jobid), f"job {jobid} crosses an outage"
            self.running[jobid] = some, now_s + limit_s
            if jobid == first:
                assert expected_s == now_s
                first = min(self.waiting, default=None)
                expected_s = None if first is None else self.earliest_s(first)
        (queue,) = self.bench.scheduler.group("default").queues.values()
        self.counted += isinstance(queue.plan, CountedPlan)
        if first is not None:
            assert expected_s == self.earliest_s(first), "a job that overtakes delays the first"
            assert expected_s > now_s, "the first that waits could start"
            assert (self.bench.scheduler.why(first, now_s).earliest_s or inf) == expected_s

    def out(self, start_s: float, end_s: float, jobid: int | None = None) -> set[int]:
        """Return the targets that may not be used in that time, by this job, or, without one, that are down."""
        mine = None if jobid is None else self.inside.get(jobid)
        kept = [
            some
            for at, (some, from_s, until_s) in enumerate(self.outages)
            if from_s < end_s and start_s < until_s and at != mine and (jobid is not None or at not in self.reserved)
        ]
        if mine is not None:
            some, from_s, until_s = self.outages[mine]
            kept.append(set(range(self.targets)) - (some if from_s <= start_s and end_s <= until_s else set()))
        return set().union(*kept)

    def earliest_s(self, jobid: int) -> float:
        nodes, limit_s = self.waiting[jobid]
        now_s = self.bench.now_s
        instants = {now_s, *[end_s for _, end_s in self.running.values()], *[until_s for _, _, until_s in self.outages]}
        for start_s in sorted(each for each in instants if each >= now_s):
            busy = set().union(*[some for some, end_s in self.running.values() if end_s > start_s])
            if len(set(range(self.targets)) - busy - self.out(start_s, start_s + limit_s, jobid)) >= nodes:
                return start_s
        return inf

    def advance(self) -> None:
        """Go to the next begin or end of an outage, or end of a job, or not so far."""
        now_s = self.bench.now_s
        turns = [end_s for _, end_s in self.running.values()] + [at for _, *times in self.outages for at in times]
        ahead = [turn_s for turn_s in turns if turn_s > now_s]
        if not ahead:
            return
        next_s = min(ahead)
        self.bench.now_s = now_s = self.chance.choice((next_s, next_s, (now_s + next_s) / 2))
        for jobid, (_, end_s) in list(self.running.items()):
            if end_s <= now_s or self.chance.random() < 0.1:
                del self.running[jobid]
                self.bench.free(jobid)
        down = self.out(now_s, now_s + 1e-9)
        self.bench.did(self.bench.scheduler.went_offline(Idset.of(down), now_s))
        self.bench.did(self.bench.scheduler.went_online(Idset.of(set(range(self.targets)) - down), now_s))


@pytest.mark.parametrize("part", range(4))
def test_the_first_in_line_is_planned_for_the_first_instant_and_nothing_delays_it(part: int) -> None:
    for seed in first(range(120))[part::4]:
        site = Site(seed)
        for jobid in range(1, 30):
            if site.chance.random() < 0.7:
                site.submit(jobid)
            site.look()
            site.advance()


@pytest.mark.parametrize("part", range(4))
def test_the_same_holds_with_reservations_and_jobs_in_them(part: int) -> None:
    """While no job that names one waits, the plan counts: what is free and reserved is no one else's."""
    counted = 0
    for seed in first(range(400))[part::4]:
        site = Site(seed, reserves=True)
        for jobid in range(1, 30):
            site.drop_late()
            if site.chance.random() < 0.7:
                site.submit(jobid)
            site.look()
            counted += site.counted > 0 and bool(site.inside)
            site.advance()
    assert counted


def with_a_head(*limits_s: float) -> dict[int, str]:
    """Return what starts of jobs 3, 4 and so on with these limits, one target each: 0 and 1 have an outage from 1000
    on, the first in line is to start at 400 on three of 2 to 5, of which 2 and 3 are busy until then.
    """
    bench = Bench("easy")
    bench.grow("0-5")
    outage = Outage("o", Idset.parse("0-1"), 1000.0, 2000.0)
    bench.did(bench.scheduler.updated("default", now_s=100.0, outages=Outages([outage])))
    bench.submit(1, nodes=2, exclusive=True, duration=300.0, constraint={"hostlist": ["n[2-3]"]})
    assert bench.starts() == {1: "2-3"}
    bench.submit(2, nodes=3, exclusive=True, duration=5000.0)
    for jobid, limit_s in enumerate(limits_s, 3):
        bench.submit(jobid, nodes=1, exclusive=True, duration=limit_s)
    starts = bench.starts()
    assert bench.scheduler.why(2, 100.0).earliest_s == 400.0
    return starts


def test_jobs_overtake_on_targets_that_an_outage_keeps_from_the_first() -> None:
    starts = with_a_head(800.0, 800.0, 800.0, 800.0, 300.0)
    assert len(starts) == 4
    assert {"0", "1"} <= {starts[3], starts[4], starts[5]}, "on what the first cannot have, and one of what it leaves"
    assert 7 in starts, "it is over by then"


def test_what_jobs_take_of_the_others_is_counted() -> None:
    assert with_a_head(300.0, 300.0, 800.0, 800.0) == {3: "0", 4: "1", 5: "4"}


def test_so_many_sets_of_targets_are_indexed_at_most() -> None:
    bench = Bench("easy")
    bench.grow("0-9")
    for jobid in range(1, 11):
        bench.submit(jobid, nodes=1, exclusive=True, duration=float(jobid))
    bench.run()
    running = bench.scheduler.group("default").running
    for mask in range(limit("INSIDE_MAX") + 2):
        index = running.inside(mask)
        assert [running.inside(mask).given_by(100.0 + jobid) for jobid in (1, 3)] == [
            sum(4 for rank in Idset(mask) if int(rank) < jobid) for jobid in (1, 3)
        ]
        assert index is running.inside(mask)
    bench.free(1)
    assert running.inside(1).weight == 0


def test_a_job_that_needs_a_target_that_is_down_has_no_start_and_is_overtaken() -> None:
    bench = Bench("easy")
    bench.grow("0-3")
    outage = Outage("o", Idset.parse("0"), 1000.0, 2000.0)
    bench.did(bench.scheduler.updated("default", now_s=100.0, outages=Outages([outage])))
    bench.did(bench.scheduler.went_offline(Idset.parse("3"), 100.0))
    bench.submit(1, nodes=4, exclusive=True, duration=100.0)
    bench.submit(2, nodes=1, exclusive=True, duration=100.0)
    assert list(bench.starts()) == [2]
    assert bench.scheduler.why(1, 100.0).earliest_s is None
    bench.did(bench.scheduler.went_online(Idset.parse("3"), 100.0))
    bench.run()
    assert bench.scheduler.why(1, 100.0).earliest_s == 200.0
