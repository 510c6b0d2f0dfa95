"""Who goes so that an ask within its guarantee can start."""

from __future__ import annotations

from collections.abc import Iterator

from fluxsched.sched.policy import Decision, View, Waiting


class TreePreemption:
    """The preemptions of one pass."""

    def __init__(self, view: View, now_s: float) -> None:
        self._view = view
        self._now_s = now_s

    def decide(self, job: Waiting) -> Iterator[Decision]:
        """What is to be done so that this ask, which fits nowhere, can start."""
        return iter(())
