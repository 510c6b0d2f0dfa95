"""Shows messages as they pass: `fluxsched start --trace` and the tour of `make run`."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from typing import Any, TextIO

from fluxsched.errors import FluxschedError
from fluxsched.protocol import codec
from fluxsched.protocol.header import REQUEST, Message

PAYLOAD_CHARS_MAX = 220
"""Payload text shown of one message; an R of a large machine would fill the screen."""


def printer(out: TextIO, beginnings: tuple[str, ...] = ("",)) -> Callable[[str, Message], None]:
    """A tracer: one line a message whose topic has one of these beginnings: direction, peer, kind, topic, payload."""

    def trace(direction: str, message: Message) -> None:
        if message.topic.startswith(beginnings):
            out.write(describe(direction, message) + "\n")
            out.flush()

    return trace


def describe(direction: str, message: Message) -> str:
    """One line for one message."""
    kind = "request " if message.type == REQUEST else "response"
    text = f"{direction:<16} {kind} {message.topic:<24} "
    if message.type != REQUEST and message.errnum == errno.ENODATA:
        return text + "(end of stream)"
    if message.type != REQUEST and message.errnum:
        return text + f"error {message.errnum}: {(message.payload or b'').decode(errors='replace')}".rstrip()
    return text + payload_text(message.payload)


def payload_text(payload: bytes | None) -> str:
    """A payload as JSON, cut to a readable length."""
    if payload is None:
        return ""
    try:
        value: Any = codec.unpack(payload, dict)
    except FluxschedError:
        return f"{len(payload)} bytes"
    text = json.dumps(value, separators=(",", ":"), default=repr, ensure_ascii=False)
    return text if len(text) <= PAYLOAD_CHARS_MAX else text[: PAYLOAD_CHARS_MAX - 1] + "…"
