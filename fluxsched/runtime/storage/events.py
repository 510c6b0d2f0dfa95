"""Stretches of jobs' logs as bytes: small, and cheap to make.

Law: what is read is equal to what was written. Events are one flat list of msgpack, three values an event: its time
(nil: that of the event before it), its name as a number and its context. An event that is unlike those of RFC 21 stands
there as a whole, in place of its name.
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
_KEYS_MIN: Final = 2
"""An event has a time, a name and mostly a context."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode

def pack_events(events: Sequence[Event]) -> bytearray:
    """One stretch of a log. A bytearray: the interpreter hands that to SQLite without a detour."""
    flat: list[Any] = []
    before = None
    for event in events:
        try:
            time_s, code, size = event["timestamp"], _CODES[event["name"]], len(event)
            context = None if size == _KEYS_MIN else event["context"]
            is_usual = time_s is not None and size == (_KEYS_MIN if context is None else _KEYS_MIN + 1)
        except (KeyError, TypeError):
            is_usual = False
        if is_usual:
            flat += (None if time_s == before else time_s, code, context)
            before = time_s
        else:
            flat += (None, event, None)
            before = None
    return bytearray(_pack(flat))


def unpack_events(data: bytes) -> list[Event]:
    """The same events. Raises ValueError (msgspec's among them) or LookupError for what is none."""
    flat, events, before = _unpack(data), list[Event](), None
    for at in range(0, len(flat), _VALUES_AN_EVENT):
        time_s, name, context = flat[at : at + _VALUES_AN_EVENT]
        if type(name) is dict:
            events.append(name)
            before = None
            continue
        if type(name) is not int or name < 0:  # a negative one would be that of an event from the end
            raise ValueError(f"{name!r} is not the number of an event")
        before = before if time_s is None else time_s
        event: Event = {"timestamp": before, "name": NAMES[name]}
        if context is not None:
            event["context"] = context
        events.append(event)
    return events
