"""The messages of a load: nodes, applications and asks of as many sizes and queues as are wanted.

Law: all fit. The nodes have twice what all asks take together, so a rate is never that of a full cluster. Only
messages of the interface itself are used, so that the load can be put on any implementation of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from fluxsched.adapters.si import messages
from fluxsched.errors import InvalidValue

PARTITION: Final = "default"
MIB: Final = 1 << 20

NODES_MAX: Final = 100_000
ASKS_MAX: Final = 1_000_000
QUEUES_MAX: Final = 10_000
SHAPES_MAX: Final = 1_000
"""Far above what is measured; more would only exhaust the memory of the load itself."""

BATCH: Final = 1000
"""Items in one message, unless said otherwise: as many as a service answers in one."""


class Load(NamedTuple):
    """Load of so many asks, of `shapes` sizes in turn, or with 0 each of another; spread over `queues`.

    `node_batch` and `ask_batch` are the items of one message; 0 for all nodes in one.
    """

    nodes: int = 500
    asks: int = 10_000
    shapes: int = 8
    queues: int = 1
    node_batch: int = 0
    ask_batch: int = BATCH
    rm_id: str = "load"

    def check(self) -> Load:
        """Raises InvalidValue for a number outside its range."""
        ranges = {
            "nodes": (1, NODES_MAX), "asks": (1, ASKS_MAX), "shapes": (0, SHAPES_MAX), "queues": (1, QUEUES_MAX),
            "node_batch": (0, NODES_MAX), "ask_batch": (1, ASKS_MAX),
        }  # fmt: skip
        for name, (least, most) in ranges.items():
            number = getattr(self, name)
            if not least <= number <= most:
                raise InvalidValue(f"{name.replace('_', ' ')} {number} is not within {least} and {most:,}")
        return self

    def size(self, ask: int) -> dict[str, int]:
        """Return the amounts of one ask: thousandths of a vcore, bytes."""
        step = ask if self.shapes == 0 else ask % self.shapes
        return {"vcore": 100 + 100 * (step % 8), "memory": (256 + step) * MIB}

    def registration(self) -> Any:
        """With a configuration of as many leaf queues as are wanted."""
        return messages.RegisterResourceManagerRequest(
            rmID=self.rm_id, version="1", policyGroup=self.rm_id, config=self._config()
        )

    def _config(self) -> str:
        leaves = "".join(f"          - name: {_leaf(queue)}\n" for queue in range(self.queues))
        head = "partitions:\n  - name: default\n    queues:\n      - name: root\n        submitacl: '*'\n"
        return f"{head}        queues:\n{leaves}"

    def node_requests(self) -> Iterator[Any]:
        """Yield the requests for all nodes, which are equal."""
        each = -(-self.asks // self.nodes)
        largest = [self.size(ask) for ask in (self.asks - 1, self.shapes - 1, 7) if ask >= 0]
        amounts = {kind: 2 * each * max(size[kind] for size in largest) for kind in ("vcore", "memory")}
        batch = self.node_batch or self.nodes
        for first in range(0, self.nodes, batch):
            request = messages.NodeRequest(rmID=self.rm_id)
            for number in range(first, min(first + batch, self.nodes)):
                node = request.nodes.add(nodeID=f"node-{number}", action=messages.NodeInfo.CREATE)
                node.attributes["si/hostname"] = f"node-{number}"
                set_amounts(node.schedulableResource, amounts)
            yield request

    def application_requests(self) -> Iterator[Any]:
        """Yield the requests for one application a queue."""
        for first in range(0, self.queues, BATCH):
            request = messages.ApplicationRequest(rmID=self.rm_id)
            for queue in range(first, min(first + BATCH, self.queues)):
                application = request.new.add(
                    applicationID=f"app-{queue}", queueName=f"root.{_leaf(queue)}", partitionName=PARTITION
                )
                application.ugi.user = "load"
            yield request

    def ask_requests(self, first: int = 0, last: int | None = None) -> Iterator[Any]:
        """The asks from `first` up to `last`, each of one allocation; the key is its number."""
        end = self.asks if last is None else min(last, self.asks)
        for start in range(first, end, self.ask_batch):
            request = messages.AllocationRequest(rmID=self.rm_id)
            for ask in range(start, min(start + self.ask_batch, end)):
                made = request.asks.add(
                    allocationKey=str(ask), applicationID=f"app-{ask % self.queues}", partitionName=PARTITION,
                    maxAllocations=1,
                )  # fmt: skip
                set_amounts(made.resourceAsk, self.size(ask))
            yield request


def set_amounts(resource: Any, amounts: dict[str, int]) -> None:
    """Fill a Resource; one of no amounts is present all the same."""
    resource.SetInParent()
    for kind, amount in amounts.items():
        resource.resources[kind].value = amount


def _leaf(queue: int) -> str:
    return f"q{queue}"
