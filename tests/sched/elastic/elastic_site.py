"""A scheduler with elastic jobs on it, for tests: it answers grows and frees what jobs leave when it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import Topology
from fluxsched.sched.decisions import DecisionRefused, Effect, Granted, Grown, Raise, Shrunk
from fluxsched.sched.policy import Fits, Policy
from fluxsched.sched.pool.placement import blocks_in
from tests.sched.site import holding, scheduler_of


def resources(ranks: str, cores: int = 4, gpus: Sequence[int] = (), **properties: str) -> ResourceSet:
    """Equal targets; or, of each, how many GPUs it has."""
    core = {"core": str(Idset.span(0, cores - 1))}
    each = [
        {"rank": str(at), "children": {**core, **({"gpu": str(Idset.span(0, n - 1))} if n else {})}}
        for at, n in enumerate(gpus)
    ]
    execution: dict[str, Any] = {
        "R_lite": each or [{"rank": ranks, "children": core}], "starttime": 0.0, "expiration": 0.0,
        "nodelist": [f"n[{ranks}]"], "properties": properties,
    }  # fmt: skip
    return ResourceSet.parse({"version": 1, "execution": execution})


def jobspec(
    *nodes: int | str,
    elastic: bool = True,
    cores: int = 1,
    gpus: Sequence[int] = (),
    exclusive: bool = True,
    **system: Any,
) -> Any:
    """A job of whole nodes, so many of each part, of so many GPUs; counts may be ranges."""
    labels = ["task"] if len(nodes) == 1 else [f"p{at}" for at in range(len(nodes))]
    vertices = [
        {"type": "node", "count": count, "exclusive": exclusive, "with": [
            {"type": "slot", "count": 1, "label": label, "with": [
                {"type": "core", "count": cores}, *[{"type": "gpu", "count": n} for n in gpus[at : at + 1] if n]
            ]}
        ]}
        for at, (label, count) in enumerate(zip(labels, nodes, strict=True))
    ]  # fmt: skip
    tasks = [{"command": ["true"], "slot": label, "count": {"per_slot": 1}} for label in labels]
    ours = {"elastic": True} if elastic else {}
    if "max_hops" in system:
        ours["max-hops"] = system.pop("max_hops")
    own = {"duration": 0.0, **system, "fluxsched": ours}
    version = 1 if len(nodes) == 1 else 999
    return {"version": version, "resources": vertices, "tasks": tasks, "attributes": {"system": own}}


class ElasticSite:
    """`held` is what the job manager knows that jobs hold, `leaving` what of it they are to leave."""

    def __init__(
        self,
        policy: Policy | str,
        ranks: str,
        cores: int = 4,
        topology: Topology | None = None,
        gpus: Sequence[int] = (),
        **options: Any,
    ) -> None:
        self.scheduler = scheduler_of(policy, **options)
        self.specs: dict[int, Any] = {}
        self.held: dict[int, ResourceSet] = {}
        self.leaving: dict[int, Idset] = {}
        self.unanswered: list[Grown] = []
        self.raised: list[Raise] = []
        self.refused: list[str] = []
        self.now_s = 1000.0
        self.answers = True
        whole = resources(ranks, cores, gpus).with_topology(topology or Topology())
        self.did(self.scheduler.grown("default", whole, whole.ranks, EMPTY, self.now_s))

    def submit(self, jobid: int, spec: Any, userid: int = 1000) -> None:
        self.specs[jobid] = spec
        self.did(self.scheduler.alloc(jobid, 16, userid, float(jobid), spec, self.now_s))

    def run(self) -> list[Effect]:
        """One pass after the other, until nothing follows any more."""
        found = self.did(list(self.scheduler.schedule(self.now_s)))
        again = found
        while again:
            again = self.did(list(self.scheduler.schedule(self.now_s)))
            found += again
        return [effect for effect in found if isinstance(effect, Granted | Grown | Shrunk | Raise)]

    def look(self) -> list[Effect]:
        """Has all be examined."""
        self.scheduler.updated("default", 0.0)
        return self.run()

    def did(self, effects: list[Effect]) -> list[Effect]:
        self.scheduler.check()
        for effect in effects:
            match effect:
                case Granted(jobid):
                    self.held[jobid] = ResourceSet.parse(effect.R)
                case Grown():
                    self.unanswered.append(effect)
                case Shrunk(jobid, ranks):
                    assert ranks <= self.held[jobid].ranks
                    self.leaving[jobid] = self.leaving.get(jobid, EMPTY) | ranks
                case Raise():
                    self.raised.append(effect)
                case DecisionRefused(note):
                    self.refused.append(note)
        if self.answers:
            self.answer()
        return effects

    def answer(self) -> None:
        """All grows are stored."""
        for grown in self.unanswered:
            self.held[grown.jobid] |= ResourceSet.parse(grown.R)
            self.scheduler.grow_stored(grown.jobid, self.now_s)
        self.unanswered.clear()

    def gone(self, *jobids: int) -> list[Effect]:
        """These jobs have left what they were to leave, or end if they were preempted; then a pass."""
        for jobid in jobids or [*self.leaving, *[one.jobid for one in self.raised if one.jobid in self.held]]:
            ranks = self.leaving.pop(jobid, EMPTY)
            if any(one.jobid == jobid for one in self.raised) or not ranks:
                self.end(jobid)
            else:
                part = self.held[jobid].restrict(ranks)
                self.held[jobid] = self.held[jobid].without(ranks)
                self.did(self.scheduler.free(jobid, part, False, self.now_s))
        return self.run()

    def end(self, jobid: int) -> None:
        self.leaving.pop(jobid, None)
        if jobid in self.held:
            self.did(self.scheduler.free(jobid, self.held.pop(jobid), True, self.now_s))

    def elastic(self, jobid: int) -> Any:
        """Return what the scheduler knows of the job's sizes and parts; None if it is not elastic."""
        return holding(self.scheduler, jobid).elastic

    def fit(self, jobid: int, ranks: str, cores: int = 4, part: int | None = None) -> Fits:
        """Return a fit by which the job, or a part of it, could grow on these targets."""
        blocks, shape = blocks_in(resources(ranks, cores)), self.elastic(jobid).shape
        by_part = [] if part is None else [Idset.parse(ranks) if at == part else EMPTY for at in range(2)]
        return Fits(shape, blocks, len(by_part) or 1, tuple(by_part))

    def sizes(self, *jobids: int) -> list[int]:
        """How many targets jobs have that they are not to leave."""
        return [len(self.held[job].ranks - self.leaving.get(job, EMPTY)) if job in self.held else 0 for job in jobids]
