"""Elastic jobs for tests of the job manager, and what a scheduler and an executor do with them."""

from __future__ import annotations

from typing import Any

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from tests.r import r_of as r_of_hosts

ids = Idset.parse


def elastic(nodes: str = "2-6", **options: Any) -> Jobspec:
    return Jobspec.from_command(["work"], nodes=nodes, exclusive=True, elastic=True, **options)


def parts(lead: object = 1, workers: object = "2-4") -> Jobspec:
    """A lead and workers, whose number stays open."""

    def node(label: str, count: object) -> dict[str, Any]:
        slot = {"type": "slot", "count": 1, "label": label, "with": [{"type": "core", "count": 2}]}
        return {"type": "node", "count": count, "exclusive": True, "with": [slot]}

    counts = {"lead": lead, "workers": workers}
    return Jobspec.parse({
        "version": 999,
        "resources": [node(label, count) for label, count in counts.items()],
        "tasks": [{"command": [label], "slot": label, "count": {"per_slot": 1}} for label in counts],
        "attributes": {"system": {"duration": 0, "fluxsched": {"elastic": True}}},
    })  # fmt: skip


def r_of(ranks: str, **by_part: str) -> dict[str, Any]:
    return r_of_hosts(ranks, host="node", starttime_s=10.0, **by_part)


def started(world: Any, spec: Jobspec | None = None, R: dict[str, Any] | None = None, jobid: int = 1) -> None:
    world.submit(jobid, spec or elastic())
    world.grant(jobid, R or r_of("0-3"))
    world.do("started", jobid)


def grow(world: Any, R: dict[str, Any], jobid: int = 1, *, answered: bool = True) -> None:
    world.do("grow", "sched", jobid, R)
    if answered:
        world.manager.allocation.grow_answered("sched", jobid, ResourceSet.parse(R).ranks)


def shrink(world: Any, ranks: str, jobid: int = 1) -> None:
    world.do("shrink", "sched", jobid, ids(ranks), "for others")


def released(world: Any, ranks: str, jobid: int = 1) -> None:
    world.do("released", jobid, ids(ranks), False)
