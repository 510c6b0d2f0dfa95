"""Messages as frames and back, written from rfc/wire.md alone: workload and checkers share no code with fluxsched."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgpack

REQUEST, RESPONSE = 1, 2
HAS_TOPIC, HAS_PAYLOAD, NORESPONSE, ROUTE, STREAMING = 0x01, 0x02, 0x04, 0x08, 0x40
HEADER = struct.Struct(">BBBBIIII")
ANY = 0xFFFFFFFF


class WireMessage(NamedTuple):
    """One message; `errnum` is the node of a request."""

    type: int
    topic: str
    flags: int
    errnum: int
    matchtag: int
    payload: Any


def request(topic: str, payload: Any, matchtag: int, *, streaming: bool = False) -> list[bytes]:
    """The frames of a request; without a matchtag it wants no response."""
    flags = HAS_TOPIC | ROUTE | (STREAMING if streaming else 0) | (0 if matchtag else NORESPONSE)
    parts = [b"", topic.encode()]
    if payload is not None:
        flags |= HAS_PAYLOAD
        parts.append(msgpack.packb(payload))
    parts.append(HEADER.pack(0x8E, 1, REQUEST, flags, ANY, 0, ANY, matchtag))
    return parts


def messages(frames: Sequence[bytes]) -> Iterator[WireMessage]:
    """What a message carries: itself, or all of its bundle."""
    _, _, kind, flags, _, _, errnum, matchtag = HEADER.unpack(frames[-1])
    body = list(frames[:-1])
    if flags & ROUTE:
        body = body[body.index(b"") + 1 :]
    topic = body[0].decode() if flags & HAS_TOPIC else ""
    data = body[1] if flags & HAS_PAYLOAD else None
    if topic == "bundle":
        for inner_kind, inner_topic, inner_flags, inner_errnum, inner_tag, payload in _unpacked(data):
            yield WireMessage(inner_kind, inner_topic, inner_flags, inner_errnum, inner_tag, payload)
        return
    payload = None
    if data is not None:
        payload = data.decode(errors="replace") if kind == RESPONSE and errnum else _unpacked(data)
    yield WireMessage(kind, topic, flags, errnum, matchtag, payload)


def _unpacked(data: bytes | None) -> Any:
    return None if data is None else msgpack.unpackb(data, strict_map_key=False)


def idset(text: str) -> frozenset[int]:
    """The ids in an idset (RFC 22)."""
    found: set[int] = set()
    for part in text.strip("[]").split(","):
        if part:
            low, _, high = part.partition("-")
            found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def cores_of(resources: dict[str, Any]) -> dict[int, frozenset[int]]:
    """The cores of each rank of an R (RFC 20)."""
    found: dict[int, frozenset[int]] = {}
    for entry in resources["execution"]["R_lite"]:
        cores = idset(str(entry["children"].get("core", "")))
        for rank in idset(str(entry["rank"])):
            found[rank] = found.get(rank, frozenset()) | cores
    return found


def parts_of(rlite: list[dict[str, Any]]) -> dict[int, set[tuple[str, int]]]:
    """The cores and GPUs of each rank of an R_lite, as (`core`, number) and (`gpu`, number)."""
    found: dict[int, set[tuple[str, int]]] = {}
    for entry in rlite:
        ids = {(kind, one) for kind, text in entry["children"].items() for one in idset(str(text))}
        for rank in idset(str(entry["rank"])):
            found.setdefault(rank, set()).update(ids)
    return found


def text_of(ids: frozenset[int] | set[int]) -> str:
    """The ids as an idset, each by itself."""
    return ",".join(map(str, sorted(ids)))
