"""Made by hand: one elastic job grows and shrinks, and one process dies at one of its effects after one of the steps.

In the last ones the job is canceled while it grows, so that the growth fails.
"""

from __future__ import annotations

from random import Random

from tests.chaos.faults.faults import AT, Fault
from tests.chaos.resize_steps import STEPS
from tests.chaos.workload.actions import Action
from tests.chaos.workload.sites import CORES, RUNAWAY_S, ChaosSite, make_site

EFFECTS = {"instance": 12, "keeper": 4, "sched-main": 4}
"""Up to which effect after a step each process dies."""
POINTS = [(step, victim, count) for step in STEPS for victim, most in EFFECTS.items() for count in range(1, most + 1)]
CANCELS = 10
COUNT = len(POINTS) + CANCELS
SITE = "crash points 24"
"""A seed of a site with four targets in the default group, and policy `easy`."""
SHORT_S, LONG_S, OTHER_S, HORIZON_S = 2.0, 300.0, 100.0, 120.0
"""Run times of the jobs beside which the elastic one has its minimum, and of that; when another one wants a node."""


def make_crash_point(number: int) -> tuple[ChaosSite, list[Action], list[Fault]]:
    """The site, what clients do and what goes wrong."""
    site = make_site(Random(SITE))
    node = {
        "urgency": 16, "queue": "batch", "cores": CORES, "nodes": 1, "duration_s": RUNAWAY_S, "run_s": SHORT_S,
        "count": 1,
    }  # fmt: skip
    elastic = node | {"nodes": 0, "parts": {"task": (1, 6)}, "run_s": LONG_S, "duration_s": 0.0}
    actions = [
        Action(3.0, "ann", "submit", node | {"count": list(site.site.groups.values()).count("default") - 1}),
        Action(3.1, "ann", "submit", elastic),
        Action(3.5, "ann", "changes", {"of": 1, "nth": 0}),
        Action(OTHER_S, "bob", "submit", node),
    ]
    faults = []
    if number < len(POINTS):
        step, victim, count = POINTS[number]
        faults.append(Fault(3.0, f"kill{AT}{step}", victim, float(count)))
    else:
        actions.append(Action(3.6, "ann", "cancel-at", {"of": 1, "nth": 0, "step": "grow"}))
    return site, actions, faults
