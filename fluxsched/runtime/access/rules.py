"""What `[access]` of a configuration says."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from fluxsched.errors import InvalidValue

USERID_MAX = 0xFFFFFFFD
"""The two ids above mean any user and none."""
SERVER_KEY_NAME, CLIENT_KEY_NAME, AUTHORIZED_NAME = "server.key", "client.key", "authorized-keys"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Roles of this machine's users, and where the keys of all others are (None: in the usual place)."""

    allow_guests: bool = False
    """Other users may connect at local sockets that were bound for them, and do what guests may."""
    allow_root_owner: bool = False
    """There root may do what the owner may."""
    admin_users: frozenset[int] = frozenset()
    """There these may do what admins may."""
    private_jobs: bool = False
    """Guests see no jobs but their own."""
    server_key: Path | None = None
    authorized_keys: Path | None = None


def key_directory() -> Path:
    """Where keys are kept unless something else is said: `~/.config/fluxsched`."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "fluxsched"


def user_id(user: object) -> int:
    """The id of an account, given by name or number. Raises InvalidValue."""
    if type(user) is int and 0 <= user <= USERID_MAX:
        return user
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except (KeyError, ValueError):
        raise InvalidValue(f"user {str(user)[:40]!r} is unknown on this machine: give a name or a user id") from None
