"""The scheduler's end of an acquire stream: its tables, what it believes, and the two ends talking to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import GroupChange, ResourceSet
from fluxsched.errors import InvalidTransition, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.messages.resource import (
    AcquireChange,
    AcquireFirst,
    AcquireRequest,
    Grow,
    Offline,
    Online,
    ReleaseRequest,
    Shrink,
    Update,
)
from fluxsched.protocol.sessions import (
    PLAIN,
    TYPED,
    AcquireClient,
    AcquireServer,
    AcquireState,
    from_plain,
    from_typed,
    to_messages,
)

from .acquire_values import ids, make_r


def grown(ranks: str, online: str, offline: str = "") -> GroupChange:
    return GroupChange(ResourceSet.parse(make_r(ranks)), online=ids(online), offline=ids(offline))


R = {
    "version": 1,
    "execution": {"R_lite": [{"rank": "0-3", "children": {"core": "0"}}, {"rank": "4-7", "children": {"core": "1"}}]},
}


def streaming(group: str | None) -> AcquireClient:
    client = AcquireClient(group)
    client.request()
    first = AcquireFirst(R, "0-5") if group is None else Grow(R, "0-5", "6-7")
    change = GroupChange(ResourceSet.parse(R), online=ids("0-5"), offline=ids("6-7"))
    assert client.receive(framing.pack(first)) == change
    return client


def in_state(group: str | None, state: AcquireState) -> AcquireClient:
    if state is AcquireState.STREAMING:
        return streaming(group)
    client = AcquireClient(group)
    if state is not AcquireState.IDLE:
        client.request()
    if state is AcquireState.CLOSED:
        client.close()
    return client


RESPONSES = {
    "grow": Grow(make_r("8"), "8", ""),
    "shrink": Shrink("0"),
    "availability": Online("0"),
    "update": Update(1.0),
    "first": AcquireFirst(R, ""),
    "change": AcquireChange(expiration=1.0),
}


@pytest.mark.parametrize("event", [*TYPED[AcquireState.STREAMING], "request"])
@pytest.mark.parametrize("state", AcquireState)
def test_typed_table(state, event):
    _walk("default", state, event, TYPED[state].get(event))


@pytest.mark.parametrize(("event", "part"), [("request", "request"), ("close", "close"), ("change", "update")])
@pytest.mark.parametrize("state", AcquireState)
def test_plain_table(state, event, part):
    if state is AcquireState.WAITING and event == "change":
        event, part = "first", "grow"  # in this dialect the position tells which it is, not the message
    _walk(None, state, event, PLAIN[state].get(part))


def _walk(group, state, event, after):
    client = in_state(group, state)
    assert client.state is state
    if event in ("request", "close"):
        act, wrong = getattr(client, event), InvalidTransition
    else:
        act, wrong = (lambda: client.receive(framing.pack(RESPONSES[event]))), RemoteProtocolError
    if after is None:
        with pytest.raises(wrong, match="is not allowed in state"):
            act()
        assert client.state is state
    else:
        act()
        assert client.state is after


def test_tables_are_whole():
    assert set(TYPED) == set(PLAIN) == set(AcquireState)


def test_requests():
    assert AcquireClient("g").request() == AcquireRequest("g", ["update", "parts"])
    assert AcquireClient(None).request() is None


def test_typed_changes():
    client = streaming("g")
    said = [Online("6"), Offline("0-1"), Update(5.0, {"ssd": "1"}, {"old": "2"}), Shrink("1,7")]
    assert [client.receive(framing.pack(one)) for one in said] == [
        GroupChange(online=ids("6")),
        GroupChange(offline=ids("0-1")),
        GroupChange(expiration_s=5.0, property_add={"ssd": ids("1")}, property_remove={"old": ids("2")}),
        GroupChange(shrink=ids("1,7")),
    ]
    assert client.acquired == ids("0,2-6")
    assert client.leaving == ids("1,7")


def test_in_a_plain_change_shrink_takes_precedence():
    client = streaming(None)
    change = AcquireChange(up="6-7", down="0-2", shrink="2,7", property_add={"ssd": "1"}, expiration=0.0)
    assert client.receive(framing.pack(change)) == GroupChange(
        None, ids("2,7"), ids("6"), ids("0-1"), 0.0, {"ssd": ids("1")}
    )
    assert client.acquired == ids("0-1,3-6")
    assert client.receive(framing.pack(AcquireChange())) == GroupChange()


def test_release_of_what_is_leaving_only():
    client = streaming("g")
    client.receive(framing.pack(Shrink("1-3")))
    assert client.release(ids("1,3")) == ReleaseRequest("g", "1,3")
    with pytest.raises(LocalProtocolError, match="only 2"):
        client.release(ids("1"))
    with pytest.raises(LocalProtocolError, match="release of targets"):
        client.release(EMPTY)
    with pytest.raises(RemoteProtocolError, match="2"):
        client.receive(framing.pack(Grow(make_r("2"), "2", "")))  # it must be released before it can come back
    client.release(ids("2"))
    assert client.receive(framing.pack(Grow(make_r("2"), "2", ""))) == grown("2", "2")


def test_plain_has_no_release():
    client = streaming(None)
    client.receive(framing.pack(AcquireChange(shrink="1", down="1")))
    with pytest.raises(LocalProtocolError, match="plain"):
        client.release(ids("1"))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (Online("8"), "8"),
        (Offline("7-9"), "8-9"),
        (Shrink("9"), "9"),
        (Grow(make_r("7"), "7", ""), "7"),
        (Grow(make_r("8"), "8-9", ""), "9"),
        (Grow(make_r("8-9"), "8", ""), "9"),
        (Grow({}, "8", ""), "version"),
        (Grow(make_r("8"), "8", "8"), "online and offline"),
        (Online("1,,2"), "1,,2"),
        (Update(property_add={"p": "x"}), "x"),
        (AcquireFirst(R, ""), "type"),
    ],
)
def test_what_cannot_be_is_the_peers_fault_and_changes_nothing(said, named):
    client = streaming("g")
    with pytest.raises(RemoteProtocolError, match=named):
        client.receive(framing.pack(said))
    assert (client.acquired, client.leaving, client.state) == (ids("0-7"), EMPTY, AcquireState.STREAMING)


@pytest.mark.parametrize(
    ("resources", "up", "named"),
    [
        (R, "8", "targets 8"),
        ({}, "", "version"),
        ({"version": 1, "execution": []}, "", "execution"),
        ({"version": 1, "execution": {"R_lite": [3]}}, "", "R_lite"),
        ({"version": 1, "execution": {"R_lite": [{"rank": 3, "children": {"core": "0"}}]}}, "", "rank"),
    ],
)
def test_wrong_first_plain_response(resources, up, named):
    client = AcquireClient(None)
    client.request()
    with pytest.raises(RemoteProtocolError, match=named):
        client.receive(framing.pack(AcquireFirst(resources, up)))
    assert client.state is AcquireState.WAITING


def test_the_object_form_of_r_lite():
    client = AcquireClient(None)
    client.request()
    old = {"version": 1, "execution": {"R_lite": {"rank": "1-6", "children": {"core": "0"}}}}
    change = client.receive(framing.pack(AcquireFirst(old, "2-3")))
    assert (change.joined, change.online, change.offline) == (ids("1-6"), ids("2-3"), ids("1,4-6"))


def test_json_payloads():
    client = AcquireClient("g", decode=framing.from_json)
    client.request()
    assert client.receive(framing.to_json(Grow(make_r("0"), "0", "")) + b"\0") == grown("0", "0")


@pytest.mark.parametrize("group", ["g", None], ids=["typed", "plain"])
def test_both_ends(group):
    client = AcquireClient(group)
    request = client.request() or AcquireRequest()
    server = AcquireServer(request.typed, request.accept_update)
    first = replace(grown("0-7", "0-5", "6-7"), spares={7: 6} if group else None)
    for change in (
        first,
        GroupChange(online=ids("6"), offline=ids("5")),
        GroupChange(shrink=ids("0")),
        GroupChange(expiration_s=9.0),
    ):
        server.add(change)
    messages = [
        message for change in server.take() for message in to_messages(change, server.typed, ResourceSet.to_json)
    ]
    assert [client.receive(framing.pack(message)) for message in messages] == [
        GroupChange(first.grow, online=ids("0-4,6"), offline=ids("5,7"), spares=first.spares),
        GroupChange(shrink=ids("0")),
        GroupChange(expiration_s=9.0),
    ]
    assert client.acquired == server.targets


def parts(typed: bool) -> st.SearchStrategy[GroupChange]:
    """Changes as either dialect can say them in one message; the plain one has several parts in one."""
    some = st.builds(Idset, st.integers(0, 255))
    tables = st.dictionaries(st.sampled_from(["a", "b"]), some.filter(bool), max_size=2)
    times = st.none() | st.floats(0, 1e9)
    spares = st.none() | st.dictionaries(st.integers(0, 7), st.integers(0, 7), max_size=2) if typed else st.none()
    update = st.builds(
        lambda told, *of: GroupChange(None, EMPTY, EMPTY, EMPTY, *of, spares=told), spares, times, tables, tables
    )
    whole = st.builds(
        lambda shrink, up, down, told: replace(told, shrink=shrink, online=up - shrink, offline=down - up - shrink),
        some, some, some, update,
    )  # fmt: skip
    if not typed:
        return whole
    return st.one_of(
        update,
        st.builds(lambda ids: GroupChange(shrink=ids), some),
        st.builds(lambda ids: GroupChange(online=ids), some),
        st.builds(lambda ids: GroupChange(offline=ids), some),
    )


def said(change: GroupChange) -> list[GroupChange]:
    """What arrives: a change of nothing is not sent."""
    return [] if change == GroupChange() else [change]


@given(parts(typed=True))
def test_a_typed_message_says_all_of_a_part(change):
    assert [from_typed(message) for message in to_messages(change, True, ResourceSet.to_json)] == said(change)


@given(parts(typed=False))
def test_a_plain_message_says_all_of_a_change(change):
    assert [from_plain(message) for message in to_messages(change, False, ResourceSet.to_json)] == said(change)


def test_the_parts_of_a_typed_change_are_messages_in_order():
    change = GroupChange(grown("8", "8").grow, ids("1"), ids("2,8"), ids("3"), 5.0)
    said = [Grow(make_r("8"), "8", ""), Shrink("1"), Offline("3"), Online("2"), Update(5.0)]
    messages = to_messages(change, True, lambda resources: make_r(str(resources.ranks)))
    assert messages == said
