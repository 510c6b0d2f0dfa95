"""Streams that merge hold back what is new while their peer has not taken what was sent before.

Law: one timer for all: a turn that finds a slow reader must not make another one.
"""

from __future__ import annotations

from fluxsched.runtime.loop.turns import Timer, Turns
from fluxsched.runtime.messaging.peers import Peer
from fluxsched.runtime.messaging.router import Router

SLOW_READER_RETRY_S = 0.02
"""How long a stream whose peer has unsent bytes waits before it looks again; meanwhile its changes merge."""


class SlowReaders:
    """Asked by a service at the end of a turn, for each stream that has something to say."""

    def __init__(self, router: Router, turns: Turns) -> None:
        self._router = router
        self._turns = turns
        self._retry: Timer | None = None

    def must_wait(self, peer: Peer) -> bool:
        """Whether the peer is to get nothing now; if so, there will be another turn."""
        if not self._router.unsent_bytes(peer):
            return False
        if self._retry is None or self._retry.call is None:
            self._retry = self._turns.after(SLOW_READER_RETRY_S, self._turns.wake)
        return True
