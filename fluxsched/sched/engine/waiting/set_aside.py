"""Jobs that were accepted and that their group cannot hold any more: they wait, set aside, until it can.

Law: no policy sees them, so that no job waits behind one that cannot start; a job that is back has the place that its
priority and its time of submission give it. Owners learn what is missing and since when, in the words of `shortage`.

A job was accepted if it waited when the group still had what it needs; if it was submitted before the group last lost
targets, or before this scheduler acquired it (`Group.short_since_s`), since it may have been feasible then; or if it
asked to wait (`attributes.system.unsatisfiable = "wait"`). All others are denied.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.engine.waiting.policy_queue import PolicyQueue
from fluxsched.sched.queue.pending import Waiting

WAIT, DENY = "wait", "deny"
UNSATISFIABLE: Final = (WAIT, DENY)
"""What becomes of accepted jobs that their group can no longer hold: `[policy] unsatisfiable`."""

TimeText = Callable[[float], str]
"""A time (wall time, seconds) in words for people."""

RULE: Final = "set aside: an accepted job waits while its group cannot hold it, and delays no other job"
WHEN: Final = "not known: as soon as the group has what it needs"


def utc_text(time_s: float) -> str:
    """`Nov22 12:03 UTC`, where no time zone is known."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%b%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar: tests and simulations of long times
        return f"{time_s:.0f} s"


def asks_to_wait(jobspec: Jobspec) -> bool:
    """Whether the job is to wait even if it could never run so far (`submit --allow-infeasible`)."""
    system = jobspec.raw.get("attributes", {}).get("system") or {}
    return bool(system.get("unsatisfiable") == WAIT)


class SetAside:
    """One job that was set aside. `had` nodes (or slots) there were until `since_s` (wall time, seconds).

    `had` is None where it is not known; with `lost` false it never fitted since `since_s`, as far
    as this scheduler knows.
    """

    __slots__ = ("had", "job", "lost", "queue", "since_s", "why")

    def __init__(self, job: Waiting, queue: PolicyQueue, why: str, since_s: float, lost: bool, had: int | None) -> None:
        self.job = job
        self.queue = queue
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
