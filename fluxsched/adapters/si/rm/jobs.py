"""One job as an application of the interface: its asks, its allocations, and where it stands.

    SENT -accepted-> ASKED -all placeholders-> REPLACING -all allocations-> PLACED -started-> RUNNING
                     ASKED -its allocation-> PLACED             (a job on one node has no placeholders)
    any but RUNNING -refused, timed out, two on one node, does not fit here-> RETRY, and another attempt later

Law: an attempt is an application of its own, since the service still ends the one before. Allocations are known by
their UUIDs; of one job none but those on different nodes count.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final, NamedTuple

from fluxsched.adapters.si import messages
from fluxsched.adapters.si.rm.nodes import fill
from fluxsched.adapters.si.rm.sizes import NodesAsked, amounts_of, constraint_of
from fluxsched.core.jobid import format_f58
from fluxsched.sched.pool.placement import Blocks, on_targets, parts_in
from fluxsched.sched.queue import Waiting

PARTITION: Final = "default"
PRIORITY_MAX: Final = (1 << 31) - 1
HARD: Final = "Hard"

GANG_S: Final = 60
"""Time within which the places of a job on several nodes have to be found (seconds), before all are given up: two such
jobs that hold half of their nodes each would wait for one another. Up to twice as long, so that not both give up at
once.
"""

CONSTRAINT_TAG: Final = "fluxsched/constraint"


class JobState(Enum):
    """State of a job as an application."""

    SENT = "the application was sent"
    ASKED = "its asks were sent"
    REPLACING = "placeholders hold all places, and allocations replace them"
    PLACED = "it has all allocations, and is to be started"
    RUNNING = "it was started"
    RETRY = "it waits for another attempt"


class NodeAllocation(NamedTuple):
    """An allocation: its target, and so many slots there."""

    rank: int
    slots: int
    key: str


class RMJob:
    """A job that waits or runs. `allocations` are by UUID; `blocks` is what it holds, once it runs.

    `moves` counts the places that were given back since the job had something on the same node.
    """

    def __init__(
        self, jobid: int, attempt: int, pieces: tuple[NodesAsked, ...] = (), job: Waiting | None = None
    ) -> None:
        self.jobid = jobid
        self.attempt = attempt
        self.pieces = pieces
        self.job = job
        self.state = JobState.SENT
        self.allocations: dict[str, NodeAllocation] = {}
        self.placeholders: dict[str, NodeAllocation] = {}
        self.ending: dict[str, int] = {}  # UUID -> why the service wants it back
        self.retry_s = 0.0
        self.moves = 0
        self.blocks: Blocks = ()

    def adopt(self, blocks: Blocks) -> None:
        """Adopt a job that runs already, with an allocation on each target, and was never requested."""
        self.state, self.blocks = JobState.RUNNING, blocks
        for part in parts_in(on_targets(blocks)):
            key = f"{self.application_id}/running"
            self.allocations[f"{key}/{part.rank}"] = NodeAllocation(part.rank, 0, key)

    @property
    def application_id(self) -> str:
        """Return the id of the application: `ƒ2x`, then `ƒ2x.2`, ..."""
        name = format_f58(self.jobid)
        return name if self.attempt == 1 else f"{name}.{self.attempt}"

    @property
    def ranks(self) -> set[int]:
        """The targets on which it has something."""
        return {held.rank for held in (*self.allocations.values(), *self.placeholders.values())}

    @property
    def nodes(self) -> int:
        """On how many nodes it is to be."""
        return sum([piece.nodes for piece in self.pieces])

    @property
    def is_gang(self) -> bool:
        return self.nodes > 1

    def application(self, queue: str, user: str) -> Any:
        """Return the application as the message to be sent."""
        found = messages.AddApplicationRequest(
            applicationID=self.application_id, queueName=queue, partitionName=PARTITION
        )
        found.ugi.user = user
        if self.is_gang and self.job is not None:
            total: dict[str, int] = {}
            for piece in self.pieces:
                for kind, amount in amounts_of(self.job.request, piece.slots).items():
                    total[kind] = total.get(kind, 0) + amount * piece.nodes
            fill(found.placeholderAsk, total)
            found.gangSchedulingStyle = HARD
            found.executionTimeoutMilliSeconds = 1000 * (GANG_S + self.jobid % (GANG_S + 1))
        return found

    def asks(self, placeholders: bool) -> list[Any]:
        """One ask a piece, of as many allocations as it has nodes."""
        return [self._ask(at, piece, piece.nodes, placeholders) for at, piece in enumerate(self.pieces)]

    def _ask(
        self, at: int, piece: NodesAsked, nodes: int, placeholder: bool, without: frozenset[int] = frozenset()
    ) -> Any:
        assert self.job is not None
        request = self.job.request
        found = messages.AllocationAsk(
            allocationKey=f"{self.application_id}/{at}{f'/placeholder{self.moves}' if placeholder else ''}",
            applicationID=self.application_id,
            partitionName=PARTITION,
            maxAllocations=nodes,
            priority=min(self.job.priority, PRIORITY_MAX),
            placeholder=placeholder,
            taskGroupName=str(at) if self.is_gang else "",
        )
        fill(found.resourceAsk, amounts_of(request, piece.slots))
        found.preemptionPolicy.allowPreemptSelf = self.job.preemptible_after_s == 0.0
        found.preemptionPolicy.allowPreemptOther = True
        constraint = constraint_of(request.constraint, without)
        if constraint is not None:
            found.tags[CONSTRAINT_TAG] = json_of(constraint)
        return found

    def ask_elsewhere(self, key: str) -> Any:
        """A placeholder in place of one that came to a node that the job has: on none of these."""
        at = int(key.split("/")[1])
        self.moves += 1
        ranks = frozenset(each.rank for each in self.placeholders.values())
        return self._ask(at, self.pieces[at], 1, True, ranks)

    def slots_of(self, key: str) -> int | None:
        """The slots of an allocation of this ask; None if it is none of ours."""
        parts = key.split("/")
        if len(parts) < 2 or parts[0] != self.application_id or not parts[1].isdigit():
            return None
        at = int(parts[1])
        return self.pieces[at].slots if at < len(self.pieces) else None

    def take(self, allocation: Any, rank: int) -> list[Any] | None:
        """Count an allocation; asks that follow, or None if it cannot be used and is to be released."""
        slots = self.slots_of(allocation.allocationKey)
        if slots is None or self.state not in (JobState.ASKED, JobState.REPLACING):
            return None
        held = NodeAllocation(rank, slots, allocation.allocationKey)
        if allocation.placeholder:
            if rank in self.ranks:
                return None
            self.placeholders[allocation.UUID] = held
            if len(self.placeholders) == self.nodes:
                self.state = JobState.REPLACING
                return self.asks(placeholders=False)
            return []
        self.allocations[allocation.UUID] = held
        if len(self.allocations) == self.nodes:
            self.state = JobState.PLACED
        return []


def json_of(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def release(job: RMJob, uuid: str, key: str, kind: int) -> Any:
    """Give one allocation back, or confirm that it has gone."""
    return messages.AllocationRelease(
        partitionName=PARTITION, applicationID=job.application_id, UUID=uuid, allocationKey=key, terminationType=kind
    )
