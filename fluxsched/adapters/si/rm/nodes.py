"""The targets of a group as nodes of the interface: what the service was told of each, and what has changed since.

Law: a node is created, drained and decommissioned once each; a target that has left stays a draining node until the
last allocation there has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from fluxsched.adapters.si import messages
from fluxsched.adapters.si.rm.sizes import RANK, amounts_on
from fluxsched.sched.pool.pool import Pool

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
        """The service has lost all that it was told."""
        self._told.clear()
        self._draining.clear()
        self._ranks.clear()
        self._looked = None

    def rank(self, node_id: str) -> int | None:
        """The target of a node; None for one that is not ours."""
        return self._ranks.get(node_id)

    def node_id(self, rank: int) -> str:
        """The node of a target that was told, else its rank."""
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
