"""What a pass costs as the queue grows: the machine is full, all jobs wait, and a target that returns makes the policy
look at all of them.

Law: judged is the growth, since milliseconds are the machine's. A policy that plans every job has to sort, so n log n
is good; what is measured in a fraction of a millisecond is noise.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import NamedTuple

from fluxsched.core.idset import Idset
from fluxsched.sim.conformance.cases import LIMITS_S, spec_of
from fluxsched.sim.conformance.harness import Harness, MakeHarness
from fluxsched.system.clock import seeded

SIZES = (100, 1_000, 10_000)
"""Waiting jobs."""

MACHINE, RUNNING = "256x4", 256
NODES = (1, 2, 4, 8, 16)
"""What is asked for, with any of the limits: people ask for few different things."""

SLACK = 3.0
"""Times n log n that are let pass: memory gets slower as it grows, and machines are shared."""

NOISE_S = 0.0005
"""What is shorter counts as this (seconds)."""

REPEATS, ENOUGH_S = 5, 1.0
"""Passes that are measured for the shortest, unless they take so long together (seconds)."""


class Growth(NamedTuple):
    """`says` has the figures; `excess` says which growth is too much, if one is."""

    cases: int
    says: str
    excess: str | None


def cost(make: MakeHarness, stopwatch: Callable[[], float], sizes: tuple[int, ...] = SIZES) -> Growth:
    """Measures from the shortest queue on, and goes no further once a step has grown too much."""
    spent_s: list[float] = []
    excess = None
    for size in sizes:
        spent_s.append(_pass_s(make, stopwatch, size))
        if len(spent_s) > 1 and excess is None:
            excess = _excess(sizes[len(spent_s) - 2], size, *spent_s[-2:])
        if excess is not None:
            break
    measured = [f"{spent * 1000:.2f} ms with {size:,}" for size, spent in zip(sizes, spent_s, strict=False)]
    growth = f"; {_growth(*spent_s[-2:]):.1f} times the last" if len(spent_s) > 1 else ""
    return Growth(len(spent_s), f"a pass takes {', '.join(measured)} waiting{growth}", excess)


def limit(few: int, many: int) -> float:
    """How many times as much a pass may cost: as n log n grows, with slack."""
    return SLACK * (many * log(many)) / (few * log(few))


def _growth(few_s: float, many_s: float) -> float:
    return max(many_s, NOISE_S) / max(few_s, NOISE_S)


def _excess(few: int, many: int, few_s: float, many_s: float) -> str | None:
    grown, allowed = _growth(few_s, many_s), limit(few, many)
    if grown <= allowed:
        return None
    return f"from {few:,} to {many:,} waiting jobs a pass takes {grown:.0f} times as long; n log n allows {allowed:.0f}"


def _pass_s(make: MakeHarness, stopwatch: Callable[[], float], size: int) -> float:
    harness = _full(make, size)
    one = Idset.of([0])
    spent_s: list[float] = []
    while len(spent_s) < REPEATS and sum(spent_s) < ENOUGH_S:
        harness.offline(one)
        harness.restore()
        begun_s = stopwatch()
        harness.decide()
        spent_s.append(stopwatch() - begun_s)
    return min(spent_s)


def _full(make: MakeHarness, size: int) -> Harness:
    """A full machine, on which no job can start, and a queue.

    Jobs take targets whole: there planning is counting, so that what is measured is the policy and not the pool.
    """
    harness, chance = make(MACHINE), seeded(size)
    harness.checker.judging = False
    for _ in range(RUNNING):
        harness.submit(spec_of(chance.uniform(*LIMITS_S[::4]), nodes=1, exclusive=True))
    harness.decide()
    kinds = [spec_of(limit_s, nodes=nodes, exclusive=True) for limit_s in LIMITS_S for nodes in NODES]
    for _ in range(size):
        harness.submit(chance.choice(kinds))
    return harness
