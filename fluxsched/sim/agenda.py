"""Virtual time: what happens when, in a total order.

Law: at one instant first all ends take effect, then what happens to the site, then all submissions; among equals the
order in which they were put down decides, and what is planned is never compared itself. Time never runs backwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heapreplace
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
        if submits_s:
            self._heap.append((submits_s[0], SUBMIT, 0, 0))

    def at(self, when_s: float, kind: int, what: Any) -> None:
        """Plan something, now at the earliest."""
        assert when_s >= self.now_s, f"planned for {when_s}, which is before {self.now_s}"
        self._planned += 1
        heappush(self._heap, (when_s, kind, self._planned, what))

    def instants(self, until_s: float) -> Iterator[list[tuple[int, Any]]]:
        """Instant by instant up to and including `until_s`: all of its events, kind and what, in order.

        `now_s` is that instant then. A submission is told by its place in the sequence. What is planned for `now_s`
        when its events were given already makes another instant.
        """
        heap, submits_s = self._heap, self._submits_s
        last = len(submits_s) - 1
        while heap and heap[0][0] <= until_s:
            now_s = self.now_s = heap[0][0]
            found: list[tuple[int, Any]] = []
            while heap and heap[0][0] == now_s:
                _, kind, _, what = heap[0]
                found.append((kind, what))
                if kind == SUBMIT and what < last:
                    what += 1
                    heapreplace(heap, (submits_s[what], SUBMIT, what, what))
                else:
                    heappop(heap)
            yield found
