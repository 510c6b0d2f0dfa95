"""How an instance comes to its keepers: those that are there, and a new one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fluxsched.transport.base import Client


class KeeperHost(Protocol):
    """Finds and starts keepers. Connections are made, nothing has been said on them."""

    def living(self) -> Sequence[Client]:
        """A connection to each keeper that an instance before has left; asked once, before any is started.

        Raises FluxschedError if it cannot be known of one whether it is there.
        """
        ...

    def start(self) -> Client:
        """A connection to a new keeper. Raises OSError when none can be started."""
        ...

    def end(self, client: Client, timeout_s: float) -> None:
        """Wait for the end of this keeper, which was asked to end or does not answer, and then kill it; blocks."""
        ...
