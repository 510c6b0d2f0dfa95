"""Virtual time: what happens when, in a total order.

Law: at one instant first all ends take effect, then what happens to the site, then all submissions, and last what only
wakes the scheduler; among equals the order in which they were planned decides; the planned objects are never compared.
Time never runs backwards. What is due while time passes between two instants (`pass_by`) belongs to the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from sys import float_info
from typing import Any, Final, TypeAlias

END, SITE, SUBMIT, WAKE = range(4)
"""What kinds of events there are, in the order in which those of one instant take effect."""


AgendaEvent: TypeAlias = tuple[int, Any]
"""(kind, what)"""


LAST_S: Final = float_info.max
"""The last instant that there may be: `inf` is never."""

_NEVER: Final = (inf, WAKE, 0, (WAKE, None))
"""The last entry of the heap, which is never empty."""


class Agenda:
    """Submissions are known beforehand, in order, so only the rest stands in the heap: it stays small."""

    def __init__(self, submits_s: Sequence[float]) -> None:
        self.now_s = 0.0
        self._submits_s = (*submits_s, inf)
        self._submitted = 0
        self._heap: list[tuple[float, int, int, AgendaEvent]] = [_NEVER]
        self._planned = 0

    def at(self, when_s: float, kind: int, what: Any) -> None:
        """Plan something other than a submission, now at the earliest."""
        assert when_s >= self.now_s, f"planned for {when_s}, which is before {self.now_s}"
        self._planned += 1
        heappush(self._heap, (when_s, kind, self._planned, (kind, what)))

    def pass_by(self, delay_s: float) -> None:
        """Let time pass, as after an instant that took some."""
        self.now_s += max(delay_s, 0.0)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is planned but to wake the scheduler."""
        return self._submits_s[self._submitted] == inf and all(event[0] == WAKE for *_, event in self._heap)

    def instants(self, until_s: float) -> Iterator[list[AgendaEvent]]:
        """Instant by instant up to and including `until_s`: all of its events, kind and what, in order.

        `now_s` is that instant then. A submission is given by its place in the sequence. What is planned for `now_s`
        when its events were given already makes another instant.
        """
        heap, submits_s = self._heap, self._submits_s
        submit_s = submits_s[self._submitted]
        until_s = min(until_s, LAST_S)
        while True:
            now_s = heap[0][0]
            if now_s > submit_s:
                now_s = submit_s
            if now_s < self.now_s:
                now_s = self.now_s
            if now_s > until_s:
                return
            self.now_s = now_s
            found = []
            while heap[0][0] <= now_s:
                found.append(heappop(heap)[3])
            while submit_s <= now_s:
                found.append((SUBMIT, self._submitted))
                self._submitted += 1
                submit_s = submits_s[self._submitted]
            yield found
