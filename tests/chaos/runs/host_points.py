"""Made by hand: a job over several hosts, and the fault that one rule of their keepers is there for.

Each is named after the sabotage that it notices (mutations/table.py), and is the same seed for ever.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from tests.chaos.faults.faults import SLIPS, Fault
from tests.chaos.workload.actions import Action
from tests.chaos.workload.generated import USERS
from tests.chaos.workload.sites import CORES, ChaosSite, make_hosts_site

SITE = "host points 63"
"""A seed of a site with three hosts in the default group, and policy `easy`."""
NODES = 3
HORIZON_S = 70.0
BEGIN_S = 5.0
ANN = USERS[0]


class HostPoint(NamedTuple):
    """What a client does, and what goes wrong."""

    actions: list[Action]
    faults: list[Fault]
    orphan_timeout_s: float = 30.0


def _wide(**wanted: Any) -> Action:
    """One job on all hosts of the group."""
    arguments = {"count": 1, "urgency": 16, "queue": "batch", "cores": CORES, "nodes": NODES, "duration_s": 0.0}
    return Action(BEGIN_S, ANN, "submit", arguments | {"run_s": 300.0} | wanted)


POINTS = {
    "give up a host before its lease is over": HostPoint([_wide()], [Fault(10.0, "cut-host", "node0:both", 90.0)]),
    "count a lease from when its question was answered": HostPoint(
        [_wide()], [Fault(12.0, "slip-host", "node0", SLIPS[-1])],
    ),
    "open the gate of a part that is stored": HostPoint([_wide(run_s=3.0)], [Fault(0.0, "slow-host", "node1", 3.0)]),
    "forget at a restart which parts have ended": HostPoint(
        [_wide(run_s=10.0)], [Fault(17.0, "kill-instance", "", 0.0)],
    ),
    "adopt a part without opening its gate": HostPoint(
        [_wide(run_s=3.0)], [Fault(0.0, "slow-host", "node1", 3.0), Fault(6.25, "cut-host", "node0:down", 20.0)],
    ),
    "take what a killed keeper has left for gone": HostPoint([_wide()], [Fault(10.0, "late-guard", "node1", 0.0)]),
    "use a host before it is known what is left there": HostPoint([_wide()], [Fault(10.0, "late-guard", "node1", 0.0)]),
    "ask once for a host that is lost": HostPoint(
        [_wide(run_s=3.0)], [Fault(10.0, "cut-host", "node0:both", 90.0)], orphan_timeout_s=5.0,
    ),
    "leave the gate of a killed part closed": HostPoint(
        [_wide()], [Fault(4.9, "crash-host", "node1", 90.0)],
    ),
    "give each further host the tasks of all": HostPoint(
        [_wide(nodes=NODES - 1, run_s=3.0), _wide(nodes=0, parts={"task": (1, NODES)}, run_s=20.0)], [],
    ),
    "ask a host once for targets, though it was away": HostPoint(
        [
            _wide(nodes=0, parts={"task": (1, NODES)}, run_s=100.0), _wide(nodes=1, run_s=3.0)._replace(at_s=10.5),
        ],
        [Fault(10.0, "cut-host", "node1:both", 16.0)],
    ),
}  # fmt: skip
COUNT = len(POINTS)


def make_host_point(number: int) -> tuple[ChaosSite, list[Action], list[Fault]]:
    """The site, what clients do and what goes wrong."""
    point = list(POINTS.values())[number]
    site = replace(make_hosts_site(Random(SITE)), orphan_timeout_s=point.orphan_timeout_s)
    return site, point.actions, point.faults
