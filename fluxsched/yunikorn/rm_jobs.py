"""Jobs and targets of an instance in the interface's terms: applications, asks, allocations, nodes, and their amounts.

A job is one ask for each node that it is to have, since the interface places asks and knows no core ids. Cores are
thousandths of a vcore. The kind SHARE lets a job have a node to itself: of its thousandths such a job asks for all, any
other for one. What a request leaves open (ranges) is asked for at its least.

Laws: a node is created, drained and decommissioned once each, and only what has changed since the service was told is
told again; a target that has left stays a draining node until the last allocation there has gone. An attempt of a job
is an application of its own, since the service still ends the one before. Allocations are known by their UUIDs; of one
job none but those on different nodes count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.request import ONE, Count, Request
from fluxsched.core.rlite import Children
from fluxsched.sched.pool.placement import Blocks, on_targets, parts_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.sorted_jobs import PendingJob
from fluxsched.yunikorn import messages

VCORE: Final = "vcore"
GPU: Final = "gpu"
SHARE: Final = "fluxsched.org/share"
WHOLE: Final = 1000
"""Of SHARE on each node: as many jobs may be on it."""

RANK: Final = "fluxsched.org/rank"
"""The attribute of a node by which a constraint names its target."""


class NodesAsked(NamedTuple):
    """Request for so many nodes of a job, each with so many of its slots."""

    slots: int
    nodes: int


def pieces_of(request: Request, pool: Pool) -> tuple[NodesAsked, ...]:
    """Return the division of a job: by nodes if it names them; slots that may be anywhere are on one node, if one can
    have them all.
    """
    if request.nodes is not None:
        return (NodesAsked(request.slots.min, request.nodes.min),)
    slots = request.slots.min
    most = 1 if slots == 1 else max([_slots_on(request, entry.children) for entry in pool.resources.entries], default=1)
    if slots <= most:
        return (NodesAsked(slots, 1),)
    full, rest = divmod(slots, max(most, 1))
    return (NodesAsked(most, full), NodesAsked(rest, 1)) if rest else (NodesAsked(most, full),)


def _slots_on(request: Request, children: Children) -> int:
    has = dict(children.amounts)
    most = [len(children.cores) // request.cores] if request.cores else []
    most += [len(children.gpus) // request.gpus] if request.gpus else []
    most += [has.get(kind, 0) // amount for kind, amount in request.amounts]
    return min(most, default=1)


def amounts_of(request: Request, slots: int) -> dict[str, int]:
    """Return the amounts that a job requests on a node on which it has so many slots."""
    found = {VCORE: 1000 * request.cores * slots, GPU: request.gpus * slots}
    for kind, amount in request.amounts:
        found[kind] = found.get(kind, 0) + amount * slots
    for kind, amount in request.node_amounts:
        found[kind] = found.get(kind, 0) + amount
    found[SHARE] = WHOLE if request.exclusive else 1
    return {kind: amount for kind, amount in found.items() if amount}


def amounts_on(children: Children) -> dict[str, int]:
    """Return the amounts of a target."""
    found = {VCORE: 1000 * len(children.cores), GPU: len(children.gpus), **dict(children.amounts), SHARE: WHOLE}
    return {kind: amount for kind, amount in found.items() if amount}


def amounts_held(cores: int, gpus: int, amounts: Any, is_whole: bool) -> dict[str, int]:
    """Return the amounts that a running job holds of a target; core and GPU ids are masks."""
    found = {VCORE: 1000 * cores.bit_count(), GPU: gpus.bit_count(), **dict(amounts), SHARE: WHOLE if is_whole else 1}
    return {kind: amount for kind, amount in found.items() if amount}


def on_one_node(request: Request, slots: int) -> Request:
    """Return the part of a request that is to be on one node: it is placed here, on the node that was given."""
    return replace(request, nodes=ONE, slots=Count.fixed(slots), constraint=EVERYTHING, shared=())


def constraint_of(constraint: Constraint, without: frozenset[int] = frozenset()) -> dict[str, Any] | None:
    """Return the constraint over the attributes of our nodes, and on none of these ranks; None if it allows all."""
    own = _translated(constraint.to_json())
    others = [{"properties": [f"^{RANK}={rank}" for rank in sorted(without)]}] if without else []
    both = ([own] if own else []) + others
    return (both[0] if len(both) == 1 else {"and": both}) if both else None


def _translated(constraint: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operator, values in constraint.items():
        match operator:
            case "properties":
                found[operator] = [f"{name}=true" for name in values]
            case "ranks":
                ranks = [rank for idset in values for rank in Idset.parse(idset)]
                found["or"] = [{"properties": [f"{RANK}={rank}"]} for rank in ranks]
            case "hostlist":
                found[operator] = values
            case _:
                found[operator] = [_translated(value) for value in values]
    return found


# ---- targets as nodes

READY: Final = "ready"
HOSTNAME: Final = "si/hostname"


class Node(NamedTuple):
    """One target as the service knows it. `occupied` is what jobs hold that it does not know."""

    node_id: str
    amounts: Mapping[str, int]
    attributes: Mapping[str, str]
    occupied: Mapping[str, int]


class Nodes:
    """Nodes as the service was told of them, by rank."""

    def __init__(self) -> None:
        self._told: dict[int, Node] = {}
        self._draining: set[int] = set()
        self._ranks: dict[str, int] = {}
        self._looked: tuple[int, int, object] | None = None  # what the pool was like when it was compared last

    def forget(self) -> None:
        """Record that the service has lost all that it was told."""
        self._told.clear()
        self._draining.clear()
        self._ranks.clear()
        self._looked = None

    def rank(self, node_id: str) -> int | None:
        """Return the target of a node; None for one that is not ours."""
        return self._ranks.get(node_id)

    def node_id(self, rank: int) -> str:
        """Return the node of a target that was told, else its rank."""
        node = self._told.get(rank)
        return str(rank) if node is None else node.node_id

    def changes(
        self, pool: Pool, in_use: Callable[[int], bool], occupied: Mapping[int, Mapping[str, int]]
    ) -> list[Any]:
        """NodeInfos for what has changed. `in_use` says whether there are allocations on a target that has left."""
        looked = (pool.generation, pool.down.mask, dict(occupied))
        if looked == self._looked:
            return self._leaving(pool, in_use) if self._draining else []
        found = self._leaving(pool, in_use)
        self._looked = looked
        for rank, node in nodes_of(pool, occupied).items():
            told = self._told.get(rank)
            if told == node and rank not in self._draining:
                continue
            if rank in self._draining:  # it came back before it was released: that cannot be undone, so it is made anew
                found.append(_node(node.node_id, messages.NodeInfo.DECOMISSION))
                self._draining.discard(rank)
                told = None
            self._told[rank] = node
            self._ranks[node.node_id] = rank
            found.append(_created(node) if told is None else _updated(node, told))
        return found

    def _leaving(self, pool: Pool, in_use: Callable[[int], bool]) -> list[Any]:
        gone = [rank for rank in self._told if rank not in pool]
        found = []
        for rank in gone:
            node = self._told[rank]
            if in_use(rank):
                if rank not in self._draining:
                    self._draining.add(rank)
                    found.append(_node(node.node_id, messages.NodeInfo.DRAIN_NODE))
                continue
            found.append(_node(node.node_id, messages.NodeInfo.DECOMISSION))
            del self._told[rank], self._ranks[node.node_id]
            self._draining.discard(rank)
        return found


def nodes_of(pool: Pool, occupied: Mapping[int, Mapping[str, int]]) -> dict[int, Node]:
    """All targets of a group as nodes; linear in the group."""
    resources, down = pool.resources, pool.down
    found = {}
    for entry in resources.entries:
        amounts = amounts_on(entry.children)
        for rank in entry.ranks:
            host = resources.host(rank)
            attributes = {HOSTNAME: host, RANK: str(rank), READY: "false" if rank in down else "true"}
            attributes |= {name: "true" for name, ranks in resources.properties.items() if rank in ranks}
            found[rank] = Node(f"{host}/{rank}", amounts, attributes, occupied.get(rank, {}))
    return found


def fill(resource: Any, amounts: Mapping[str, int]) -> None:
    """Write amounts into a Resource, which is present even if there are none."""
    resource.SetInParent()
    for kind, amount in amounts.items():
        resource.resources[kind].value = amount


def with_allocations(infos: Iterable[Any], allocations: Mapping[str, list[Any]]) -> Iterable[Any]:
    """Yield the NodeInfos with the allocations that exist already, by node."""
    for info in infos:
        info.existingAllocations.extend(allocations.get(info.nodeID, ()))
        yield info


def _node(node_id: str, action: int) -> Any:
    return messages.NodeInfo(nodeID=node_id, action=action)


def _created(node: Node) -> Any:
    info = _node(node.node_id, messages.NodeInfo.CREATE)
    info.attributes.update(node.attributes)
    fill(info.schedulableResource, node.amounts)
    if node.occupied:
        fill(info.occupiedResource, node.occupied)
    return info


def _updated(node: Node, told: Node) -> Any:
    """Only what differs; an attribute that is gone is empty."""
    info = _node(node.node_id, messages.NodeInfo.UPDATE)
    for name in {*node.attributes, *told.attributes}:
        if node.attributes.get(name) != told.attributes.get(name):
            info.attributes[name] = node.attributes.get(name, "")
    if node.amounts != told.amounts:
        fill(info.schedulableResource, node.amounts)
    if node.occupied != told.occupied:
        fill(info.occupiedResource, node.occupied)
    return info


# ---- jobs as applications

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
        self, jobid: int, attempt: int, pieces: tuple[NodesAsked, ...] = (), job: PendingJob | None = None
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
        """Return a placeholder in place of one that came to a node that the job has: on none of these."""
        at = int(key.split("/")[1])
        self.moves += 1
        ranks = frozenset(each.rank for each in self.placeholders.values())
        return self._ask(at, self.pieces[at], 1, True, ranks)

    def slots_of(self, key: str) -> int | None:
        """Return the slots of an allocation of this ask; None if it is none of ours."""
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
