"""Times, durations and users as people read them, the same on page, screen and command line."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from math import floor
from typing import Any

MILLISECONDS_BELOW_S = 0.1
"""Shorter times (seconds) are said in milliseconds."""
USERS_KEPT = 4096
"""Names of users that are not asked for again: to ask takes a directory service milliseconds."""
SHORT_TIME = "%b%d %H:%M"
"""Style of times in tables."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def time_text(timestamp_s: float, style: str = "%Y-%m-%dT%H:%M:%S") -> str:
    """Wall time in the local zone; a time that no calendar has, in seconds since the epoch."""
    try:
        return datetime.fromtimestamp(timestamp_s).strftime(style)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_s:.0f}"


def iso_text(timestamp_s: float) -> str:
    """Wall time with its offset from UTC, for files: `2026-11-29T09:08:00+01:00`."""
    try:
        return datetime.fromtimestamp(timestamp_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_s:.0f}"


def moment_text(timestamp_s: float) -> str:
    """Wall time as in tables; with its seconds, unless it is the begin of a minute."""
    return time_text(timestamp_s, f"{SHORT_TIME}:%S" if int(timestamp_s) % 60 else SHORT_TIME)


def duration_text(duration_s: float) -> str:
    """Return an FSD (RFC 23) short enough to be read: about three digits of the largest unit that fits: `1.5m`,
    `2.33h`.
    """
    if duration_s == float("inf"):
        return "infinity"
    for unit_s, unit in _UNITS:
        if duration_s >= unit_s:
            return rounded(duration_s / unit_s) + unit
    if 0 < duration_s < MILLISECONDS_BELOW_S:
        return f"{rounded(duration_s * 1000)}ms"
    return f"{rounded(duration_s)}s"


def span_text(duration_s: float) -> str:
    """Return a duration in its two largest units, for page and screen: `1m 4s`, `2h 20m`, `3d`; see `duration` of
    words.js.
    """
    if duration_s == float("inf"):
        return "infinity"
    all_s = floor(duration_s + 0.5)  # as Math.round: `round` takes half a second to the even one
    for (unit_s, unit), (part_s, part) in pairwise((*_UNITS, (1, "s"))):
        if all_s >= unit_s:
            whole, rest = divmod(all_s // part_s, unit_s // part_s)
            return f"{whole}{unit}{f' {rest}{part}' if rest else ''}"
    return f"{rounded(duration_s * 1000)}ms" if 0 < duration_s < 1 else f"{all_s}s"


def size_text(size_bytes: float) -> str:
    """Return bytes in the largest binary unit, three digits: `51.2M`, `3.1G`."""
    unit = "B"
    for prefix in "KMGTP":
        if size_bytes < 1000:
            break
        size_bytes, unit = size_bytes / 1024, prefix
    return f"{size_bytes:.3g}{unit}"


def rounded(number: float) -> str:
    """About three digits, at most two behind the point: `0.03`, `12.5`, `1240`."""
    text = f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@lru_cache(USERS_KEPT)
def user_name(userid: int) -> str:
    """Return the name of a user, or the number where the system has no name for it."""
    import pwd

    try:
        return pwd.getpwuid(userid).pw_name
    except (KeyError, OverflowError):
        return str(userid)


def users_text(outage: Mapping[str, Any], everybody: str = "all users") -> str:
    """Return the names of the users of a reservation, as `resource.outage-list` has it; nothing for an outage."""
    if not outage.get("reservation"):
        return ""
    return ",".join([user_name(userid) for userid in outage.get("users", ())]) or everybody


def context_text(context: Mapping[str, Any]) -> str:
    """Return an event's context as `key=value` words, as Flux prints eventlogs."""
    import json

    return "".join(f" {key}={json.dumps(value, ensure_ascii=False)}" for key, value in context.items())
