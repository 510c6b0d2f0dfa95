"""What is sent to the sockets: sessions broken anywhere, and well-formed frames with messages that chance has changed.

Law: an input is made by the seed, the kind and a number, so that any batch can be sent again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack
import msgspec

from fluxsched.protocol.framing import NORESPONSE, REQUEST, RESPONSE, STREAMING, Message, encode
from fluxsched.protocol.topics import LOCAL_TOPICS, TOPICS
from fluxsched.transport.local import pack_frame
from tests.fuzz.mutations import Mutator
from tests.fuzz.target import Shape, Target, json_seeds, packed, parts_of
from tests.fuzz.targets.objects import page_examples

SIGNATURE = b"\xff" + bytes(7) + b"\x01\x7f"
GREETING = SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY_BODY = b"\x05READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0"
READY = bytes((4, len(READY_BODY))) + READY_BODY
MECHANISMS = (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI", b"", b"\xff" * 20)
COMMANDS = (
    b"\5ERROR\1x",
    b"\4PING\0\1abc",
    b"\4PONG",
    b"\4JOIN\1x",
    b"\x09SUBSCRIBE",
    b"\5HELLO",
    b"\x08INITIATE",
    b"\5READY",
)
LENGTHS = (0, 1, 255, 256, 1 << 16, (1 << 26) + 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
ENDS_IT = (b"instance.restart", b"instance.stop", b"module.load", b"module.reload", b"module.remove")
"""Ends the instance, or starts programs: it does what it says."""
INPUT_BYTES_MAX = 16 << 10


def zmtp(parts: list[bytes]) -> bytes:
    """A message in ZMTP's frames."""
    made = b""
    for at, part in enumerate(parts):
        more = at < len(parts) - 1
        made += bytes((more, len(part))) if len(part) < 256 else bytes((more | 2,)) + struct.pack(">Q", len(part))
        made += part
    return made


def broken_session(chance: Random) -> bytes:
    """What a ZeroMQ client says from its greeting on, wrong somewhere; the first 64 bytes are the greeting."""
    kind = chance.randrange(7)
    message = zmtp(encode(Message(REQUEST, "instance.info", None, matchtag=7)))
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 300))
    if kind == 1:
        version = bytes((chance.randrange(256), chance.randrange(256)))
        return (
            SIGNATURE
            + version
            + chance.choice(MECHANISMS).ljust(20, b"\0")[:20]
            + chance.randbytes(32)
            + READY
            + message
        )
    if kind == 2:
        said = b"".join(bytes((4, len(body))) + body for body in chance.choices(COMMANDS, k=4))
        return GREETING + chance.choice((READY, b"")) + said + message
    if kind == 3:
        flags, length = chance.randrange(256), chance.choice(LENGTHS)
        return GREETING + READY + bytes((flags,)) + struct.pack(">Q", length) + chance.randbytes(chance.randrange(100))
    if kind == 4:
        key, length = chance.choice((b"Identity", b"Socket-Type", b"x" * 255)), chance.choice(LENGTHS) & 0xFFFFFFFF
        body = (
            b"\5READY" + bytes((len(key),)) + key + struct.pack(">I", length) + chance.randbytes(chance.randrange(60))
        )
        return GREETING + bytes((4, len(body) & 255)) + body + message
    whole = bytearray(GREETING + READY + message)
    for _ in range(chance.randrange(1, 6)):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return bytes(whole[: chance.randrange(len(whole) + 1)] if kind == 5 else whole)


def broken_curve(chance: Random) -> bytes:
    """What a client says that has no key: another mechanism, or CURVE's commands with noise for boxes."""
    if chance.random() < 0.3:
        return broken_session(chance)
    hello = b"\x05HELLO\x01\x00" + bytes(72) + chance.randbytes(120)
    initiate = b"\x08INITIATE" + chance.randbytes(chance.randrange(300))
    bodies = [
        chance.choice((hello, hello[: chance.randrange(200)], initiate, chance.choice(COMMANDS))) for _ in range(3)
    ]
    said = b"".join(
        bytes((4, len(body))) + body if len(body) < 256 else b"\x06" + struct.pack(">Q", len(body)) + body
        for body in bodies
    )
    return SIGNATURE + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32) + said


def broken_stream(chance: Random) -> bytes:
    """What a local client says after its admission, wrong somewhere."""
    frame = pack_frame(encode(Message(REQUEST, "resource.status", b"{}\0", matchtag=7)))
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 300))
    if kind == 1:
        return frame[:4] + struct.pack(">I", chance.choice(LENGTHS) & 0xFFFFFFFF) + chance.randbytes(50)
    whole = bytearray(frame * chance.randrange(1, 4))
    for _ in range(chance.randrange(1, 5)):
        whole[chance.randrange(len(whole))] = chance.randrange(256)
    return bytes(whole[: chance.randrange(len(whole) + 1)] if kind == 2 else whole)


class MessageMaker:
    """Messages to all topics, in the encoding of one socket."""

    def __init__(self, *, json: bool) -> None:
        topics = {**TOPICS, **LOCAL_TOPICS} if json else TOPICS
        self._topics = sorted(topics.items())
        examples: dict[str, list[Any]] = {}
        for names, value in page_examples():
            for name in names:
                examples.setdefault(name, []).append(value)
        self._json = json
        self._examples = {name: some for name, some in examples.items() if name in topics}
        shape = Shape.JSON if json else Shape.MSGPACK
        target = Target("live", len, lambda: (), shape, words=("0-3", "fake[0-1]", "default", "sched-fifo", "all"))
        values = [value for some in self._examples.values() for value in some]
        self._payloads = Mutator(target, json_seeds(values) if json else [packed(value) for value in values])
        self._parts = Mutator(
            Target("live", len, lambda: (), Shape.MSGPACK), [packed([b"", b"a.b", b"\x80", bytes(20)])]
        )

    def parts(self, chance: Random) -> list[bytes]:
        """A message: mostly its payload is changed, seldom its parts."""
        name, topic = chance.choice(self._topics)
        is_answer = chance.random() < 0.05
        example = chance.choice(self._examples.get(name) or [{}])
        payload = msgspec.json.encode(example) if self._json else packed(example)
        if chance.random() < 0.9:
            payload = self._payloads.mutate(payload, INPUT_BYTES_MAX, chance)
        flags = (STREAMING if topic.streaming or chance.random() < 0.1 else 0) | (
            NORESPONSE if chance.random() < 0.1 else 0
        )
        message = Message(
            RESPONSE if is_answer else REQUEST, name.replace("*", "f2"), payload + b"\0" * self._json, flags,
            aux1=0 if is_answer else 0xFFFFFFFF, matchtag=chance.randrange(1 << 20),
        )  # fmt: skip
        parts = encode(message)
        if chance.random() < 0.05:
            parts = parts_of(self._parts.mutate(packed(parts), INPUT_BYTES_MAX, chance))
        if chance.random() < 0.02 and not self._json:
            item = [REQUEST, name, flags, 0xFFFFFFFF, 7, msgpack.ExtType(1, b"x") if chance.random() < 0.1 else example]
            parts = encode(Message(REQUEST, "bundle", packed([item] * chance.randrange(4)), NORESPONSE))
        return parts

    def batch(self, count: int, chance: Random) -> Iterator[list[bytes]]:
        """So many messages, none of which ends the instance."""
        while count:
            parts = self.parts(chance)
            if parts and not any(word in part for part in parts for word in ENDS_IT):
                count -= 1
                yield parts
