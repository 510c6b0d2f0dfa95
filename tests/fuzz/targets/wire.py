"""What arrives as bytes: headers, bundles, the frames of the local socket, PMI of tasks."""

from __future__ import annotations

from collections.abc import Iterator

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol.framing import (
    RESPONSE,
    Message,
    decode,
    encode,
    make_request,
    pack,
    pack_bundles,
    relayed,
    unpack_bundle,
)
from fluxsched.protocol.pmi import Failed, Hangup, PmiReply, PmiServer
from fluxsched.transport.local import Malformed, Unpacker, pack_frame
from tests.fuzz.target import Shape, Target, packed, parts_of

PART_BYTES_MAX = 4096
PIECES = (1, 3, 7, 64, 100_000)


def _header(data: bytes) -> None:
    message = decode(parts_of(data))
    again = decode(encode(message))
    assert again == message, (again, message)


def _bundle(data: bytes) -> None:
    message = decode(parts_of(data))
    found = unpack_bundle(message)
    sent = [one for frames in pack_bundles(map(relayed, found)) for one in unpack_bundle(decode(frames))]
    assert [(one.type, one.topic, one.aux1, one.matchtag) for one in sent] == [
        (one.type, one.topic, one.aux1, one.matchtag) for one in found
    ]


def _frames(data: bytes) -> None:
    """However a stream is cut, it has the same messages."""
    found = [_unpacked(data, size) for size in PIECES]
    assert all(one == found[0] for one in found)
    for parts in found[0][0]:
        if parts:
            assert _unpacked(pack_frame(parts), 100_000) == ([parts], False)


def _unpacked(data: bytes, size: int) -> tuple[list[list[bytes]], bool]:
    unpacker, messages = Unpacker(PART_BYTES_MAX), list[list[bytes]]()
    try:
        for at in range(0, len(data), size):
            unpacker.feed(data[at : at + size], messages)
    except Malformed:
        return messages, True
    return messages, False


def _pmi(data: bytes) -> None:
    """Each line comes from the task that its first byte names; an end of a task is a line of its own."""
    server = PmiServer("kvs", [2, 1])
    for line in data.split(b"\n"):
        rank = line[0] % 3 if line else 0
        effects = server.ended(rank) if line[1:] == b"end" else server.receive(rank, line[1:] + b"\n")
        for effect in effects:
            assert isinstance(effect, PmiReply | Hangup | Failed)
            assert not isinstance(effect, PmiReply) or (effect.line.endswith(b"\n") and effect.line.count(b"\n") == 1)


def _messages() -> Iterator[Message]:
    yield make_request("resource.status", matchtag=7)
    yield make_request("resource.drain", pack({"targets": "0"}), matchtag=3, flags=0x40)
    yield Message(RESPONSE, "a.b", b"no such thing", aux1=2, matchtag=9)
    yield Message(RESPONSE, "sched.alloc", pack({"id": 1, "type": 0}), aux1=0)


def _message_seeds() -> Iterator[bytes]:
    for message in _messages():
        yield packed(encode(message))
    yield packed([b"route", b"other", *encode(make_request("a.b"))])
    yield packed([*encode(Message(8, "", None))])


def _bundle_seeds() -> Iterator[bytes]:
    yield from _message_seeds()
    for frames in pack_bundles(list(_messages()) * 2):
        yield packed(frames)


TARGETS = (
    Target("header", _header, _message_seeds, Shape.MSGPACK, words=("a.b", "bundle")),
    Target("bundle", _bundle, _bundle_seeds, Shape.MSGPACK, words=("a.b", "bundle")),
    Target(
        "frames",
        _frames,
        lambda: [pack_frame(encode(message)) for message in _messages()] + [pack_frame([b"x" * 300, b""]) * 3],
    ),
    Target(
        "pmi",
        _pmi,
        lambda: [
            b"0cmd=init pmi_version=1 pmi_subversion=1\n1cmd=get_maxes\n"
            b"0cmd=put kvsname=kvs key=a value=b c\n2cmd=get kvsname=kvs key=a",
            b"0cmd=barrier_in\n1cmd=barrier_in\n2cmd=barrier_in\n0cmd=finalize\n0end",
            b"0mcmd=spawn\n0nprocs=1\n0endcmd\n1cmd=abort exitcode=3 error_msg=x y\n2end",
        ],
        words=("cmd=", "kvsname=kvs", "key=", "value=", "\n0", "\n1end", "PMI_process_mapping", "get_appnum", "endcmd"),
        errors=(RemoteProtocolError,),
    ),
)
