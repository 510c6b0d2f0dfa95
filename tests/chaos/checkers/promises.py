"""Every acknowledged drain, undrain, assign, include, queue stop and urgency survives: what is read later agrees.

And it is effective: no job is placed on a target that has been drained for a while, none begins in a stopped queue.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from tests.chaos.checkers.base import (
    DRAIN_REASON,
    OUTAGE_SET,
    SPARE_GROUP,
    Call,
    Checker,
    Site,
    drained_for,
    names_parts,
)
from tests.chaos.checkers.registers import Key, Registers
from tests.chaos.observations import Answered, Configured, ProcessEnded, TaskBegan
from tests.chaos.wire import cores_of, idset

LAPSING = "lapsing"
"""A drain that keeps to one of somebody else, which may end."""
EFFECTIVE_S = 30.0
"""How long a scheduler may take to learn of a drain, an instance to start what was decided before (seconds)."""


class Promises(Checker):
    """Compares reads, placements and starts with what was set."""

    name = "promises"

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._set = Registers(self._writes_of)
        self._queues: dict[int, str] = {}
        self._shared = {rank for outage in site.outages for rank in outage.targets}
        """Targets that others than administrators may drain for a while."""
        if site.health_timeout_s:
            self._shared |= site.groups.keys()
        self._dedicated: set[int] = set()
        for rank, group in site.groups.items():
            self._set.first(("drain", rank), False)
            if group != SPARE_GROUP:  # else checkers/spares.py
                self._set.first(("group", rank), group)
        for queue in site.queues:
            self._set.first(("start", queue), True)
            self._set.first(("enable", queue), True)

    def asked(self, call: Call) -> None:
        """Something may be set. A scheduler lets no job grow by what has been drained for a while."""
        if call.topic in OUTAGE_SET:
            if not call.payload.get("reservation"):
                self._shared |= idset(call.payload["targets"])
            if call.payload.get("queue"):  # then checkers/outages.py knows where they belong
                self._dedicated |= idset(call.payload["targets"])
        self._set.asked(call)
        if call.topic == "job-manager.sched-grow":
            self._placed(call.actor, call.payload)

    def configured(self, one: Configured) -> None:
        """Outages of the file may drain these."""
        self._shared |= {rank for row in one.outages for rank in idset(row["targets"])}

    def answered(self, call: Call, payload: Any, errnum: int) -> None:
        """A write has happened or not; what was read must be possible."""
        self._set.answered(call, errnum, self.now_s)
        if errnum:
            return
        if call.topic == "job-manager.submit":
            self._queues[payload["id"]] = call.payload["jobspec"]["attributes"]["system"].get("queue", "")
            self._set.first(("urgency", payload["id"]), call.payload.get("urgency", 16), call.asked_s, self.now_s)
        for key, value in self._reads_of(call, payload):
            possible = self._set.possible(key, call.asked_s, self.now_s)
            if possible is not None and value not in possible and LAPSING not in possible:
                raise self.broken(
                    f"{call.actor} read {value!r} for {key[0]} of {key[1]!r}; possible is {sorted(map(repr, possible))}"
                )

    def _writes_of(self, call: Call) -> Iterator[tuple[Key, Hashable]]:
        payload = call.payload or {}
        match call.topic:
            case "resource.drain" | "resource.undrain" if names_parts(payload):
                return  # checkers/parts.py
            case "resource.drain":
                for rank in idset(payload["targets"]):
                    is_lapsing = payload.get("mode") == "update" and rank in self._shared
                    yield ("drain", rank), LAPSING if is_lapsing else True
            case "resource.undrain":
                for rank in idset(payload["targets"]):
                    yield ("drain", rank), False
            case "resource.assign" | "resource.include":
                for rank in idset(payload["targets"]):
                    group = payload.get("group") or self.site.groups[rank]
                    yield ("group", rank), group
            case "job-manager.queue-start" | "job-manager.queue-enable":
                what = call.topic.rpartition("-")[2]
                for queue in self.site.queues if payload.get("all") else [payload.get("name") or ""]:
                    yield (what, queue), payload[what]
            case "job-manager.urgency":
                yield ("urgency", payload["id"]), payload["urgency"]

    def _reads_of(self, call: Call, payload: Any) -> Iterator[tuple[Key, Hashable]]:
        match call.topic:
            case "resource.status":
                ours = drained_for(payload, DRAIN_REASON)
                others = {rank for ranks in payload["drain"] for rank in idset(ranks)} - ours
                for rank in self.site.groups.keys() - others:
                    yield ("drain", rank), rank in ours
            case "resource.groups":
                owned = {rank: group["name"] for group in payload["groups"] for rank in idset(group["targets"])}
                for group in payload["groups"]:
                    owned |= dict.fromkeys(idset(group["incoming"]), group["name"])
                for rank in self.site.groups.keys() - self._dedicated:
                    yield ("group", rank), owned.get(rank, "none")
            case "job-manager.queue-status":
                queue = payload.get("name") or ""
                yield ("start", queue), bool(payload["start"] or payload.get("blocked"))
                yield ("enable", queue), payload["enable"]
            case "job-manager.list":
                for job in payload["jobs"]:
                    if not job.get("requeued_as") and not job.get("requeue_of"):
                        yield ("urgency", job["id"]), job["urgency"]

    def given_up(self, call: Call) -> None:
        """A write may have happened."""
        self._set.given_up(call, self.now_s)

    def process_ended(self, ended: ProcessEnded) -> None:
        """Requests may have died with it."""
        self._set.process_ended(ended)

    def replied(self, message: Answered) -> None:
        """A scheduler places no job on what has been drained for a while."""
        if message.topic == "sched.alloc" and message.payload["type"] == 0:
            self._placed(message.actor, message.payload)

    def _placed(self, actor: str, payload: dict[str, Any]) -> None:
        for rank in cores_of(payload["R"]):
            if self._has_been(("drain", rank), True):
                raise self.broken(f"{actor} placed job {payload['id']} on {rank}, long after its drain")

    def began(self, task: TaskBegan) -> None:
        """No job begins in a queue that has been stopped for a while."""
        queue = self._queues.get(task.jobid)
        if queue is not None and self._has_been(("start", queue), False):
            raise self.broken(f"job {task.jobid} began in queue {queue!r}, long after that was stopped")

    def _has_been(self, key: Key, value: Hashable) -> bool:
        return self._set.possible(key, self.now_s - EFFECTIVE_S, self.now_s) == {value}
