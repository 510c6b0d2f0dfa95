"""RFC 3 framing: golden bytes of deployed clients, there and back, and every way in which parts can be wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message, decode, encode

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
        framing.RESPONSE, "a.b", b"\x80", framing.ROUTE | framing.STREAMING, 0x01020304, framing.ROLE_OWNER, 61,
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
