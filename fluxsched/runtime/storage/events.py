"""Stretches of jobs' logs as bytes: small, and cheap to make.

Law: what is read is equal to what was written. Events are one flat list of msgpack, three values an event: its time
(nil: that of the event before it), its name (a number for those of NAMES) and its context. Rows of schema 1 have JSON,
which begins with a bracket, and are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fluxsched.jobs.effects import Event

NAMES: Final = (
    "submit", "validate", "depend", "priority", "alloc", "start", "finish", "release", "free", "clean", "exception",
    "flux-restart", "memo", "urgency", "jobspec-update", "resource-update", "dependency-add", "dependency-remove",
)  # fmt: skip
"""Names that are kept as their index here: to be extended at the end only, since files have the numbers."""
_CODES: Final = {name: code for code, name in enumerate(NAMES)}
_VALUES_AN_EVENT: Final = 3

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode

def pack_events(events: Sequence[Event]) -> bytearray:
    """One stretch of a log. A bytearray: the interpreter hands that to SQLite without a detour."""
    flat: list[Any] = []
    add, before = flat.append, None
    for event in events:
        size, time_s, name, context = len(event), event.get("timestamp"), event.get("name"), event.get("context")
        if time_s is None or type(name) is not str or size != (2 if context is None else 3):
            time_s, name, context = None, event, None  # unlike any of RFC 18: kept as it is
            add(None)
        else:
            add(None if time_s == before else time_s)
        add(_CODES.get(name, name) if type(name) is str else name)
        add(context)
        before = time_s
    return bytearray(_pack(flat))


def unpack_events(data: bytes) -> list[Event]:
    """The same events; also of a row of schema 1. Raises ValueError (msgspec's among them) for what is neither."""
    if data[:1] == b"[":
        found: list[Event] = msgspec.json.decode(data)
        return found
    flat, events, before = _unpack(data), list[Event](), None
    for at in range(0, len(flat), _VALUES_AN_EVENT):
        time_s, name, context = flat[at : at + _VALUES_AN_EVENT]
        if type(name) is dict:
            events.append(name)
            before = None
            continue
        before = before if time_s is None else time_s
        event: Event = {"timestamp": before, "name": name if type(name) is str else NAMES[name]}
        if context is not None:
            event["context"] = context
        events.append(event)
    return events
