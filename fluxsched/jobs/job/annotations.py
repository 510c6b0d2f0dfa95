"""A job's annotations and how an update changes them (RFC 27, Alloc Annotate).

Law: a dictionary once handed out never changes; an update makes a new one along the changed path, so the `alloc`
event may carry the job's dictionary without a copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fluxsched.errors import InvalidValue, LimitExceeded

USER: Final = "user"
"""Users' memos are below this key; schedulers use `sched`."""

DEPTH_MAX = 8
"""Levels of dictionaries: `sched.*` and `user.*` need two; the merge recurses, so it is bounded."""

KEYS_MAX = 64
"""Keys a level: a listing shows a handful, and every pending job may carry them in memory."""

MEMO_CHARS_MAX = 4096
"""A memo as JSON: it is stored and listed with its job; an instance's addresses take some 200."""


def with_memo(annotations: dict[str, Any] | None, memo: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations with a memo, below `user`. Raises LimitExceeded, InvalidValue for an empty one."""
    size = len(json.dumps(memo))
    if size > MEMO_CHARS_MAX:
        raise LimitExceeded(f"a memo of {size} characters is above the limit of {MEMO_CHARS_MAX}: shorten it")
    if not memo:
        raise InvalidValue("an empty memo: give KEY=VALUE")
    return merge(annotations or {}, {USER: dict(memo)})


def said_by_users(annotations: dict[str, Any] | None) -> dict[str, Any] | None:
    """The memos among annotations: what remains of them when the job's scheduler is lost."""
    memos = (annotations or {}).get(USER)
    return None if memos is None else {USER: memos}


def merge(old: dict[str, Any], update: dict[str, Any], depth: int = 1) -> dict[str, Any]:
    """`old` after `update`: null removes a key, dictionaries merge, everything else replaces.

    A dictionary that is new is merged into an empty one, so its nulls are gone too; without nulls it is used as it is,
    since jobs may share it. Raises LimitExceeded.
    """
    if depth > DEPTH_MAX:
        raise LimitExceeded(f"annotations nest deeper than {DEPTH_MAX} levels: flatten them")
    merged = dict(old)
    is_new = not old
    for key, value in update.items():
        if value is None:
            merged.pop(key, None)
            is_new = False
        elif isinstance(value, dict):  # which is what messages have; asking for any Mapping takes ten times as long
            before = merged.get(key)
            merged[key] = below = merge(before if isinstance(before, dict) else {}, value, depth + 1)
            is_new = is_new and below is value
        else:
            merged[key] = value
    if len(merged) > KEYS_MAX:
        raise LimitExceeded(f"annotations would have {len(merged)} keys on one level, limit {KEYS_MAX}: remove some")
    return update if is_new else merged
