"""Notices to the owners of waiting jobs: reasons and estimates, at a bounded rate.

Law: an owner is notified of a changed reason or estimate every NOTICE_EVERY_S at most; what is held back is sent when
it is due, as it is by then. Only an estimate that no longer holds is withdrawn at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from fluxsched.sched.decisions import Reason
from fluxsched.sched.effects import Annotated

NOTICE_EVERY_S: Final = 10.0
"""A job's owner is notified of a changed reason or estimate no more often: estimates move with every end of a job."""

ESTIMATE_STEP_S: Final = 1.0
"""A smaller change of an estimate is not worth a message."""

REASON_CHARS_MAX = 1000
"""Of what a policy says to a job's owner: it is shown in a column of tables, and is kept for each waiting job."""


class _Notice:
    """The last notice about a job, and when it was sent (wall time, seconds); `deferred` if something was held back."""

    __slots__ = ("at_s", "deferred", "estimate_s", "reason")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.reason: str | None = None
        self.estimate_s: float | None = None
        self.deferred = False


class Notices:
    """The notices about the waiting jobs of a group; `reasons` are the latest by job, sent or not.

    `next_s` is when something that was held back is due (wall time, seconds; inf if nothing was). With `enabled` false
    reasons are kept for queries, and nothing is sent.
    """

    __slots__ = ("_due", "_enabled", "_told", "next_s", "reasons")

    def __init__(self, enabled: bool) -> None:
        self.reasons: dict[int, Reason] = {}
        self._enabled = enabled
        self._told: dict[int, _Notice] = {}
        self.next_s = inf
        self._due: list[tuple[float, int]] = []  # a heap: when what was held back is due, and about which job

    def tell(self, jobid: int, reason: Reason, start_s: float | None, now_s: float) -> Annotated | None:
        """A reason and an estimate (None: there is none), as of `now_s`; None if nothing is sent now."""
        if isinstance(reason, str):
            reason = reason[:REASON_CHARS_MAX]
        self.reasons[jobid] = reason
        if not self._enabled:
            return None
        estimate_s = None if start_s is None or start_s == inf else start_s
        notice = self._told.get(jobid)
        if notice is None:
            notice = self._told[jobid] = _Notice()
        elif now_s < notice.at_s + NOTICE_EVERY_S and (estimate_s is not None or notice.estimate_s is None):
            if not notice.deferred:
                notice.deferred = True
                heappush(self._due, (notice.at_s + NOTICE_EVERY_S, jobid))
                self.next_s = self._due[0][0]
            return None
        notice.deferred = False
        changes: dict[str, Any] = {}
        text = reason if isinstance(reason, str) else reason()
        if text != notice.reason:
            notice.reason = changes["reason_pending"] = text
        if not _near(estimate_s, notice.estimate_s):
            notice.estimate_s = changes["t_estimate"] = estimate_s
        if not changes:
            return None
        notice.at_s = now_s
        return Annotated(jobid, {"sched": changes})

    def tell_now(self, jobid: int, reason: str) -> Annotated | None:
        """A reason that is no estimate and may not be held back; the estimate is withdrawn."""
        self.reasons.pop(jobid, None)
        if not self._enabled:
            return None
        notice = self._told.setdefault(jobid, _Notice())
        changes: dict[str, Any] = {"reason_pending": reason}
        if notice.estimate_s is not None:
            changes["t_estimate"] = None
        notice.reason, notice.estimate_s, notice.deferred = reason, None, False
        return Annotated(jobid, {"sched": changes})

    def forget(self, jobid: int) -> dict[str, None] | None:
        """The job no longer waits: the annotations that no longer hold; None if nothing was ever sent."""
        self.reasons.pop(jobid, None)
        notice = self._told.pop(jobid, None)
        if notice is None:
            return None
        withdrawn = {} if notice.reason is None else {"reason_pending": None}
        return withdrawn if notice.estimate_s is None else {**withdrawn, "t_estimate": None}

    def due(self, now_s: float) -> Iterator[int]:
        """The jobs about which something was held back that is due; jobs that have left meanwhile are skipped."""
        while self.next_s <= now_s:
            _, jobid = heappop(self._due)
            self.next_s = self._due[0][0] if self._due else inf
            notice = self._told.get(jobid)
            if notice is not None and notice.deferred:
                yield jobid

    def check(self, offered: set[int], waiting: set[int]) -> None:
        """Asserts that only offered jobs have reasons, and only waiting ones notices."""
        assert self.reasons.keys() <= offered, "a reason without a job"
        assert self._told.keys() <= waiting, "a notice about a job that does not wait"


def _near(one_s: float | None, other_s: float | None) -> bool:
    if one_s is None or other_s is None:
        return one_s is other_s
    return abs(one_s - other_s) < ESTIMATE_STEP_S
