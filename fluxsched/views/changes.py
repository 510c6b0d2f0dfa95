"""What a change does to a whole, and how two changes become one: the same rule, in one function.

A change has the keys that are new, with their values. The value replaces the old one, except
- `states`, `busy`, `busy_gpus`: values to idsets, each target in one. The change lists the targets that changed: they
  leave the idset they were in;
- `rows`: the job rows by id that changed; a row whose id is not in `order` is gone;
- `events`, `output`, `messages`: what is to be appended; the last KEPT_MAX of it are kept.
A reader that follows these rules has, after any changes, what it would get if it asked for the whole anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxsched.core.idset import EMPTY, Idset

Body = Mapping[str, Any]
PARTITIONS = ("states", "busy", "busy_gpus")
KEPT_MAX = {"events": 1000, "output": 400, "messages": 1000}
"""How many entries of what is appended are kept: of events, lines of output, messages."""


def joined(older: Body, newer: Body) -> dict[str, Any]:
    """A whole with a change, or two changes as one."""
    found = dict(older)
    for key, value in newer.items():
        before = found.get(key)
        if before is None:
            found[key] = value
        elif key in PARTITIONS:
            found[key] = _moved(before, value)
        elif key in KEPT_MAX:
            found[key] = [*before, *value][-KEPT_MAX[key] :]
        elif key == "rows":
            found[key] = {**before, **value}
        else:
            found[key] = value
    if "rows" in found and "order" in found:
        rows = found["rows"]
        found["rows"] = {jobid: rows[jobid] for jobid in found["order"] if jobid in rows}
    return found


def _moved(before: Mapping[str, str], moved: Mapping[str, str]) -> dict[str, str]:
    """The partition `before` once these targets are where `moved` has them."""
    to = {value: Idset.parse(text) for value, text in moved.items()}
    targets = EMPTY
    for ranks in to.values():
        targets |= ranks
    found = {}
    for value in {**before, **moved}:
        if ranks := (Idset.parse(before.get(value, "")) - targets) | to.get(value, EMPTY):
            found[value] = str(ranks)
    return found


def differences(before: Body, now: Body) -> dict[str, Any]:
    """The keys of `now` whose values are new: the change for what is replaced as a whole."""
    return {key: value for key, value in now.items() if key not in before or before[key] != value}
