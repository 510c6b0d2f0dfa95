"""The scheduler's end of an acquire stream: its tables, what it believes, and the two ends talking to each other."""

from __future__ import annotations

import pytest

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import InvalidTransition, LocalProtocolError, RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.messages.acquire import (
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
from fluxsched.protocol.sessions.acquire_client import (
    PLAIN,
    TYPED,
    AcquireClient,
    ClientState,
    Grown,
    Shrunk,
    Updated,
    WentOffline,
    WentOnline,
)
from fluxsched.protocol.sessions.acquire_server import AcquireServer

R = {"version": 1, "execution": {"R_lite": [{"rank": "0-3", "children": {}}, {"rank": "4-7", "children": {}}]}}


def ids(text: str) -> Idset:
    return Idset.parse(text)


def streaming(group: str | None) -> AcquireClient:
    client = AcquireClient(group)
    client.request()
    first = AcquireFirst(R, "0-5") if group is None else Grow(R, "0-5", "6-7")
    assert client.receive(codec.pack(first)) == [Grown(R, ids("0-5"), ids("6-7"))]
    return client


def in_state(group: str | None, state: ClientState) -> AcquireClient:
    if state is ClientState.STREAMING:
        return streaming(group)
    client = AcquireClient(group)
    if state is not ClientState.IDLE:
        client.request()
    if state is ClientState.CLOSED:
        client.close()
    return client


RESPONSES = {
    "grow": Grow({}, "8", ""),
    "shrink": Shrink(""),
    "online": Online(""),
    "offline": Offline(""),
    "update": Update(1.0),
    "first": AcquireFirst(R, ""),
    "change": AcquireChange(expiration=1.0),
}


@pytest.mark.parametrize("event", [*TYPED[ClientState.STREAMING], "request"])
@pytest.mark.parametrize("state", ClientState)
def test_typed_table(state, event):
    _walk("default", state, event, TYPED[state].get(event))


@pytest.mark.parametrize("event", ["request", "close", "change"])
@pytest.mark.parametrize("state", ClientState)
def test_plain_table(state, event):
    if state is ClientState.WAITING and event == "change":
        event = "first"  # in this dialect the place tells which it is, not the message
    _walk(None, state, event, PLAIN[state].get(event))


def _walk(group, state, event, after):
    client = in_state(group, state)
    assert client.state is state
    if event in ("request", "close"):
        act, wrong = getattr(client, event), InvalidTransition
    else:
        act, wrong = (lambda: client.receive(codec.pack(RESPONSES[event]))), RemoteProtocolError
    if after is None:
        with pytest.raises(wrong, match=event):
            act()
        assert client.state is state
    else:
        act()
        assert client.state is after


def test_tables_are_whole():
    assert set(TYPED) == set(PLAIN) == set(ClientState)


def test_requests():
    assert AcquireClient("g").request() == AcquireRequest("g", ["update"])
    assert AcquireClient(None).request() is None


def test_typed_changes():
    client = streaming("g")
    said = [Online("6"), Offline("0-1"), Update(5.0, {"ssd": "1"}, {"old": "2"}), Shrink("1,7")]
    assert [client.receive(codec.pack(one)) for one in said] == [
        [WentOnline(ids("6"))],
        [WentOffline(ids("0-1"))],
        [Updated(5.0, {"ssd": ids("1")}, {"old": ids("2")})],
        [Shrunk(ids("1,7"))],
    ]
    assert client.acquired == ids("0,2-6")
    assert client.leaving == ids("1,7")


def test_plain_changes_come_apart():
    client = streaming(None)
    change = AcquireChange(up="6-7", down="0-2", shrink="2,7", property_add={"ssd": "1"}, expiration=0.0)
    assert client.receive(codec.pack(change)) == [
        Shrunk(ids("2,7")),
        WentOffline(ids("0-1")),
        WentOnline(ids("6")),
        Updated(0.0, {"ssd": ids("1")}, {}),
    ]
    assert client.acquired == ids("0-1,3-6")
    assert client.receive(codec.pack(AcquireChange())) == []


def test_release_of_what_is_leaving_only():
    client = streaming("g")
    client.receive(codec.pack(Shrink("1-3")))
    assert client.release(ids("1,3")) == ReleaseRequest("g", "1,3")
    with pytest.raises(LocalProtocolError, match="only 2"):
        client.release(ids("1"))
    with pytest.raises(LocalProtocolError, match="release of targets"):
        client.release(EMPTY)
    with pytest.raises(RemoteProtocolError, match="2"):
        client.receive(codec.pack(Grow({}, "2", "")))  # it must be released before it can come back
    client.release(ids("2"))
    assert client.receive(codec.pack(Grow({}, "2", ""))) == [Grown({}, ids("2"), EMPTY)]


def test_plain_has_no_release():
    client = streaming(None)
    client.receive(codec.pack(AcquireChange(shrink="1", down="1")))
    with pytest.raises(LocalProtocolError, match="plain"):
        client.release(ids("1"))


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (Online("8"), "8"),
        (Offline("7-9"), "8-9"),
        (Shrink("9"), "9"),
        (Grow({}, "7", ""), "7"),
        (Grow({}, "8", "8"), "online and offline"),
        (Online("1,,2"), "1,,2"),
        (Update(property_add={"p": "x"}), "x"),
        (AcquireFirst({}, ""), "type"),
    ],
)
def test_what_cannot_be_is_the_peers_fault_and_changes_nothing(said, named):
    client = streaming("g")
    with pytest.raises(RemoteProtocolError, match=named):
        client.receive(codec.pack(said))
    assert (client.acquired, client.leaving, client.state) == (ids("0-7"), EMPTY, ClientState.STREAMING)


@pytest.mark.parametrize(
    ("resources", "up", "named"),
    [
        (R, "8", "up 8"),
        ({}, "", "R_lite"),
        ({"execution": []}, "", "R_lite"),
        ({"execution": {"R_lite": [3]}}, "", "R_lite"),
        ({"execution": {"R_lite": [{"rank": 3}]}}, "", "idset"),
    ],
)
def test_wrong_first_plain_response(resources, up, named):
    client = AcquireClient(None)
    client.request()
    with pytest.raises(RemoteProtocolError, match=named):
        client.receive(codec.pack(AcquireFirst(resources, up)))
    assert client.state is ClientState.WAITING


def test_the_object_form_of_r_lite():
    client = AcquireClient(None)
    client.request()
    old = {"version": 1, "execution": {"R_lite": {"rank": "1-6", "children": {}}}}
    assert client.receive(codec.pack(AcquireFirst(old, "2-3"))) == [Grown(old, ids("2-3"), ids("1,4-6"))]


def test_json_payloads():
    client = AcquireClient("g", decode=codec.from_json)
    client.request()
    assert client.receive(codec.to_json(Grow({}, "0", "")) + b"\0") == [Grown({}, ids("0"), EMPTY)]


@pytest.mark.parametrize("group", ["g", None], ids=["typed", "plain"])
def test_both_ends(group):
    client = AcquireClient(group)
    request = client.request() or AcquireRequest()
    server = AcquireServer(request.typed, request.accept_update)
    server.first(R, ids("0-5"), ids("6-7"))
    server.availability(ids("6"), ids("5"))
    server.shrink(ids("0"))
    server.update(expiration=9.0)
    changes = [change for message in server.take() for change in client.receive(codec.pack(message))]
    assert changes == [Grown(R, ids("0-4,6"), ids("5,7")), Shrunk(ids("0")), Updated(9.0)]
    assert client.acquired == server.targets
