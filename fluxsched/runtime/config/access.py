"""Reads `[access]`: who may connect besides the owner, and where keys are."""

from __future__ import annotations

from pathlib import Path

from fluxsched.errors import InvalidValue
from fluxsched.runtime.access.rules import AccessRules, user_id
from fluxsched.runtime.config.toml_reader import TomlTable


def read_access(table: TomlTable, directory: Path) -> AccessRules:
    """The rules; relative paths count from `directory`."""
    allow_guests = table.flag("allow-guest-user")
    allow_root_owner = table.flag("allow-root-owner")
    private_jobs = table.flag("private-jobs")
    server_key, authorized_keys = table.text("server-key", _not_empty), table.text("authorized-keys", _not_empty)
    admin_users = table.texts("admin-users", _user)
    table.done()
    return AccessRules(
        allow_guests=bool(allow_guests),
        allow_root_owner=bool(allow_root_owner),
        admin_users=frozenset(map(_user, admin_users)),
        private_jobs=bool(private_jobs),
        server_key=_path(server_key, directory),
        authorized_keys=_path(authorized_keys, directory),
    )


def _user(text: str) -> int:
    if text.isdecimal() and len(text) <= 10:
        return user_id(int(text))
    if not text:
        raise InvalidValue("a user's name is not empty")
    return user_id(text)


def _not_empty(path: str) -> None:
    if not path:
        raise InvalidValue("a path is not empty")


def _path(text: str | None, directory: Path) -> Path | None:
    return None if text is None else directory / Path(text).expanduser()
