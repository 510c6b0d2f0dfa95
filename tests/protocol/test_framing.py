"""Framing: headers (RFC 3), codecs, and bundles of messages."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import (
    BUNDLE_BYTES_MAX,
    BUNDLE_MESSAGES_MAX,
    BUNDLE_TOPIC,
    Message,
    decode,
    encode,
    make_error,
    make_request,
    make_response,
    pack_bundles,
    unpack_bundle,
)
from fluxsched.protocol.messages import jobs, resource
from fluxsched.protocol.messages import jobs as sched
from fluxsched.protocol.messages.common import Empty

# captured from deployed clients on the local socket: flux resource status, getattr size, resource drain 1 bad
GOLDEN = {
    "resource.status": "1200eeff00000026000f7265736f757263652e737461747573148e010109ffffffff000000000000000000000001",
    "attr.get": (
        "1200eeff000000300008617474722e676574107b226e616d65223a2273697a65227d00"
        "148e01010bffffffff00000000ffffffff00000001"
    ),
    "resource.drain": (
        "1200eeff00000048000e7265736f757263652e647261696e227b2274617267657473223a202231222c2022726561736f6e223a2022"
        "626164227d00148e01010bffffffff000000000000000000000001"
    ),
}


def _parts(frame: bytes) -> list[bytes]:
    """The parts in one frame of the local socket: after 8 bytes, each with its length in one byte."""
    body, parts = frame[8:], []
    while body:
        parts.append(body[1 : 1 + body[0]])
        body = body[1 + body[0] :]
    return parts


@pytest.mark.parametrize("topic", GOLDEN)
def test_golden_requests(topic):
    parts = _parts(bytes.fromhex(GOLDEN[topic]))
    message = decode(parts)
    assert (message.type, message.topic, message.matchtag) == (framing.REQUEST, topic, 1)
    assert message.nodeid == (framing.NODEID_ANY if topic == "attr.get" else 0)
    assert message.userid == framing.USERID_UNKNOWN
    assert message.rolemask == framing.ROLE_NONE
    assert message.route == ()
    assert encode(message) == parts


def test_golden_payload_is_json_with_its_nul():
    payload = decode(_parts(bytes.fromhex(GOLDEN["resource.drain"]))).payload
    assert payload is not None
    assert payload[-1:] == b"\0"
    assert json.loads(payload[:-1]) == {"targets": "1", "reason": "bad"}


def test_header_bytes():
    message = Message(
        framing.RESPONSE,
        "a.b",
        b"\x80",
        framing.ROUTE | framing.STREAMING,
        0x01020304,
        framing.ROLE_OWNER,
        61,
        0x0A0B0C0D,
    )
    assert encode(message) == [b"", b"a.b", b"\x80", bytes.fromhex("8e01024b01020304000000010000003d0a0b0c0d")]


messages = st.builds(
    Message,
    st.sampled_from((framing.REQUEST, framing.RESPONSE, framing.EVENT)),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
    st.none() | st.binary(max_size=20),
    st.integers(0, 255).map(lambda flags: flags & ~(framing.TOPIC | framing.PAYLOAD | framing.ROUTE)),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.lists(st.binary(min_size=1, max_size=5), max_size=framing.ROUTE_PARTS_MAX).map(tuple),
)


@settings(max_examples=60)
@given(messages)
def test_there_and_back(message):
    message.flags |= framing.TOPIC | framing.ROUTE | (framing.PAYLOAD if message.payload is not None else 0)
    assert decode(encode(message)) == message


def _header(type_: int = 1, flags: int = 0x0B, magic: bytes = b"\x8e\x01") -> bytes:
    return magic + bytes([type_, flags]) + bytes(16)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([], "without parts"),
        ([b"", b"t", b"short"], "5 bytes"),
        ([b"", b"t", b"", _header(magic=b"\x8f\x01")], "magic 0x8f"),
        ([b"", b"t", b"", _header(magic=b"\x8e\x02")], "version 2"),
        ([b"", b"t", b"", _header(type_=3)], "type 3"),
        ([b"", b"t", _header()], "payload"),
        ([b"", b"t", b"x", b"y", _header()], "5 parts"),
        ([b"", _header(flags=0x09)], "topic"),
        ([b"", b"x", _header(flags=0x0A)], "topic"),
        ([_header()], "delimiter"),
        ([b"peer", b"t", b"x", _header()], "delimiter"),
        ([b"r"] * (framing.ROUTE_PARTS_MAX + 1) + [b"", b"t", b"x", _header()], "delimiter"),
        ([b"", b"a\0b", b"x", _header()], "NUL"),
        ([b"", b"\xff", b"x", _header()], "UTF-8"),
        ([b"", b"t" * (framing.TOPIC_BYTES_MAX + 1), b"x", _header()], "1 to 255"),
        ([b"", b"", b"x", _header()], "1 to 255"),
    ],
)
def test_wrong_parts_are_named(parts, named):
    with pytest.raises(RemoteProtocolError, match=named):
        decode(parts)


def test_control_messages_have_no_topic():
    assert decode([b"", _header(type_=8, flags=0x08)]).type == framing.CONTROL


def test_responses_copy_topic_matchtag_route_and_streaming():
    request = framing.make_request("resource.acquire", None, matchtag=9, flags=framing.STREAMING)
    request.route = (b"hop",)
    good, bad = framing.make_response(request, b"\x80"), framing.make_error(request, 61, "end")
    for answer in (good, bad):
        assert (answer.type, answer.topic, answer.matchtag, answer.route) == (2, "resource.acquire", 9, (b"hop",))
        assert answer.flags & framing.STREAMING
        assert decode(encode(answer)) == answer
    assert (good.errnum, bad.errnum, bad.payload) == (0, 61, b"end")


def test_error_text_has_no_nul_and_errnum_is_positive():
    request = framing.make_request("a.b", matchtag=1)
    assert framing.make_error(request, 22, "a\0b").payload == b"a b"
    assert framing.make_error(request, 22).payload is None
    longest = framing.ERROR_CHARS_MAX
    assert framing.make_error(request, 22, "x" * (2 * longest)).payload == b"x" * longest
    with pytest.raises(ValueError, match="positive"):
        framing.make_error(request, 0)


def test_events_carry_their_sequence():
    event = framing.Message(framing.EVENT, "resource.x", b"\x80", framing.TOPIC | framing.PAYLOAD, aux1=7)
    assert decode(encode(event)).sequence == 7


def test_topics_are_kept_up_to_a_limit() -> None:
    for number in range(framing.TOPICS_CACHED_MAX + 1):
        message = framing.make_request(f"service.method{number}", None, matchtag=1)
        assert decode(encode(message)).topic == message.topic
    assert framing._topic.cache_info().currsize == framing.TOPICS_CACHED_MAX


# The codec against bombs: what leaves it is a JSON value of bounded depth, whatever comes in.


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"with": [value]}
    return value


@pytest.mark.parametrize("data", [None, b""])
def test_no_payload_is_an_empty_object(data):
    assert framing.unpack(data, Empty) == Empty()
    assert framing.unpack(data, dict[str, Any]) == {}
    assert framing.from_json(data, Empty) == Empty()


def test_depth_up_to_the_limit_passes():
    # the struct and its field are two levels, each step of `_nested` two more
    fits = (framing.DEPTH_MAX - 2) // 2
    assert framing.unpack(msgpack.packb({"jobspec": _nested(fits)}), jobs.SubmitRequest).jobspec == _nested(fits)
    with pytest.raises(RemoteProtocolError, match=f"{framing.DEPTH_MAX} levels"):
        framing.unpack(msgpack.packb({"jobspec": _nested(fits + 1)}), jobs.SubmitRequest)


@pytest.mark.parametrize(
    "resources",
    [
        None, {}, {"a": [{"b": {"c": [1, 1.5, True, None, "x"]}}]}, _nested(framing.SHALLOW_LEVELS),
        {1: 2}, {"a": [b"x"]}, {"a": {"b": {2.5: 1}}}, _nested(framing.DEPTH_MAX), {"a": "x" * 1000}, [], 7,
    ],
)  # fmt: skip
def test_the_quick_reader_reads_and_refuses_what_unpack_does(resources):
    def outcome(read):
        try:
            found = read(msgpack.packb({"id": 7, "type": 0, "R": resources}))
        except RemoteProtocolError as fault:
            return str(fault)
        return found.id, found.R

    quick = framing.QuickReader(sched.AllocResponse, "R").read
    assert outcome(quick) == outcome(lambda data: framing.unpack(data, sched.AllocResponse))
    for data in (b"", b"\x81", b"\x81\xa1R\x81\xa1x\xa1\xff", b"\x81\xa1R" + b"\x91" * 100_000 + b"\xc0"):
        with pytest.raises(RemoteProtocolError):
            quick(data)


@pytest.mark.parametrize("levels", [1_000, sys.getrecursionlimit(), 100_000])
def test_depth_bombs_are_refused(levels):
    bomb = b"\x81\xa7jobspec" + b"\x81\xa1x" * levels + b"\xc0"
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.unpack(bomb, jobs.SubmitRequest)
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.from_json(b'{"jobspec":' + b'{"x":' * levels + b"0" + b"}" * levels + b"}", jobs.SubmitRequest)
    with pytest.raises(RemoteProtocolError, match="nested"):
        framing.unpack(b"\x81\xa5later" + b"\x91" * 100_000 + b"\xc0", Empty)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
def test_promised_sizes_are_not_believed(head):
    with pytest.raises(RemoteProtocolError, match="truncated"):
        framing.unpack(b"\x81\xa7jobspec\x81\xa1x" + head + b"\xff\xff\xff\xff", jobs.SubmitRequest)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (b"\x81\x01\x02", "a key of type int"),
        (b"\x81\x92\x01\x02\x03", "a key of type tuple"),
        (b"\x81\xa1x\xc4\x01\x00", "a value of type bytes"),
        (b"\x81\xa1x\xd4\x05\x01", "a value of type Ext"),
        (b"\x81\xa1x\xd6\xff\x01\x01\x01\x01", "a value of type datetime"),
    ],
)
def test_what_json_cannot_say_is_refused(part, named):
    with pytest.raises(RemoteProtocolError, match=named):
        framing.unpack(b"\x82\xa2id\x01\xa1R\x81\xa1x" + part, sched.FreeRequest)


def test_open_parts_inside_typed_lists_are_checked_too():
    bad = msgpack.packb({"events": [{"timestamp": 1.0, "name": "x", "context": {"x": {3: 4}}}]})
    with pytest.raises(RemoteProtocolError, match="a key"):
        framing.unpack(bad, resource.JournalResponse)
    bad = msgpack.packb({"events": [[1, 2.0, "x", {"a": b"bytes"}]]})
    with pytest.raises(RemoteProtocolError, match="a value"):
        framing.unpack(bad, jobs.WatchResponse)


def test_declared_bytes_pass():
    out = jobs.OutputResponse("stdout", b"\xff\0", 3)
    assert framing.unpack(framing.pack(out), jobs.OutputResponse) == out


@pytest.mark.parametrize("data", [b"\xc1", b"\x80\x80", b"\x81", b"\x81\xa1x\xa2\xff\xff", b"\xff\xff"])
def test_malformed_bytes_are_the_senders_fault(data):
    with pytest.raises(RemoteProtocolError, match=r"^dict"):
        framing.unpack(data, dict[str, Any])


def test_malformed_json_is_the_senders_fault():
    with pytest.raises(RemoteProtocolError, match=r"^ReadyResponse"):
        framing.from_json(b'{"count":', sched.ReadyResponse)


def test_well_formed():
    assert framing.is_well_formed(msgpack.packb({"a": [1, {}]}))
    assert not framing.is_well_formed(b"")
    assert not framing.is_well_formed(b"\x80\x80")
    assert not framing.is_well_formed(b"\x91" * 100_000)


@pytest.mark.parametrize("data", [b"\x81\xa1a\xa2\xff\xfe", b"\x81\xa1a", b"\xc1", b"\x07"])
def test_an_answer_that_is_none_is_the_senders_fault(data):
    """A text that is no UTF-8 came out as a UnicodeDecodeError."""
    with pytest.raises(RemoteProtocolError, match="answer"):
        framing.unpack_answer(data)


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\x90\x01", b"\xa2\xff\xfe", b"\x91" * 5000, b"\xd6\x05abcd"])
def test_what_has_no_form_in_json_is_the_senders_fault(data):
    with pytest.raises(RemoteProtocolError, match="payload"):
        framing.to_local(data)


# Bundles: order, limits, error texts, and that no message can spoil its neighbours.


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
    ask = make_request("a.b", b"\x80", matchtag=1)
    good = framing.relayed(make_request("a.b", b"\x80", matchtag=2))
    for bad in (make_request("a.b", b"\x81\xa1x", matchtag=1), make_response(ask, b"\x80\x80")):
        frames = pack_bundles([good, framing.relayed(bad), good, good])
        assert [decode(one).topic for one in frames] == ["a.b", "a.b", "bundle"]
        assert decode(frames[1]).payload == bad.payload


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
