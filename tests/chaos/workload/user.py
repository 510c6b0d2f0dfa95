"""One client of a simulated instance: it speaks frames, remembers what is open, and comes back when it is cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tests.chaos.wire import RESPONSE, messages, request

LOST = -1
"""The errnum of calls whose connection ended."""
RECONNECT_S = 1.0
"""How long a client waits before it tries to connect again (seconds)."""
RECEIVE_MAX = 1 << 20

Done = Callable[[Any, int], None]


class Connection(Protocol):
    """`fluxsched.transport.base.Client`, as far as it is used here."""

    lost: str | None

    def start(self, loop: Any, wake: Callable[[], None]) -> None: ...

    def receive(self, limit: int) -> list[list[bytes]]: ...

    def send(self, frames: list[bytes]) -> None: ...

    def close(self) -> None: ...


class Surroundings(Protocol):
    """What clients need of the simulated world."""

    @property
    def now_s(self) -> float: ...

    def at(self, at_s: float, call: Callable[[], None]) -> None: ...

    def when(self, step: str, call: Callable[[], None]) -> None:
        """Have `call` run at the next step of that kind."""

    def configure(self, outages: tuple[dict[str, Any], ...]) -> None:
        """Write these outages into the configuration file."""

    def connect(self, actor: str) -> Connection | None:
        """A connection to the instance; None while there is none."""


class User:
    """A client with calls and streams; `connected` is called each time it has a connection."""

    def __init__(self, world: Surroundings, name: str, connected: Callable[[], None] | None = None) -> None:
        self.world = world
        self.name = name
        self._connected = connected
        self._connection: Connection | None = None
        self._open: dict[int, tuple[Done, bool]] = {}
        self._tag = 0
        self.has_left = False
        world.at(world.now_s, self._connect)

    @property
    def is_connected(self) -> bool:
        """Whether something can be sent."""
        return self._connection is not None

    def call(self, topic: str, payload: Any = None, done: Done | None = None, *, streaming: bool = False) -> int:
        """Send a request; `done(payload, errnum)` is called with each answer. Does nothing without a connection."""
        if self._connection is None:
            return 0
        self._tag += 1
        self._open[self._tag] = (done or _ignore, streaming)
        self._connection.send(request(topic, payload, self._tag, streaming=streaming))
        return self._tag

    def tell(self, topic: str, payload: Any = None) -> None:
        """Send a request that wants no answer."""
        if self._connection is not None:
            self._connection.send(request(topic, payload, 0))

    def hang_up(self) -> None:
        """Close the connection; it is opened again after a while."""
        if self._connection is not None:
            self._connection.close()
            self._lost()

    def leave(self) -> None:
        """Close it for good."""
        self.has_left = True
        self.hang_up()

    def _connect(self) -> None:
        if self.has_left or self._connection is not None:
            return
        connection = self.world.connect(self.name)
        if connection is None:
            self.world.at(self.world.now_s + RECONNECT_S, self._connect)
            return
        self._connection = connection
        connection.start(None, lambda: self._take(connection))
        if self._connected is not None:
            self._connected()

    def _take(self, connection: Connection) -> None:
        if connection is not self._connection:
            return
        for frames in connection.receive(RECEIVE_MAX):
            for message in messages(frames):
                if message.type == RESPONSE and connection is self._connection:
                    self._answered(message.matchtag, message.payload, message.errnum)
        if connection is self._connection and connection.lost is not None:
            self._lost()

    def _answered(self, tag: int, payload: Any, errnum: int) -> None:
        found = self._open.get(tag)
        if found is not None:
            done, streaming = found
            if errnum or not streaming:
                del self._open[tag]
            done(payload, errnum)

    def _lost(self) -> None:
        self._connection = None
        calls, self._open = self._open, {}
        self.world.at(self.world.now_s + RECONNECT_S, self._connect)
        for done, _ in calls.values():
            done(None, LOST)


def _ignore(payload: Any, errnum: int) -> None:
    """The answer is of no interest."""
