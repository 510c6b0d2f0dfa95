"""The groups of users in the host's database.

Law: a user that the host does not know has none.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Sequence
from typing import Final

GROUPS_KEPT_S: Final = 60.0
"""Time for which the groups of a user are not looked up again (seconds): a user database may be far away."""

USERS_KEPT_MAX = 10_000
"""Users whose groups are kept at a time."""


class UserGroups:
    """The groups of a user in the host's database, kept for a while."""

    def __init__(self, elapsed_s: Callable[[], float]) -> None:
        self._elapsed_s = elapsed_s
        self._kept: dict[str, tuple[float, tuple[str, ...]]] = {}

    def __call__(self, user: str) -> Sequence[str]:
        """Their names; none for a user whom the host does not know."""
        now_s = self._elapsed_s()
        until_s, groups = self._kept.get(user, (now_s, ()))
        if until_s <= now_s:
            if len(self._kept) >= USERS_KEPT_MAX:
                self._kept.clear()
            groups = groups_of_host(user)
            self._kept[user] = now_s + GROUPS_KEPT_S, groups
        return groups


def groups_of_host(user: str) -> tuple[str, ...]:
    """Return the names of a user's groups on this host, the primary one first."""
    try:
        found = pwd.getpwnam(user)
        ids = os.getgrouplist(user, found.pw_gid)
    except (KeyError, ValueError, OSError):  # unknown, a NUL in the name, no database
        return ()
    names = []
    for gid in ids:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return tuple(names)
