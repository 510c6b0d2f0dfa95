"""The signed jobspec J of a submission, in the one mechanism that needs no secret: `none` (RFC 15).

Law: J is only taken apart here; the caller compares the userid in it with that of the sender. An unsigned jobspec
(plain JSON) is accepted too and has no userid.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from fluxsched.errors import InvalidValue

MECHANISM: Final = "none"
VERSION: Final = 1
_INTEGER: Final = re.compile(r"i[0-9]{1,10}")
_REMEDY: Final = "sign with mechanism none (RFC 15), or send the jobspec unsigned"


class Unwrapped(NamedTuple):
    """Content of a J: the jobspec's bytes (JSON), and the userid that signed it (None: unsigned)."""

    jobspec: bytes
    userid: int | None


def unwrap(text: str) -> Unwrapped:
    """Return the jobspec in `HEADER.PAYLOAD.none` or in plain JSON. Raises InvalidValue naming the part that is wrong.
    """
    if text.lstrip()[:1] == "{":
        return Unwrapped(text.encode(), None)
    parts = text.split(".")
    if len(parts) != 3:
        raise InvalidValue(f"J has {len(parts)} parts, HEADER.PAYLOAD.SIGNATURE has three: {_REMEDY}")
    header = _header(_decoded("header", parts[0]))
    mechanism = _text(header, "mechanism")
    if mechanism != MECHANISM or parts[2] != MECHANISM:
        raise InvalidValue(f"J is signed by mechanism {mechanism!r}, which is not supported here: {_REMEDY}")
    if _number(header, "version") != VERSION:
        raise InvalidValue(f"J has version {_number(header, 'version')}, known is {VERSION}: {_REMEDY}")
    return Unwrapped(_decoded("payload", parts[1]).rstrip(b"\0"), _number(header, "userid"))


def wrap(jobspec: bytes, userid: int) -> str:
    """Return a J of mechanism `none`."""
    fields = ("version", f"i{VERSION}", "userid", f"i{userid}", "mechanism", f"s{MECHANISM}")
    header = "".join(f"{field}\0" for field in fields).encode()
    return ".".join((base64.b64encode(header).decode(), base64.b64encode(jobspec).decode(), MECHANISM))


def _decoded(part: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidValue(f"the {part} of J is not base64 ({exc}): {_REMEDY}") from None


def _header(data: bytes) -> dict[str, str]:
    """Keys and values, each ended by a NUL."""
    words = data.decode("ascii", "replace").split("\0")
    if len(words) % 2 != 1 or words[-1]:
        raise InvalidValue(f"the header of J is not made of pairs that end in NULs: {_REMEDY}")
    return dict(zip(words[:-1:2], words[1::2], strict=True))


def _text(header: dict[str, str], key: str) -> str:
    value = header.get(key, "")
    if value[:1] != "s":
        raise InvalidValue(f"the header of J has no text {key!r}: {_REMEDY}")
    return value[1:]


def _number(header: dict[str, str], key: str) -> int:
    value = header.get(key, "")
    if not _INTEGER.fullmatch(value):
        raise InvalidValue(f"the header of J has no integer {key!r}: {_REMEDY}")
    return int(value[1:])
