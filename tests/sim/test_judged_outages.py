"""Random sites with outages, drains, failures, preemption and elastic jobs through the production parts, under a judge.

The judge reads the table of a simulation, which says where and when each attempt ran, and knows outages as numbers: it
shares no code with what it judges.
"""

from __future__ import annotations

from itertools import chain
from math import inf
from random import Random
from typing import NamedTuple

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.registry import load
from fluxsched.sim import Trace, generate
from fluxsched.sim.result import Columns
from fluxsched.sim.simulation import Simulation
from fluxsched.sim.site import SiteEvent, parse_site, site_of
from tests.generated.share import first

CORES, JOBS = 2, 16
POLICIES = (
    "fifo", "firstfit", "firstfit:order=sjf", "easy", "easy:order=saf", "hybrid:depth=3", "conservative",
    "conservative:compress", "fair:backfill=easy", "fair:backfill=fifo", "fair:backfill=firstfit",
    "fair:backfill=conservative", "fair:backfill=easy,rate=5",
)  # fmt: skip
CASES = [(seed, POLICIES[seed % len(POLICIES)]) for seed in range(1001)]


class Outage(NamedTuple):
    """An outage, and when it was planned."""

    targets: set[int]
    known_s: float
    from_s: float
    until_s: float


class MadeSite:
    """A busy trace of elastic and preemptible jobs, and what becomes of its targets meanwhile."""

    def __init__(self, seed: int) -> None:
        chance = Random(seed)
        self.nodes = chance.randint(3, 8)
        busy = generate(
            JOBS, nodes=self.nodes, cores=CORES, seed=chance.randrange(1000), load=chance.choice((0.7, 1.2)), banks=3,
            elastic=chance.choice((0.0, 0.4)),
        )  # fmt: skip
        jobs = [
            job._replace(
                preemptible_after_s=chance.choice((None, None, 0.0, 600.0)),
                requeue=chance.choice((0, 2)),
                limit_s=None if job.limit_s is None else max(job.limit_s, job.run_s) * chance.choice((1.0, 1.0, 3.0)),
            )
            for job in busy.jobs
        ]
        self.trace = Trace.of(jobs, f"site {seed}", busy.machine)
        self.outages: list[Outage] = []
        lines, end_s = list[str](), max(job.submit_s for job in jobs) + 1.0
        for _ in range(chance.randint(2, 8)):
            lines += self._outage(chance, chance.uniform(0, end_s), end_s / 6)
        for _ in range(chance.randint(0, 4)):
            lines += self._drain(chance, chance.uniform(0, end_s), chance.uniform(1, end_s / 6))
        self.place = site_of(self.trace, nodes=self.nodes, cores=CORES)
        self.steps: list[SiteEvent] = parse_site(lines, "made", self.place.resources)

    def _some(self, chance: Random) -> set[int]:
        return set(chance.sample(range(self.nodes), chance.randint(1, self.nodes)))

    def _outage(self, chance: Random, from_s: float, longest_s: float) -> list[str]:
        lasts_s, notice_s = chance.uniform(1, longest_s), chance.uniform(0, 3 * longest_s)
        targets = self._some(chance)
        if chance.random() < 0.15:  # one that nobody has planned
            return [f'{{"at": {from_s}, "do": "outage", "targets": "{Idset.of(targets)}", "for": {lasts_s}}}']
        self.outages.append(Outage(targets, from_s - notice_s, from_s, from_s + lasts_s))
        return [
            f'{{"at": {from_s}, "do": "maintenance", "targets": "{Idset.of(targets)}", "for": {lasts_s}, '
            f'"notice": {notice_s}}}'
        ]

    def _drain(self, chance: Random, from_s: float, lasts_s: float) -> list[str]:
        targets = Idset.of(self._some(chance))
        return [
            f'{{"at": {from_s}, "do": "drain", "targets": "{targets}", "reason": "fan"}}',
            f'{{"at": {from_s + lasts_s}, "do": "undrain", "targets": "{targets}"}}',
        ]


def table(site: MadeSite, policy: str, steps: list[SiteEvent]) -> Columns:
    simulation = Simulation(
        site.trace, site.place, load(policy)[0], policy, steps, placements=True, preempt_grace_s=3.0
    )
    return simulation.run().jobs


def crossings(site: MadeSite, policy: str, *, knows: bool = True) -> tuple[list[str], list[str]]:
    """Return what starts, or grows, crossed an outage that was known by then, and the states in which jobs are left."""
    steps = site.steps if knows else [step for step in site.steps if step.do != "plan"]
    jobs = table(site, policy, steps)
    assert jobs.ranks is not None
    limits = [job.limit_s or inf for job in site.trace.jobs]
    starts = dict[int, list[float]]()
    uses: list[tuple[int, float, str]] = []
    for row, (start_s, ranks) in enumerate(zip(jobs.start, jobs.ranks, strict=True)):
        if start_s is not None and ranks is not None:
            uses.append((row, start_s, ranks))
    uses += [(each.row, each.start_s, each.ranks) for each in jobs.preemptions if each.ranks is not None and each.again]
    for row, start_s, _ in uses:
        starts.setdefault(row, []).append(start_s)
    grown = [(each.row, each.when_s, each.ranks) for each in jobs.resizes if each.change > 0]
    found = []
    for row, when_s, ranks in chain(uses, grown):
        end_s = max(start_s for start_s in starts[row] if start_s <= when_s) + limits[row]
        for targets, known_s, from_s, until_s in site.outages:
            known = max(known_s, 0.0) <= when_s
            if known and from_s < end_s and when_s < until_s and targets & set(Idset.parse(ranks)):
                found.append(f"job {row} on {ranks} at {when_s} until {end_s}: {from_s} to {until_s}")
    return found, jobs.state


@pytest.mark.parametrize("part", range(8))
def test_no_start_and_no_growth_crosses_an_outage(part: int) -> None:
    for seed, policy in first(CASES)[part::8]:
        found, states = crossings(MadeSite(seed), policy)
        assert not found, f"{policy}, seed {seed}: {found}"
        assert not {"waiting", "running"} & {*states}, f"{policy}, seed {seed}: {states}"


def test_there_is_preemption_and_growth_beside_outages() -> None:
    sites = [MadeSite(seed) for seed in range(12)]
    tables = [table(site, "fair:backfill=easy", site.steps) for site in sites]
    assert any(each.preemptions for each in tables)
    assert any(each.resizes for each in tables)


def test_the_judge_sees_starts_and_growth_that_cross() -> None:
    found = [said for seed in range(8) for said in crossings(MadeSite(seed), "easy", knows=False)[0]]
    assert found
