"""Virtual time: what happens when, in a total order.

Law: at one instant first all ends take effect, then what happens to the site, then all submissions; among equals the
order in which they were put down decides, and what is planned is never compared itself. Time never runs backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

END, SITE, SUBMIT = range(3)
"""What kinds of events there are, in the order in which those of one instant take effect."""


class Agenda:
    """Submissions are known beforehand, in order; only the next one stands in the heap, so it stays small."""

    def __init__(self, submits_s: Sequence[float]) -> None:
        self.now_s = 0.0
        self._submits_s = submits_s
        self._heap: list[tuple[float, int, int, Any]] = []
        self._planned = 0
        self._submitted = 0
        self._put_next_submit()

    def __bool__(self) -> bool:
        return bool(self._heap)

    def at(self, when_s: float, kind: int, what: Any) -> None:
        """Plan something, now at the earliest."""
        assert when_s >= self.now_s, f"planned for {when_s}, which is before {self.now_s}"
        self._planned += 1
        heappush(self._heap, (when_s, kind, self._planned, what))

    @property
    def next_s(self) -> float:
        """When the next event is; `inf` if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def instant(self) -> list[tuple[int, Any]]:
        """All events of the next instant, kind and what, in order; `now_s` is that instant from here on.

        A submission is told by its place in the sequence. What is planned for `now_s` later on makes another instant.
        """
        heap = self._heap
        now_s = self.now_s = heap[0][0]
        found: list[tuple[int, Any]] = []
        while heap and heap[0][0] == now_s:
            _, kind, _, what = heappop(heap)
            found.append((kind, what))
            if kind == SUBMIT:
                self._put_next_submit()
        return found

    def _put_next_submit(self) -> None:
        at = self._submitted
        if at < len(self._submits_s):
            self._submitted = at + 1
            heappush(self._heap, (self._submits_s[at], SUBMIT, at, at))
