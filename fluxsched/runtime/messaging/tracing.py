"""Shows messages as they pass: `fluxsched start --trace` and the tour of `make run`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from logging import DEBUG
from typing import Any, TextIO

from fluxsched.errors import FluxschedError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import REQUEST, Message
from fluxsched.runtime.system.log import logger
from fluxsched.runtime.system.logs.format import message_fields, request_id

log = logger("messages")

Tracer = Callable[[str, Message], None]
"""Takes a direction, `<- PEER` or `-> PEER`, and a message."""

LINE_CHARS_MAX = 280
"""A line where no terminal says how wide it is; an R of a large machine would fill the file."""


def printer(out: TextIO, beginnings: tuple[str, ...] = ("",)) -> Tracer:
    """A tracer: one line a message whose topic has one of these beginnings: direction, peer, kind, topic, payload."""

    def trace(direction: str, message: Message) -> None:
        if message.topic.startswith(beginnings) and not is_sign_of_life(message):
            out.write(cut(describe(direction, message), width(out)) + "\n")
            out.flush()

    return trace


def with_log(trace: Tracer | None) -> Tracer | None:
    """`trace`, and where lines for debugging are wanted, one of the log for each message, with the request's id."""
    if not log.isEnabledFor(DEBUG):
        return trace

    def logged(direction: str, message: Message) -> None:
        if not is_sign_of_life(message):
            kind = "request" if message.type == REQUEST else "response"
            known = f" {request_id(message.matchtag)}" if message.matchtag else ""
            extra = message_fields(message.matchtag, message.topic, direction.split(" ", 1)[1])
            log.debug("%s %s%s: %s", direction, kind, known, message.topic, extra=extra)
        if trace is not None:
            trace(direction, message)

    return logged


def is_sign_of_life(message: Message) -> bool:
    """Whether the instance asks a module whether it is there, or is answered: that is every second, and no news."""
    return message.topic.endswith(".ping") and message.payload is None


def width(out: TextIO) -> int:
    """Columns that a line may take: the terminal's, as it is now, else LINE_CHARS_MAX."""
    if not out.isatty():
        return LINE_CHARS_MAX
    try:
        return os.get_terminal_size(out.fileno()).columns or LINE_CHARS_MAX
    except OSError:
        return LINE_CHARS_MAX


def cut(text: str, width: int) -> str:
    """A text of at most `width` characters; an ellipsis tells that there was more."""
    return text if len(text) <= width else text[: width - 1] + "…"


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
    """A payload as JSON."""
    if payload is None:
        return ""
    try:
        value: Any = codec.unpack(payload, dict)
    except FluxschedError:
        return f"{len(payload)} bytes"
    return json.dumps(value, separators=(",", ":"), default=repr, ensure_ascii=False)
