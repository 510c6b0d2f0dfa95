"""Payloads to bytes and back: msgpack on ZeroMQ, JSON on the local socket, validated against the message's class.

Law: nothing leaves `unpack` that is not what its class says, and what a class leaves open (R, jobspec, contexts) is a
JSON value: string keys, JSON scalars, at most DEPTH_MAX deep. The one file to change when the library is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, TypeVar, overload

import msgspec

from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, RemoteProtocolError

DEPTH_MAX = 64
"""Most containers inside one another: jobspecs need about ten, and recursive readers behind us stay safe."""

SHALLOW_LEVELS: Final = 6
"""Levels of an object that `QuickReader` knows: R without `scheduling` has five, and each level doubles the decoder."""

SHOWN_CHARS: Final = 80
"""Number of characters that an error repeats of a text that cannot be sent."""

T = TypeVar("T")

_EMPTY_MAP: Final = b"\x80"
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_any = msgspec.msgpack.Decoder().decode
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_well_formed = msgspec.msgpack.Decoder(msgspec.Raw).decode


def pack(value: object) -> bytes:
    """The msgpack bytes of a message or of plain values; InvalidValue for half a surrogate pair or too big a number."""
    try:
        return _encode(value)
    except UnicodeEncodeError as fault:
        raise InvalidValue(f"'{printable(str(fault.object)[:SHOWN_CHARS])}' is not UTF-8 text") from None
    except OverflowError:
        raise InvalidValue("a whole number beyond 64 bits cannot be sent") from None


def to_json(value: object) -> bytes:
    """The JSON bytes of a message or of plain values; the local socket adds its NUL itself."""
    return _encode_json(value)


@overload
def unpack(data: bytes | None, kind: type[T]) -> T: ...
@overload
def unpack(data: bytes | None, kind: object) -> Any: ...
def unpack(data: bytes | None, kind: Any) -> Any:
    """The value of `kind` (a message class, a union of them, `dict[str, Any]`, ...) that this payload is.

    None and empty mean `{}`: RFC 3 lets a sender leave out an empty payload. Unknown keys are ignored.
    Raises RemoteProtocolError naming the part that is wrong.
    """
    return _decoder(kind)(data or _EMPTY_MAP)


def unpack_answer(data: bytes | None) -> dict[str, Any]:
    """A response as a client sees it that does not name a class: a map, in which binary (a job's output) may occur."""
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
    """The msgpack payload that a local client's JSON, ended by a NUL, means. Raises RemoteProtocolError."""
    if not data.endswith(b"\0"):
        raise RemoteProtocolError("payload: it does not end with a NUL, as JSON on the local socket must")
    try:
        return _encode(_decode_json(data[:-1]))
    except RecursionError as exc:
        raise _too_deep("payload") from exc
    except (UnicodeError, OverflowError, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(f"payload: {exc}") from exc


def to_local(data: bytes) -> bytes:
    """A msgpack payload as local clients read it: JSON and a NUL. Binary becomes base64.

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


def with_raw(kind: type[msgspec.Struct], field: str) -> Any:
    """The class `kind` with one field left undecoded, for bytes that are known already (`Raw`, valid in this codec)."""
    return retyped(kind, field, msgspec.Raw)


def retyped(kind: type[msgspec.Struct], field: str, type_: Any) -> Any:
    """The class `kind` with one field read as another type, where less of it is needed."""
    fields: list[Any] = []
    for one in msgspec.structs.fields(kind):
        options: dict[str, Any] = {"name": one.encode_name}
        if one.default is not msgspec.NODEFAULT:
            options["default"] = one.default
        elif one.default_factory is not msgspec.NODEFAULT:
            options["default_factory"] = one.default_factory
        fields.append((one.name, type_ if one.name == field else one.type, msgspec.field(**options)))
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True)


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
        """The value that this payload is. Raises RemoteProtocolError naming the part that is wrong."""
        try:
            return self._decode(data or _EMPTY_MAP)
        except (RecursionError, UnicodeDecodeError, msgspec.MsgspecError):
            return unpack(data, self._kind)


@cache
def _decoder(kind: Any) -> Callable[[bytes], Any]:
    return _checked(kind, msgspec.msgpack.Decoder(kind).decode)


@cache
def _json_decoder(kind: Any) -> Callable[[bytes], Any]:
    return _checked(kind, msgspec.json.Decoder(kind).decode)


def _checked(kind: Any, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    name = getattr(kind, "__name__", None) or str(kind).replace("fluxsched.protocol.messages.", "")
    is_open = _is_open(kind)

    def checked(data: bytes) -> Any:
        try:
            value = decode(data)
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
    """Return whether some part of `kind` is declared as Any: only then can a sender put in more than the class names.
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
    """The fields of a message class in which Any occurs; the decoder has checked the others. None: no such class."""
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
