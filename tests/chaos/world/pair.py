"""A local connection between two simulated processes that know each other: an instance and its keeper.

Law: as a socket of the kernel. Order is kept, what was sent before an end arrived is received, and the end of a process
is the end of its connections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.chaos.world.network import ReceivingEnd
from tests.chaos.world.processes import Process

DELAY_S = 0.0001, 0.003
"""How long a message takes until the other process looks (seconds)."""
CLOSED = "connection closed"


class PairEnd(ReceivingEnd):
    """A `transport.base.Client` of one of the two processes."""

    def __init__(self, process: Process, chance: Random) -> None:
        super().__init__(process)
        self.other: PairEnd | None = None
        self._chance = chance
        self._last_s = 0.0

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
        self.close()
        super()._process_ended(reason)

    def _carry(self, deliver: Callable[[PairEnd], None]) -> None:
        other = self.other
        if self._inbox.ending is None and other is not None:
            time = self.process.time
            self._last_s = max(self._last_s, time.now_s + self._chance.uniform(*DELAY_S))
            time.at(self._last_s, lambda: deliver(other))


def pair(one: Process, two: Process, chance: Random) -> tuple[PairEnd, PairEnd]:
    """A connection, and its two ends."""
    ends = PairEnd(one, chance), PairEnd(two, chance)
    ends[0].other, ends[1].other = ends[1], ends[0]
    return ends
