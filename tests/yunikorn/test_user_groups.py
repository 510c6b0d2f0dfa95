"""Groups of users as the host's database has them."""

from __future__ import annotations

import getpass
import grp
import os

import pytest

from fluxsched.yunikorn import placement as user_groups
from fluxsched.yunikorn.placement import GROUPS_KEPT_S, UserGroups, groups_of_host


def test_groups_are_the_hosts() -> None:
    own = groups_of_host(getpass.getuser())
    assert own[0] == grp.getgrgid(os.getgid()).gr_name
    for unknown in ("no-such-user", "", "a\0b", "x" * 10_000):
        assert groups_of_host(unknown) == ()


def test_groups_are_kept_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(user_groups, "groups_of_host", lambda user: asked.append(user) or (f"of {user}",))
    now_s = [0.0]
    groups = UserGroups(lambda: now_s[0])
    assert [groups("ann"), groups("ann"), groups("bob")] == [("of ann",), ("of ann",), ("of bob",)]
    now_s[0] += GROUPS_KEPT_S
    assert groups("ann") == ("of ann",)
    assert asked == ["ann", "bob", "ann"]
    monkeypatch.setattr(user_groups, "USERS_KEPT_MAX", 2)
    groups("eve")
    assert len(groups._kept) == 1
