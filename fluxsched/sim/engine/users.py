"""Users of a trace by number, as schedulers know them, and by name, as accounts do."""

from __future__ import annotations

from typing import Final

from fluxsched.sim.results.accounts import UNKNOWN_USER

NAMED_FROM: Final = 1 << 32
"""User ids have 32 bits: above are those of users that a trace names by texts."""


class Users:
    """Numbers stand for themselves."""

    def __init__(self) -> None:
        self._ids: dict[str | None, int] = {}
        self._names: list[str] = []

    def userid(self, user: int | str | None) -> int:
        """The number of a user."""
        if isinstance(user, int):
            return user
        userid = self._ids.get(user)
        if userid is None:
            userid = self._ids[user] = NAMED_FROM + len(self._names)
            self._names.append(UNKNOWN_USER if user is None else user)
        return userid

    def name(self, userid: int) -> str:
        """The trace's name for a number."""
        at = userid - NAMED_FROM
        return self._names[at] if 0 <= at < len(self._names) else str(userid)
