"""A machine on virtual time, and resource managers in process that talk to it in short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from fluxsched.yunikorn.config import read_config
from fluxsched.yunikorn.machine import SIMachine
from fluxsched.yunikorn.messages import (
    ALLOCATIONS,
    APPLICATIONS,
    NODES,
    AddApplicationRequest,
    Allocation,
    AllocationAsk,
    AllocationAskRelease,
    AllocationRelease,
    AllocationReleasesRequest,
    AllocationRequest,
    ApplicationRequest,
    Broke,
    Effect,
    NodeInfo,
    NodeRequest,
    Observed,
    Quantity,
    RegisterResourceManagerRequest,
    RemoveApplicationRequest,
    Resource,
    SendResponse,
    UserGroupInformation,
)

FAIR_CONFIG = """
partitions:
  - name: default
    queues:
      - name: root
        queues:
          - name: default
            submitacl: "*"
            resources: {max: {vcore: 1}}
          - name: fair
            submitacl: "*"
            properties: {application.sort.policy: fair}
          - name: parent
            submitacl: "*"
            queues: [{name: leaf}]
          - name: closed
            submitacl: "bob"
"""
"""Queues of all kinds."""


PREEMPTION = """
partitions:
  - name: default
    preemption: {enabled: true}
    queues:
      - name: root
        submitacl: "*"
        queues:
          - name: one
            properties: {preemption.delay: 1s}
            resources: {guaranteed: {vcore: 50m}}
          - name: other
            resources: {guaranteed: {vcore: 50m}}
"""
"""Two leaves with a guarantee each."""


def resource(amounts: Mapping[str, int] | int) -> Any:
    """A Resource; a bare number is of vcore."""
    amounts = {"vcore": amounts} if isinstance(amounts, int) else amounts
    return Resource(resources={kind: Quantity(value=value) for kind, value in amounts.items()})


class World:
    """A machine, its time, and what it has said that was not looked at."""

    def __init__(self, configs: Mapping[str, str] | None = None, **options: Any) -> None:
        numbers = count(1)
        self.machine = SIMachine(
            (configs or {}).get, lambda user: (), lambda: f"u{next(numbers)}", read_config, **options
        )
        self.now_s = 1000.0
        self.said: list[Effect] = []

    def run(self, for_s: float = 0.0) -> World:
        """All turns that are due until so much later."""
        end_s = self.now_s + for_s
        while True:
            for _ in range(1000):
                self._turn()
                if self.machine.next_wake_s > self.now_s:
                    break
            else:
                raise AssertionError("turns do not come to an end")
            if self.machine.next_wake_s > end_s:
                self.now_s = end_s
                return self
            self.now_s = self.machine.next_wake_s

    def _turn(self) -> None:
        for effect in self.machine.turn(self.now_s):
            if isinstance(effect, Broke):
                raise effect.fault
            self.said.append(effect)


class Client:
    """One resource manager in process."""

    def __init__(
        self, world: World | None = None, rm_id: str = "rm", config: str = "", group: str = "", observed: bool = False,
        callback: Any = None,
    ) -> None:  # fmt: skip
        self.world = world or World()
        self.rm_id = rm_id
        self.machine = self.world.machine
        request = RegisterResourceManagerRequest(rmID=rm_id, config=config, policyGroup=group)
        self.machine.register(request, self.world.now_s, predicates=callback, in_process=True)
        self.machine.observe(rm_id, observed)

    # ---- what it says

    def nodes(self, *nodes: Any) -> Client:
        self.machine.update_node(NodeRequest(rmID=self.rm_id, nodes=nodes), self.world.now_s)
        return self

    def node(
        self, node_id: str, amounts: Mapping[str, int] | int | None = None, action: int = NodeInfo.CREATE, **fields: Any
    ) -> Client:
        if amounts is not None:
            fields["schedulableResource"] = resource(amounts)
        return self.nodes(NodeInfo(nodeID=node_id, action=action, **fields))

    def application(self, application_id: str = "app", queue: str = "root.default", **fields: Any) -> Client:
        fields.setdefault("ugi", UserGroupInformation(user="ann", groups=["staff"]))
        new = AddApplicationRequest(applicationID=application_id, queueName=queue, **fields)
        self.machine.update_application(ApplicationRequest(rmID=self.rm_id, new=[new]), self.world.now_s)
        return self

    def remove(self, application_id: str = "app", **fields: Any) -> Client:
        remove = [RemoveApplicationRequest(applicationID=application_id, **fields)]
        self.machine.update_application(ApplicationRequest(rmID=self.rm_id, remove=remove), self.world.now_s)
        return self

    def ask(self, key: str = "a", amounts: Mapping[str, int] | int = 1, repeats: int = 1, **fields: Any) -> Client:
        fields.setdefault("applicationID", "app")
        fields.setdefault("maxAllocations", repeats)
        ask = AllocationAsk(allocationKey=key, resourceAsk=resource(amounts), **fields)
        self.machine.update_allocation(AllocationRequest(rmID=self.rm_id, asks=[ask]), self.world.now_s)
        return self

    def allocation(self, key: str = "a", amounts: Mapping[str, int] | int = 1, **fields: Any) -> Client:
        """An Allocation since version 1.6: an ask, unless it names its node."""
        fields.setdefault("applicationID", "app")
        allocation = Allocation(allocationKey=key, resourcePerAlloc=resource(amounts), **fields)
        self.machine.update_allocation(AllocationRequest(rmID=self.rm_id, allocations=[allocation]), self.world.now_s)
        return self

    def release(self, uuid: str = "", type: int = 0, **fields: Any) -> Client:
        fields.setdefault("applicationID", "app")
        releases = AllocationReleasesRequest(
            allocationsToRelease=[AllocationRelease(UUID=uuid, terminationType=type, **fields)]
        )
        self.machine.update_allocation(AllocationRequest(rmID=self.rm_id, releases=releases), self.world.now_s)
        return self

    def release_ask(self, key: str = "a", **fields: Any) -> Client:
        fields.setdefault("applicationID", "app")
        releases = AllocationReleasesRequest(
            allocationAsksToRelease=[AllocationAskRelease(allocationKey=key, **fields)]
        )
        self.machine.update_allocation(AllocationRequest(rmID=self.rm_id, releases=releases), self.world.now_s)
        return self

    # ---- what it hears

    def run(self, for_s: float = 0.0) -> Client:
        self.world.run(for_s)
        return self

    def heard(self, kind: str) -> list[Any]:
        """The responses of a kind since the last time, after all turns that are due now."""
        self.world.run()
        mine = [each for each in self.world.said if _is_for(each, self.rm_id, kind)]
        self.world.said = [each for each in self.world.said if not _is_for(each, self.rm_id, kind)]
        return [each.response for each in mine if isinstance(each, SendResponse)]

    def items(self, kind: str) -> Iterator[tuple[str, Any]]:
        """The same item by item, with the fields that they are in."""
        for response in self.heard(kind):
            for field, items in response.ListFields():
                for item in items:
                    yield field.name, item

    def new(self) -> list[Any]:
        """Allocations only; anything else of that stream fails the test."""
        found = list(self.items(ALLOCATIONS))
        assert [field for field, _ in found] == ["new"] * len(found), found
        return [item for _, item in found]

    def allocation_items(self) -> list[tuple[str, ...]]:
        """(field, key or UUID, termination type or reason)."""
        return [(field, *_short(field, item)) for field, item in self.items(ALLOCATIONS)]

    def node_items(self) -> list[tuple[str, str, str]]:
        return [(field, item.nodeID, getattr(item, "reason", "")) for field, item in self.items(NODES)]

    def application_items(self) -> list[tuple[str, str, str]]:
        return [
            (field, item.applicationID, getattr(item, "state", "") or getattr(item, "reason", ""))
            for field, item in self.items(APPLICATIONS)
        ]

    def observed(self) -> tuple[list[Any], list[Any]]:
        """Events and container states."""
        self.world.run()
        mine = [each for each in self.world.said if isinstance(each, Observed) and each.rm_id == self.rm_id]
        self.world.said = [each for each in self.world.said if each not in mine]
        return [event for each in mine for event in each.events], [state for each in mine for state in each.states]

    def dump(self, partition: str = "default") -> dict[str, Any]:
        (rm,) = self.machine.state_dump(self.rm_id)["rms"]
        return next(each for each in rm["partitions"] if each["name"] == partition)

    def used(self, path: str = "root") -> dict[str, int]:
        """What a queue uses."""
        queue: dict[str, Any] = self.dump()["queues"]
        for name in path.split(".")[1:]:
            queue = next(child for child in queue["queues"] if child["path"].endswith(f".{name}"))
        return dict(queue["used"])


def _is_for(effect: Effect, rm_id: str, kind: str) -> bool:
    return isinstance(effect, SendResponse) and (effect.rm_id, effect.kind) == (rm_id, kind)


def _short(field: str, item: Any) -> tuple[str, ...]:
    if field == "new":
        return item.allocationKey, item.nodeID
    if field in ("rejected", "rejectedAllocations"):
        return item.allocationKey, item.reason
    kind = AllocationRelease.DESCRIPTOR.fields_by_name["terminationType"].enum_type.values_by_number
    name = kind[item.terminationType].name
    return (item.UUID if field == "released" else item.allocationKey), name


def existing(uuid: str, amounts: Mapping[str, int] | int = 1, **fields: Any) -> Any:
    """An Allocation to be reported with its node."""
    fields.setdefault("applicationID", "app")
    return Allocation(UUID=uuid, allocationKey=f"key-{uuid}", resourcePerAlloc=resource(amounts), **fields)


def one(items: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The only item."""
    (item,) = items
    return item
