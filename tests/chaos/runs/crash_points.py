"""Made by hand: an elastic job grows and shrinks, and a process dies at one of its effects after one of the steps; or
administrators drain, move, stop, ask and plan, and one dies then.

In the last ones the job is canceled while it grows, so that the growth fails.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.chaos.checkers.base import OUTAGE_REASON
from tests.chaos.faults.faults import AT, Fault
from tests.chaos.observations import EPOCH_S
from tests.chaos.steps import ORDERS, RESIZES
from tests.chaos.workload.actions import Action
from tests.chaos.workload.generated import ADMINISTRATOR, USERS
from tests.chaos.workload.sites import CORES, RUNAWAY_S, ChaosSite, make_site

EFFECTS = {"instance": 12, "keeper": 4, "sched-main": 4}
"""Up to which effect after a step each process dies."""
POINTS = [
    (step, victim, count)
    for step in RESIZES + ORDERS
    for victim, most in EFFECTS.items()
    for count in range(1, most + 1)
    if step in RESIZES or victim != "keeper"
]
CANCELS = 10
COUNT = len(POINTS) + CANCELS
SITE = "crash points 24"
"""A seed of a site with four targets in the default group, and policy `easy`."""
NODES = 4
HORIZON_S = 170.0
SHORT: dict[str, Any] = {
    "urgency": 16, "queue": "batch", "cores": CORES, "nodes": 1, "duration_s": RUNAWAY_S, "run_s": 2.0, "count": 1,
}  # fmt: skip
ANN, BOB = USERS


def make_crash_point(number: int) -> tuple[ChaosSite, list[Action], list[Fault]]:
    """The site, what clients do and what goes wrong."""
    if number >= len(POINTS):
        cancel = Action(3.6, ANN, "cancel-at", {"of": 1, "nth": 0, "step": "grow"})
        return make_site(Random(SITE)), [*_grows(300.0), cancel], []
    step, victim, count = POINTS[number]
    faults = [Fault(3.0, f"kill{AT}{step}", victim, float(count))]
    return make_site(Random(SITE)), _resized() if step in RESIZES else _ordered(), faults


def _grows(run_s: float) -> list[Action]:
    """Short jobs, beside which an elastic one has its minimum; then it grows by what they leave."""
    elastic = SHORT | {"nodes": 0, "parts": {"task": (1, 6)}, "run_s": run_s, "duration_s": 0.0}
    return [
        Action(3.0, ANN, "submit", SHORT | {"count": NODES - 1}),
        Action(3.1, ANN, "submit", elastic),
        Action(3.5, ANN, "changes", {"of": 1, "nth": 0}),
    ]


def _resized() -> list[Action]:
    """It gives way to another one, and grows again a minute later."""
    return [*_grows(300.0), Action(100.0, BOB, "submit", SHORT)]


def _ordered() -> list[Action]:
    """One of its targets is drained, one is to leave its group, the queue is stopped in which one waits, and an outage
    is planned.
    """
    outage = {"name": "upd", "targets": "3", "from": EPOCH_S + 150.0, "until": EPOCH_S + 160.0, "reason": OUTAGE_REASON}
    return [
        *_grows(120.0),
        Action(60.0, ADMINISTRATOR, "resource.drain", {"targets": "0", "reason": "tests"}),
        Action(70.0, ADMINISTRATOR, "resource.assign", {"targets": "1", "group": "spare"}),
        Action(80.0, BOB, "submit", SHORT | {"nodes": NODES - 2}),
        Action(85.0, ADMINISTRATOR, "job-manager.queue-start", {"name": "batch", "start": False, "reason": "tests"}),
        Action(95.0, ADMINISTRATOR, "module.stats", {"name": "sched-main"}),
        Action(105.0, ADMINISTRATOR, "resource.outage-add", outage),
    ]
