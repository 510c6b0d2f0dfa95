"""Jobs that were accepted and that their group cannot hold any more: they wait, set aside, until it can.

Law: no policy sees them, so that nobody waits behind what cannot start; a job that is back has the place that its
priority and its time of submission give it. Each is told what is missing and since when, in the words of `shortage`.

Who was accepted: whoever waited when the group still had what he needs; whoever was submitted before the group last
lost targets, or before this scheduler knew it (`Group.short_since_s`), since nobody can say that it could not run then;
and whoever asked to wait (`attributes.system.unsatisfiable = "wait"`). All others are denied.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.queue.pending import Waiting

if TYPE_CHECKING:
    from fluxsched.sched.engine.policy_queue import Lane

WAIT, DENY = "wait", "deny"
UNSATISFIABLE = (WAIT, DENY)
"""What becomes of accepted jobs that their group can no longer hold: `[policy] unsatisfiable`."""

TimeText = Callable[[float], str]
"""A time (wall time, seconds) in words for people."""

RULE = "set aside: an accepted job waits while its group cannot hold it, and is in nobody's way"
WHEN = "not known: as soon as the group has what it needs"


def utc_text(time_s: float) -> str:
    """`Nov22 12:03 UTC`, for who knows nothing of a place."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%b%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar: tests and simulations of long times
        return f"{time_s:.0f} s"


def asks_to_wait(jobspec: Jobspec) -> bool:
    """Whether the job is to wait even if it could never run so far (`submit --allow-infeasible`)."""
    system = jobspec.raw.get("attributes", {}).get("system") or {}
    return bool(system.get("unsatisfiable") == WAIT)


class Aside:
    """One job that was set aside. `had` nodes (or slots) there were until `since_s` (wall time, seconds).

    `had` is None where nobody knows; with `lost` false it never fitted as far as this scheduler knows, since `since_s`.
    """

    __slots__ = ("had", "job", "lane", "lost", "since_s", "why")

    def __init__(self, job: Waiting, lane: Lane, why: str, since_s: float, lost: bool, had: int | None) -> None:
        self.job = job
        self.lane = lane
        self.why = why
        self.since_s = since_s
        self.lost = lost
        self.had = had

    def reason(self, time_text: TimeText) -> str:
        """`needs 4 nodes of 1 slot of 1 core; the group has only 3 such nodes; it had 4 until Nov22 12:03`."""
        time = time_text(self.since_s)
        if not self.lost:
            return f"{self.why}, at least since {time}"
        return f"{self.why}; it had {'enough' if self.had is None else self.had} until {time}"
