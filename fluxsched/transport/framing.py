"""Messages on a stream of bytes, as Flux's local connector frames them (rfc/local.md).

A frame is the magic number in host order, the length of its body in 4 bytes big-endian, and the body: parts, each after
its length in one byte, or in `ff` and 4 bytes big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fluxsched.transport.base import PARTS_MAX, size_bytes

FRAMING_BYTES_MAX = 64 << 10
"""Number of bytes that a body may have beside its largest part: topic, header, a long route, and the lengths of all
parts.
"""

_MAGIC = struct.pack("=I", 0xFFEE0012)
_FRAME = struct.Struct(">4sI")
_LENGTH = struct.Struct(">I")
_LONG = 0xFF
"""First byte of a part's length that takes 4 more."""


def pack_frame(parts: Sequence[bytes]) -> bytes:
    """The bytes of a message on the socket."""
    body: list[bytes] = [b""]
    for part in parts:
        size = len(part)
        body += (bytes((size,)) if size < _LONG else b"\xff" + _LENGTH.pack(size), part)
    body[0] = _FRAME.pack(_MAGIC, size_bytes(body))
    return b"".join(body)


class Malformed(Exception):
    """The data is not a frame, or exceeds a limit; the text names which."""


class Unpacker:
    """Puts a stream of bytes back into messages, however it was cut."""

    __slots__ = ("_buffer", "_limit_bytes", "_wanted")

    def __init__(self, limit_bytes: int) -> None:
        self._buffer = bytearray()
        self._limit_bytes = limit_bytes
        self._wanted = _FRAME.size

    def feed(self, data: bytes, messages: list[list[bytes]]) -> None:
        """Add the messages that are complete with `data`. Raises Malformed at what follows them."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= self._wanted:
            magic, size = _FRAME.unpack_from(buffer, start)
            self._check(magic, size)
            end = start + _FRAME.size + size
            if len(buffer) < end:
                self._wanted = end - start
                break
            messages.append(self._parts(start + _FRAME.size, end))
            start, self._wanted = end, _FRAME.size
        del buffer[:start]

    def _check(self, magic: bytes, size: int) -> None:
        if magic != _MAGIC:
            raise Malformed(f"no message frame: it starts with {magic.hex()}, expected {_MAGIC.hex()}")
        if size > self._limit_bytes + FRAMING_BYTES_MAX:
            raise Malformed(f"message of {size} bytes, limit {self._limit_bytes} a part")

    def _parts(self, at: int, end: int) -> list[bytes]:
        buffer = self._buffer
        parts: list[bytes] = []
        while at < end:
            size = buffer[at]
            at += 1
            if size == _LONG:
                if at + _LENGTH.size > end:
                    raise Malformed("a part's length goes beyond its message")
                (size,) = _LENGTH.unpack_from(buffer, at)
                at += _LENGTH.size
            if at + size > end:
                raise Malformed(f"a part of {size} bytes goes beyond its message")
            if size > self._limit_bytes:
                raise Malformed(f"message part of {size} bytes, limit {self._limit_bytes}")
            parts.append(bytes(memoryview(buffer)[at : at + size]))
            at += size
            if len(parts) > PARTS_MAX:
                raise Malformed(f"message of more than {PARTS_MAX} parts")
        if not parts:
            raise Malformed("message without parts")
        return parts
