"""A scheduler service is killed (SIGKILL) again and again while it allocates, and its resource manager begins again.

Law: the resource manager's own books are the judge. It knows what runs where, so it notices what is allocated twice,
and a node that has more than it can hold; at the end the service's state has to say the same.

    python benchmarks/si_kill.py [KILLS]    20 by default
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from fluxsched.yunikorn.wire import EXTRA, SCHEDULER

PROGRAM = str(Path(sys.executable).with_name("fluxsched"))
WAIT_S = 60.0
NODES = {f"n{index}": 16_000 for index in range(20)}
"""Node to vcores, in thousandths."""
SIZES = (1000, 2000, 3000, 5000)
WANTED = 400
"""Asks that are pending at a time; more than fit, so that the service always has work."""


class Task(NamedTuple):
    """What runs: the ask's key, the node, and vcores in thousandths."""

    key: str
    node: str
    vcore: int


class Service:
    """`fluxsched si serve` on one address, started and killed."""

    def __init__(self, directory: str) -> None:
        self.address = f"unix:{directory}/s"
        self.start()

    def start(self) -> None:
        words = [PROGRAM, "si", "serve", "--bind", self.address]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.address

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> int:
        self._process.terminate()
        self._process.communicate(timeout=WAIT_S)
        return self._process.returncode


class Stream:
    """One stream of the resource manager."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        method = SCHEDULER[name]
        self._request, self._response = method.request, method.response
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._call = channel.stream_stream(method.path)(iter(self._requests.get, None), timeout=WAIT_S)

    def send(self, **fields: Any) -> None:
        self._requests.put(self._request(rmID="rm", **fields).SerializeToString())

    def next(self) -> Any:
        """Raises grpc.RpcError at the end of the service."""
        return self._response.FromString(next(self._call))

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()


class ResourceManager:
    """Asks, runs, releases, and keeps its books over all lives of the service."""

    def __init__(self, address: str, chance: random.Random) -> None:
        self._address = address
        self._chance = chance
        self._count = 0
        self._pending: dict[str, int] = {}
        self.running: dict[str, Task] = {}
        self.used = dict.fromkeys(NODES, 0)
        self.uuids: set[str] = set()

    def connect(self) -> None:
        """Registers, and sends all that it knows: applications, then nodes with what runs there, then asks."""
        self.channel = grpc.insecure_channel(self._address)
        self.call(SCHEDULER["RegisterResourceManager"], version="1.2")
        names = "UpdateApplication", "UpdateNode", "UpdateAllocation"
        self._streams = applications, nodes, self._allocations = [Stream(self.channel, name) for name in names]
        applications.send(new=[{"applicationID": "app", "queueName": "root.default"}])
        while not (response := applications.next()).accepted:
            assert not response.rejected, response
        nodes.send(nodes=[self._node(name, vcore) for name, vcore in NODES.items()])
        accepted = 0
        while accepted < len(NODES):
            response = nodes.next()
            assert not response.rejected, response
            accepted += len(response.accepted)
        self._ask(list(self._pending))

    def _node(self, name: str, vcore: int) -> dict[str, Any]:
        held = [
            {"UUID": uuid, "allocationKey": task.key, "applicationID": "app", "nodeID": name,
             "resourcePerAlloc": _vcores(task.vcore)}
            for uuid, task in self.running.items() if task.node == name
        ]  # fmt: skip
        return {"nodeID": name, "action": "CREATE", "schedulableResource": _vcores(vcore), "existingAllocations": held}

    def disconnect(self) -> None:
        for stream in self._streams:
            stream.close()
        self.channel.close()

    def call(self, method: Any, **fields: Any) -> Any:
        request = method.request(rmID="rm", **fields).SerializeToString()
        response = self.channel.unary_unary(method.path)(request, timeout=WAIT_S, wait_for_ready=True)
        return method.response.FromString(response)

    def _ask(self, keys: list[str]) -> None:
        asks = [
            {"allocationKey": key, "applicationID": "app", "resourceAsk": _vcores(self._pending[key]),
             "maxAllocations": 1}
            for key in keys
        ]  # fmt: skip
        self._allocations.send(asks=asks)

    def work(self) -> int:
        """One response: what is new runs, as many end, and as many are asked for; returns how many are new."""
        response = self._allocations.next()
        assert not response.rejected, response
        for new in response.new:
            self._start(new)
        ending = self._chance.sample(sorted(self.running), k=min(len(self.running), len(response.new)))
        if ending:
            releases = [{"applicationID": "app", "UUID": uuid} for uuid in ending]
            for uuid in ending:
                task = self.running.pop(uuid)
                self.used[task.node] -= task.vcore
            self._allocations.send(releases={"allocationsToRelease": releases})
        self.fill()
        return len(response.new)

    def _start(self, new: Any) -> None:
        key, vcore = new.allocationKey, new.resourcePerAlloc.resources["vcore"].value
        assert new.UUID not in self.uuids, f"UUID {new.UUID} came twice"
        assert self._pending.pop(key, None) == vcore, f"{key} was allocated twice"
        self.uuids.add(new.UUID)
        self.running[new.UUID] = Task(key, new.nodeID, vcore)
        self.used[new.nodeID] += vcore
        assert self.used[new.nodeID] <= NODES[new.nodeID], f"{new.nodeID} has {self.used[new.nodeID]}"

    def fill(self) -> None:
        """Asks until so many as are wanted are pending."""
        keys = [f"task-{self._count + more}" for more in range(WANTED - len(self._pending))]
        self._count += len(keys)
        self._pending.update({key: self._chance.choice(SIZES) for key in keys})
        if keys:
            self._ask(keys)

    def settle(self) -> None:
        """No ask is wanted any more; returns when the service has read that, and all before it."""
        self._allocations.send(releases={"allocationAsksToRelease": [{"applicationID": "app"}]})
        self._allocations.send(asks=[{"allocationKey": "mark", "partitionName": "no such partition"}])
        while not (response := self._allocations.next()).rejected:
            for new in response.new:
                self._start(new)
        for new in response.new:
            self._start(new)

    def is_same(self) -> bool:
        """Whether the service says of what runs what our books say, after it has read all that was sent."""
        (state,) = json.loads(self.call(EXTRA["StateDump"]).json)["rms"]
        nodes = {node["nodeID"]: set(node["allocations"]) for node in state["partitions"][0]["nodes"]}
        ours: dict[str, set[str]] = {name: set() for name in NODES}
        for uuid, task in self.running.items():
            ours[task.node].add(uuid)
        return nodes == ours


def _vcores(value: int) -> dict[str, Any]:
    return {"resources": {"vcore": {"value": value}}}


def run(kills: int, allocations: int, seed: int = 1) -> dict[str, Any]:
    """So many kills, each after some number of allocations up to `allocations`. Raises AssertionError."""
    chance = random.Random(seed)
    again_s = []
    with tempfile.TemporaryDirectory(prefix="fx-") as directory:
        service = Service(directory)
        rm = ResourceManager(service.address, chance)
        rm.connect()
        rm.fill()
        for _ in range(kills):
            left = chance.randint(1, allocations)
            while left > 0:
                left -= rm.work()
            service.kill()
            _read_what_is_left(rm)
            rm.disconnect()
            service.start()
            begun_s = time.monotonic()
            rm.connect()
            rm.work()
            again_s.append(time.monotonic() - begun_s)
        rm.settle()
        assert rm.is_same(), "the service and the resource manager know of different allocations"
        rm.disconnect()
        assert service.stop() == 0
    return {"kills": kills, "allocations": len(rm.uuids), "resynchronised_s": max(again_s)}


def _read_what_is_left(rm: ResourceManager) -> None:
    """What the service had sent before it was killed is ours to keep."""
    try:
        while True:
            rm.work()
    except grpc.RpcError as end:
        if end.code() is not grpc.StatusCode.UNAVAILABLE:
            raise


def main() -> int:
    """Print the figures as JSON."""
    print(json.dumps(run(int(sys.argv[1]) if len(sys.argv) > 1 else 20, 2000)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
