"""The streams of one resource manager: which are open, and what it means that the last has ended.

Law: lost is a manager of which no stream is open unless it half-closed all that had been open together: then it shut
down. A manager in process has no streams; it is always connected.
"""

from __future__ import annotations

from math import inf

from fluxsched.adapters.si.machine.effects import KINDS
from fluxsched.adapters.si.machine.states import RMEvent

PAUSED_S_MAX = 60.0
"""Time for which a manager is kept that has lost its connection, or has registered and opens no stream (seconds)."""


class RMStreams:
    """`ends_s` is when its time without a stream is over (wall time, seconds; else inf)."""

    __slots__ = ("_open", "_orderly", "ends_s", "in_process")

    def __init__(self, in_process: bool, now_s: float) -> None:
        self.in_process = in_process
        self._open: dict[str, int] = {}  # kind -> number of its stream
        self._orderly = True
        self.ends_s = inf if in_process else now_s + PAUSED_S_MAX

    def carries(self, kind: str) -> bool:
        """Return whether an answer of this kind can be sent."""
        return self.in_process or kind in self._open

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of answers that can be sent, in their order."""
        return [kind for kind in KINDS if self.carries(kind)]

    def opened(self, kind: str, number: int) -> None:
        """A stream of a kind, instead of one that may have been there."""
        if not self._open:
            self._orderly = True
        self._open[kind] = number
        self.ends_s = inf

    def closed(self, kind: str, number: int, half_closed: bool) -> RMEvent | None:
        """A stream has ended: what that means, None if others are open or it had been replaced before."""
        if self._open.get(kind) != number:
            return None
        del self._open[kind]
        self._orderly = self._orderly and half_closed
        if self._open:
            return None
        return RMEvent.SHUT_DOWN if self._orderly else RMEvent.LOST

    def lost(self, now_s: float) -> None:
        """No stream is open any more."""
        self._open.clear()
        self._orderly = False
        self.ends_s = now_s + PAUSED_S_MAX
