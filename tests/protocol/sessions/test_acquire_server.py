"""The server's end of an acquire stream: its table, the merge rules of the draft, both dialects, misuse, the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidTransition, LimitExceeded, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec, header
from fluxsched.protocol.framing.header import make_request
from fluxsched.protocol.messages.acquire import (
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    Grow,
    Offline,
    Online,
    Shrink,
    Update,
)
from fluxsched.protocol.sessions.acquire_server import (
    PENDING_CHANGES_MAX,
    PLAIN,
    TYPED,
    AcquireServer,
    AcquireState,
    read_acquire,
)
from fluxsched.protocol.sessions.machine import diagram

R = {"version": 1, "execution": {"R_lite": [{"rank": "0-7", "children": {"core": "0-3"}}]}}
MORE = {"version": 1, "execution": {"R_lite": [{"rank": "8-9", "children": {"core": "0-3"}}]}}


def ids(text: str) -> Idset:
    return Idset.parse(text)


def streaming(typed: bool = True, accept_update: bool = True) -> AcquireServer:
    server = AcquireServer(typed, accept_update)
    server.first(R, ids("0-5"), ids("6-7"))
    server.take()
    return server


ACTIONS = {
    "first": lambda server: server.first(MORE, EMPTY, EMPTY),
    "grow": lambda server: server.grow(MORE, EMPTY, EMPTY),
    "shrink": lambda server: server.shrink(EMPTY),
    "availability": lambda server: server.availability(EMPTY, EMPTY),
    "update": lambda server: server.update(expiration=1.0),
    "close": lambda server: server.close(),
}


def in_state(typed: bool, state: AcquireState) -> AcquireServer:
    server = AcquireServer(typed, True) if state is AcquireState.WAITING else streaming(typed)
    if state is AcquireState.CLOSED:
        server.close()
    return server


@pytest.mark.parametrize("event", ACTIONS)
@pytest.mark.parametrize("state", AcquireState)
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
        assert {event for row in table.values() for event in row} <= set(ACTIONS)


def test_first_response_typed():
    server = AcquireServer(True, False)
    assert not server.pending
    server.first(R, ids("0-5"), ids("6-7"))
    assert server.pending
    assert server.take() == [Grow(R, "0-5", "6-7")]
    assert not server.pending
    assert server.targets == ids("0-7")


def test_first_response_plain():
    server = AcquireServer(False, False)
    server.first(R, ids("0-5"), ids("6-7"))
    assert server.take() == [AcquireFirst(R, "0-5")]


def test_an_empty_group_is_an_empty_grow():
    server = AcquireServer(True, True)
    server.first({}, EMPTY, EMPTY)
    assert server.take() == [Grow({}, "", "")]


def test_online_and_offline_merge():
    server = streaming()
    server.availability(EMPTY, ids("0"))
    server.availability(ids("6"), ids("1-2"))
    server.availability(ids("7"), EMPTY)
    assert server.take() == [Offline("0-2"), Online("6-7")]


def test_plain_says_both_in_one_response():
    server = streaming(typed=False)
    server.availability(ids("6"), ids("1-2"))
    assert server.take() == [AcquireChange(up="6", down="1-2")]
    server.availability(EMPTY, ids("3"))
    assert server.take() == [AcquireChange(down="3")]


def test_flip_and_back_is_not_mentioned():
    server = streaming()
    server.availability(EMPTY, ids("0-1"))
    server.availability(ids("0"), EMPTY)
    assert server.take() == [Offline("1")]
    server.availability(ids("1"), EMPTY)
    server.availability(EMPTY, ids("1"))
    assert not server.pending
    assert server.take() == []


def test_saying_what_is_known_says_nothing():
    server = streaming()
    server.availability(ids("0-5"), ids("6-7"))
    assert not server.pending


def test_nothing_merges_across_a_shrink():
    server = streaming()
    server.availability(EMPTY, ids("0"))
    server.shrink(ids("5"))
    server.availability(ids("0"), EMPTY)
    assert server.take() == [Offline("0"), Shrink("5"), Online("0")]


def test_nothing_merges_across_a_grow():
    server = streaming()
    server.availability(EMPTY, ids("0"))
    server.grow(MORE, ids("8"), ids("9"))
    server.availability(ids("0"), EMPTY)
    assert server.take() == [Offline("0"), Grow(MORE, "8", "9"), Online("0")]


def test_a_grow_states_the_latest():
    server = streaming()
    server.grow(MORE, ids("8"), ids("9"))
    server.availability(ids("9"), ids("0,8"))
    assert server.take() == [Grow(MORE, "9", "8"), Offline("0")]


def test_grow_and_shrink_are_never_cancelled():
    server = streaming()
    server.grow(MORE, ids("8-9"), EMPTY)
    server.shrink(ids("8-9"))
    server.grow(MORE, EMPTY, ids("8-9"))
    assert server.take() == [Grow(MORE, "8-9", ""), Shrink("8-9"), Grow(MORE, "", "8-9")]


def test_a_shrunk_target_is_not_mentioned_again():
    server = streaming()
    server.shrink(ids("0,6"))
    assert server.take() == [Shrink("0,6")]
    with pytest.raises(LocalProtocolError, match="targets 6,"):
        server.availability(ids("6"), EMPTY)
    with pytest.raises(LocalProtocolError, match="targets 6,"):
        server.shrink(ids("5-6"))
    assert server.targets == ids("1-5,7")


def test_plain_shrink_is_in_down_too():
    server = streaming(typed=False)
    server.shrink(ids("5-6"))
    assert server.take() == [AcquireChange(shrink="5-6", down="5-6")]


def test_updates():
    server = streaming()
    server.availability(EMPTY, ids("0"))
    server.update(expiration=0.0)
    server.update(property_add={"ssd": ids("1-2")}, property_remove={"old": ids("3")})
    server.availability(ids("0"), ids("4"))  # flips back across an update: updates keep nothing apart
    expected = [Offline("4"), Update(0.0), Update(property_add={"ssd": "1-2"}, property_remove={"old": "3"})]
    assert server.take() == expected
    server.update()
    assert not server.pending


def test_updates_only_for_those_who_accept_them():
    server = streaming(accept_update=False)
    server.update(expiration=5.0)
    assert not server.pending
    plain = streaming(typed=False, accept_update=False)
    plain.update(expiration=5.0)
    assert plain.take() == [AcquireChange(expiration=5.0)]


def test_misuse_changes_nothing():
    server = streaming()
    with pytest.raises(LocalProtocolError, match="as online and as offline"):
        server.availability(ids("0"), ids("0"))
    with pytest.raises(LocalProtocolError, match="does not hold"):
        server.availability(ids("9"), EMPTY)
    with pytest.raises(LocalProtocolError, match="holds already"):
        server.grow(R, ids("7"), ids("8"))
    assert not server.pending
    assert server.targets == ids("0-7")


def test_limit():
    server = streaming()
    for number in range(PENDING_CHANGES_MAX):
        server.update(expiration=float(number + 1))
    with pytest.raises(LimitExceeded, match=f"limit {PENDING_CHANGES_MAX}"):
        server.update(expiration=0.0)
    with pytest.raises(LimitExceeded):
        server.shrink(ids("0"))
    server.close()
    assert server.take() == []


def test_closed_streams_say_nothing():
    server = streaming()
    server.shrink(ids("0"))
    server.close()
    assert not server.pending
    assert server.take() == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("asgut"), st.integers(0, 255), st.integers(0, 255)), max_size=25))
def test_a_reader_knows_what_is_true(steps):
    """Whatever is merged: applying all that was said, in order, gives the state that the server was told."""
    server, held, up = AcquireServer(True, True), Idset(0xF0), Idset(0x30)
    server.first({}, up, held - up)
    said_held, said_up = EMPTY, EMPTY
    for kind, left, right in [*steps, ("t", 0, 0)]:
        one, two = Idset(left), Idset(right) - Idset(left)
        match kind:
            case "a":
                server.availability(one & held, two & held)
                up = (up | one & held) - (two & held)
            case "s":
                server.shrink(one & held)
                held, up = held - one, up - one
            case "g":
                server.grow({}, one - held, two - held)
                up |= one - held
                held |= one | two
            case "u":
                server.update(expiration=1.0)
            case "t":
                for message in server.take():
                    match message:
                        case Grow(_, online, offline):
                            assert (ids(online) | ids(offline)).isdisjoint(said_held)
                            said_held |= ids(online) | ids(offline)
                            said_up |= ids(online)
                        case Shrink(targets):
                            said_held, said_up = said_held - ids(targets), said_up - ids(targets)
                        case Online(targets):
                            assert ids(targets) <= said_held - said_up
                            said_up |= ids(targets)
                        case Offline(targets):
                            assert ids(targets) <= said_up
                            said_up -= ids(targets)
                assert (said_held, said_up) == (held, up)


@pytest.mark.parametrize(
    ("payload", "request_"),
    [
        (None, AcquireRequest()),
        (codec.pack({}), AcquireRequest()),
        (codec.pack({"group": "g"}), AcquireRequest("g")),
        (codec.pack({"group": "g", "accept": ["update", "later"], "x": 1}), AcquireRequest("g", ["update", "later"])),
    ],
)
def test_the_request_decides_the_dialect(payload, request_):
    seen = read_acquire(make_request("resource.acquire", payload, matchtag=1, flags=header.STREAMING))
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
        read_acquire(make_request("resource.acquire", codec.pack(payload), matchtag=1, flags=header.STREAMING))


def test_acquire_needs_the_streaming_flag():
    with pytest.raises(RemoteProtocolError, match="streaming"):
        read_acquire(make_request("resource.acquire", None, matchtag=1))


def test_diagram_is_printed_from_the_table():
    text = diagram(PLAIN, AcquireState.WAITING)
    assert text.startswith("stateDiagram-v2\n    [*] --> WAITING\n")
    assert "STREAMING --> STREAMING: shrink, availability, update" in text
    assert text.endswith("CLOSED --> [*]\n")
