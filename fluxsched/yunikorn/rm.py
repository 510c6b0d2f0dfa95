"""Process of `fluxsched si rm`: an instance as a resource manager of a scheduler service.

`InstanceRM` is the resource manager without I/O: targets, waiting jobs and allocations of the module's scheduler in,
messages and decisions out; its effects are values, so that a test compares lists. The policy `RemoteDecisions` starts
what has been given its allocations, since its decisions are made elsewhere. The two conversations know nothing of each
other's bytes.

Law: what the service is told is worked out from what there is (targets, waiting jobs, allocations) and what it was told
before, once a turn in which something has changed. So a service may be lost and come back at any time: it is told all
again, what waits is asked for again, and the instance and its jobs go on. Nothing is remembered across a restart:
running jobs come from the job manager's hello, under UUIDs of their own.

Jobs and targets of an instance in the interface's terms: applications, asks, allocations, nodes, and their amounts.

A job is one ask for each node that it is to have, since the interface places asks and knows no core ids. Cores are
thousandths of a vcore. The kind SHARE lets a job have a node to itself: of its thousandths such a job asks for all, any
other for one. What a request leaves open (ranges) is asked for at its least.

Laws: a node is created, drained and decommissioned once each, and only what has changed since the service was told is
told again; a target that has left stays a draining node until the last allocation there has gone. An attempt of a job
is an application of its own, since the service still ends the one before. Allocations are known by their UUIDs; of one
job none but those on different nodes count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.request import ONE, Count, Request
from fluxsched.core.rlite import Children
from fluxsched.errors import FluxschedError
from fluxsched.sched.engine.group import Group
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.ledger import JobAllocation
from fluxsched.sched.policy import Decision, Option, Pending, Start, View
from fluxsched.sched.pool.find_fit import find_on
from fluxsched.sched.pool.placement import Block, Blocks, Fits, Part, Shapes, instance_block, on_targets, parts_in
from fluxsched.sched.pool.pool import Pool
from fluxsched.sched.queue import PendingJob
from fluxsched.scheduler.host import SchedulerHost
from fluxsched.scheduler.main import host_until_end
from fluxsched.system.files import user_name
from fluxsched.system.log import logger, set_up_logging
from fluxsched.system.loop import Turns
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.yunikorn.wire import Address, ClientCertificates, RMClient

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


# ---- effects of the resource manager


class SendRequest(NamedTuple):
    """A message for the stream of its kind."""

    kind: str
    request: Any


class EndJob(NamedTuple):
    """End a running job by an exception of this type."""

    jobid: int
    type: str
    note: str


RMEffect: TypeAlias = SendRequest | EndJob


# ---- the resource manager

AGAIN_S: Final = 10.0
"""Until a refused job is tried again (seconds): a queue may have been made or emptied meanwhile."""

MOVES_MAX: Final = 64
"""Allocations of one job that are given back because another is on the same node; then all are."""

ADDED_AT_ONCE: Final = 1000
"""Number of applications in one message."""

NO_SERVICE: Final = "the scheduler service is lost"
ASKED: Final = "the scheduler service was asked"


class ServiceLink(Enum):
    """State of the connection to the service, with the service's knowledge of the instance."""

    DOWN = "nothing: there is no connection"
    JOINING = "us; applications of running jobs were sent, and nodes follow"
    UP = "all"


class InstanceRM:
    """One group of a scheduler of one policy, as the resource manager `rm_id`. Call `reconcile` after each turn.

    `reasons` has what is to be told to owners of waiting jobs, until the policy takes it; times are wall time.
    """

    def __init__(self, group: Group, rm_id: str, queue: str, user_name: Callable[[int], str]) -> None:
        self.rm_id = rm_id
        self.link = ServiceLink.DOWN
        self.jobs: dict[int, RMJob] = {}
        self.reasons: dict[int, str] = {}
        self._at = group
        self._queue = queue
        self._user_name = user_name
        self._nodes = Nodes()
        self._shapes = Shapes()
        self._by_application: dict[str, RMJob] = {}
        self._joining: set[str] = set()  # applications of running jobs that are not answered yet
        self._unknown: set[int] = set()  # running jobs that the service has refused to know
        self._attempts: dict[int, int] = {}
        self._out: list[RMEffect] = []
        self._retry_s = inf
        self._events = -1
        self._changed = True

    # ---- the connection

    def connected(self) -> None:
        """Record that the service knows us by name alone: applications of running jobs go first, then nodes with them
        on them.
        """
        self.disconnected()
        self._jobs_that_run_or_ended()
        self.link = ServiceLink.JOINING
        added = []
        for job in self.jobs.values():
            added.append(job.application(self._queue, self._user_of(job)))
            self._joining.add(job.application_id)
        if added:
            self._send(APPLICATIONS, messages.ApplicationRequest(new=added))

    def disconnected(self) -> None:
        """Whatever the service was told is of no use any more; jobs run on, waiting ones are asked for anew."""
        self.link = ServiceLink.DOWN
        self._nodes.forget()
        self._joining.clear()
        self._unknown.clear()
        for jobid, job in list(self.jobs.items()):
            if job.state is not JobState.RUNNING:
                self._drop(job)
                self.reasons[jobid] = NO_SERVICE
            job.ending.clear()
        self._changed = True
        if self.reasons:
            self._at.invalidate_pass()

    # ---- what the service says

    def receive(self, kind: str, response: Any, now_s: float) -> None:
        """Take a response; what follows comes with the next `reconcile`."""
        self._changed = True
        if kind == APPLICATIONS:
            self._take_applications(response, now_s)
        elif kind == ALLOCATIONS:
            self._take_allocations(response, now_s)
        if self.reasons:
            self._at.invalidate_pass()

    def _take_applications(self, response: Any, now_s: float) -> None:
        for accepted in response.accepted:
            self._joining.discard(accepted.applicationID)
            job = self._by_application.get(accepted.applicationID)
            if job is not None and job.state is JobState.SENT:
                job.state = JobState.ASKED
                self._ask(job.asks(placeholders=job.is_gang))
                self.reasons[job.jobid] = ASKED
        for rejected in response.rejected:
            self._joining.discard(rejected.applicationID)
            self._refused(rejected.applicationID, rejected.reason, now_s)
        for updated in response.updated:
            job = self._by_application.get(updated.applicationID)
            if updated.state in ("Failing", "Failed") and job is not None and job.state is not JobState.RUNNING:
                self._give_up(job, updated.message or updated.state, now_s, tell=False)

    def _take_allocations(self, response: Any, now_s: float) -> None:
        for allocation in response.new:
            job, rank = self._by_application.get(allocation.applicationID), self._nodes.rank(allocation.nodeID)
            if job is None or rank is None:
                continue  # of an attempt that was given up: its removal frees it
            asks = job.take(allocation, rank)
            if asks is None:
                self._release(job, allocation.UUID, allocation.allocationKey, messages.STOPPED_BY_RM)
                self._move(job, allocation, now_s)
            elif asks:
                self._ask(asks)
            if job.state is JobState.PLACED:
                self._at.invalidate_pass()
        for released in response.released:
            self._take_released(released, now_s)
        for rejected in response.rejected:
            self._refused(rejected.applicationID, rejected.reason, now_s)

    def _move(self, job: RMJob, allocation: Any, now_s: float) -> None:
        """Ask for another place for what has come to a node that the job has already."""
        slots = job.slots_of(allocation.allocationKey)
        if not allocation.placeholder or slots is None:
            return
        if job.moves < MOVES_MAX:
            self._ask([job.ask_elsewhere(allocation.allocationKey)])
        else:
            self._give_up(job, f"the scheduler service gave it nodes {MOVES_MAX} times that it has already", now_s)

    def _take_released(self, released: Any, now_s: float) -> None:
        """Release an allocation that the service wants back, or confirms to have."""
        job, uuid, why = self._by_application.get(released.applicationID), released.UUID, released.terminationType
        if job is None or (uuid not in job.allocations and uuid not in job.placeholders):
            if why != messages.STOPPED_BY_RM:  # it waits for an answer all the same
                self._send_releases([messages.AllocationRelease(
                    partitionName=PARTITION, applicationID=released.applicationID, UUID=uuid, terminationType=why
                )])  # fmt: skip
            return
        if job.state is JobState.RUNNING:
            if uuid not in job.ending:
                job.ending[uuid] = why
                kind = "preempt" if why == messages.PREEMPTED_BY_SCHEDULER else "timeout"
                self._out.append(EndJob(job.jobid, kind, released.message or "the scheduler service wants it back"))
            return
        self._release(job, uuid, released.allocationKey, why)
        job.placeholders.pop(uuid, None)
        job.allocations.pop(uuid, None)
        if why != messages.PLACEHOLDER_REPLACED:
            self._give_up(job, released.message or "the scheduler service took its allocation back", now_s)

    def _refused(self, application_id: str, reason: str, now_s: float) -> None:
        job = self._by_application.get(application_id)
        if job is None:
            return
        if job.state is JobState.RUNNING:
            self._unknown.add(job.jobid)
        else:
            self._give_up(job, f"the scheduler service refuses it: {reason}", now_s)

    def _give_up(self, job: RMJob, why: str, now_s: float, tell: bool = True) -> None:
        """End this attempt; another follows after AGAIN_S."""
        if job.state is JobState.RETRY:
            return
        if tell:
            self._remove(job)
        job.state, job.retry_s = JobState.RETRY, now_s + AGAIN_S
        self._retry_s = min(self._retry_s, job.retry_s)
        self._by_application.pop(job.application_id, None)
        self.reasons[job.jobid] = why
        self._changed = True

    # ---- what the scheduler knows

    def reconcile(self, now_s: float) -> list[RMEffect]:
        """Compare what there is with what the service was told; what is to be done now."""
        if not self._changed and self._events == self._at.events and self.next_s > now_s:
            return []
        self._events, self._changed = self._at.events, False
        self._jobs_that_run_or_ended()
        if self.link is ServiceLink.JOINING and not self._joining:
            self.link = ServiceLink.UP
            self._tell_nodes(is_first=True)
        elif self.link is ServiceLink.UP:
            self._tell_nodes()
        if self.link is ServiceLink.UP:
            self._jobs_that_wait(now_s)
        found, self._out = self._out, []
        return found

    @property
    def next_s(self) -> float:
        """Return the time at which `reconcile` is to be called though nothing happens (wall time; inf: never)."""
        return self._retry_s

    def _jobs_that_run_or_ended(self) -> None:
        allocations = self._at.ledger.allocations
        for allocation in allocations.values():
            job = self.jobs.get(allocation.jobid)
            if job is None:
                self._adopt(allocation)
            elif job.state is not JobState.RUNNING:
                job.state, job.blocks = JobState.RUNNING, allocation.blocks
            elif job.blocks is not allocation.blocks:
                self._freed(job, allocation)
        for jobid in self.jobs.keys() - allocations.keys():
            job = self.jobs[jobid]
            if job.state is JobState.RUNNING:
                for uuid, why in job.ending.items():
                    self._release(job, uuid, "", why)
                self._remove(job)
                self._drop(job)
                self._attempts.pop(jobid, None)

    def _adopt(self, allocation: JobAllocation) -> None:
        """Adopt a job that ran before we came."""
        job = RMJob(allocation.jobid, 1)
        job.adopt(allocation.blocks)
        self._keep(job)

    def _freed(self, job: RMJob, allocation: JobAllocation) -> None:
        """Record that a running job has freed some of its targets."""
        job.blocks = allocation.blocks
        kept = {part.rank for part in parts_in(on_targets(allocation.blocks))}
        for uuid, held in list(job.allocations.items()):
            if held.rank not in kept:
                del job.allocations[uuid]
                self._release(job, uuid, held.key, job.ending.pop(uuid, messages.STOPPED_BY_RM))

    def _jobs_that_wait(self, now_s: float) -> None:
        queue, jobs = self._at.queues[""].jobs.by_id, self.jobs
        for jobid in [jobid for jobid in jobs.keys() - queue.keys() if jobs[jobid].state is not JobState.RUNNING]:
            self._withdraw(jobs[jobid])
            self._attempts.pop(jobid, None)
        if self._retry_s <= now_s:
            for job in [job for job in jobs.values() if job.state is JobState.RETRY and job.retry_s <= now_s]:
                self._drop(job)
            waits_s = [job.retry_s for job in jobs.values() if job.state is JobState.RETRY]
            self._retry_s = min(waits_s, default=inf)
        added = []
        for jobid, wanted in queue.items():
            known = jobs.get(jobid)
            if known is None:
                if wanted.priority:
                    added.append(self._begin(wanted))
            elif known.job is not wanted:
                self._reprioritize(known, wanted)
        for first in range(0, len(added), ADDED_AT_ONCE):
            self._send(APPLICATIONS, messages.ApplicationRequest(new=added[first : first + ADDED_AT_ONCE]))

    def _reprioritize(self, job: RMJob, wanted: PendingJob) -> None:
        """Record that the priority of a waiting job is another one; at 0 it is held."""
        job.job = wanted
        if not wanted.priority:
            self._withdraw(job)
        elif job.state is JobState.ASKED and not job.is_gang:
            self._ask(job.asks(placeholders=False))

    def _withdraw(self, job: RMJob) -> None:
        if job.state is not JobState.RETRY:
            self._remove(job)
        self._drop(job)

    def _begin(self, wanted: PendingJob) -> Any:
        attempt = self._attempts[wanted.jobid] = self._attempts.get(wanted.jobid, 0) + 1
        job = RMJob(wanted.jobid, attempt, pieces_of(wanted.request, self._at.pool), wanted)
        self._keep(job)
        return job.application(self._queue, self._user_name(wanted.userid))

    def _tell_nodes(self, is_first: bool = False) -> None:
        infos = self._nodes.changes(self._at.pool, self._in_use, self._occupied())
        if is_first:
            infos = list(with_allocations(infos, self._running_by_node()))
        if infos:
            self._send(NODES, messages.NodeRequest(nodes=infos))

    def _in_use(self, rank: int) -> bool:
        """Return whether an allocation is on a target; linear in the jobs, and asked for targets that leave."""
        return any(rank in job.ranks for job in self.jobs.values())

    def _occupied(self) -> Mapping[int, Mapping[str, int]]:
        """Return the amounts held by jobs that the service has refused to know, by rank."""
        found: dict[int, dict[str, int]] = {}
        for jobid in self._unknown & self.jobs.keys():
            for part in parts_in(on_targets(self.jobs[jobid].blocks)):
                mine = found.setdefault(part.rank, {})
                for kind, amount in self._held_on(part).items():
                    mine[kind] = mine.get(kind, 0) + amount
        return found

    def _held_on(self, part: Part) -> dict[str, int]:
        pool = self._at.pool
        whole = part.rank in pool and pool.all_ids(part.rank) == (part.cores, part.gpus)
        return amounts_held(part.cores, part.gpus, part.amounts, whole)

    def _running_by_node(self) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for job in self.jobs.values():
            if job.jobid in self._unknown:
                continue
            parts = {part.rank: part for part in parts_in(on_targets(job.blocks))}
            for uuid, held in job.allocations.items():
                node_id = self._nodes.node_id(held.rank)
                allocation = messages.Allocation(
                    allocationKey=held.key, UUID=uuid, nodeID=node_id, applicationID=job.application_id,
                    partitionName=PARTITION,
                )  # fmt: skip
                fill(allocation.resourcePerAlloc, self._held_on(parts[held.rank]))
                found.setdefault(node_id, []).append(allocation)
        return found

    # ---- what the policy is told

    def placed(self) -> list[int]:
        """Jobs that have all allocations."""
        return [job.jobid for job in self.jobs.values() if job.state is JobState.PLACED]

    def fit(self, waiting: PendingJob, now_s: float) -> Fits | None:
        """Return the placement of a placed job, with the ids that we choose; None, and another attempt, if it does not
        fit.
        """
        job, pool = self.jobs[waiting.jobid], self._at.pool
        request, blocks, slots = waiting.request, list[Block](), 0
        for held in job.allocations.values():
            found = find_on(pool, self._shapes.of(on_one_node(request, held.slots)), held.rank)
            if found is None:
                self._give_up(job, f"target {held.rank} that the scheduler service gave it has not enough free", now_s)
                return None
            blocks += found.blocks
            slots += held.slots
        if lacking := pool.instance_countables.lacking(request.shared):
            self._give_up(job, f"it waits for {lacking} of the instance", now_s)
            return None
        return Fits(waiting.shape, (*blocks, *instance_block(request.shared)), slots)

    # ---- within

    def _user_of(self, job: RMJob) -> str:
        return "" if job.job is None else self._user_name(job.job.userid)

    def _keep(self, job: RMJob) -> None:
        self.jobs[job.jobid] = job
        self._by_application[job.application_id] = job

    def _drop(self, job: RMJob) -> None:
        self.jobs.pop(job.jobid, None)
        self._by_application.pop(job.application_id, None)
        self._unknown.discard(job.jobid)

    def _ask(self, asks: list[Any]) -> None:
        self._send(ALLOCATIONS, messages.AllocationRequest(asks=asks))

    def _release(self, job: RMJob, uuid: str, key: str, kind: int) -> None:
        self._send_releases([release(job, uuid, key, kind)])

    def _send_releases(self, releases: list[Any]) -> None:
        self._send(ALLOCATIONS, messages.AllocationRequest(
            releases=messages.AllocationReleasesRequest(allocationsToRelease=releases)
        ))  # fmt: skip

    def _remove(self, job: RMJob) -> None:
        """All of an application ends with it."""
        removed = messages.RemoveApplicationRequest(applicationID=job.application_id, partitionName=PARTITION)
        self._send(APPLICATIONS, messages.ApplicationRequest(remove=[removed]))

    def _send(self, kind: str, request: Any) -> None:
        if self.link is not ServiceLink.DOWN:
            request.rmID = self.rm_id
            self._out.append(SendRequest(kind, request))


# ---- the policy


class RemoteDecisions:
    """A scheduler service of YuniKorn's interface decides.

    Jobs that it has placed are started, and owners of others are told what it said. `rm` is set before the first pass.
    """

    name: ClassVar[str] = "si"
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self) -> None:
        self.rm: InstanceRM | None = None

    def schedule(self, view: View, now_s: float) -> Iterator[Decision]:
        """Yield what the resource manager has."""
        if self.rm is None:
            return
        for jobid in self.rm.placed():
            job = view.job(jobid)
            fit = None if job is None else self.rm.fit(job, now_s)
            if fit is not None:
                yield Start(jobid, fit)
        if self.rm.link is ServiceLink.DOWN:
            for job in view.queue:
                yield Pending(job.jobid, NO_SERVICE)
        while self.rm.reasons:
            jobid, reason = self.rm.reasons.popitem()
            yield Pending(jobid, reason)


# ---- the process

log = logger("si")

VERSION: Final = "1"
RECONNECT_S: Final[tuple[float, ...]] = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Pauses between attempts to reach a service (seconds); the last one stays."""


class RMSettings(NamedTuple):
    """`uri` is the instance's; `rm_id` is our name at the service, empty for one made of uri and group."""

    uri: str
    address: Address
    certificates: ClientCertificates | None
    group: str
    queue: str
    rm_id: str
    policy_group: str
    config: str

    @property
    def name(self) -> str:
        """Return our name at the service."""
        return self.rm_id or f"{Path(self.uri.partition('://')[2]).parent.name}/{self.group}"


def run(settings: RMSettings) -> str | None:
    """Run until the instance ends or asks us to stop (None), or something fails (the reason); logs go to stderr."""
    set_up_logging(None, verbose=1)
    return asyncio.run(serve(settings))


async def serve(settings: RMSettings) -> str | None:
    """Run as `run` does, in an event loop."""
    policy = RemoteDecisions()
    scheduler = Scheduler(policy, (settings.group,), user_name=user_name)
    rm = policy.rm = InstanceRM(scheduler.group(settings.group), settings.name, settings.queue, user_name)
    link = _Link(settings, rm)
    try:
        return await host_until_end(
            settings.uri, f"sched-si-{settings.group}", scheduler, (settings.group,), link.attend
        )
    finally:
        await link.leave()


class _Link:
    """Keeps the connection to the service, and carries messages between it and the turns of the host."""

    def __init__(self, settings: RMSettings, rm: InstanceRM) -> None:
        self._settings = settings
        self._rm = rm
        self._client: RMClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._due_s = float("inf")

    def attend(self, host: SchedulerHost, turns: Turns) -> None:
        """Be called at the end of each turn of the host."""
        self._host, self._turns = host, turns
        turns.at_end(self._turn)

    async def leave(self) -> None:
        """Half-close: what we had told the service is gone; jobs that run are told again by the next of us."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            await self._client.leave()

    def _turn(self) -> None:
        if not self._host.session.may_decide:
            return
        if self._task is None:  # only now do we know what runs
            self._task = asyncio.get_running_loop().create_task(self._stay_connected())
        now_s = self._turns.wall_s
        for one in self._rm.reconcile(now_s):
            match one:
                case SendRequest(kind, request):
                    if self._client is not None:
                        self._client.send(kind, request)
                case EndJob(jobid, type, note):
                    self._host.raise_exception(jobid, type, note)
        next_s = self._rm.next_s
        if next_s < self._due_s or self._due_s <= now_s:
            self._due_s = next_s
            if next_s < float("inf"):
                self._turns.after(next_s - now_s, lambda: None)

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            client = RMClient(self._settings.address, self._settings.certificates)
            try:
                await client.register(self._registration())
                failures = 0
                self._client = client
                client.open(self._take)
                self._turns.post(self._rm.connected)
                log.info("resource manager %s is registered at %s", self._settings.name, self._settings.address)
                why = await client.ended
            except FluxschedError as fault:
                why = str(fault)
            pause_s = RECONNECT_S[min(failures, len(RECONNECT_S) - 1)]
            log.warning("no scheduler service: %s; the next attempt is in %g s", why, pause_s)
            self._client = None
            self._turns.post(self._rm.disconnected)
            await client.close()
            failures += 1
            await asyncio.sleep(pause_s)

    def _registration(self) -> Any:
        settings = self._settings
        return messages.RegisterResourceManagerRequest(
            rmID=settings.name, version=VERSION, policyGroup=settings.policy_group, config=settings.config
        )

    def _take(self, kind: str, response: Any) -> None:
        self._turns.post(lambda: self._rm.receive(kind, response, self._turns.wall_s))
        if kind != "nodes":
            return
        for rejected in response.rejected:
            log.error("node %s is refused: %s", rejected.nodeID, rejected.reason)
