"""A server whose peers are clients on other hosts: both halves of the relay, joined by messages in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fluxsched.executor import wire as msg
from fluxsched.executor.relay import LIMITS, ClientRelay, HostRelay, RelayLimits, RelayServer
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns


class Cable:
    """Connection of a host's keeper to the instance, which passes on the messages of each turn."""

    def __init__(self, turns: Turns, name: str, servers: Any, directory: Path, limits: RelayLimits) -> None:
        self.turns = turns
        self.host = HostRelay(turns.wake, name, servers, limits)
        self.keeper = ClientRelay(turns, directory, limits)
        self.is_held = self.is_cut = False
        self.passed: list[Any] = []
        """All that was said, in both directions."""
        turns.at_end(self._exchange)

    def connect(self) -> None:
        self.is_cut = False
        self.keeper.connected()
        self.keeper.want()

    def release(self) -> None:
        self.is_held = False
        self.turns.wake()

    def cut(self) -> None:
        self.is_cut = True
        self.keeper.disconnected()
        self.host.disconnected()

    def _exchange(self) -> None:
        if self.is_held or self.is_cut:
            return
        down, up = self.host.take(), self.keeper.take()
        self.passed += down + up
        for side, messages, read in (
            (self.keeper.handlers, down, msg.from_instance), (self.host.handlers, up, msg.from_keeper),
        ):  # fmt: skip
            for frames in msg.packed(messages):
                for one in read(frames):
                    self.turns.post(lambda side=side, one=one: side[type(one)](one))


class RelayedServer:
    """A `Server`, with one host unless more are added."""

    def __init__(self, directory: Path, *, json: bool = False, limits: RelayLimits = LIMITS) -> None:
        self.turns = Turns(SystemClock())
        self.servers = RelayServer(json=False), RelayServer(json=True)
        self.server = self.servers[json]
        self.json, self._directory, self._limits = json, directory, limits
        self.cables: list[Cable] = []
        self.turns.start(asyncio.get_running_loop())
        self.add_host("n1").connect()

    def add_host(self, name: str) -> Cable:
        self.cables.append(Cable(self.turns, name, self.servers, self._directory / name, self._limits))
        return self.cables[-1]

    def endpoint_at(self, host: str) -> str:
        variable = "FLUX_URI" if self.json else "FLUXSCHED_URI"
        found: str = next(one for one in self.cables if one.host.name == host).keeper.environment({})[variable]
        return found

    @property
    def endpoint(self) -> str:
        return self.endpoint_at("n1")

    @property
    def dropped(self) -> int:
        return self.server.dropped

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self.server.start(loop, lambda: loop.call_soon(wake))

    def receive(self, limit: int) -> list[Any]:
        return self.server.receive(limit)

    def send(self, peer: bytes, frames: Sequence[bytes]) -> None:
        self.server.send(peer, frames)

    def drop(self, peer: bytes, reason: str) -> None:
        self.server.drop(peer, reason)

    def unsent_bytes(self, peer: bytes) -> int:
        return self.server.unsent_bytes(peer)

    def peers(self) -> int:
        return self.server.peers()

    def close(self) -> None:
        """Close as an instance does: what it was to send leaves first."""
        for cable in self.cables:
            while not cable.is_cut and (due := cable.host.take()):
                for one in due:
                    cable.keeper.handlers[type(one)](one)
                    cable.host.handlers[msg.RelayCredit](msg.RelayCredit(1 << 20))
            cable.cut()
        for server in self.servers:
            server.close()
        self.turns.stop()
