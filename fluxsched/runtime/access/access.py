"""Who a peer is, and what it may do: decided from what its transport has verified, never from what a message says."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from fluxsched.core.role import Role
from fluxsched.runtime.access.key_files import AuthorizedKey
from fluxsched.runtime.access.rules import AccessRules
from fluxsched.runtime.system.log import logger

log = logger("access")

NO_USER = 0xFFFFFFFE
"""The userid of a key that belongs to no account: no job has it."""


class Identity(NamedTuple):
    """A peer's role, the account whose jobs are its own, and the name of the key by which it is known, if it is."""

    role: Role
    userid: int
    key_name: str | None = None


class Access:
    """The rules in force, and the keys; both are replaced as a whole."""

    def __init__(
        self, rules: AccessRules | None = None, keys: Mapping[bytes, AuthorizedKey] | None = None
    ) -> None:
        self.rules = rules or AccessRules()
        self.keys = dict(keys or {})
        self.owner = os.getuid()

    def change(self, rules: AccessRules, keys: Mapping[bytes, AuthorizedKey] | None) -> None:
        """Replace the rules, but for those by which sockets were bound, and the keys, if any are given."""
        self.rules = replace(rules, allow_guests=self.rules.allow_guests, server_key=self.rules.server_key)
        self.keys = self.keys if keys is None else dict(keys)

    def admit_user(self, userid: int) -> int:
        """0 if a user of this machine may connect, else the errno to answer."""
        return errno.EPERM if self._role_of(userid) is None else 0

    def admit_key(self, key: bytes, address: str) -> bool:
        """Whether the holder of a key may connect. A stranger is told nothing, so the log has it."""
        if key in self.keys:
            return True
        log.warning("refused a connection from %s: its key %s is not authorized", address, key.hex())
        return False

    def identify(self, userid: int | None, key: bytes | None) -> Identity | None:
        """Who a peer is; None if it may not connect (any more). Without user and key it came where the owner alone can.
        """
        if key is not None:
            known = self.keys.get(key)
            return None if known is None else Identity(known.role, self._account_of(known), known.name)
        userid = self.owner if userid is None else userid
        role = self._role_of(userid)
        return None if role is None else Identity(role, userid)

    def _role_of(self, userid: int) -> Role | None:
        if userid == self.owner or (userid == 0 and self.rules.allow_root_owner):
            return Role.OWNER
        if userid in self.rules.admin_users:
            return Role.ADMIN
        return Role.GUEST if self.rules.allow_guests else None

    def _account_of(self, key: AuthorizedKey) -> int:
        """Owners and admins act for the instance, unless their key says for whom."""
        if key.userid is not None:
            return key.userid
        return NO_USER if key.role is Role.GUEST else self.owner
