"""The connection of an instance and a keeper, as both of them have it.

Law: neither is cut off for being slow or for a large message: both are ours, and jobs would end with the connection.
What waits to be sent is bounded by what is said: the start of each job that has its resources, and its reports.
"""

from __future__ import annotations

import socket
from typing import Final

from fluxsched.transport.stream import StreamClient

PART_BYTES_MAX: Final = 1 << 30
"""Of a message: a jobspec may come with 512 MiB (`transport.local`)."""
UNSENT_BYTES_MAX: Final = 16 << 30
"""More than what a granted machine's jobs can have; without any a fault of ours would take all memory."""


def connected(connection: socket.socket, received: bytes = b"") -> StreamClient:
    """See `StreamClient`."""
    return StreamClient(
        connection, received, message_limit_bytes=PART_BYTES_MAX, unsent_limit_bytes=UNSENT_BYTES_MAX
    )
