"""Messages of `executor.wire` within those of an instance, in which the keeper of another host sends and gets them.

Law: what arrives is what was sent, in order, whatever its size. A message may have half a gigabyte, and is cut into
pieces: none is so large that heartbeats of the connection wait for it, or that a transport refuses it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fluxsched.errors import RemoteProtocolError
from fluxsched.executor.base import no_op
from fluxsched.executor.wire import PART_BYTES_MAX
from fluxsched.protocol.messages.instance import KeeperMessages
from fluxsched.transport.base import PARTS_MAX

PIECE_BYTES: Final = 1 << 20
"""Bytes of messages in one message of the instance."""
REPORT_MESSAGES_MAX: Final = PARTS_MAX
"""Messages, or pieces of one, in a message of the instance."""


def pieces(parts: Sequence[bytes], piece_bytes: int = PIECE_BYTES) -> Iterator[KeeperMessages]:
    """Yield the parts of a transport's message, of which `wire.packed` makes no more than fit, in pieces."""
    taken: list[bytes] = []
    room = piece_bytes
    for part in parts:
        begin = 0
        while len(part) - begin > room:
            taken.append(part[begin : begin + room])
            yield KeeperMessages(taken, is_cut=True)
            begin, taken, room = begin + room, [], piece_bytes
        taken.append(part[begin:])
        room -= len(part) - begin
    if taken:
        yield KeeperMessages(taken)


class PieceInbox:
    """Messages that have arrived in pieces, until they are received: the receiving half of a `transport.base.Client`.
    """

    def __init__(self, part_bytes_max: int = PART_BYTES_MAX) -> None:
        self.lost: str | None = None
        """See `Client.lost`."""
        self._part_bytes_max = part_bytes_max
        self._arrived: deque[list[bytes]] = deque()
        self._begun: list[bytes] = []
        """Pieces of a message that goes on."""
        self._begun_bytes = 0
        self._ended: str | None = None
        self._wake: Callable[[], None] = no_op

    def start(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        """See `Client.start`."""
        self._wake = wake
        wake()

    def add(self, one: KeeperMessages) -> None:
        """Add messages. Raises RemoteProtocolError for too many, or one that is too large."""
        messages = list(one.messages)
        if not 0 < len(messages) <= REPORT_MESSAGES_MAX:
            raise RemoteProtocolError(f"{len(messages)} messages of a keeper in one, expected 1-{REPORT_MESSAGES_MAX}")
        if self._begun:
            self._keep(messages.pop(0))
            if one.is_cut and not messages:
                return
            messages.insert(0, b"".join(self._begun))
            self._begun, self._begun_bytes = [], 0
        if one.is_cut:
            self._keep(messages.pop())
        if messages:
            self._arrived.append(messages)

    def _keep(self, piece: bytes) -> None:
        self._begun_bytes += len(piece)
        if self._begun_bytes > self._part_bytes_max:
            raise RemoteProtocolError(f"message of a keeper above the limit of {self._part_bytes_max} bytes")
        self._begun.append(piece)

    def _end(self, reason: str) -> None:
        """Note that nothing will arrive any more; the first reason counts."""
        if self._ended is None:
            self._ended = reason
        self._look()
        self._wake()

    def receive(self, limit: int) -> list[list[bytes]]:
        """See `Client.receive`."""
        arrived = self._arrived
        taken = [arrived.popleft() for _ in range(min(limit, len(arrived)))]
        self._look()
        if arrived:
            self._wake()
        return taken

    def _look(self) -> None:
        if not self._arrived:
            self.lost = self._ended
