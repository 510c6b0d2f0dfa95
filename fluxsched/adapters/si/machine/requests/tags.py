"""The tags of asks that mean something here; all of them are carried along.

Law: a tag that is read and is wrong refuses its ask; others are texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf
from typing import Final, NamedTuple

from fluxsched.core.constraint import EVERYTHING, Constraint
from fluxsched.core.jsontext import load_object
from fluxsched.errors import InvalidValue, LimitExceeded

REQUIRED_NODE: Final = "yunikorn.apache.org/requiredNode"
CREATION_TIME: Final = "yunikorn.apache.org/creationTime"
CONSTRAINT: Final = "fluxsched/constraint"

TAGS_MAX = 256
"""Of one ask, application or node; each allocation carries those of its ask."""

CONSTRAINTS_CACHED_MAX = 4096
"""Constraints as read; some hundred bytes each."""


class AskTags(NamedTuple):
    """`created_s` is wall time in seconds, 0.0 if it is not said; `required_node` "" is any."""

    required_node: str = ""
    created_s: float = 0.0
    constraint: Constraint = EVERYTHING


NO_TAGS: Final = AskTags()


def read_tags(tags: Mapping[str, str], now_s: float) -> AskTags:
    """What the tags say. Raises InvalidValue naming the tag that is wrong."""
    check_tags(tags)
    constraint = EVERYTHING
    if CONSTRAINT in tags:
        try:
            constraint = _constraint(tags[CONSTRAINT])
        except InvalidValue as fault:
            raise InvalidValue(f"tag {CONSTRAINT}: {fault}") from None
    return AskTags(tags.get(REQUIRED_NODE, ""), _created_s(tags.get(CREATION_TIME, ""), now_s), constraint)


def check_tags(tags: Mapping[str, str], what: str = "tags") -> None:
    """Raises LimitExceeded for too many of them; attributes of nodes are bounded alike."""
    if len(tags) > TAGS_MAX:
        raise LimitExceeded(f"{len(tags)} {what}: the limit is {TAGS_MAX}")


@lru_cache(CONSTRAINTS_CACHED_MAX)
def _constraint(text: str) -> Constraint:
    return Constraint.parse(load_object(text, "constraint"))


def _created_s(text: str, now_s: float) -> float:
    """A time to come is now."""
    if not text:
        return 0.0
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < inf:
        raise InvalidValue(f"tag {CREATION_TIME} is {text[:40]!r}: it must be seconds since the Unix epoch")
    return min(found, now_s)
