"""Why a job does not run: the answer that every part gives which is asked."""

from __future__ import annotations

from typing import NamedTuple


class Why(NamedTuple):
    """`reason` says what is in the way and has to change, `rule` by which rule.

    `earliest_s` (wall time, seconds) is when it may start at the earliest, None where nobody can tell; `when` says what
    that rests on, or why it cannot be told. The last three are empty for a job that waits no longer.
    """

    reason: str
    rule: str = ""
    when: str = ""
    earliest_s: float | None = None
