"""An instance's side and a scheduler of a few lines, joined in memory: what an instance tells a service, step by step.

The scheduler places an ask on the first node that has all of it (so that two of a job come to one node), replaces
placeholders, and takes back what a test says. It shares no code with ours but the messages.
"""

from __future__ import annotations

import json
from typing import Any

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.sched.decisions import Granted, Raise, Release
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.config import read_config
from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.machine import SIMachine
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.yunikorn.rm import EndJob, InstanceRM, RemoteDecisions, SendRequest

Node = messages.NodeInfo


def amounts(resource: Any) -> dict[str, int]:
    return {kind: quantity.value for kind, quantity in resource.resources.items()}


class Peer:
    """The service; `nodes`, `applications` and `held` are what it knows."""

    def __init__(self) -> None:
        self.nodes: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, str]] = {}
        self.free: dict[str, dict[str, int]] = {}
        self.applications: dict[str, Any] = {}
        self.pending: list[list[Any]] = []
        self.held: dict[str, Any] = {}
        self.actions: list[tuple[str, int]] = []
        self.confirmed: list[tuple[str, int]] = []
        self.refuses = ""
        self.heeds_constraints = True
        self._uuids = 0
        self._answers: list[tuple[str, Any]] = []

    def receive(self, kind: str, request: Any) -> None:
        take = {NODES: self._nodes, APPLICATIONS: self._applications, ALLOCATIONS: self._allocations}[kind]
        self._answers.append((kind, take(request)))

    def answers(self, now_s: float) -> list[tuple[str, Any]]:
        """What it says by now."""
        found, self._answers = [*self._answers, (ALLOCATIONS, self.schedule())], []
        return [each for each in found if each[1].ByteSize()]

    def _nodes(self, request: Any) -> Any:
        response = messages.NodeResponse()
        for info in request.nodes:
            name = info.nodeID
            self.actions.append((name, info.action))
            if info.action == Node.CREATE:
                assert name not in self.nodes
                self.nodes[name], self.attributes[name] = info, dict(info.attributes)
                self.free[name] = amounts(info.schedulableResource)
                self._use(name, amounts(info.occupiedResource))
                for allocation in info.existingAllocations:
                    assert allocation.applicationID in self.applications
                    self.held[allocation.UUID] = allocation
                    self._use(name, amounts(allocation.resourcePerAlloc))
                response.accepted.add(nodeID=name)
            elif info.action == Node.UPDATE:
                self.attributes[name].update(info.attributes)
                if info.HasField("schedulableResource"):
                    self.nodes[name].schedulableResource.CopyFrom(info.schedulableResource)
            elif info.action == Node.DRAIN_NODE:
                self.attributes[name]["draining"] = "true"
            elif info.action == Node.DECOMISSION:
                assert not [each for each in self.held.values() if each.nodeID == name], "it is in use"
                del self.nodes[name], self.free[name], self.attributes[name]
        return response

    def _use(self, node: str, wanted: dict[str, int], sign: int = 1) -> None:
        for kind, amount in wanted.items():
            self.free[node][kind] = self.free[node].get(kind, 0) - sign * amount
            assert self.free[node][kind] >= 0, f"{node} has not enough {kind}"

    def _applications(self, request: Any) -> Any:
        response = messages.ApplicationResponse()
        for added in request.new:
            assert added.applicationID not in self.applications
            if self.refuses:
                response.rejected.add(applicationID=added.applicationID, reason=self.refuses)
                continue
            self.applications[added.applicationID] = added
            response.accepted.add(applicationID=added.applicationID)
        for removed in request.remove:
            self.applications.pop(removed.applicationID, None)
            self.pending = [one for one in self.pending if one[0].applicationID != removed.applicationID]
            for uuid in [uuid for uuid, each in self.held.items() if each.applicationID == removed.applicationID]:
                self._free(uuid)
        return response

    def _allocations(self, request: Any) -> Any:
        response = messages.AllocationResponse()
        for ask in request.asks:
            assert ask.applicationID in self.applications
            self.pending = [one for one in self.pending if one[0].allocationKey != ask.allocationKey]
            self.pending.append([ask, ask.maxAllocations])
        for released in request.releases.allocationsToRelease:
            uuid, why = released.UUID, released.terminationType
            self.confirmed.append((uuid, why))
            if uuid not in self.held:
                continue
            old = self._free(uuid)
            if why == messages.PLACEHOLDER_REPLACED:
                ask = next(one for one in self.pending if one[0].taskGroupName == old.taskGroupName)
                response.new.append(self._allocate(ask, old.nodeID))
            elif why == messages.STOPPED_BY_RM:
                response.released.append(released)
        return response

    def _free(self, uuid: str) -> Any:
        allocation = self.held.pop(uuid)
        self._use(allocation.nodeID, amounts(allocation.resourcePerAlloc), -1)
        return allocation

    def _allocate(self, one: list[Any], node: str) -> Any:
        ask, one[1] = one[0], one[1] - 1
        self._uuids += 1
        self._use(node, amounts(ask.resourceAsk))
        allocation = self.held[f"u{self._uuids}"] = messages.Allocation(
            allocationKey=ask.allocationKey, UUID=f"u{self._uuids}", nodeID=node, applicationID=ask.applicationID,
            resourcePerAlloc=ask.resourceAsk, placeholder=ask.placeholder, taskGroupName=ask.taskGroupName,
        )  # fmt: skip
        return allocation

    def schedule(self) -> Any:
        """What it decides now."""
        response = messages.AllocationResponse()
        for one in self.pending:
            ask = one[0]
            if ask.taskGroupName and not ask.placeholder:
                for uuid, each in self.held.items():
                    if each.placeholder and each.applicationID == ask.applicationID:
                        response.released.add(
                            UUID=uuid, applicationID=ask.applicationID, terminationType=messages.PLACEHOLDER_REPLACED
                        )
                continue
            while one[1] and (node := self._node_for(ask)) is not None:
                response.new.append(self._allocate(one, node))
        self.pending = [one for one in self.pending if one[1]]
        return response

    def _node_for(self, ask: Any) -> str | None:
        wanted = json.loads(ask.tags.get("fluxsched/constraint", "{}")).get("properties", [])
        for name in sorted(self.nodes):
            attributes = self.attributes[name]
            if attributes["ready"] != "true" or "draining" in attributes:
                continue
            has = {f"{key}={value}" for key, value in attributes.items()}
            lacking = [each for each in wanted if (each[1:] in has if each[0] == "^" else each not in has)]
            if lacking and self.heeds_constraints:
                continue
            if all(self.free[name].get(kind, 0) >= amount for kind, amount in amounts(ask.resourceAsk).items()):
                return name
        return None


class Ours:
    """Our own machine as the service, in process and on virtual time."""

    def __init__(self, rm_id: str, config: str) -> None:
        self._uuids = 0
        self.machine = SIMachine(lambda _: None, lambda _: (), self._uuid, read_config)
        self._api = InProcessScheduler(self.machine)
        self._said: list[tuple[str, Any]] = []
        self._api.RegisterResourceManager(messages.RegisterResourceManagerRequest(rmID=rm_id, config=config), self)
        self._calls = {
            NODES: self._api.UpdateNode, APPLICATIONS: self._api.UpdateApplication,
            ALLOCATIONS: self._api.UpdateAllocation,
        }  # fmt: skip

    def receive(self, kind: str, request: Any) -> None:
        self._calls[kind](request)

    def answers(self, now_s: float) -> list[tuple[str, Any]]:
        """What it says by now."""
        for _ in range(5):
            self._api.turn(now_s)
        found, self._said = self._said, []
        return found

    @property
    def nodes(self) -> dict[str, Any]:
        """As in its state."""
        (manager,) = self.machine.state_dump()["rms"]
        (partition,) = manager["partitions"]
        return {node["nodeID"]: node for node in partition["nodes"]}

    @property
    def held(self) -> list[str]:
        """The UUIDs of all allocations."""
        return [uuid for node in self.nodes.values() for uuid in node["allocations"]]

    def _uuid(self) -> str:
        self._uuids += 1
        return f"u{self._uuids}"

    def UpdateNode(self, response: Any) -> None:
        self._said.append((NODES, response))

    def UpdateApplication(self, response: Any) -> None:
        self._said.append((APPLICATIONS, response))

    def UpdateAllocation(self, response: Any) -> None:
        self._said.append((ALLOCATIONS, response))


class Joined:
    """An instance's scheduler with a peer; times are virtual."""

    def __init__(self, resources: ResourceSet, offline: Idset = EMPTY) -> None:
        policy = RemoteDecisions()
        self.scheduler = Scheduler(policy)
        self.rm = policy.rm = InstanceRM(self.scheduler.group("default"), "me", "root.default", str)
        self.peer: Any = None
        self.now_s = 1000.0
        self.started: dict[int, dict[int, tuple[int, int]]] = {}
        self.raised: list[EndJob] = []
        self.told: list[Any] = []
        self.released = EMPTY
        self.scheduler.grown("default", resources, resources.ranks - offline, offline, self.now_s)

    def connect(self) -> Peer:
        peer = self.peer = Peer()
        self.rm.connected()
        return peer

    def connect_ours(self, config: str = "") -> Ours:
        """To a real machine of ours."""
        ours = self.peer = Ours("me", config)
        self.rm.connected()
        return ours

    def submit(self, jobid: int, duration_s: float = 0.0, **asked: Any) -> None:
        spec = Jobspec.from_command(["true"], duration_s=duration_s, **asked)
        assert self.scheduler.alloc(jobid, 16, 1, self.now_s, spec, self.now_s) == []

    def why(self, jobid: int) -> str:
        """What the owner of a waiting job is told."""
        return self.scheduler.why(jobid, self.now_s).reason

    def free(self, *jobids: int) -> None:
        for jobid in jobids:
            self._note(self.scheduler.free_all(jobid, self.now_s))

    def shrink(self, ranks: str) -> None:
        self._note(self.scheduler.shrunk("default", Idset.parse(ranks), True, self.now_s))

    def _note(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                self.started[effect.jobid] = {rank: (c, g) for rank, c, g, _ in effect.fit.parts}
            elif isinstance(effect, Raise):
                self.raised.append(EndJob(effect.jobid, effect.type, effect.note))
            elif isinstance(effect, Release):
                self.released |= effect.targets

    def settle(self) -> None:
        """Turns of both sides until neither has anything to say."""
        for _ in range(100):
            self._note(self.scheduler.schedule(self.now_s))
            self.scheduler.check()
            quiet = True
            for one in self.rm.reconcile(self.now_s):
                quiet = False
                if isinstance(one, EndJob):
                    self.raised.append(one)
                elif self.peer is not None and isinstance(one, SendRequest):
                    self.peer.receive(one.kind, one.request)
            for kind, response in () if self.peer is None else self.peer.answers(self.now_s):
                quiet = False
                self.rm.receive(kind, response, self.now_s)
            if quiet:
                return
        raise AssertionError("the two sides do not come to rest")
