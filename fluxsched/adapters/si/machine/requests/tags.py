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
ALLOW_PREEMPTION: Final = "yunikorn.apache.org/allowPreemption"
CREATION_TIME: Final = "creationTime"
APPLICATION_CREATION_TIME: Final = "yunikorn.apache.org/creationTime"
"""The tag of an application; that of an ask has no domain."""

FOREIGN: Final = "foreign"
"""The tag of an allocation that another scheduler has made."""

CONSTRAINT: Final = "fluxsched/constraint"

TRUE: Final = frozenset(("1", "t", "true"))
FALSE: Final = frozenset(("0", "f", "false"))

TAGS_MAX = 256
"""Of one ask, application or node; each allocation carries those of its ask."""

CONSTRAINTS_CACHED_MAX = 4096
"""Constraints as read; some hundred bytes each."""


class AskTags(NamedTuple):
    """`created_s` is wall time in seconds, 0.0 if it is not said; `required_node` "" is any."""

    required_node: str = ""
    created_s: float = 0.0
    constraint: Constraint = EVERYTHING
    may_be_preempted: bool = True


NO_TAGS: Final = AskTags()


def read_tags(tags: Mapping[str, str], now_s: float) -> AskTags:
    """Return the meaning of the tags. Raises InvalidValue naming the tag that is wrong."""
    check_tags(tags)
    constraint = EVERYTHING
    if CONSTRAINT in tags:
        try:
            constraint = _constraint(tags[CONSTRAINT])
        except InvalidValue as fault:
            raise InvalidValue(f"tag {CONSTRAINT}: {fault}") from None
    return AskTags(
        tags.get(REQUIRED_NODE, ""),
        creation_s(tags, CREATION_TIME, now_s),
        constraint,
        flag(tags, ALLOW_PREEMPTION, otherwise=True),
    )


def flag(tags: Mapping[str, str], tag: str, otherwise: bool = False) -> bool:
    """Return the truth value of a tag, `otherwise` without it. Raises InvalidValue for any other text."""
    text = tags.get(tag, "")
    if not text:
        return otherwise
    if text.lower() not in TRUE | FALSE:
        raise InvalidValue(f"tag {tag} is {text[:40]!r}: it must be true or false")
    return text.lower() in TRUE


def check_tags(tags: Mapping[str, str], what: str = "tags") -> None:
    """Raises LimitExceeded for too many of them; attributes of nodes are bounded alike."""
    if len(tags) > TAGS_MAX:
        raise LimitExceeded(f"{len(tags)} {what}: the limit is {TAGS_MAX}")


@lru_cache(CONSTRAINTS_CACHED_MAX)
def _constraint(text: str) -> Constraint:
    return Constraint.parse(load_object(text, "constraint"))


def creation_s(tags: Mapping[str, str], tag: str, now_s: float) -> float:
    """Return the time of creation in a tag (wall time, seconds), at most `now_s`; 0.0 without it.

    Raises InvalidValue for what is no time.
    """
    text = tags.get(tag, "")
    if not text:
        return 0.0
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < inf:
        raise InvalidValue(f"tag {tag} is {text[:40]!r}: it must be seconds since the Unix epoch")
    return min(found, now_s)
