"""The server's end of an acquire stream: its table, the merge rules of the draft, both dialects, misuse, the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, GroupChange, GroupState, ResourceSet
from fluxsched.errors import InvalidTransition, LimitExceeded, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import make_request
from fluxsched.protocol.messages.common import Payload
from fluxsched.protocol.messages.resource import (
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    Grow,
    Offline,
    Online,
    Shrink,
    Update,
)
from fluxsched.protocol.sessions import (
    PENDING_CHANGES_MAX,
    PLAIN,
    TYPED,
    AcquireServer,
    AcquireState,
    read_acquire,
    to_messages,
)

from .acquire_values import ids, resources


def grow(online: str = "", offline: str = "") -> GroupChange:
    up, down = ids(online), ids(offline)
    return GroupChange(resources(up | down), online=up, offline=down)


def flip(online: str = "", offline: str = "") -> GroupChange:
    return GroupChange(online=ids(online), offline=ids(offline))


def shrink(targets: str) -> GroupChange:
    return GroupChange(shrink=ids(targets))


FIRST = grow("0-5", "6-7")
R, MORE = FIRST.grow.to_json(), grow("8-9").grow.to_json()


def said(server: AcquireServer) -> list[Payload]:
    """What is sent now, as messages."""
    return [message for change in server.take() for message in to_messages(change, server.typed, ResourceSet.to_json)]


def streaming(typed: bool = True, accept_update: bool = True) -> AcquireServer:
    server = AcquireServer(typed, accept_update)
    server.add(FIRST)
    server.take()
    return server


ACTIONS = {
    "grow": lambda server: server.add(grow("8-9")),
    "shrink": lambda server: server.add(shrink("0")),
    "availability": lambda server: server.add(flip("0")),
    "update": lambda server: server.add(GroupChange(expiration_s=1.0)),
    "close": lambda server: server.close(),
}


def in_state(typed: bool, state: AcquireState) -> AcquireServer:
    server = AcquireServer(typed, True) if state is AcquireState.WAITING else streaming(typed)
    if state is AcquireState.CLOSED:
        server.close()
    return server


@pytest.mark.parametrize("event", ACTIONS)
@pytest.mark.parametrize("state", [AcquireState.WAITING, AcquireState.STREAMING, AcquireState.CLOSED])
@pytest.mark.parametrize("typed", [True, False], ids=["typed", "plain"])
def test_table(typed, state, event):
    server = in_state(typed, state)
    after = (TYPED if typed else PLAIN)[state].get(event)
    if after is None:
        with pytest.raises(InvalidTransition, match=event):
            ACTIONS[event](server)
        assert server.state is state
    else:
        ACTIONS[event](server)
        assert server.state is after


def test_tables_are_whole():
    for table in (TYPED, PLAIN):
        assert set(table) == set(AcquireState)
        assert {event for row in table.values() for event in row} <= {*ACTIONS, "request"}


def test_first_response_typed():
    server = AcquireServer(True, False)
    assert not server.pending
    server.add(FIRST)
    assert server.pending
    assert said(server) == [Grow(R, "0-5", "6-7")]
    assert not server.pending
    assert server.targets == ids("0-7")


def test_first_response_plain():
    server = AcquireServer(False, False)
    server.add(FIRST)
    assert said(server) == [AcquireFirst(R, "0-5")]


def test_an_empty_group_is_an_empty_grow():
    server = AcquireServer(True, True)
    server.add(grow())
    assert said(server) == [Grow(grow().grow.to_json(), "", "")]


def test_online_and_offline_merge():
    server = streaming()
    server.add(flip("", "0"))
    server.add(flip("6", "1-2"))
    server.add(flip("7"))
    assert said(server) == [Offline("0-2"), Online("6-7")]


def test_plain_says_both_in_one_response():
    server = streaming(typed=False)
    server.add(flip("6", "1-2"))
    assert said(server) == [AcquireChange(up="6", down="1-2")]
    server.add(flip("", "3"))
    assert said(server) == [AcquireChange(down="3")]


def test_flip_and_back_is_not_mentioned():
    server = streaming()
    server.add(flip("", "0-1"))
    server.add(flip("0"))
    assert said(server) == [Offline("1")]
    server.add(flip("1"))
    server.add(flip("", "1"))
    assert not server.pending
    assert said(server) == []


def test_saying_what_is_known_says_nothing():
    server = streaming()
    server.add(flip("0-5", "6-7"))
    assert not server.pending


def test_nothing_merges_across_a_shrink():
    server = streaming()
    server.add(flip("", "0"))
    server.add(shrink("5"))
    server.add(flip("0"))
    assert said(server) == [Offline("0"), Shrink("5"), Online("0")]


def test_nothing_merges_across_a_grow():
    server = streaming()
    server.add(flip("", "0"))
    server.add(grow("8", "9"))
    server.add(flip("0"))
    assert said(server) == [Offline("0"), Grow(MORE, "8", "9"), Online("0")]


def test_a_grow_states_the_latest():
    server = streaming()
    server.add(grow("8", "9"))
    server.add(flip("9", "0,8"))
    assert said(server) == [Grow(MORE, "9", "8"), Offline("0")]


def test_grow_and_shrink_are_never_cancelled():
    server = streaming()
    server.add(grow("8-9"))
    server.add(shrink("8-9"))
    server.add(grow("", "8-9"))
    assert said(server) == [Grow(MORE, "8-9", ""), Shrink("8-9"), Grow(MORE, "", "8-9")]


def test_a_shrunk_target_is_not_mentioned_again():
    server = streaming()
    server.add(shrink("0,6"))
    assert said(server) == [Shrink("0,6")]
    with pytest.raises(LocalProtocolError, match="targets 6,"):
        server.add(flip("6"))
    with pytest.raises(LocalProtocolError, match="targets 6,"):
        server.add(shrink("5-6"))
    assert server.targets == ids("1-5,7")


def test_plain_shrink_is_in_down_too():
    server = streaming(typed=False)
    server.add(shrink("5-6"))
    assert said(server) == [AcquireChange(shrink="5-6", down="5-6")]


def test_updates():
    server = streaming()
    server.add(flip("", "0"))
    server.add(GroupChange(expiration_s=0.0))
    server.add(GroupChange(property_add={"ssd": ids("1-2")}, property_remove={"old": ids("3")}))
    server.add(flip("0", "4"))  # flips back across an update: updates keep nothing apart
    expected = [Offline("4"), Update(0.0), Update(property_add={"ssd": "1-2"}, property_remove={"old": "3"})]
    assert said(server) == expected
    server.add(GroupChange())
    assert not server.pending


def test_updates_only_for_those_who_accept_them():
    server = streaming(accept_update=False)
    server.add(GroupChange(expiration_s=5.0))
    assert not server.pending
    plain = streaming(typed=False, accept_update=False)
    plain.add(GroupChange(expiration_s=5.0))
    assert said(plain) == [AcquireChange(expiration=5.0)]


def test_misuse_changes_nothing():
    server = streaming()
    with pytest.raises(LocalProtocolError, match="as online and as offline"):
        server.add(flip("0", "0"))
    with pytest.raises(LocalProtocolError, match="does not hold"):
        server.add(flip("9"))
    with pytest.raises(LocalProtocolError, match="holds already"):
        server.add(grow("7", "8"))
    assert not server.pending
    assert server.targets == ids("0-7")


def test_limit():
    server = streaming()
    for number in range(PENDING_CHANGES_MAX):
        server.add(GroupChange(expiration_s=float(number + 1)))
    with pytest.raises(LimitExceeded, match=f"limit {PENDING_CHANGES_MAX}"):
        server.add(GroupChange(expiration_s=0.0))
    with pytest.raises(LimitExceeded):
        server.add(shrink("0"))
    server.close()
    assert said(server) == []


def test_closed_streams_say_nothing():
    server = streaming()
    server.add(shrink("0"))
    server.close()
    assert not server.pending
    assert said(server) == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("asgut"), st.integers(0, 255), st.integers(0, 255)), max_size=25))
def test_a_reader_knows_what_is_true(steps):
    """Whatever is merged: applying all that was said, in order, gives the state that the server was told."""
    server, held, up = AcquireServer(True, True), Idset(0xF0), Idset(0x30)
    server.add(GroupChange(resources(held), online=up, offline=held - up))
    told = GroupState(EMPTY_R, EMPTY, EMPTY)
    for kind, left, right in [*steps, ("t", 0, 0)]:
        one, two = Idset(left), Idset(right) - Idset(left)
        match kind:
            case "a":
                server.add(GroupChange(online=one & held, offline=two & held))
                up = (up | one & held) - (two & held)
            case "s":
                server.add(GroupChange(shrink=one & held))
                held, up = held - one, up - one
            case "g":
                server.add(GroupChange(resources((one | two) - held), online=one - held, offline=two - held))
                up |= one - held
                held |= one | two
            case "u":
                server.add(GroupChange(expiration_s=1.0))
            case "t":
                for change in server.take():
                    told = _applied(told, change)
                assert (told.targets, told.online) == (held, up)


def _applied(told: GroupState, change: GroupChange) -> GroupState:
    """What a reader believes behind a change, which must be one."""
    assert change.joined.isdisjoint(told.targets)
    targets = (told.targets | change.joined) - change.shrink
    assert change.online <= targets - told.online
    assert change.offline <= told.online | change.joined
    return GroupState(EMPTY_R, targets, ((told.online | change.online) - change.offline) & targets)


@pytest.mark.parametrize(
    ("payload", "request_"),
    [
        (None, AcquireRequest()),
        (framing.pack({}), AcquireRequest()),
        (framing.pack({"group": "g"}), AcquireRequest("g")),
        (framing.pack({"group": "g", "accept": ["update", "later"], "x": 1}), AcquireRequest("g", ["update", "later"])),
    ],
)
def test_the_request_decides_the_dialect(payload, request_):
    seen = read_acquire(make_request("resource.acquire", payload, matchtag=1, flags=framing.STREAMING))
    assert seen == request_
    assert seen.typed == (request_.group is not None)
    assert seen.accept_update == ("update" in request_.accept)


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"grp": "x"}, "grp.*`group`"),
        ({"accept": ["update"]}, "group"),
        ({"group": None}, "group"),
        ({"group": 3}, "str"),
    ],
)
def test_wrong_acquire_requests(payload, named):
    with pytest.raises(RemoteProtocolError, match=named):
        read_acquire(make_request("resource.acquire", framing.pack(payload), matchtag=1, flags=framing.STREAMING))


def test_acquire_needs_the_streaming_flag():
    with pytest.raises(RemoteProtocolError, match="streaming"):
        read_acquire(make_request("resource.acquire", None, matchtag=1))
