"""The network: one instance's endpoint, and connections whose messages take their time.

Law: order is kept within one direction of a connection and nowhere else. A connection that is cut, or whose other end
was killed, delivers some beginning of what was under way, then ends: for each side once, in its own time. What a peer
has not received counts as unsent beyond what sockets hold, so a slow reader meets the real rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING

from fluxsched.errors import Disconnected
from fluxsched.transport.base import Arrived, Lost, size_bytes, slow_reader
from tests.chaos.world.processes import Process
from tests.chaos.world.virtual_time import VirtualTime

if TYPE_CHECKING:
    import asyncio

DELAY_S = 0.0002, 0.002
"""How long a message takes unless a fault says otherwise: at least and at most (seconds)."""
NOTICE_S = 0.001, 0.2
"""How long it takes to notice that the other side is gone."""
SOCKET_BYTES = 256
"""What the sockets of a connection hold before messages count as unsent."""
UNSENT_BYTES_MAX = 64 << 20
SLOW_BYTES_MAX = 1 << 10
"""That of a client that is slow at the moment: the real limit is so large that no simulation would reach it."""


class Direction:
    """One way of a connection: what is under way, in order."""

    def __init__(self) -> None:
        self.last_s = 0.0
        """When what was sent last arrives."""
        self.ends_s = inf
        """What would arrive later does not."""
        self.bytes = 0
        """Sent and not received."""


class Link:
    """One connection, known to both of its ends."""

    def __init__(self, network: Network, number: int, actor: str, server: SimServer, process: Process | None) -> None:
        self.network = network
        self.number = number
        self.actor = actor
        self.server = server
        self.process = process
        self.peer = b"\0" + number.to_bytes(4, "big")
        self.up, self.down = Direction(), Direction()
        self.client = SimClient(self)
        self.is_over = False

    def carry(self, way: Direction, deliver: Callable[[], None]) -> None:
        """Have something arrive later, after everything that was sent before it."""
        if way.last_s == inf:
            return  # it has ended, though its sender may not know
        network = self.network
        low_s, high_s = network.delays_s.get(self.actor, network.delay_s)
        at_s = max(network.time.now_s + network.chance.uniform(low_s, high_s), way.last_s)
        if way is self.down:
            at_s = max(at_s, network.slow_until_s.get(self.actor, 0.0))
        way.last_s = at_s

        def arrive() -> None:
            if way.ends_s > at_s:
                deliver()

        network.time.at(at_s, arrive)

    def over(self, reason: str) -> None:
        """It is over for the first of its sides."""
        if not self.is_over:
            self.is_over = True
            self.network.ended(self, reason)

    def end_down(self, reason: str, *, whole: bool) -> None:
        """The client learns of the end, after all that is under way or only its beginning."""
        self._end(self.down, whole, lambda: self.client.inbox.ended(reason))

    def end_up(self, reason: str, *, whole: bool) -> None:
        """The server learns of the end, after all that is under way or only its beginning."""
        self._end(self.up, whole, lambda: self.server.lost(self, reason))

    def _end(self, way: Direction, whole: bool, tell: Callable[[], None]) -> None:
        network = self.network
        now_s, chance = network.time.now_s, network.chance
        last_s = max(way.last_s, now_s)
        if not whole:
            way.ends_s = min(way.ends_s, chance.uniform(now_s, 2 * last_s - now_s))  # in half of the cases all of it
            last_s = min(last_s, max(way.ends_s, now_s))
        way.last_s = inf
        network.time.at(last_s + chance.uniform(*NOTICE_S), tell)


class SimServer:
    """A `transport.base.Server` of one simulated process."""

    json = False

    def __init__(self, network: Network, process: Process) -> None:
        self.endpoint = "sim://instance"
        self.dropped = 0
        self.process = process
        self.links: dict[bytes, Link] = {}
        self._network = network
        self._heard: set[bytes] = set()
        self._arrivals: deque[Arrived | Lost] = deque()
        self._wake: Callable[[], None] = lambda: None
        process.on_end.append(self._died)

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Server.start`."""
        self._wake = wake
        wake()

    def receive(self, limit: int) -> list[Arrived | Lost]:
        """See `Server.receive`."""
        arrivals = self._arrivals
        taken = [arrivals.popleft() for _ in range(min(limit, len(arrivals)))]
        if arrivals:
            self._wake()
        return taken

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        """See `Server.send`."""
        self.process.effect()
        link = self.links.get(peer)
        if link is None or peer not in self._heard:
            self.dropped += 1
            return
        size, sent = size_bytes(frames), list(frames)
        link.down.bytes += size
        limit_bytes = SLOW_BYTES_MAX if self._network.is_slow(link.actor) else UNSENT_BYTES_MAX
        if link.down.bytes > limit_bytes:
            self.drop(peer, slow_reader(link.down.bytes, limit_bytes))
        else:
            link.carry(link.down, lambda: link.client.inbox.deliver(sent))

    def drop(self, peer: bytes, reason: str) -> None:
        """See `Server.drop`."""
        link = self.links.get(peer)
        if link is not None and peer in self._heard:
            link.over(f"dropped: {reason}")
            link.end_down("connection closed by the server", whole=False)
            self.lost(link, reason)

    def unsent_bytes(self, peer: bytes) -> int:
        """See `Server.unsent_bytes`."""
        link = self.links.get(peer)
        return max(0, link.down.bytes - SOCKET_BYTES) if link is not None else 0

    def peers(self) -> int:
        """See `Server.peers`."""
        return len(self._heard)

    def close(self) -> None:
        """See `Server.close`: only a process that ends closes it."""

    def accept(self, link: Link, frames: list[bytes]) -> None:
        """A message of a client has arrived."""
        if self.process.is_alive and link.peer in self.links:
            self._heard.add(link.peer)
            self._arrivals.append(Arrived(link.peer, frames))
            self._wake()

    def lost(self, link: Link, reason: str) -> None:
        """The connection is over for the server; a peer that was never heard is not mentioned."""
        if self.links.pop(link.peer, None) is not None and link.peer in self._heard:
            self._heard.discard(link.peer)
            self._arrivals.append(Lost(link.peer, reason))
            if self.process.is_alive:
                self._wake()

    def _died(self, reason: str) -> None:
        for link in list(self.links.values()):
            link.over(f"{self.process.name} {reason}")
            link.end_down("connection closed by the server", whole=False)
        self.links.clear()


class Inbox:
    """What has come to one end of a connection. That it is over is told once all that came before has been taken."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self.ending: str | None = None
        """Why the connection is over here: nothing comes or is sent any more."""
        self.lost: str | None = None
        """The same once it is told."""
        self._messages: deque[list[bytes]] = deque()
        self._notify = notify

    def take(self, limit: int, taking: Callable[[list[bytes]], None] = lambda frames: None) -> list[list[bytes]]:
        """See `Client.receive`; `taking` is called with each before anyone is notified of the rest."""
        messages = self._messages
        taken = [messages.popleft() for _ in range(min(limit, len(messages)))]
        for frames in taken:
            taking(frames)
        if messages:
            self._notify()
        else:
            self.lost = self.ending
        return taken

    def deliver(self, frames: list[bytes]) -> None:
        """A message of the other side has arrived."""
        if self.ending is None:
            self._messages.append(frames)
            self._notify()

    def ended(self, reason: str) -> None:
        """The other side is over."""
        if self.ending is None:
            self.ending = reason
            self._notify()


class ReceivingEnd:
    """Receiving half of a `transport.base.Client` of a simulated process."""

    def __init__(self, process: Process) -> None:
        self.lost: str | None = None
        self.process = process
        self._inbox = Inbox(self._notify)
        self._wake: Callable[[], object] = lambda: None
        process.on_end.append(self._process_ended)

    def start(self, loop: asyncio.AbstractEventLoop | None, wake: Callable[[], object]) -> None:
        """See `Client.start`."""
        self._wake = wake
        self._notify()

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        taken = self._inbox.take(limit)
        self.lost = self._inbox.lost
        return taken

    def _process_ended(self, reason: str) -> None:
        """Let go of what the process had in memory: the other one may live on, and know this end."""
        self._wake = lambda: None

    def _notify(self) -> None:
        self.process.run(lambda: self._wake())


class SimClient:
    """A `transport.base.Client` at one end of a link."""

    def __init__(self, link: Link) -> None:
        self.lost: str | None = None
        self.link = link
        self.inbox = Inbox(self._notify)
        self._wake: Callable[[], object] = lambda: None

    def start(self, loop: asyncio.AbstractEventLoop | None, wake: Callable[[], object]) -> None:
        """See `Client.start`; `wake` is called at each event, whatever the loop."""
        self._wake = wake
        self._notify()

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        taken = self.inbox.take(limit, self._taking)
        self.lost = self.inbox.lost
        return taken

    def _taking(self, frames: list[bytes]) -> None:
        link = self.link
        link.down.bytes -= size_bytes(frames)
        link.network.received(link, frames)

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`."""
        link, sent = self.link, list(frames)
        if link.process is not None:
            link.process.effect()
        if self.inbox.ending is None:
            link.network.sent(link, sent)
            link.carry(link.up, lambda: link.server.accept(link, sent))

    def close(self) -> None:
        """See `Client.close`."""
        if self.inbox.ending is None:
            self.inbox.ending = "closed"
            self._wake = lambda: None
            self.link.over("closed by the client")
            self.link.end_up("connection closed", whole=True)

    def died(self, reason: str) -> None:
        """The process at this end is gone."""
        if self.inbox.ending is None:
            self.inbox.ending = reason
            self._wake = lambda: None
            self.link.over(reason)
            self.link.end_up("connection closed", whole=False)

    def _notify(self) -> None:
        process = self.link.process
        if process is None:
            self._wake()
        else:
            process.run(lambda: self._wake())


class Network:
    """All connections. `connected`, `sent`, `received` and `ended` tell what is seen of them."""

    def __init__(self, time: VirtualTime, chance: Random) -> None:
        self.time = time
        self.chance = chance
        self.server: SimServer | None = None
        """The instance's endpoint while one listens."""
        self.delay_s = DELAY_S
        self.delays_s: dict[str, tuple[float, float]] = {}
        self.slow_until_s: dict[str, float] = {}
        self.connected: Callable[[Link], None] = lambda link: None
        self.sent: Callable[[Link, list[bytes]], None] = lambda link, frames: None
        self.received: Callable[[Link, list[bytes]], None] = lambda link, frames: None
        self.ended: Callable[[Link, str], None] = lambda link, reason: None
        self._links = 0

    def listen(self, process: Process) -> SimServer:
        """The endpoint of the instance is that of `process` now."""
        self.server = SimServer(self, process)
        return self.server

    def connect(self, actor: str, process: Process | None = None) -> SimClient:
        """A new connection of `actor`, which ends with `process`. Raises Disconnected if nothing listens."""
        server = self.server
        if server is None or not server.process.is_alive:
            raise Disconnected("nothing listens at sim://instance")
        self._links += 1
        link = Link(self, self._links, actor, server, process)
        server.links[link.peer] = link
        self.connected(link)
        if process is not None:
            process.on_end.append(lambda reason: link.client.died(f"{actor} {reason}"))
        return link.client

    def is_slow(self, actor: str) -> bool:
        """Whether it receives nothing at the moment."""
        return self.slow_until_s.get(actor, 0.0) > self.time.now_s

    def calm(self) -> None:
        """End all delays that are not usual."""
        self.delay_s = DELAY_S
        self.delays_s.clear()
        self.slow_until_s.clear()

    def cut(self, actor: str) -> None:
        """All connections of `actor` break."""
        for link in list(self.server.links.values()) if self.server is not None else ():
            if link.actor == actor:
                link.over("cut")
                link.end_up("connection cut", whole=False)
                link.end_down("connection cut", whole=False)
