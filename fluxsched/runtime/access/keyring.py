"""The keys of a server: its own, and those that may connect, read as a whole from a directory.

Law: one wrong file is an error with its name, and nothing of the directory is taken: who may connect is never a guess.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded
from fluxsched.runtime.access.key_files import (
    PUBLIC_SUFFIX,
    WRITTEN_BY_OTHERS,
    AuthorizedKey,
    check_mode,
    read_public,
    read_secret,
)
from fluxsched.runtime.access.rules import AUTHORIZED_NAME, SERVER_KEY_NAME, AccessRules, key_directory
from fluxsched.transport.curve import KeyPair

KEYS_MAX = 4096
"""Keys in a directory: all are read at a start and at each reload, some 0.1 ms each."""


ReadKeys = Callable[[AccessRules], Mapping[bytes, AuthorizedKey]]


class Keyring(NamedTuple):
    """A server's keys; `authorized` are those of its clients, by public key."""

    own: KeyPair
    authorized: dict[bytes, AuthorizedKey]


def read_keyring(rules: AccessRules) -> Keyring | None:
    """The keys that `rules` name, or those in the usual place; None if no server key is there and none was named.

    Raises InvalidValue or Refused with all that is wrong.
    """
    path = rules.server_key or key_directory() / SERVER_KEY_NAME
    if rules.server_key is None and not path.exists():
        return None
    return Keyring(read_secret(path), authorized_keys(rules))


def authorized_keys(rules: AccessRules) -> dict[bytes, AuthorizedKey]:
    """The keys in the directory that `rules` name, or in the usual one, if that is there. Raises as `read_authorized`.
    """
    directory = authorized_directory(rules)
    return {} if rules.authorized_keys is None and not directory.exists() else read_authorized(directory)


def authorized_directory(rules: AccessRules) -> Path:
    """Where the `.pub` files are that `authorized_keys` reads."""
    return rules.authorized_keys or key_directory() / AUTHORIZED_NAME


def read_authorized(directory: Path) -> dict[bytes, AuthorizedKey]:
    """The keys in a directory. Raises InvalidValue naming each file that is wrong, and keys that are there twice."""
    found: dict[bytes, AuthorizedKey] = {}
    faults = []
    for name in _names(directory):
        path = directory / name
        try:
            if not name.endswith(PUBLIC_SUFFIX):
                raise InvalidValue(f"{path}: only keys belong here, as NAME{PUBLIC_SUFFIX}: move it away")
            key = read_public(path)
            other = found.setdefault(key.public, key)
            if other is not key:
                same = f"{other.name}{PUBLIC_SUFFIX} and {name} hold the same key"
                raise InvalidValue(f"{directory}: {same}: remove one of them")
        except FluxschedError as fault:
            faults.append(str(fault))
    if faults:
        raise InvalidValue("\n".join(faults))
    return found


def _names(directory: Path) -> list[str]:
    """The files of the directory but hidden ones."""
    try:
        check_mode(directory, directory.stat(), WRITTEN_BY_OTHERS, f"chmod 755 {directory}")
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError as fault:
        text = f"directory of authorized keys {directory} cannot be read: {fault.strerror}"
        raise InvalidValue(text, fault.errno or errno.EIO) from fault
    if len(names) > KEYS_MAX:
        raise LimitExceeded(f"{directory} holds {len(names)} files, limit {KEYS_MAX}: remove keys that are not used")
    return names
