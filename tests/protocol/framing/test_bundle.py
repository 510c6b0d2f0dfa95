"""Bundles: order, limits, error texts, and that no message can spoil its neighbours."""

from __future__ import annotations

import msgpack
import pytest

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    BUNDLE_BYTES_MAX,
    BUNDLE_MESSAGES_MAX,
    BUNDLE_TOPIC,
    Message,
    decode,
    make_error,
    make_request,
    make_response,
    pack_bundles,
    unpack_bundle,
)


@pytest.fixture
def turn() -> list[Message]:
    ask = make_request("job-manager.submit", framing.pack({"jobspec": {}}), matchtag=3)
    stream = make_request("resource.acquire", None, matchtag=4, flags=framing.STREAMING)
    return [
        ask,
        stream,
        make_response(ask, framing.pack({"id": 1})),
        make_response(stream),
        make_error(stream, 61, "no more ƒ"),
        make_error(stream, 61),
        make_request("instance.goodbye", flags=framing.NORESPONSE),
    ]


def test_order_and_content_are_kept(turn):
    (frames,) = pack_bundles(turn)
    assert unpack_bundle(decode(frames)) == turn


def test_a_second_hand_reads_it(turn):
    (frames,) = pack_bundles(turn)
    assert frames[1] == b"bundle"
    seen = msgpack.unpackb(frames[2])
    assert seen[0] == [1, "job-manager.submit", 0, framing.NODEID_ANY, 3, {"jobspec": {}}]
    assert seen[1] == [1, "resource.acquire", framing.STREAMING, framing.NODEID_ANY, 4, None]
    assert seen[4] == [2, "resource.acquire", framing.STREAMING, 61, 4, "no more ƒ"]


def test_a_second_hand_writes_it():
    outer = make_request("bundle", msgpack.packb([[1, "attr.get", 0, 0, 5, {"name": "size"}], [4, "e", 0, 9, 0, None]]))
    outer.userid, outer.rolemask = 1000, framing.ROLE_OWNER
    first, second = unpack_bundle(outer)
    assert (first.topic, first.matchtag, first.userid, first.rolemask) == ("attr.get", 5, 1000, framing.ROLE_OWNER)
    assert framing.unpack(first.payload, dict) == {"name": "size"}
    assert (second.sequence, second.payload) == (9, None)


def test_route_of_the_bundle_is_that_of_its_messages(turn):
    outer = decode(pack_bundles(turn)[0])
    outer.route = (b"hop",)
    assert unpack_bundle(outer)[0].route == (b"hop",)


def test_payloads_may_be_bad_without_harm_to_neighbours():
    bad = make_request("a.b", b"\x81\xa1x", matchtag=1)  # relayed: truncated
    good = make_request("a.b", b"\x80", matchtag=2)
    frames = pack_bundles([good, bad, good, good])
    assert [decode(one).topic for one in frames] == ["a.b", "a.b", "bundle"]
    assert decode(frames[1]) == bad


def test_messages_limit():
    message = make_request("a.b", b"\x80", matchtag=1)
    *bundles, last = [decode(one) for one in pack_bundles([message] * (2 * BUNDLE_MESSAGES_MAX + 1))]
    assert [len(unpack_bundle(one)) for one in bundles] == [256, 256]
    assert last.topic == "a.b"
    too_many = msgpack.packb([[1, "a.b", 0, 0, 1, {}]] * (BUNDLE_MESSAGES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="limit 256"):
        unpack_bundle(make_request("bundle", too_many))


def test_bytes_limit():
    third = make_request("a.b", msgpack.packb(bytes(BUNDLE_BYTES_MAX // 3)), matchtag=1)
    huge = make_request("a.b", msgpack.packb(bytes(BUNDLE_BYTES_MAX)), matchtag=2)
    frames = [decode(one) for one in pack_bundles([third, third, third, huge, third])]
    assert [message.topic for message in frames] == ["bundle", "a.b", "a.b", "a.b"]
    assert all(len(message.payload) <= BUNDLE_BYTES_MAX for message in frames if message.topic == BUNDLE_TOPIC)
    assert frames[2] == huge
    with pytest.raises(RemoteProtocolError, match="bytes"):
        unpack_bundle(make_request("bundle", bytes(BUNDLE_BYTES_MAX + 1)))


def test_no_bundle_in_a_bundle(turn):
    inner = make_request("bundle", b"\x90")
    with pytest.raises(RemoteProtocolError, match="bundle"):
        unpack_bundle(make_request("bundle", msgpack.packb([[1, "bundle", 0, 0, 0, []]])))
    assert decode(pack_bundles([turn[0], inner])[1]) == inner


def test_control_travels_alone(turn):
    control = Message(type=framing.CONTROL)
    assert [decode(frames).type for frames in pack_bundles([*turn, control, *turn])] == [1, framing.CONTROL, 1]


def test_what_is_no_bundle_stands_for_itself(turn):
    bundle = make_request("bundle", b"\x90")
    assert unpack_bundle(turn[0]) == [turn[0]]
    assert unpack_bundle(make_response(bundle, b"\x90")) == [make_response(bundle, b"\x90")]
    assert unpack_bundle(bundle) == []


@pytest.mark.parametrize(
    ("items", "named"),
    [
        ({}, "array"),
        ([[1, "a", 0, 0, 0]], r"\$\[0\]"),
        ([[1, "a", 0, 0, 0, {}, 1]], r"\$\[0\]"),
        ([[8, "a", 0, 0, 0, {}]], r"\$\[0\]\[0\]"),
        ([[1, "", 0, 0, 0, {}]], r"\$\[0\]\[1\]"),
        ([[1, "a" * 256, 0, 0, 0, {}]], r"\$\[0\]\[1\]"),
        ([[1, "a", 256, 0, 0, {}]], r"\$\[0\]\[2\]"),
        ([[1, "a", 0, -1, 0, {}]], r"\$\[0\]\[3\]"),
        ([[1, "a", 0, 0, 1 << 32, {}]], r"\$\[0\]\[4\]"),
        ([[1, "a\0", 0, 0, 0, {}]], "NUL"),
        ([[2, "a", 0, 5, 0, {}]], "error text of a"),
    ],
)
def test_wrong_items_are_named(items, named):
    with pytest.raises(RemoteProtocolError, match=named):
        unpack_bundle(make_request("bundle", msgpack.packb(items)))


@pytest.mark.parametrize("payload", [None, b"\x91", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"])
def test_malformed_bundles_are_the_senders_fault(payload):
    with pytest.raises(RemoteProtocolError, match="bundle"):
        unpack_bundle(make_request("bundle", payload))


def test_depth_bomb_inside_is_found_when_it_is_unpacked():
    bomb = b"\x91\x96\x01\xa1a\x00\x00\x00" + b"\x91" * 100 + b"\xc0"
    (message,) = unpack_bundle(make_request("bundle", bomb))
    with pytest.raises(RemoteProtocolError, match=r"nested|Expected"):
        framing.unpack(message.payload, dict)
