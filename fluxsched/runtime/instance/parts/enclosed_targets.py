"""The targets of an instance inside an elastic job: they come and go with what the job has.

Law: a target that the job is to give back leaves its group like any other that is lost, so the jobs on it end, or give
up what they have beyond their minima. Only when no job of ours holds it the instance around us is told that we have
left it; and told again whenever it may not know. Jobs that take longer to end than it waits are killed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from fluxsched.core.duration import parse_duration
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Refused
from fluxsched.jobs import effects as effect
from fluxsched.runtime.config.values import KILL_TIMEOUT_S
from fluxsched.runtime.services.agents import AgentService
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.resource import ResourceService
from fluxsched.runtime.system.log import logger

log = logger("instance")


def grace_of(config: Mapping[str, Any]) -> float:
    """How long an instance of this configuration waits for targets that it takes back (seconds)."""
    table = config.get("exec", {})
    given = table.get("preempt-timeout", table.get("kill-timeout")) if isinstance(table, Mapping) else None
    return KILL_TIMEOUT_S if given is None else parse_duration(given)


def cannot_reload(wanted: object) -> NoReturn:
    """Refuses to read resources anew where they follow a job: the ranks of running jobs would be others."""
    raise Refused("this instance is inside an elastic job, whose size it follows: stop it and start another one")


class EnclosedTargets:
    """Has the targets of an instance follow those of the job around it, whose ranks are others ("outer")."""

    def __init__(
        self,
        outer: ResourceSet,
        resource: ResourceService,
        agents: AgentService,
        effects: JobEffects,
        left: Callable[[Idset], None],
    ) -> None:
        """`outer` is the job's R at the start, whose targets are ours in the same order; `left` is called with outer
        ranks where nothing of ours is left.
        """
        self._resource = resource
        self._agents = agents
        self._effects = effects
        self._told = left
        self._own = dict(zip(outer.ranks, resource.module.resources.ranks, strict=True))
        """Our rank of each outer one that the job has."""
        self._going: dict[int, int] = {}
        """Likewise those that we are to leave."""
        self._left = EMPTY
        """Outer ranks that we have left, and that the job has not got again."""
        effects.turns.at_end(self._look)

    def follow(self, outer: ResourceSet, grace_s: float) -> None:
        """The job has these targets now; where it has others no more, our jobs have the grace time."""
        if gone := Idset.of(self._own) - outer.ranks:
            self._leave(gone, grace_s)
        if new := outer.ranks - Idset.of(self._own) - Idset.of(self._going):
            self._join(outer.restrict(new))
        if self._left:
            self._told(self._left)

    def _join(self, new: ResourceSet) -> None:
        module = self._resource.module
        idle = [rank for rank in module.lost if rank not in self._going.values()]
        following = module.resources.ranks.max() + 1
        mapping: dict[int, int] = {}
        for outer in new.ranks:
            same = next((rank for rank in idle if module.resources.host(rank) == new.host(outer)), None)
            if same is None:
                same, following = following, following + 1
            else:
                idle.remove(same)
            mapping[outer] = same
        ours = replace(new.job_view().rerank_by(mapping), nslots=None)
        log.info("our job has grown: targets %s (%s) join", ours.ranks, ours.nodelist)
        self._own |= mapping
        self._left -= new.ranks
        self._resource.perform(module.join(ours, self._effects.now_s))
        self._agents.embed(ours.ranks)

    def _leave(self, gone: Idset, grace_s: float) -> None:
        leaving = {outer: self._own.pop(outer) for outer in gone}
        ranks = Idset.of(leaving.values())
        log.info("our job is to shrink: targets %s leave", ranks)
        self._going |= leaving
        self._agents.embedded -= ranks
        self._resource.perform(self._resource.module.set_lost(ranks, self._effects.now_s))
        self._effects.turns.after(grace_s, lambda: self._kill(ranks))

    def _kill(self, ranks: Idset) -> None:
        """What still runs there is out of time."""
        ranks &= Idset.of(self._going.values())
        for job in list(self._effects.manager.jobs.active.values()):
            if ranks & (job.held - job.going):
                self._effects.perform([effect.Kill(job.id, signal.SIGKILL, "its targets are given back")])

    def _look(self) -> None:
        """Tell of targets that are no job's and no scheduler's any more."""
        if self._going:
            module = self._resource.module
            left = [outer for outer, rank in self._going.items() if module.group_of(rank) is None]
            for outer in left:
                del self._going[outer]
            if left:
                self._left |= Idset.of(left)
                self._told(Idset.of(left))
