"""Why a job does not run; and one text of what holds in each of its groups and clusters, joined and taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_BETWEEN: Final = "; "
_PLACE: Final = re.compile(rf"(?:^|{_BETWEEN})(?=(?:group|cluster) [\w.-]+(?::| is silent))")


class Why(NamedTuple):
    """`reason` is what blocks the job and has to change, `rule` the rule behind it.

    `earliest_s` (wall time, seconds) is when it may start at the earliest, None if unknown; `when` is what
    the estimate rests on, or why there is none. The last three are empty for a job that no longer waits.
    """

    reason: str
    rule: str = ""
    when: str = ""
    earliest_s: float | None = None


def in_groups(texts: Iterable[tuple[str, str]]) -> str:
    """`group a: needs 4 nodes; group b: ...`: what holds in each group."""
    return _BETWEEN.join([f"group {name}: {text}" for name, text in texts])


def and_in_clusters(reason: str, texts: Iterable[str]) -> str:
    """A reason, if there is one, and what holds in clusters: texts that begin with `cluster NAME:` or `cluster NAME is
    silent`.
    """
    return _BETWEEN.join(filter(None, [reason, *texts]))


def apart(text: str) -> tuple[str, list[str]]:
    """Split a joined text into the reason that holds everywhere, which may be empty, and a text for each place."""
    reason, *places = _PLACE.split(text)
    return reason, places
