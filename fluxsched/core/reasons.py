"""Reasons why a job does not run: their words, their kind, and those of several groups and clusters as one text.

Law: the kind of a reason is given where its words are made, and goes along with them; it is never read out of them. A
reason without a kind, such as a text of a site's policy, is of kind OTHER. The reasons in each of a job's groups and
clusters are joined into one text and taken apart again here alone.
"""

# Not compiled: a text with a kind inherits from `str`

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple


class WaitKind(Enum):
    """Kinds of reasons why jobs wait, in the words under which people count them."""

    HELD = "held"
    DEPENDENCIES = "dependencies"
    QUEUE_STOPPED = "queue stopped"
    NO_SCHEDULER = "no scheduler"
    NO_RESOURCES = "resources not there"
    LIMIT_OF_USER = "limit of user"
    LIMIT_OF_BANK = "limit of bank"
    LIMIT_OF_QUEUE = "limit of queue"
    LIMIT_OF_ACCOUNT = "limit of account"
    OUTAGE = "outage"
    RESERVATION = "reservation"
    PLUGIN = "plugin"
    TOO_LARGE = "too large for the group"
    NO_ROOM = "no free nodes"
    BEHIND = "behind other jobs"
    OTHER = "other reasons"


SITE_LIMITS: Final = frozenset((WaitKind.LIMIT_OF_USER, WaitKind.LIMIT_OF_BANK, WaitKind.LIMIT_OF_QUEUE))


class Cause(str):
    """Text with a kind: it passes as a text where the kind does not matter, and by policies that know of none."""

    __slots__ = ("kind",)
    kind: WaitKind


def cause(text: str, kind: WaitKind) -> Cause:
    """Return the text with this kind."""
    made = Cause(text)
    made.kind = kind
    return made


def wait_kind(reason: str) -> WaitKind:
    """Return the kind that goes along with a reason; OTHER if none does."""
    return reason.kind if isinstance(reason, Cause) else WaitKind.OTHER


class Why(NamedTuple):
    """`reason` is what blocks the job and has to change, `rule` the rule behind it.

    `earliest_s` (wall time, seconds) is when it may start at the earliest, None if unknown; `when` is what
    the estimate rests on, or why there is none. The last four say nothing of a job that no longer waits.
    """

    reason: str
    rule: str = ""
    when: str = ""
    earliest_s: float | None = None
    kind: WaitKind = WaitKind.OTHER


_BETWEEN: Final = "; "
_PLACE: Final = re.compile(rf"(?:^|{_BETWEEN})(?=(?:group|cluster) [\w.-]+(?::| is silent))")


def in_groups(texts: Iterable[tuple[str, str]]) -> str:
    """`group a: needs 4 nodes; group b: ...`: what holds in each group."""
    return _BETWEEN.join([f"group {name}: {text}" for name, text in texts])


def and_in_clusters(reason: str, texts: Iterable[str]) -> str:
    """Return a reason, if there is one, and what holds in clusters: texts that begin with `cluster NAME:` or `cluster
    NAME is silent`.
    """
    return _BETWEEN.join(filter(None, [reason, *texts]))


def apart(text: str) -> tuple[str, list[str]]:
    """Split a joined text into the reason that holds everywhere, which may be empty, and a text for each place."""
    reason, *places = _PLACE.split(text)
    return reason, places
