"""Grants on their way: each R is in the KVS before its job hears of it (law 3), and many share a transaction.

Law: no more than IN_FLIGHT_MAX transactions are out; what is granted meanwhile waits and goes with the next one, so a
burst needs few transactions and a single grant waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fluxsched.adapters.flux.handle import Handle, Reply
from fluxsched.core.jobid import format_dothex

IN_FLIGHT_MAX = 4
"""Transactions out at once: enough that the KVS never idles, few enough that a burst is grouped."""

GRANTS_MAX = 256
"""Grants in one transaction: some 100 kB of R, so that no broker message is held up long."""


class Grant(NamedTuple):
    """One job's R, as JSON, and the answer that goes out once it is stored."""

    jobid: int
    R: bytes
    answer: bytes


def key_of(jobid: int) -> str:
    """Where a job's R is in the KVS (RFC 16, job schema)."""
    return f"job.{format_dothex(jobid)}.R"


class Commits:
    """Stores grants and tells each once it is stored; `failed` hears of a transaction that was not done."""

    def __init__(self, handle: Handle, stored: Callable[[Grant], None], failed: Callable[[Reply], None]) -> None:
        self.in_flight = 0
        self.done = 0
        self._handle = handle
        self._stored = stored
        self._failed = failed
        self._waiting: deque[Grant] = deque()

    def __len__(self) -> int:
        """The grants that wait for a transaction."""
        return len(self._waiting)

    def stats(self) -> dict[str, int]:
        """Numbers for people."""
        return {"in_flight": self.in_flight, "waiting": len(self), "done": self.done}

    def add(self, grant: Grant) -> None:
        """To be stored with the next `flush`."""
        self._waiting.append(grant)

    def flush(self) -> None:
        """Send what waits, as far as transactions may be out."""
        while self._waiting and self.in_flight < IN_FLIGHT_MAX:
            batch = [self._waiting.popleft() for _ in range(min(GRANTS_MAX, len(self._waiting)))]
            self.in_flight += 1
            values = {key_of(grant.jobid): grant.R for grant in batch}
            self._handle.commit(values, lambda reply, batch=batch: self._answered(batch, reply))  # type: ignore[misc]

    def _answered(self, batch: list[Grant], reply: Reply) -> None:
        self.in_flight -= 1
        self.done += 1
        if reply.errnum:
            self._failed(reply)
            return
        for grant in batch:
            self._stored(grant)
        self.flush()
