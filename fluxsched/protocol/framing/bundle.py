"""Many messages for one turn as one message, topic `bundle`: 55-60 % of an unbundled message's cost is its socket call.

Law: order is kept, a bundle holds no bundle, and payloads pass through undecoded. Each message travels as
`[type, topic, flags, aux1, matchtag, payload]`; userid, rolemask and route are those of the bundle itself. What could
spoil a bundle for its neighbours (a relayed payload that is no msgpack, a huge one) travels alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol.framing.codec import is_well_formed
from fluxsched.protocol.framing.header import (
    CONTROL,
    NORESPONSE,
    PAYLOAD,
    REQUEST,
    RESPONSE,
    ROUTE,
    TOPIC,
    TOPIC_BYTES_MAX,
    Message,
    encode,
    make_request,
)

BUNDLE_TOPIC: Final = "bundle"

BUNDLE_MESSAGES_MAX = 256
"""Most messages in one bundle: past this the socket call is no longer what costs."""

BUNDLE_BYTES_MAX = 1 << 20
"""Largest bundle payload: a bigger message travels alone, so that a bundle never delays others for long."""

ITEM_OVERHEAD_BYTES: Final = 32
"""At most what one message adds besides topic and payload: 6 msgpack heads, 3 of them of up to 5 bytes."""

_U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]
_Item = tuple[
    Literal[1, 2, 4],
    Annotated[str, msgspec.Meta(min_length=1, max_length=TOPIC_BYTES_MAX)],
    Annotated[int, msgspec.Meta(ge=0, le=0xFF)],
    _U32,
    _U32,
    msgspec.Raw,
]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Item]).decode
_decode_text = msgspec.msgpack.Decoder(str).decode
_NIL: Final = b"\xc0"
_INTENT: Final = ~(TOPIC | PAYLOAD | ROUTE)  # the flags that mean something beyond the framing
_Packed = tuple[int, str, int, int, int, msgspec.Raw | str | None]


def pack_bundles(messages: Iterable[Message]) -> list[list[bytes]]:
    """Return the frames to send for `messages`, in order: bundles within the limits, and single messages that fit in
    none.
    """
    sent: list[list[bytes]] = []
    batch: list[_Packed] = []
    room = BUNDLE_BYTES_MAX
    last = None
    for message in messages:
        item = _item(message)
        size = ITEM_OVERHEAD_BYTES + len(message.topic) * 4 + len(message.payload or b"")
        if last is not None and (item is None or size > room or len(batch) == BUNDLE_MESSAGES_MAX):
            sent.append(_flush(batch, last))
            batch, room, last = [], BUNDLE_BYTES_MAX, None
        if item is None:
            sent.append(encode(message))
        else:
            batch.append(item)
            room -= size
            last = message
    if last is not None:
        sent.append(_flush(batch, last))
    return sent


def unpack_bundle(message: Message) -> list[Message]:
    """The messages in a bundle, in order, with undecoded payloads; any other message is returned alone.

    Raises RemoteProtocolError naming what is wrong.
    """
    if message.topic != BUNDLE_TOPIC or message.type != REQUEST:
        return [message]
    payload = message.payload or b""
    if len(payload) > BUNDLE_BYTES_MAX:
        raise RemoteProtocolError(f"bundle of {len(payload)} bytes, limit {BUNDLE_BYTES_MAX}: split it")
    try:
        items = _decode(payload)
    except RecursionError as exc:
        raise RemoteProtocolError("bundle: nested too deep") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"bundle: {exc}") from exc
    if len(items) > BUNDLE_MESSAGES_MAX:
        raise RemoteProtocolError(f"bundle of {len(items)} messages, limit {BUNDLE_MESSAGES_MAX}: split it")
    return [_message(message, *item) for item in items]


def _flush(batch: list[_Packed], last: Message) -> list[bytes]:
    """The frames of a bundle of `batch`, or of its only message: a bundle of one would cost more."""
    if len(batch) == 1:
        return encode(last)
    return encode(make_request(BUNDLE_TOPIC, _encode(batch), matchtag=0, flags=NORESPONSE))


def _item(message: Message) -> _Packed | None:
    """Return the message as an item of a bundle; None if it must be sent alone."""
    type_, topic, aux1, data = message.type, message.topic, message.aux1, message.payload
    if type_ == CONTROL or not topic or topic == BUNDLE_TOPIC:
        return None
    payload: msgspec.Raw | str | None = None
    if data:
        if type_ == RESPONSE and aux1:
            payload = data.decode(errors="replace")
        elif is_well_formed(data):
            payload = msgspec.Raw(data)
        else:
            return None
    return type_, topic, message.flags & _INTENT, aux1, message.matchtag, payload


def _message(
    outer: Message, type_: int, topic: str, flags: int, aux1: int, matchtag: int, raw: msgspec.Raw
) -> Message:
    if topic == BUNDLE_TOPIC or "\0" in topic:
        raise RemoteProtocolError(f"bundle: topic {topic!r}: a bundle cannot contain a bundle, nor a topic a NUL")
    flags = flags & _INTENT | outer.flags & ROUTE | TOPIC
    payload: bytes | None = bytes(raw)
    if payload == _NIL:
        payload = None
    else:
        flags |= PAYLOAD
        if type_ == RESPONSE and aux1:
            payload = _text(topic, bytes(raw))
    return Message(type_, topic, payload, flags, outer.userid, outer.rolemask, aux1, matchtag, outer.route)


def _text(topic: str, data: bytes) -> bytes:
    try:
        return _decode_text(data).encode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"bundle: error text of {topic}: {exc}") from exc
