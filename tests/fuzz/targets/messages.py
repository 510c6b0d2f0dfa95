"""Payloads of every message class in both encodings, and what reads them further: an input is a topic and a payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fluxsched.core.jobspec import unwrap, wrap
from fluxsched.errors import RemoteProtocolError
from fluxsched.messaging.router import describe
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message, encode, make_error, make_request
from fluxsched.protocol.sessions import AcquireClient
from fluxsched.protocol.topics import LOCAL_TOPICS, TOPICS
from tests.fuzz.target import Shape, Target, packed, parts_of
from tests.fuzz.targets.objects import page_examples

ALL = {**TOPICS, **{f"{name} ": topic for name, topic in LOCAL_TOPICS.items()}}
"""Topics by name; those of the local socket have a space behind their names, since some are in both."""


def _kinds(topic: str) -> list[Any]:
    found = ALL.get(topic)
    if found is None:
        return []
    return [kind for kind in (found.request, found.response, *found.plain) if kind is not None]


def _payload(data: bytes) -> None:
    topic, payload = [*parts_of(data), b"", b""][:2]
    for kind in _kinds(topic.decode("utf-8", "replace")):
        try:
            value = framing.unpack(payload, kind)
        except RemoteProtocolError:
            continue
        again = framing.unpack(framing.pack(value), kind)
        assert framing.pack(again) == framing.pack(value)
    describe("->", make_request("a.b", payload, matchtag=1))
    framing.is_well_formed(payload)
    for read in (framing.to_local, framing.unpack_answer):
        read(payload)


def _json(data: bytes) -> None:
    topic, payload = [*parts_of(data), b"", b""][:2]
    for kind in _kinds(topic.decode("utf-8", "replace")):
        try:
            framing.from_json(payload, kind)
        except RemoteProtocolError:
            continue
    there = framing.from_local(payload)
    back = framing.to_local(there)
    assert framing.from_local(back) == there
    encode(make_error(Message(1, "a.b", payload), 1, payload.decode("utf-8", "replace")))


def _signed(data: bytes) -> None:
    """J is a string of a message: UTF-8."""
    found = unwrap(data.decode("utf-8", "replace"))
    if found.userid is not None:
        assert unwrap(wrap(found.jobspec, found.userid)) == found


def _acquire(data: bytes) -> None:
    """What an instance sends to an acquirer, one payload a part."""
    payloads = parts_of(data)
    client = AcquireClient("default" if payloads and payloads[0] else None)
    client.request()
    for payload in payloads[1:]:
        client.receive(payload)


def _seeds(encode_payload: Any) -> Iterator[bytes]:
    for topics, value in page_examples():
        for topic in topics:
            yield packed([topic.encode(), encode_payload(value)])
            yield packed([f"{topic} ".encode(), encode_payload(value)])


def _acquire_seeds() -> Iterator[bytes]:
    payloads = [
        framing.pack(value) for topics, value in page_examples() if "resource.acquire" in topics and "type" in value
    ]
    yield packed([b"x", *payloads])
    yield packed([b"x", *payloads[:1]])
    plain = [
        framing.pack(value) for topics, value in page_examples() if "resource.acquire" in topics and "type" not in value
    ]
    yield packed([b"", *plain])


TARGETS = (
    Target("payload", _payload, lambda: _seeds(framing.pack), Shape.MSGPACK, words=tuple(ALL)),
    Target(
        "json-payload",
        _json,
        lambda: _seeds(lambda value: msgspec.json.encode(value) + b"\0"),
        Shape.MSGPACK,
        words=tuple(ALL),
    ),
    Target("signed", _signed, lambda: [wrap(b'{"version":1}', 1000).encode(), b'{"a": 1}'], words=(".", "none", "=")),
    Target(
        "acquire",
        _acquire,
        _acquire_seeds,
        Shape.MSGPACK,
        words=("grow", "shrink", "online", "offline", "update", "default"),
    ),
)
