"""Messages as bytes: frames of RFC 3, payloads by a codec, and bundles of a turn's messages; no I/O. How long a message
may be is in `transport/base`.

Laws: what is decoded is whole and consistent (flags agree with the parts), so nothing behind this file checks framing
again. This runs for every message of an instance: one precompiled struct, plain int flags, topics interned. Payloads
are msgpack on ZeroMQ and JSON on the local socket, validated against the message's class: nothing leaves `unpack` that
is not what its class says, and what a class leaves open (R, jobspec, contexts) is a JSON value: string keys, JSON
scalars, at most DEPTH_MAX deep. The one file to change when the library is replaced.

A bundle is many messages for one turn as one message, topic `bundle`: 55-60 % of an unbundled message's cost is its
socket call. Order is kept, a bundle holds no bundle, and payloads pass through undecoded. Each message travels as
`[type, topic, flags, aux1, matchtag, payload]`; userid, rolemask and route are those of the bundle itself. What could
spoil a bundle for its neighbours (a relayed payload that is no msgpack, a huge one) travels alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar, overload

import msgspec

from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, RemoteProtocolError

MAGIC: Final = 0x8E
VERSION: Final = 1

REQUEST: Final = 0x01
RESPONSE: Final = 0x02
EVENT: Final = 0x04
CONTROL: Final = 0x08

TOPIC: Final = 0x01
PAYLOAD: Final = 0x02
NORESPONSE: Final = 0x04
ROUTE: Final = 0x08
UPSTREAM: Final = 0x10
PRIVATE: Final = 0x20
STREAMING: Final = 0x40
USER1: Final = 0x80

ROLE_NONE: Final = 0x00
ROLE_OWNER: Final = 0x01
ROLE_USER: Final = 0x02
ROLE_LOCAL: Final = 0x04
ROLE_ADMIN: Final = 0x08
ROLE_KEEPER: Final = 0x20

NODEID_ANY: Final = 0xFFFFFFFF
"""AUX1 of a request that any rank may answer."""

ERROR_CHARS_MAX = 8192
"""Maximum number of characters of an error's text that are sent, and kept by the receiver.

The text names the request, which may be 512 MiB.
"""

USERID_UNKNOWN: Final = 0xFFFFFFFF
"""Userid that a client sends: the receiving side stamps the credentials that it has verified."""

MATCHTAG_NONE: Final = 0

HEADER_BYTES: Final = 20

TOPIC_BYTES_MAX = 255
"""Longest topic: far above the longest of ours, and a bound for the cache of topics."""

ROUTE_PARTS_MAX = 16
"""Most parts of a route stack: one a hop, and a tree of brokers this deep spans any machine."""

TOPICS_CACHED_MAX = 1024
"""Interned topics, at most TOPIC_BYTES_MAX each."""

_HEADER: Final = struct.Struct(">BBBBIIII")
_TYPES: Final = frozenset((REQUEST, RESPONSE, EVENT, CONTROL))
_KEPT: Final = STREAMING | ROUTE  # what a response takes over from its request
_FRAMING: Final = TOPIC | PAYLOAD  # what `encode` derives from the parts themselves


class Message(msgspec.Struct, gc=False):  # made in 0.05 us where a dataclass takes 0.2, and nothing in it makes cycles
    """A message (RFC 3). `aux1` is the nodeid of a request, the errnum of a response, the sequence of an event.

    `flags` carries the caller's intent (STREAMING, NORESPONSE, ROUTE, ...); `encode` sets TOPIC and PAYLOAD itself.
    `payload` is None when there is none; `route` holds the identities of the hops, nearest last.
    """

    type: int
    topic: str = ""
    payload: bytes | None = None
    flags: int = ROUTE
    userid: int = USERID_UNKNOWN
    rolemask: int = ROLE_NONE
    aux1: int = NODEID_ANY
    matchtag: int = MATCHTAG_NONE
    route: tuple[bytes, ...] = ()
    alone: bool = False
    """True if it travels in no bundle, for its payload is another peer's and no msgpack."""

    @property
    def nodeid(self) -> int:
        """The rank that a request is for, or NODEID_ANY."""
        return self.aux1

    @property
    def errnum(self) -> int:
        """0 for a success response, else its errno."""
        return self.aux1

    @property
    def sequence(self) -> int:
        """The number of an event."""
        return self.aux1


def encode(message: Message) -> list[bytes]:
    """Return the parts of `message` in wire order: route, delimiter, topic, payload, header (RFC 3)."""
    flags = message.flags & ~_FRAMING
    frames = [*message.route, b""] if flags & ROUTE else []
    if message.topic:
        flags |= TOPIC
        frames.append(message.topic.encode())
    if message.payload is not None:
        flags |= PAYLOAD
        frames.append(message.payload)
    frames.append(
        _HEADER.pack(
            MAGIC,
            VERSION,
            message.type,
            flags,
            message.userid,
            message.rolemask,
            message.aux1,
            message.matchtag,
        )
    )
    return frames


def decode(frames: Sequence[bytes]) -> Message:
    """Return the message that these parts are. Raises RemoteProtocolError naming the part that is wrong."""
    if not frames or len(frames[-1]) != HEADER_BYTES:
        raise _bad_length(frames)
    magic, version, type_, flags, userid, rolemask, aux1, matchtag = _HEADER.unpack(frames[-1])
    if magic != MAGIC or version != VERSION or type_ not in _TYPES:
        raise RemoteProtocolError(
            f"header {frames[-1].hex()}: magic {magic:#04x}, version {version}, type {type_} is not "
            f"magic {MAGIC:#04x}, version {VERSION}, type 1, 2, 4 or 8"
        )
    route: tuple[bytes, ...] = ()
    first, last = 0, len(frames) - 1
    if flags & ROUTE:
        first = 1
        if frames[0]:
            route = _route(frames)
            first = len(route) + 1
    payload = None
    if flags & PAYLOAD:
        last -= 1
        payload = frames[last]
    topic = ""
    if flags & TOPIC:
        if last - first != 1:
            raise _bad_parts(frames, flags)
        topic = _topic(frames[first])
    elif last != first or type_ != CONTROL:
        raise _bad_parts(frames, flags)
    return Message(type_, topic, payload, flags, userid, rolemask, aux1, matchtag, route)


def make_request(
    topic: str, payload: bytes | None = None, *, matchtag: int = MATCHTAG_NONE, flags: int = 0, nodeid: int = NODEID_ANY
) -> Message:
    """Return a request; `matchtag` 0 when its answers are matched by their payload, or with NORESPONSE in `flags`."""
    framing = TOPIC | ROUTE if payload is None else TOPIC | ROUTE | PAYLOAD
    return Message(REQUEST, topic, payload, flags | framing, aux1=nodeid, matchtag=matchtag)


def make_response(request: Message, payload: bytes | None = None, errnum: int = 0) -> Message:
    """Return a response to `request`, 0 for success: same topic, matchtag, route and STREAMING flag (RFC 3, RFC 6)."""
    framing = TOPIC if payload is None else TOPIC | PAYLOAD
    return Message(
        RESPONSE,
        request.topic,
        payload,
        (request.flags & _KEPT) | framing,
        request.userid,  # Flux's clients drop a message without a role, and their requests come without
        request.rolemask,
        aux1=errnum,
        matchtag=request.matchtag,
        route=request.route,
    )


def make_error(request: Message, errnum: int, text: str = "") -> Message:
    """Return an error response; ENODATA ends a good stream.

    `text` is for people and must not be needed by programs; of a longer one ERROR_CHARS_MAX characters are sent.
    """
    if errnum <= 0:
        raise ValueError(f"errnum {errnum} of an error response must be positive: 0 means success")
    return make_response(request, text[:ERROR_CHARS_MAX].encode().replace(b"\0", b" ") if text else None, errnum)


@lru_cache(maxsize=TOPICS_CACHED_MAX)
def _topic(part: bytes) -> str:
    if not 0 < len(part) <= TOPIC_BYTES_MAX:
        raise RemoteProtocolError(f"topic of {len(part)} bytes: it needs 1 to {TOPIC_BYTES_MAX}")
    if b"\0" in part:
        raise RemoteProtocolError(f"topic {part!r} has a NUL: topics are plain text")
    try:
        return part.decode()
    except UnicodeDecodeError as exc:
        raise RemoteProtocolError(f"topic {part!r} is not UTF-8") from exc


def _route(frames: Sequence[bytes]) -> tuple[bytes, ...]:
    for position, part in enumerate(frames[: ROUTE_PARTS_MAX + 1]):
        if not part:
            return tuple(frames[:position])
    raise RemoteProtocolError(
        f"no empty delimiter part within the first {ROUTE_PARTS_MAX + 1} of {len(frames)} parts: "
        "the route flag promises one"
    )


def _bad_length(frames: Sequence[bytes]) -> RemoteProtocolError:
    if not frames:
        return RemoteProtocolError("a message without parts: the last part must be the header")
    return RemoteProtocolError(f"the last part has {len(frames[-1])} bytes: the header has {HEADER_BYTES}")


def _bad_parts(frames: Sequence[bytes], flags: int) -> RemoteProtocolError:
    named = [name for bit, name in ((ROUTE, "route"), (TOPIC, "topic"), (PAYLOAD, "payload")) if flags & bit]
    return RemoteProtocolError(
        f"{len(frames)} parts do not agree with flags {flags:#04x} ({', '.join(named) or 'none'}): every message but "
        "control needs a topic, and each flagged part must be there"
    )


# ---- codec

DEPTH_MAX = 64
"""Most containers inside one another: jobspecs need about ten, and recursive readers behind us stay safe."""

SHALLOW_LEVELS: Final = 6
"""Levels of an object that `QuickReader` knows: R without `scheduling` has five, and each level doubles the decoder."""

SHOWN_CHARS: Final = 80
"""Number of characters that an error repeats of a text that cannot be sent."""

T = TypeVar("T")

_EMPTY_MAP: Final = b"\x80"
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_encode_msgpack = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_well_formed = msgspec.msgpack.Decoder(msgspec.Raw).decode


def pack(value: object) -> bytes:
    """Return the msgpack bytes of a message or of plain values; InvalidValue for half a surrogate pair or too big a
    number.
    """
    try:
        return _encode_msgpack(value)
    except UnicodeEncodeError as fault:
        raise InvalidValue(f"'{printable(str(fault.object)[:SHOWN_CHARS])}' is not UTF-8 text") from None
    except OverflowError:
        raise InvalidValue("a whole number beyond 64 bits cannot be sent") from None


def to_json(value: object) -> bytes:
    """Return the JSON bytes of a message or of plain values; the local socket adds its NUL itself."""
    return _encode_json(value)


@overload
def unpack(data: bytes | None, kind: type[T]) -> T: ...
@overload
def unpack(data: bytes | None, kind: object) -> Any: ...
def unpack(data: bytes | None, kind: Any) -> Any:
    """Return the value of `kind` (a message class, a union of them, `dict[str, Any]`, ...) that this payload is.

    None and empty mean `{}`: RFC 3 lets a sender leave out an empty payload. Unknown keys are ignored.
    Raises RemoteProtocolError naming the part that is wrong.
    """
    return _decoder(kind)(data)


def reader(kind: Any) -> Callable[[bytes | None], Any]:
    """Return `unpack` for this kind alone, where each message has it."""
    return _decoder(kind)


def unpack_answer(data: bytes | None) -> dict[str, Any]:
    """Return a response as a client sees it that does not name a class: a map, in which binary (a job's output) may
    occur.
    """
    try:
        return _decode_map(data or _EMPTY_MAP)
    except (RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"answer: {exc}") from exc


@overload
def from_json(data: bytes | None, kind: type[T]) -> T: ...
@overload
def from_json(data: bytes | None, kind: object) -> Any: ...
def from_json(data: bytes | None, kind: Any) -> Any:
    """Like `unpack` for JSON; one trailing NUL, as Flux sends it, is accepted."""
    return _json_decoder(kind)((data or b"").removesuffix(b"\0") or b"{}")


def from_local(data: bytes) -> bytes:
    """Return the msgpack payload that a local client's JSON, ended by a NUL, means. Raises RemoteProtocolError."""
    if not data.endswith(b"\0"):
        raise RemoteProtocolError("payload: it does not end with a NUL, as JSON on the local socket must")
    try:
        return _encode_msgpack(_decode_json(data[:-1]))
    except RecursionError as exc:
        raise _too_deep("payload") from exc
    except (UnicodeError, OverflowError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"payload: {exc}") from exc


def to_local(data: bytes) -> bytes:
    """Return a msgpack payload as local clients read it: JSON and a NUL. Binary becomes base64.

    Raises RemoteProtocolError for what is no msgpack or has no form in JSON: another peer may have made it.
    """
    try:
        return _encode_json(_decode_any(data)) + b"\0"
    except RecursionError as exc:
        raise _too_deep("payload") from exc
    except (TypeError, UnicodeError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"payload: {exc}") from exc


def is_well_formed(data: bytes) -> bool:
    """Return whether this is exactly one msgpack value, not nested too deep to skip; its content is not checked."""
    try:
        _well_formed(data)
    except (RecursionError, msgspec.DecodeError):
        return False
    return True


def relayed(message: Message) -> Message:
    """Return a message whose payload another peer has made, not `pack`, after a look at that; see `Message.alone`."""
    data = message.payload
    message.alone = bool(data) and not (message.type == RESPONSE and message.aux1) and not is_well_formed(data or b"")
    return message


def with_raw(kind: type[msgspec.Struct], field: str) -> Any:
    """Return the class `kind` with one field left undecoded, for bytes that are known already (`Raw`, valid in this
    codec).
    """
    return retyped(kind, field, msgspec.Raw)


def retyped(kind: type[msgspec.Struct], field: str, type_: Any) -> Any:
    """Return the class `kind` with one field read as another type, where less of it is needed."""
    fields: list[Any] = []
    for one in msgspec.structs.fields(kind):
        options: dict[str, Any] = {"name": one.encode_name}
        if one.default is not msgspec.NODEFAULT:
            options["default"] = one.default
        elif one.default_factory is not msgspec.NODEFAULT:
            options["default_factory"] = one.default_factory
        fields.append((one.name, type_ if one.name == field else one.type, msgspec.field(**options)))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, module=kind.__module__)


class QuickReader:
    """`unpack` for a class whose one open field is an object that mostly is not deep, such as R.

    The decoder itself checks SHALLOW_LEVELS levels, at no cost; what is deeper, or wrong, `unpack` judges.
    """

    def __init__(self, kind: type[msgspec.Struct], field: str) -> None:
        scalar: Any = str | int | float | bool | None
        shallow: Any = scalar
        for _ in range(SHALLOW_LEVELS):
            shallow = scalar | list[shallow] | dict[str, shallow]
        self._kind = kind
        self._decode = msgspec.msgpack.Decoder(retyped(kind, field, dict[str, shallow] | None)).decode

    def read(self, data: bytes | None) -> Any:
        """Return the value that this payload is. Raises RemoteProtocolError naming the part that is wrong."""
        try:
            return self._decode(data or _EMPTY_MAP)
        except (RecursionError, UnicodeDecodeError, msgspec.MsgspecError):
            return unpack(data, self._kind)


@cache
def _decoder(kind: Any) -> Callable[[bytes | None], Any]:
    return _checked(kind, msgspec.msgpack.Decoder(kind).decode)


@cache
def _json_decoder(kind: Any) -> Callable[[bytes | None], Any]:
    return _checked(kind, msgspec.json.Decoder(kind).decode)


def _checked(kind: Any, decode: Callable[[bytes], Any]) -> Callable[[bytes | None], Any]:
    name = getattr(kind, "__name__", None) or str(kind).replace("fluxsched.protocol.messages.", "")
    is_open = _is_open(kind)

    def checked(data: bytes | None) -> Any:
        try:
            value = decode(data or _EMPTY_MAP)
        except RecursionError as exc:
            raise _too_deep(name) from exc
        except UnicodeDecodeError as exc:
            raise RemoteProtocolError(f"{name}: a string is not UTF-8: {exc.reason} at byte {exc.start}") from exc
        except msgspec.MsgspecError as exc:
            raise RemoteProtocolError(f"{name}: {exc}") from exc
        if is_open:
            _check_open(value, name)
        return value

    return checked


def _is_open(kind: Any) -> bool:
    """Return whether some part of `kind` is declared as Any: only then can a sender put in more than the class
    names.
    """
    found: list[Any] = [msgspec.inspect.type_info(kind)]
    seen: list[Any] = []
    while found:
        info = found.pop()
        if isinstance(info, msgspec.inspect.AnyType):
            return True
        if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) and info not in seen:
            seen.append(info)
            for part in (getattr(info, field) for field in info.__struct_fields__):
                found.extend(part if isinstance(part, tuple) else (part,))
    return False


def _check_open(value: object, name: str) -> None:
    """Walk level by level, so that depth costs no stack: string keys, JSON scalars, at most DEPTH_MAX levels.

    One loop without helpers: a grant has nine containers, and a call for each costs more than all else here.
    """
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                for key, part in item.items():
                    if type(key) is not str:
                        raise _not_json(name, "a key", key)
                    if type(part) not in _SCALARS:
                        below.append(part)
                continue
            for part in item if kind is list or kind is tuple else _fields(item, name):
                if type(part) not in _SCALARS:
                    below.append(part)
        if not below:
            return
        level = below
    raise _too_deep(name)


def _fields(item: Any, name: str) -> Iterable[Any]:
    """Return the open fields of a message; raise for a value that is no JSON container at all."""
    kind: Any = type(item)
    names = _open_fields(kind)
    if names is None:
        raise _not_json(name, "a value", item)
    return [getattr(item, field) for field in names]


@cache
def _open_fields(kind: Any) -> tuple[str, ...] | None:
    """Return the fields of a message class in which Any occurs; the decoder has checked the others. None: no such
    class.
    """
    if not issubclass(kind, msgspec.Struct):
        return None
    return tuple([field.name for field in msgspec.structs.fields(kind) if _is_open(field.type)])


def _not_json(name: str, what: str, part: object) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{name}: {what} of type {type(part).__name__} ({part!r:.40}): keys are strings, and values are objects, "
        "arrays, strings, numbers, true, false or null"
    )


def _too_deep(name: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{name}: nested deeper than {DEPTH_MAX} levels: flatten it")


# ---- bundles

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
    room, places = BUNDLE_BYTES_MAX, BUNDLE_MESSAGES_MAX
    last = None
    for message in messages:
        type_, topic, aux1, data = message.type, message.topic, message.aux1, message.payload
        is_alone = type_ == CONTROL or not topic or topic == BUNDLE_TOPIC or message.alone
        size = ITEM_OVERHEAD_BYTES + len(topic) * 4 + (len(data) if data else 0)
        if last is not None and (is_alone or size > room or not places):
            sent.append(_flush(batch, last))
            batch, room, places, last = [], BUNDLE_BYTES_MAX, BUNDLE_MESSAGES_MAX, None
        if is_alone:
            sent.append(encode(message))
            continue
        payload: msgspec.Raw | str | None = None
        if data:
            payload = data.decode(errors="replace") if type_ == RESPONSE and aux1 else msgspec.Raw(data)
        batch.append((type_, topic, message.flags & _INTENT, aux1, message.matchtag, payload))
        room -= size
        places -= 1
        last = message
    if last is not None:
        sent.append(_flush(batch, last))
    return sent


def unpack_bundle(message: Message) -> list[Message]:
    """Return the messages in a bundle, in order, with undecoded payloads; any other message is returned alone.

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
    """Return the frames of a bundle of `batch`, or of its only message: a bundle of one would cost more."""
    if len(batch) == 1:
        return encode(last)
    return encode(make_request(BUNDLE_TOPIC, _encode_msgpack(batch), matchtag=0, flags=NORESPONSE))


def _message(outer: Message, type_: int, topic: str, flags: int, aux1: int, matchtag: int, raw: msgspec.Raw) -> Message:
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
