"""A local connection between two simulated processes that know each other: an instance and its keeper.

Law: as a socket of the kernel. Order is kept, what was sent before an end arrived is received, and the end of a process
is the end of its connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.chaos.world.network import Inbox
from tests.chaos.world.processes import Process

if TYPE_CHECKING:
    import asyncio

DELAY_S = 0.0001, 0.003
"""How long a message takes until the other process looks (seconds)."""
CLOSED = "connection closed"


class PairEnd:
    """A `transport.base.Client` of one of the two processes."""

    def __init__(self, process: Process, chance: Random) -> None:
        self.lost: str | None = None
        self.process = process
        self.other: PairEnd | None = None
        self._chance = chance
        self._inbox = Inbox(self._notify)
        self._last_s = 0.0
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

    def send(self, frames: Sequence[bytes]) -> None:
        """See `Client.send`."""
        self.process.effect()
        sent = list(frames)
        self._carry(lambda other: other._inbox.deliver(sent))

    def close(self) -> None:
        """See `Client.close`."""
        if self._inbox.ending is None:
            self._carry(lambda other: other._inbox.ended(CLOSED))
            self._inbox.ending = CLOSED

    def _process_ended(self, reason: str) -> None:
        """Close, and let go of what the process had in memory: the other process may live on, and know this end."""
        self.close()
        self._wake = lambda: None

    def _carry(self, deliver: Callable[[PairEnd], None]) -> None:
        other = self.other
        if self._inbox.ending is None and other is not None:
            time = self.process.time
            self._last_s = max(self._last_s, time.now_s + self._chance.uniform(*DELAY_S))
            time.at(self._last_s, lambda: deliver(other))

    def _notify(self) -> None:
        self.process.run(lambda: self._wake())


def pair(one: Process, two: Process, chance: Random) -> tuple[PairEnd, PairEnd]:
    """A connection, and its two ends."""
    ends = PairEnd(one, chance), PairEnd(two, chance)
    ends[0].other, ends[1].other = ends[1], ends[0]
    return ends
