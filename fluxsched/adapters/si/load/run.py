"""A load is put on a service and measured: when nodes were accepted, when each ask was sent and when it was allocated.

Law: asks are counted by their keys, each once; times are monotonic. Latency is from the ask's hand-over to gRPC to the
arrival of its allocation here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final, NamedTuple

from fluxsched.adapters.si.load.messages_made import Load
from fluxsched.adapters.si.machine.effects import ALLOCATIONS, APPLICATIONS, NODES
from fluxsched.adapters.si.wire.rm_client import RMClient
from fluxsched.errors import Refused

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
