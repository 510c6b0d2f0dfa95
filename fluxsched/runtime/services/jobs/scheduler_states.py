"""What schedulers have the job manager keep between two of them: one value a set of groups, which only they read.

Law: what is kept is returned as it came, and a value that became unreadable on disk is the next scheduler's to judge:
nothing here fails for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fluxsched.core.text import printable
from fluxsched.errors import LimitExceeded
from fluxsched.runtime.loop.store import Store

KIND = "scheduler"
"""Of the rows in table `saved`; the key has the groups, since another policy may serve them next time."""

SET_ASIDE = "scheduler-set-aside"
"""Of the rows with what was of no use: the last one of each key."""

STATE_BYTES_MAX = 32 * 2**20
"""Of a value as JSON. What our schedulers save is a text of at most 16 MiB, in which quotes are then escaped."""

SHOWN_BYTES = 40
"""How much of an unreadable value is passed on."""

KINDS = (KIND, SET_ASIDE)


class SchedulerStates:
    """The values, by the groups that a scheduler serves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, bytes] = {}

    def get(self, groups: Sequence[str]) -> Any:
        """What was kept last for these groups, None for nothing."""
        value = self._value(_key(groups))
        if value is None:
            return None
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return printable(value[:SHOWN_BYTES].decode(errors="replace"))

    def keep(self, groups: Sequence[str], state: object, set_aside: bool, stored: Callable[[], None]) -> None:
        """Keep a value, and call `stored` once it is on disk. Raises LimitExceeded."""
        value = msgspec.json.encode(state)
        if len(value) > STATE_BYTES_MAX:
            raise LimitExceeded(f"state of {len(value)} bytes, the limit is {STATE_BYTES_MAX}: keep less")
        key = _key(groups)
        before = self._value(key) if set_aside else None
        if before is not None:
            self._store.add("saved", (SET_ASIDE, key, before))
        self._known[key] = value
        self._store.add("saved", (KIND, key, value))
        self._store.after_commit(stored)

    def _value(self, key: str) -> bytes | None:
        """As it is or soon will be on disk, where it may be anything."""
        known = self._known.get(key)
        if known is not None:
            return known
        rows = self._store.read("SELECT value FROM saved WHERE kind = ? AND key = ?", (KIND, key))
        if not rows:
            return None
        (value,) = rows[0]
        return value if isinstance(value, bytes) else str(value).encode(errors="replace")


def _key(groups: Sequence[str]) -> str:
    return ",".join(sorted(groups))
