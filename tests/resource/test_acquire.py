"""Acquire, release and disconnect: RFC 28 draft, and design.md 'Acquire'."""

from __future__ import annotations

import errno

import pytest

from fluxsched.errors import Refused, RemoteProtocolError


def test_default_owns_what_no_other_group_names(h):
    assert (h.members("default"), h.members("b"), h.members("exclude")) == ("0-4", "6-7", "5")


def test_first_has_all_of_the_group_with_online_and_offline(h):
    h.drain("1")
    h.set("offline", "2")
    h.set("torpid", "3")
    assert h.acquire("S", "default") == ["S: grow 0-4 up 0,4 down 1-3"]


def test_plain_acquires_the_default_group(h):
    assert h.acquire("P") == ["P: grow 0-4 up 0-4 down "]


def test_what_the_instance_has_once_goes_to_the_default_group_alone(start, r):
    h = start(r(shared={"matlab": 3}), {"b": "6-7"})
    h.acquire("T", "b")
    assert h.resources().shared == ()
    h.acquire("S", "default")
    assert h.resources().shared == (("matlab", 3),)
    h.assign("6", "default")
    h.release("T", "b", "6")
    assert h.resources().shared == ()


def test_an_empty_group_is_acquired_with_an_empty_first(h):
    h.assign("", "new")
    assert h.acquire("S", "new") == ["S: grow  up  down "]
    assert h.assign("1", "new") == ["S: grow 1 up 1 down "]


def test_several_acquirers_one_a_group(h):
    h.acquire("S", "default")
    assert h.acquire("T", "b") == ["T: grow 6-7 up 6-7 down "]
    assert h.drain("0,6") == ["S: up  down 0", "T: up  down 6"]


def test_one_acquirer_may_have_several_groups(h):
    h.acquire("S", "default")
    h.acquire("S", "b")
    assert h.drain("0,6") == ["S: up  down 0", "S: up  down 6"]
    assert h.disconnect("S") == ["S: ended default 61", "S: ended b 61"]


@pytest.mark.parametrize(
    ("group", "typed", "errnum"),
    [
        ("exclude", True, errno.EPERM),
        ("nosuch", True, errno.ENOENT),
        ("default", True, errno.EBUSY),
        (None, False, errno.EBUSY),
        (None, True, errno.EPROTO),
        ("b", False, errno.EPROTO),
    ],
)
def test_acquire_errors(h, group, typed, errnum):
    h.acquire("S", "default")
    with pytest.raises((Refused, RemoteProtocolError)) as caught:
        h._call("acquire", "T", group, typed)
    assert caught.value.errnum == errnum


def test_disconnect_frees_the_slot_and_leaves_jobs_alone(h):
    h.acquire("S", "default")
    h.hold(1, "0-1")
    assert h.disconnect("S") == ["S: ended default 61"]
    assert h.acquire("T", "default") == ["T: grow 0-4 up 0-4 down "]
    assert str(h.module.held) == "0-1"


def test_disconnect_of_a_stranger_does_nothing(h):
    assert h.disconnect("nobody") == []


def test_only_changes_are_told(h):
    h.acquire("S", "default")
    h.set("offline", "1")
    assert h.drain("1") == []
    assert h.set("online", "1") == []
    assert h.undrain("1") == ["S: up 1 down "]


@pytest.mark.parametrize(("lose", "regain"), [("offline", "online"), ("torpid", "lively")])
def test_online_and_offline(h, lose, regain):
    h.acquire("S", "default")
    assert h.set(lose, "1-2") == ["S: up  down 1-2"]
    assert h.set(lose, "1-2") == []
    assert h.set(regain, "1-2") == ["S: up 1-2 down "]


def test_release_lets_the_next_group_grow(h):
    h.acquire("S", "default")
    h.acquire("T", "b")
    assert h.assign("0-2", "b") == ["S: shrink 0-2"]
    assert h.release("S", "default", "1") == ["T: grow 1 up 1 down "]
    assert h.release("S", "default", "0,2") == ["T: grow 0,2 up 0,2 down "]


@pytest.mark.parametrize(
    ("who", "group", "targets", "named"),
    [
        ("S", "default", "0,3", "rank 3 (node3)"),
        ("S", "default", "0-4", "ranks 2-4 (node[2-4])"),
        ("S", "default", "99", "rank 99"),
        ("S", "b", "0", "rank 0 (node0)"),
        ("T", "default", "0", "rank 0 (node0)"),
        ("T", "b", "0", "rank 0 (node0)"),
        ("S", "nosuch", "0", "rank 0 (node0)"),
        ("U", "default", "0", "rank 0 (node0)"),
    ],
)
def test_a_wrong_release_names_the_targets_and_changes_nothing(h, who, group, targets, named):
    h.acquire("S", "default")
    h.acquire("T", "b")
    h.assign("0-1", "b")
    with pytest.raises(RemoteProtocolError) as caught:
        h.release(who, group, targets)
    assert caught.value.errnum == errno.EPROTO
    assert named in str(caught.value)
    assert h.move("0-1") == ("", "0-1", "")


def test_release_twice_is_refused(h):
    h.acquire("S", "default")
    h.hold(1, "0")
    h.assign("0", "b")
    h.release("S", "default", "0")
    with pytest.raises(RemoteProtocolError, match="once"):
        h.release("S", "default", "0")


def test_plain_has_no_release(h):
    h.acquire("P")
    h.hold(1, "0")
    h.assign("0", "b")
    with pytest.raises(RemoteProtocolError, match="plain"):
        h.release("P", "default", "0")


def test_acquirers_are_told_of_updates_of_their_own_targets(start, r):
    h = start(groups={"b": "6-7", "c": "5"})
    h.acquire("P")
    h.acquire("T", "b")
    h.acquire("U", "c")
    added = h.properties("add", ssd="0,5")
    assert added == ["P: update None {'ssd': '0'} {}", "U: update None {'ssd': '5'} {}"]
    assert h.properties("remove", ssd="5") == ["U: update None {} {'ssd': '5'}"]
    assert h.expire(1e9) == [f"{who}: update 1000000000.0 {{}} {{}}" for who in "PTU"]
    assert h.events("resource-update") == [("resource-update", {"expiration": 1e9})]
    assert h.expire(1e9) == []


def test_resources_in_first_and_grow_have_live_properties(h):
    h.properties("add", ssd="0")
    h.acquire("S", "default")
    assert str(h.resources().properties["ssd"]) == "0"
