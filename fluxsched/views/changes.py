"""What a change does to a whole, and how two changes become one: the same rule, in one function.

A change has the keys that are new, with their values. The value replaces the old one, except
- `states`, `busy`, `busy_gpus`: values to idsets, each target in one. The change lists the targets that changed: they
  leave the idset they were in;
- `jobs`, `bars`: those that are new or differ, by their `jobid` (of bars the first entry); those in `gone` are gone.
  Where there is an `order` of ids, the list is in it. The `jobs` of figures are counts, and replaced;
- `events`, `output`, `messages`: what is to be appended; KEPT_MAX of it are kept, of output OUTPUT_CHARS_MAX.
A reader that follows these rules has, after any changes, what it would get if it asked for the whole anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluxsched.views.machine import TargetParts

Body = Mapping[str, Any]
PARTITIONS = ("states", "busy", "busy_gpus")
KEYED = {"jobs": "jobid", "bars": 0}
KEPT_MAX = 1000
"""How many events, or messages, are kept."""
OUTPUT_CHARS_MAX = 64 * 1024
"""How much of a job's output is kept, its end."""


def joined(older: Body, newer: Body) -> dict[str, Any]:
    """A whole with a change, or two changes as one; in a whole `gone` means nothing (see `after`)."""
    found = dict(older)
    keyed = [key for key in KEYED if not isinstance(older.get(key, newer.get(key, {})), Mapping)]
    for key, value in newer.items():
        before = found.get(key)
        if key in keyed or key == "gone":
            continue
        if before is None:
            found[key] = value
        elif key in PARTITIONS:
            found[key] = _moved(before, value)
        elif key in ("events", "messages"):
            found[key] = [*before, *value][-KEPT_MAX:]
        elif key == "output":
            found[key] = tail([*before, *value])
        else:
            found[key] = value
    for key in keyed:
        _join_keyed(found, older, newer, key)
    if "gone" in newer and not keyed:
        found["gone"] = [*dict.fromkeys([*older.get("gone", ()), *newer["gone"]])]
    return found


def after(whole: Body, change: Body) -> dict[str, Any]:
    """The whole after a change."""
    found = joined(whole, change)
    found.pop("gone", None)
    return found


def _join_keyed(found: dict[str, Any], older: Body, newer: Body, key: str) -> None:
    name = KEYED[key]
    gone = set(newer.get("gone", ()))
    rows = {row[name]: row for row in older.get(key, ()) if row[name] not in gone}
    rows |= {row[name]: row for row in newer.get(key, ())}
    left = [jobid for jobid in dict.fromkeys([*older.get("gone", ()), *newer.get("gone", ())]) if jobid not in rows]
    if left or "gone" in found:
        found["gone"] = left
    order = found.get("order") if key == "jobs" else None
    found[key] = [*rows.values()] if order is None else [rows[jobid] for jobid in order if jobid in rows]


def tail(pieces: Sequence[Sequence[str]]) -> list[list[str]]:
    """The last OUTPUT_CHARS_MAX characters of `[stream, text]`, neighbours of one stream as one."""
    found: list[list[str]] = []
    for stream, text in pieces:
        if found and found[-1][0] == stream:
            found[-1] = [stream, found[-1][1] + text]
        else:
            found.append([stream, text])
    excess = sum([len(text) for _, text in found]) - OUTPUT_CHARS_MAX
    while excess > 0:
        stream, text = found[0]
        if len(text) > excess:
            found[0] = [stream, text[excess:]]
        else:
            del found[0]
        excess -= len(text)
    return found


def _moved(before: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    """The partition `before` once these targets are where `moved` has them."""
    found = TargetParts()
    found.take(before)
    found.take(moved)
    return found.texts()


def differences(before: Body, now: Body) -> dict[str, Any]:
    """The keys of `now` whose values are new: the change for what is replaced as a whole."""
    return {key: value for key, value in now.items() if key not in before or before[key] != value}
