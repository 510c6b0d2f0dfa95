"""Who a peer is."""

from __future__ import annotations

import errno
import os

import pytest

from fluxsched.core.role import Role, parse_role
from fluxsched.errors import InvalidValue
from fluxsched.runtime.access.access import NO_USER, Access
from fluxsched.runtime.access.key_files import AuthorizedKey
from fluxsched.runtime.access.rules import AccessRules

OWNER, ANN, EVE = os.getuid(), os.getuid() + 1, os.getuid() + 2


def test_users_of_this_machine() -> None:
    closed, shared = Access(), Access(AccessRules(allow_guests=True, admin_users=frozenset({ANN})))
    assert [closed.admit_user(user) for user in (OWNER, ANN, EVE)] == [0, errno.EPERM, errno.EPERM]
    assert [shared.admit_user(user) for user in (OWNER, ANN, EVE)] == [0, 0, 0]
    assert [shared.identify(user, None) for user in (OWNER, ANN, EVE)] == [
        (Role.OWNER, OWNER, None), (Role.ADMIN, ANN, None), (Role.GUEST, EVE, None),
    ]  # fmt: skip
    assert closed.identify(None, None) == (Role.OWNER, OWNER, None), "where the owner alone can connect"
    admins = Access(AccessRules(admin_users=frozenset({ANN})))
    assert [admins.admit_user(user) for user in (ANN, EVE)] == [0, errno.EPERM]


def test_root_is_the_owner_only_where_the_rules_say_so() -> None:
    for allowed, verdict in ((True, 0), (False, errno.EPERM)):
        access = Access(AccessRules(allow_root_owner=allowed))
        access.owner = 1000
        assert access.admit_user(0) == verdict


def test_holders_of_keys_act_for_their_account() -> None:
    keys = [
        AuthorizedKey("ann", Role.ADMIN, b"a", None), AuthorizedKey("bob", Role.GUEST, b"b", ANN),
        AuthorizedKey("eve", Role.GUEST, b"e", None), AuthorizedKey("me", Role.OWNER, b"m", None),
    ]  # fmt: skip
    access = Access(None, {key.public: key for key in keys})
    assert [access.identify(None, key.public) for key in keys] == [
        (Role.ADMIN, OWNER, "ann"), (Role.GUEST, ANN, "bob"), (Role.GUEST, NO_USER, "eve"), (Role.OWNER, OWNER, "me"),
    ]  # fmt: skip
    assert access.admit_key(b"a", "10.0.0.1")
    access.change(AccessRules(), {})
    assert not access.admit_key(b"a", "10.0.0.1")
    assert access.identify(None, b"a") is None


def test_rules_by_which_sockets_were_bound_stay_until_a_restart() -> None:
    access = Access(AccessRules(allow_guests=True))
    access.change(AccessRules(private_jobs=True), None)
    assert (access.rules.allow_guests, access.rules.private_jobs) == (True, True)


def test_roles() -> None:
    assert [parse_role(name) for name in ("guest", "admin", "owner")] == list(Role)
    for name in ("", "root", "OWNER"):
        with pytest.raises(InvalidValue, match="is not one of guest, admin, owner"):
            parse_role(name)
