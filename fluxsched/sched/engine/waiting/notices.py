"""Notices to the owners of waiting jobs: reasons and estimates, at a bounded rate.

Law: an owner is notified of a changed reason or estimate every NOTICE_EVERY_S at most; what is held back is sent when
it is due, as it is by then. Only an estimate that no longer holds is withdrawn at once. Where reservations move between
accounts or groups, a new estimate is first held back for SETTLE_S: most are over by then.
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

SETTLE_S: Final = 1.0
"""Among accounts the first in line changes with every start, and several groups are asked one after the other.

A shorter reservation is not worth two messages.
"""

REASON_CHARS_MAX = 1000
"""Of what a policy says to a job's owner: it is shown in a column of tables, and is kept for each waiting job."""


class _Notice:
    """The last notice about a job, when it was sent, and when what was held back is due (wall time, seconds)."""

    __slots__ = ("at_s", "due_s", "estimate_s", "reason")

    def __init__(self) -> None:
        self.at_s = -inf
        self.reason: str | None = None
        self.estimate_s: float | None = None
        self.due_s = inf


class Notices:
    """The notices about the waiting jobs of a group; `reasons` are the latest by job, sent or not.

    `next_s` is when something that was held back is due (wall time, seconds; inf if nothing was). With `enabled` false
    reasons are kept for queries, and nothing is sent. A new estimate is held back for `settle_s`.
    """

    __slots__ = ("_due", "_told", "enabled", "next_s", "reasons", "refused", "settle_s")

    def __init__(self, enabled: bool) -> None:
        self.reasons: dict[int, Reason] = {}
        self.refused: dict[int, str] = {}
        """What a plugin said last of jobs that it refused; one that waits for it has it as its reason still."""
        self.enabled = enabled
        self._told: dict[int, _Notice] = {}
        self.next_s = inf
        self.settle_s = 0.0
        self._due: list[tuple[float, int]] = []  # a heap: when what was held back is due, and about which job

    def tell_refused(self, jobid: int, reason: str, now_s: float) -> Annotated | None:
        """The reason that a plugin gave; see `tell`."""
        self.refused[jobid] = reason[:REASON_CHARS_MAX]
        return self.tell(jobid, reason, None, now_s)

    def tell(self, jobid: int, reason: Reason, start_s: float | None, now_s: float) -> Annotated | None:
        """A reason and an estimate (None: there is none), as of `now_s`; None if nothing is sent now."""
        if isinstance(reason, str):
            reason = reason[:REASON_CHARS_MAX]
        self.reasons[jobid] = reason
        if not self.enabled:
            return None
        estimate_s = None if start_s is None or start_s == inf else start_s
        notice = self._told.get(jobid)
        if notice is None:
            notice = self._told[jobid] = _Notice()
        if estimate_s is not None or notice.estimate_s is None:
            if notice.due_s == inf:
                self._defer(jobid, notice, estimate_s, now_s)
            if now_s < notice.due_s < inf:
                return None
        notice.due_s = inf
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

    def _defer(self, jobid: int, notice: _Notice, estimate_s: float | None, now_s: float) -> None:
        """Hold back what it is too early for."""
        due_s = notice.at_s + NOTICE_EVERY_S
        if notice.estimate_s is None and estimate_s is not None:
            due_s = max(due_s, now_s + self.settle_s)
        if now_s < due_s:
            notice.due_s = due_s
            heappush(self._due, (due_s, jobid))
            self.next_s = self._due[0][0]

    def tell_now(self, jobid: int, reason: str) -> Annotated | None:
        """A reason that is no estimate and may not be held back; the estimate is withdrawn."""
        self.reasons.pop(jobid, None)
        if not self.enabled:
            return None
        notice = self._told.setdefault(jobid, _Notice())
        changes: dict[str, Any] = {"reason_pending": reason}
        if notice.estimate_s is not None:
            changes["t_estimate"] = None
        notice.reason, notice.estimate_s, notice.due_s = reason, None, inf
        return Annotated(jobid, {"sched": changes})

    def forget(self, jobid: int) -> dict[str, None] | None:
        """The job no longer waits: the annotations that no longer hold; None if nothing was ever sent."""
        self.reasons.pop(jobid, None)
        if self.refused:
            self.refused.pop(jobid, None)
        notice = self._told.pop(jobid, None)
        if notice is None:
            return None
        withdrawn = {} if notice.reason is None else {"reason_pending": None}
        return withdrawn if notice.estimate_s is None else {**withdrawn, "t_estimate": None}

    def take_over(self, jobid: int, other: Notices) -> None:
        """The job's owner is told from here from now on: what was sent is known."""
        notice = None if other is self else other._told.pop(jobid, None)
        if notice is not None:
            self._told[jobid] = notice
            if notice.due_s < inf:
                heappush(self._due, (notice.due_s, jobid))
                self.next_s = self._due[0][0]

    def due(self, now_s: float) -> Iterator[int]:
        """The jobs about which something was held back that is due; jobs that have left meanwhile are skipped."""
        while self.next_s <= now_s:
            _, jobid = heappop(self._due)
            self.next_s = self._due[0][0] if self._due else inf
            notice = self._told.get(jobid)
            if notice is not None and notice.due_s < inf:
                yield jobid

    def check(self, offered: set[int], waiting: set[int]) -> None:
        """Asserts that only offered jobs have reasons, and only waiting ones notices."""
        assert self.reasons.keys() <= offered, "a reason without a job"
        assert self._told.keys() <= waiting, "a notice about a job that does not wait"


def _near(one_s: float | None, other_s: float | None) -> bool:
    if one_s is None or other_s is None:
        return one_s is other_s
    return abs(one_s - other_s) < ESTIMATE_STEP_S
