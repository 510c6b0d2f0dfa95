"""The attempts of a job that is submitted again after it was preempted.

Law: each attempt is a job of its own, since RFC 21 leads from CLEANUP only to INACTIVE. Both logs name the other: the
`clean` event of the preempted job the next attempt, the `submit` event of that one the job that it continues. So every
chain can be followed after a restart, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PREEMPT: Final = "preempt"
"""The type of the exception by which a scheduler ends a running job for the sake of another."""

CANCEL: Final = "cancel"
"""The type of the exception by which its user ends a job: then it is not submitted again."""

RETURN: Final = "return"
"""The type of the exception of a job that was not begun where it was to run: it is submitted again, at no cost."""

REQUEUE: Final = "requeue"
"""Key of other attempts in the context of `submit` and `clean`."""


class Attempt(NamedTuple):
    """Number of a further attempt of a job, with the attempt before it.

    It is the attempt after the job `of`, the `number`th after the first, which was submitted at `t_first` (seconds
    since the epoch).
    """

    of: int
    number: int
    t_first: float


def submit_context(attempt: Attempt) -> dict[str, Any]:
    """Return the part of a `submit` event's context that only a further attempt has."""
    return {REQUEUE: {"of": attempt.of, "attempt": attempt.number, "t_first": attempt.t_first}}


def clean_context(next_id: int) -> dict[str, Any]:
    """Return the context of the `clean` event of a job that is submitted again."""
    return {REQUEUE: {"as": next_id}}


def read_attempt(context: Mapping[str, Any]) -> Attempt:
    """Read the attempt in the context of a `submit` event that has one. Raise KeyError, TypeError or ValueError."""
    found = context[REQUEUE]
    return Attempt(int(found["of"]), int(found["attempt"]), float(found["t_first"]))


def read_next(event: Mapping[str, Any]) -> int:
    """The id of the next attempt that a `clean` event names, 0 if none. Raises KeyError, TypeError or ValueError."""
    found = (event.get("context") or {}).get(REQUEUE)
    return 0 if found is None else int(found["as"])
