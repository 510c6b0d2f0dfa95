"""All that one run consists of, made from a seed: the site, what clients do, what goes wrong; or a part of that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from random import Random

from tests.chaos.faults.faults import Fault, make_faults, steps_s
from tests.chaos.workload.actions import Action
from tests.chaos.workload.generated import make_actions
from tests.chaos.workload.sites import ChaosSite, make_site

SMALL_SEEDS = 200
"""The first seeds are small, for they run in the test suite."""
SMALL = 10, 4, 15.0
SIZES = (SMALL, SMALL, SMALL, SMALL, (25, 6, 60.0), (60, 10, 200.0))
"""Actions, faults, and the time in which they happen (seconds)."""


@dataclass(frozen=True)
class Plan:
    """One run. Actions and faults keep the numbers that they have in the whole plan."""

    seed: int
    site: ChaosSite
    actions: tuple[tuple[int, Action], ...]
    faults: tuple[tuple[int, Fault], ...]
    horizon_s: float

    def only(self, actions: Collection[int], faults: Collection[int]) -> Plan:
        """The same with these actions and faults alone."""
        kept_actions = tuple(one for one in self.actions if one[0] in actions)
        kept_faults = tuple(one for one in self.faults if one[0] in faults)
        return Plan(self.seed, self.site, kept_actions, kept_faults, self.horizon_s)


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    chance = Random(f"plan {seed}")
    actions, faults, horizon_s = SMALL if seed < SMALL_SEEDS else chance.choice(SIZES)
    site_chance, fault_chance, action_chance = (Random(chance.random()) for _ in range(3))
    site = make_site(site_chance)
    done = make_actions(action_chance, site, actions, horizon_s)
    planned = make_faults(fault_chance, [action.at_s for action in done], faults, horizon_s)
    # of the whole plan, also where a fault is left out: limits are only wider
    site = replace(site, site=replace(site.site, steps_s=steps_s(planned)))
    in_time = tuple(one for one in enumerate(done) if one[1].at_s <= horizon_s)
    return Plan(seed, site, in_time, tuple(enumerate(planned)), horizon_s)
