"""Why a job does not run."""

from __future__ import annotations

from typing import NamedTuple


class Why(NamedTuple):
    """`reason` is what blocks the job and has to change, `rule` the rule behind it.

    `earliest_s` (wall time, seconds) is when it may start at the earliest, None if unknown; `when` is what
    the estimate rests on, or why there is none. The last three are empty for a job that no longer waits.
    """

    reason: str
    rule: str = ""
    when: str = ""
    earliest_s: float | None = None
