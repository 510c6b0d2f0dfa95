"""A load on a scheduler service: a resource manager that registers nodes, sends asks and prints rates and latencies.

    python benchmarks/si_load.py ADDRESS [--nodes 500] [--asks 10000] [--shapes 8] [--queues 1] [--rate 0] [--json]
    python benchmarks/si_load.py --help

Only messages of the interface itself are used, so that ADDRESS may be any implementation of it; `--shapes 0` makes each
ask differ. All asks fit: the nodes have twice what they take together, so a rate is never that of a full cluster. Asks
are counted by their keys, each once; latency is from the ask's hand-over to gRPC to the arrival of its allocation here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.system.clock import SystemClock
from fluxsched.yunikorn import messages
from fluxsched.yunikorn.messages import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.yunikorn.wire import Address, ClientCertificates, RMClient, parse_address

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


TICK_S: Final = 0.002
"""Between two messages of a paced load (seconds): a small part of the latency that is measured."""

ReadClock = Callable[[], float]


class Measured(NamedTuple):
    """Measurements of a load; times in seconds. `latencies_s` are sorted, those of asks that were allocated."""

    load: Load
    nodes_s: float
    allocations_s: float
    latencies_s: tuple[float, ...]

    @property
    def allocated(self) -> int:
        """Return the number of asks that were allocated."""
        return len(self.latencies_s)

    @property
    def nodes_per_s(self) -> float:
        return self.load.nodes / self.nodes_s if self.nodes_s else inf

    @property
    def allocations_per_s(self) -> float:
        return self.allocated / self.allocations_s if self.allocations_s else inf

    def latency_s(self, share: float) -> float:
        """The latency that this share of the asks does not exceed; 0.0 without any."""
        kept = self.latencies_s
        return kept[min(len(kept) - 1, int(share * len(kept)))] if kept else 0.0


class LoadProgress:
    """Counts of the answers so far, and waiting until they are as many as needed, or a refusal has arrived."""

    def __init__(self, asks: int, now_s: ReadClock) -> None:
        self.nodes = self.applications = self.allocated = 0
        self.sent_s = [0.0] * asks
        self.got_s = [0.0] * asks
        self.last_s = 0.0
        self._refused = ""
        self._now_s = now_s
        self._changed = asyncio.Event()

    def take(self, kind: str, response: Any) -> None:
        """Count what a response says."""
        now_s = self._now_s()
        if kind == ALLOCATIONS:
            for allocation in response.new:
                number = int(allocation.allocationKey)
                if not self.got_s[number]:
                    self.got_s[number] = now_s
                    self.allocated += 1
            self.last_s = now_s
        elif kind == NODES:
            self.nodes += len(response.accepted)
        elif kind == APPLICATIONS:
            self.applications += len(response.accepted)
        for refused in response.rejected:
            self._refused = self._refused or refused.reason
        self._changed.set()

    async def until(self, reached: Callable[[], bool], ended: asyncio.Future[str], limit_s: float) -> bool:
        """Wait until that; False if it takes longer. Raises Refused for what was, and for the end of the connection."""
        give_up_s = self._now_s() + limit_s
        while not reached():
            if self._refused:
                raise Refused(f"the scheduler has refused a part of the load: {self._refused}")
            if ended.done():
                raise Refused(ended.result())
            if (left_s := give_up_s - self._now_s()) <= 0:
                return False
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            await asyncio.wait((changed, ended), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        return True


async def put(client: RMClient, load: Load, now_s: ReadClock, rate: float, limit_s: float) -> Measured:
    """Register, put the load on and leave; with a `rate` so many asks a second, else all at once.

    What takes longer than `limit_s` is left. Raises Refused if the service refuses a part of it, or ends.
    """
    tally = LoadProgress(load.asks, now_s)
    try:
        await client.register(load.registration())
        client.open(tally.take)
        begun_s = now_s()
        for request in load.node_requests():
            client.send(NODES, request)
        if not await tally.until(lambda: tally.nodes >= load.nodes, client.ended, limit_s):
            raise Refused(f"{tally.nodes} of {load.nodes} nodes were accepted within {limit_s:g} s")
        nodes_s = now_s() - begun_s
        for request in load.application_requests():
            client.send(APPLICATIONS, request)
        if not await tally.until(lambda: tally.applications >= load.queues, client.ended, limit_s):
            raise Refused(f"{tally.applications} of {load.queues} applications were accepted within {limit_s:g} s")
        first_s = now_s()
        if rate:
            await _send_paced(client, load, tally, rate, now_s)
        else:
            for request in load.ask_requests():
                _send(client, request, tally, now_s())
        await tally.until(lambda: tally.allocated >= load.asks, client.ended, limit_s)
    finally:
        await client.leave()
    latencies = sorted(got - sent for got, sent in zip(tally.got_s, tally.sent_s, strict=True) if got)
    return Measured(load, nodes_s, tally.last_s - first_s, tuple(latencies))


def _send(client: RMClient, request: Any, tally: LoadProgress, now_s: float) -> None:
    for ask in request.asks:
        tally.sent_s[int(ask.allocationKey)] = now_s
    client.send(ALLOCATIONS, request)


async def _send_paced(client: RMClient, load: Load, tally: LoadProgress, rate: float, now_s: ReadClock) -> None:
    """Send the asks that are due by now in one message, then pause, until all are sent."""
    begun_s, sent = now_s(), 0
    while sent < load.asks:
        if client.ended.done():
            return
        due = min(load.asks, int((now_s() - begun_s) * rate) + 1)
        for request in load.ask_requests(sent, due):
            _send(client, request, tally, now_s())
        sent = max(sent, due)
        await asyncio.sleep(TICK_S)


def measure(
    address: Address, certificates: ClientCertificates | None, load: Load, rate: float, limit_s: float
) -> Measured:
    """Put a load on the service at an address (see `put`)."""

    async def run() -> Measured:
        return await put(RMClient(address, certificates), load, SystemClock.monotonic_s, rate, limit_s)

    return asyncio.run(run())


def table(measured: Measured) -> dict[str, Any]:
    """The figures by name, for programs."""
    return {
        "nodes": measured.load.nodes,
        "nodes_s": measured.nodes_s,
        "nodes_per_s": measured.nodes_per_s,
        "asks": measured.load.asks,
        "allocated": measured.allocated,
        "allocations_s": measured.allocations_s,
        "allocations_per_s": measured.allocations_per_s,
        "p50_s": measured.latency_s(0.5),
        "p99_s": measured.latency_s(0.99),
        "longest_s": measured.latency_s(1.0),
    }


def report(measured: Measured) -> str:
    """Return the figures as text for people."""
    load = measured.load
    p50, p99, longest = (1000 * measured.latency_s(share) for share in (0.5, 0.99, 1.0))
    return (
        f"{load.nodes:,} nodes accepted in {measured.nodes_s:.3f} s: {measured.nodes_per_s:,.0f} a second\n"
        f"{measured.allocated:,} of {load.asks:,} asks allocated in {measured.allocations_s:.3f} s: "
        f"{measured.allocations_per_s:,.0f} a second\n"
        f"ask to allocation: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {longest:.1f} ms"
    )


def main() -> None:
    """Put the load of the command line on a service; exit status 1 if it did not allocate all asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="unix:PATH or HOST:PORT, as `fluxsched si serve` prints it")
    for name, default in Load()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--rate", type=float, default=0.0, help="asks a second; 0 for all at once")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
    parser.add_argument("--json", action="store_true")
    for name in ("--cert", "--key", "--ca"):
        parser.add_argument(name, type=Path, help="file (PEM), for a service on TCP")
    args = parser.parse_args()
    try:
        address = parse_address(args.address)
        certificates = ClientCertificates.of(address, args.cert, args.key, args.ca)
        load = Load(*(getattr(args, name) for name in Load._fields)).check()
        measured = measure(address, certificates, load, args.rate, args.timeout)
    except FluxschedError as fault:
        sys.exit(f"si_load: {fault}")
    print(json.dumps(table(measured)) if args.json else report(measured))
    if measured.allocated < load.asks:
        sys.exit(1)


if __name__ == "__main__":
    main()
