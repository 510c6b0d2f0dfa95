"""Grants being stored: each R is in the KVS before its grant is answered (law 3), and many share a transaction.

Law: at most IN_FLIGHT_MAX transactions are in flight; what is granted meanwhile goes with the next one, so a burst
needs few transactions and a single grant is not delayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fluxsched.adapters.flux.handle import BrokerHandle, BrokerReply
from fluxsched.core.jobid import format_dothex

IN_FLIGHT_MAX = 4
"""Transactions in flight at once: enough that the KVS never idles, few enough that a burst is grouped."""

GRANTS_MAX = 256
"""Grants in one transaction: some 100 kB of R, so that no broker message is held up long."""


class PendingGrant(NamedTuple):
    """One job's R, as JSON, and the answer that goes out once it is stored."""

    jobid: int
    R: bytes
    answer: bytes


def key_of(jobid: int, key: str = "R") -> str:
    """Return the key of a part of a job in the KVS (RFC 16, job schema)."""
    return f"job.{format_dothex(jobid)}.{key}"


class Commits:
    """Stores grants; calls `stored` for each once it is in the KVS, and `failed` when a transaction fails."""

    def __init__(
        self, handle: BrokerHandle, stored: Callable[[PendingGrant], None], failed: Callable[[BrokerReply], None]
    ) -> None:
        self.in_flight = 0
        self.done = 0
        self._handle = handle
        self._stored = stored
        self._failed = failed
        self._waiting: deque[PendingGrant] = deque()

    def __len__(self) -> int:
        """The grants that wait for a transaction."""
        return len(self._waiting)

    def stats(self) -> dict[str, int]:
        """Return the counters for `stats-get`."""
        return {"in_flight": self.in_flight, "waiting": len(self), "done": self.done}

    def add(self, grant: PendingGrant) -> None:
        """Have it stored with the next `flush`."""
        self._waiting.append(grant)

    def flush(self) -> None:
        """Send what waits, in as many transactions as may be in flight."""
        while self._waiting and self.in_flight < IN_FLIGHT_MAX:
            batch = [self._waiting.popleft() for _ in range(min(GRANTS_MAX, len(self._waiting)))]
            self.in_flight += 1
            values = {key_of(grant.jobid): grant.R for grant in batch}
            self._handle.commit(values, lambda reply, batch=batch: self._answered(batch, reply))  # type: ignore[misc]

    def _answered(self, batch: list[PendingGrant], reply: BrokerReply) -> None:
        self.in_flight -= 1
        self.done += 1
        if reply.errnum:
            self._failed(reply)
            return
        for grant in batch:
            self._stored(grant)
        self.flush()
