"""Spares: each in service replaces one target that is out, of its own shape, and no two replace the same; all others
stand by. Where one stands by, no target of its shape is out for long; none is taken from a job that runs on it.

What is out is what an administrator has drained, or is offline. A planned outage calls for no spare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.chaos.checkers.base import (
    DRAIN_REASON,
    INSTANCE,
    OUTAGE_REASON,
    SCHEDULER_PREFIX,
    SPARE_GROUP,
    Call,
    Checker,
    Site,
    Truth,
    drained_for,
    names_parts,
    reasons_of,
)
from tests.chaos.checkers.parts import drained_parts
from tests.chaos.observations import (
    LinkEnded,
    ProcessEnded,
    TaskBegan,
    TaskEnded,
    TaskGrew,
    TasksBegan,
    TasksEnded,
    TaskShrank,
)
from tests.chaos.wire import idset

EFFECTIVE_S, QUIET_S = 30.0, 5.0
"""How long the start of a job may have been under way when its target was taken away (seconds), and after all faults.
"""


AWAY_S = 5.0
"""How long before or after a submit its scheduler may have ended so that it does not refuse the job (seconds)."""


class Spares(Checker):
    """Compares what is in service with what is out."""

    name = "spares"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._drained: set[int] = set()
        """All that an administrator has ever asked to drain."""
        self._has_moved = False
        """Whether groups may have had other targets than those of the configuration."""
        self._asked_s: dict[int, float] = {}
        """When jobs were submitted whose scheduler was sent them at once (seconds)."""
        self._has_stopped = False
        """Whether queues may be stopped: what comes then waits for its judgement, and on if targets have changed."""
        self._ended_s: list[float] = []
        """When the scheduler, its connection or the instance has ended."""
        self._links: set[int] = set()
        self._late_s = EFFECTIVE_S
        self._running: dict[int, dict[int, float]] = {}
        """Since when each job runs on the spares that it has (seconds)."""

    def asked(self, call: Call) -> None:
        """A target may be out from now on."""
        if call.actor.startswith(SCHEDULER_PREFIX):
            self._links.add(call.link)
        self._has_stopped |= call.topic == "job-manager.queue-start" and not (call.payload or {}).get("start")
        self._has_moved |= call.topic == "resource.assign" or bool((call.payload or {}).get("queue"))
        if call.topic == "resource.drain" and not names_parts(call.payload):
            self._drained |= idset(call.payload["targets"])

    def process_ended(self, ended: ProcessEnded) -> None:
        """The scheduler may be away."""
        if ended.process in (INSTANCE, "sched-main"):
            self._ended_s.append(ended.at_s)

    def link_ended(self, ended: LinkEnded) -> None:
        """The same."""
        if ended.link in self._links:
            self._ended_s.append(ended.at_s)

    # ---- jobs on spares

    def began(self, task: TaskBegan | TaskGrew | TasksBegan) -> None:
        """A job runs on spares."""
        for rank in task.cores.keys() & self.site.spares:
            self._running.setdefault(task.jobid, {})[rank] = task.at_s

    def tasks_began(self, tasks: TasksBegan) -> None:
        """On one of several hosts."""
        self.began(tasks)

    def tasks_ended(self, tasks: TasksEnded) -> None:
        """No more there."""
        self._running.get(tasks.jobid, {}).pop(tasks.rank, None)

    def grew(self, task: TaskGrew) -> None:
        """On more of them."""
        self.began(task)

    def shrank(self, task: TaskShrank) -> None:
        """On less."""
        for rank in task.ranks:
            self._running.get(task.jobid, {}).pop(rank, None)

    def ended(self, task: TaskEnded) -> None:
        """On none."""
        self._running.pop(task.jobid, None)

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A spare leaves its group, or is shown to be in service."""
        if errnum:
            return
        if call.topic == "job-manager.submit" and not self._has_stopped:
            self._asked_s[payload["id"]] = call.asked_s
        if call.topic == "resource.acquire" and payload.get("type") == "shrink":
            for jobid, ranks in self._running.items():
                for rank in idset(payload["targets"]) & ranks.keys():
                    if ranks[rank] < self.now_s - self._late_s:
                        raise self.broken(f"spare {rank} is taken away while job {jobid} runs on it")
        elif call.topic == "resource.status":
            self._replaced(payload)

    # ---- what is in service

    def _replaced(self, status: Mapping[str, Any]) -> dict[int, int | None]:
        """What each spare in service replaces; None if that is not known."""
        found = {row["target"]: row.get("replaces") for row in status.get("replaced") or ()}
        out = self._drained | idset(status["offline"]) | idset(status.get("lost") or "")
        drained = {rank for ranks in status["drain"] for rank in idset(ranks)}
        lines = status["drain"].items()
        others = [
            ranks for ranks, line in lines if any(each.get("reason") != OUTAGE_REASON for each in reasons_of(line))
        ]
        out |= {rank for ranks in others for rank in idset(ranks)}
        for spare, rank in found.items():
            if spare not in self.site.spares:
                raise self.broken(f"{spare} replaces {rank}, and is no spare")
            if rank is None:
                continue
            if self.site.cores[spare] != self.site.cores[rank]:
                raise self.broken(f"spare {spare} replaces {rank}, which is of another shape")
            if rank not in out or (rank in self._drained - idset(status["offline"]) and rank not in drained):
                raise self.broken(f"spare {spare} replaces {rank}, which is in use: {status}")
        known = [rank for rank in found.values() if rank is not None]
        if len(known) > len(set(known)):
            raise self.broken(f"two spares replace one target: {found}")
        return found

    def quiet(self, status: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        """As many are in service as are needed, and can be had; the others stand by."""
        self._late_s = QUIET_S
        replaced = self._replaced(status)
        goals = {rank: group["name"] for group in groups for rank in idset(group["targets"])}
        homes = dict(goals)
        for group in groups:
            goals |= dict.fromkeys(idset(group["incoming"]), group["name"])
        for rank in self.site.spares:
            if (goals.get(rank) == SPARE_GROUP) == (rank in replaced):
                raise self.broken(f"spare {rank} belongs to {goals.get(rank)}; in service are {replaced}")
        drained = {rank for ranks in status["drain"] for rank in idset(ranks)}
        out = drained_for(status, DRAIN_REASON)
        if lame := out & replaced.keys():
            raise self.broken(f"{lame} are out, and in service as spares: {status}")
        out = {rank for rank in out if goals.get(rank) not in ("exclude", SPARE_GROUP, None)}
        ready = idset(status["online"]) - idset(status["torpid"]) - drained - drained_parts(status).keys()
        for spare in ready & self.site.spares - replaced.keys():
            for rank in out - set(replaced.values()):
                if homes.get(spare) == SPARE_GROUP and self.site.cores[spare] == self.site.cores[rank]:
                    raise self.broken(f"{rank} is out, and spare {spare} stands by: {status['drain']}")

    def settled(self, truth: Truth) -> None:
        """The same in the end; and no job waits for more nodes than a group has without its spares, if its scheduler
        was there when it came.
        """
        self.quiet(truth.status, truth.groups)
        for jobid, spec in truth.specs.items() if not self._has_moved else ():
            system, asked = spec["attributes"]["system"], spec["attributes"]["user"]["chaos"]
            events, asked_s = truth.eventlogs[jobid], self._asked_s.get(jobid, 0.0)
            is_large = asked["nodes"] > self.site.nodes_of(system["queue"]) and system["queue"] == "batch"
            was_away = any(asked_s - AWAY_S < at_s < asked_s + AWAY_S for at_s in self._ended_s)
            if not is_large or was_away or jobid not in self._asked_s:
                continue
            if not any(event["name"] == "exception" and event["context"]["type"] == "alloc" for event in events):
                raise self.broken(f"job {jobid} of {asked['nodes']} nodes was not refused: {events}")
