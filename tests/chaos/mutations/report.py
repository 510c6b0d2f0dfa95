"""Runs seeds with sabotaged code until one notices; a sabotage that none notices is a hole in the checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.chaos.exhaustive.search import explore
from tests.chaos.mutations.sabotage import Sabotage, sabotaged
from tests.chaos.mutations.table import BOOKINGS, FEASIBLE, HEALTH, SABOTAGES
from tests.chaos.mutations.table import HOSTS as OF_HOSTS
from tests.chaos.runs import crash_points, host_points
from tests.chaos.runs.plan import BOOKED, CRASH_POINTS, HOST_POINTS, HOSTS, SMALL_SEEDS, make_plan
from tests.chaos.runs.run import run

SEEDS = (
    *range(SMALL_SEEDS),
    *range(CRASH_POINTS, CRASH_POINTS + crash_points.COUNT),
    *range(SMALL_SEEDS, SMALL_SEEDS + 120),
    *range(HOSTS, HOSTS + 120),
)
"""These are tried, small ones first."""
BOOKED_SEEDS = range(BOOKED, BOOKED + 200)
"""These are short, and have what the first do not have."""
HOST_SEEDS = range(HOSTS, HOSTS + 300)
"""And these, after the one that was made for it, for what only hosts with keepers of their own can notice."""

LEVELS, SECONDS_MAX = 2, 600.0
"""What notices the sabotages of laws: levels of the exhaustive search, which take seconds."""


class Noticed(NamedTuple):
    """By which seed and checker, if at all."""

    name: str
    seed: int | None
    checker: str


def seeds_for(one: Sabotage) -> Sequence[int]:
    """Those that are tried for a sabotage."""
    if one in HEALTH:
        return HOST_SEEDS
    if one in BOOKINGS + FEASIBLE:
        return BOOKED_SEEDS
    return (HOST_POINTS + list(host_points.POINTS).index(one.name), *HOST_SEEDS) if one in OF_HOSTS else SEEDS


def notice(one: Sabotage, seeds: Sequence[int] | None = None) -> Noticed:
    """The first seed that notices a sabotage, by what outsiders see alone."""
    with sabotaged(one):
        for seed in seeds or seeds_for(one):
            violation = run(make_plan(seed), own_checks=False).violation
            if violation is not None:
                return Noticed(one.name, seed, violation.checker)
    return Noticed(one.name, None, "")


def notice_law(one: Sabotage) -> str:
    """What every history of two levels tells of a sabotage in one dialect or the other; empty if nothing does."""
    with sabotaged(one):
        found = (explore(typed, LEVELS, SECONDS_MAX, own_checks=False).violation for typed in (True, False))
        return next(filter(None, found), "")


def report_mutations(say: Callable[[str], None], jobs: int) -> int:
    """Try all; 1 if one was not noticed."""
    unnoticed = 0
    with ProcessPoolExecutor(jobs) as pool:
        for found in pool.map(notice, SABOTAGES):
            unnoticed += found.seed is None
            say(f"{found.name}: " + ("NOT NOTICED" if found.seed is None else f"{found.checker}, seed {found.seed}"))
    say(f"{len(SABOTAGES)} sabotages, {unnoticed} not noticed")
    return int(unnoticed > 0)
