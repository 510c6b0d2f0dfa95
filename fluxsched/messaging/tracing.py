"""Messages as text, as they pass: for `fluxsched start --trace`, the tour of `make run` and `instance.trace`.

Law: a trace is looked at, printed and pasted elsewhere, so what users keep in environments, and what their tasks read
and write, is left out.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from logging import DEBUG
from typing import Any, Literal, TextIO

from fluxsched.errors import FluxschedError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import REQUEST, Message
from fluxsched.system.log import logger, message_fields, request_id

log = logger("messages")

Tracer = Callable[[str, Message], None]
"""Takes a direction, `<- PEER` or `-> PEER`, and a message."""

LINE_CHARS_MAX = 280
"""A line where no terminal says how wide it is; an R of a large machine would fill the file."""
HIDDEN = "(hidden)"
"""Replacement for an environment."""
_TASK_DATA = ("job-manager.input", "job-manager.output", "job-info.lookup", "job-info.eventlog-watch", "shell-")
"""Topics of what tasks read and write, and of records as text, in which nothing can be hidden: their size is shown."""


def printer(out: TextIO, beginnings: tuple[str, ...] = ("",)) -> Tracer:
    """Return a tracer that prints one line a message whose topic has one of these prefixes: direction, peer, kind,
    topic, payload.
    """

    def trace(direction: str, message: Message) -> None:
        if message.topic.startswith(beginnings) and not is_sign_of_life(message):
            out.write(cut(describe(direction, message), width(out)) + "\n")
            out.flush()

    return trace


def with_log(trace: Tracer | None) -> Tracer | None:
    """Return `trace`, and if lines for debugging are wanted, one that logs each message with the request's id."""
    if not log.isEnabledFor(DEBUG):
        return trace

    def logged(direction: str, message: Message) -> None:
        if not is_sign_of_life(message):
            kind = kind_of(message)
            known = f" {request_id(message.matchtag)}" if message.matchtag else ""
            extra = message_fields(message.matchtag, message.topic, direction.split(" ", 1)[1])
            log.debug("%s %s%s: %s", direction, kind, known, message.topic, extra=extra)
        if trace is not None:
            trace(direction, message)

    return logged


def is_sign_of_life(message: Message) -> bool:
    """Return whether the message is an instance's ping of a module, or its response: that is every second, and no news.
    """
    return message.topic.endswith(".ping") and message.payload is None


def width(out: TextIO) -> int:
    """Return the number of columns that a line may take: the terminal's, as it is now, else LINE_CHARS_MAX."""
    if not out.isatty():
        return LINE_CHARS_MAX
    try:
        return os.get_terminal_size(out.fileno()).columns or LINE_CHARS_MAX
    except OSError:
        return LINE_CHARS_MAX


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` characters; an ellipsis marks omitted text."""
    return text if len(text) <= width else text[: width - 1] + "…"


def describe(direction: str, message: Message) -> str:
    """Return one line for one message."""
    return f"{direction:<16} {kind_of(message):<8} {message.topic:<24} {content(message)}".rstrip(" ")


def kind_of(message: Message) -> Literal["request", "response"]:
    """Return the kind of a message, except of control messages, which are as rare as they are small."""
    return "request" if message.type == REQUEST else "response"


def content(message: Message) -> str:
    """Return the content of a message as text."""
    if message.type != REQUEST and message.errnum == errno.ENODATA:
        return "(end of stream)"
    if message.type != REQUEST and message.errnum:
        return f"error {message.errnum}: {(message.payload or b'').decode(errors='replace')}".rstrip()
    if message.payload is not None and message.topic.startswith(_TASK_DATA):
        return f"{len(message.payload)} bytes"
    return payload_text(message.payload)


def payload_text(payload: bytes | None) -> str:
    """Return a payload as JSON, without the environments in it."""
    if payload is None:
        return ""
    try:
        value: Any = framing.unpack(framing.from_local(payload) if payload.startswith(b"{") else payload, dict)
    except FluxschedError:
        return f"{len(payload)} bytes"
    return json.dumps(_without_environments(value), separators=(",", ":"), default=repr, ensure_ascii=False)


def _without_environments(value: Any) -> Any:
    """Return a value in which environments, and jobspecs that are texts, are replaced."""
    if isinstance(value, dict):
        return {key: HIDDEN if _is_secret(key, one) else _without_environments(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_environments(one) for one in value]
    return value


def _is_secret(key: object, value: object) -> bool:
    name = str(key)
    return "environment" in name or (name in ("J", "jobspec") and isinstance(value, str))
