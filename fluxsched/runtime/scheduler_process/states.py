"""What may happen when in a scheduler's conversation: the table of its session.

Law: a test walks every state with every event; the diagram in `rfc/allocation.md` is generated from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class SessionState(Enum):
    """Where a scheduler stands."""

    IDLE = "not started"
    ACQUIRING = "a group has not grown yet"
    HELLO = "running jobs are taken over"
    READYING = "they all are, and sched-ready is sent"
    READY = "requests are handled"
    DECIDING = "a pass is under way"
    LEAVING = "it was asked to leave, and saves what it remembers"
    ENDED = "an error ended it, or its adapter did"


_S = SessionState
_END = {"end": _S.ENDED, "leave": _S.ENDED}
SESSION: Mapping[SessionState, Mapping[str, SessionState]] = {
    _S.IDLE: {"start": _S.ACQUIRING, **_END},
    _S.ACQUIRING: {"acquired": _S.HELLO, **_END},
    _S.HELLO: {"job": _S.HELLO, "known": _S.READYING, **_END},
    _S.READYING: {"ready": _S.READY, **_END},
    _S.READY: {
        "change": _S.READY, "question": _S.READY, "request": _S.READY, "save": _S.READY, "saved": _S.READY,
        "decide": _S.DECIDING, "leave": _S.LEAVING, "end": _S.ENDED,
    },
    _S.DECIDING: {
        "question": _S.DECIDING, "decide": _S.DECIDING, "save": _S.DECIDING, "saved": _S.DECIDING,
        "decided": _S.READY, "leave": _S.LEAVING, "end": _S.ENDED,
    },
    _S.LEAVING: {"leave": _S.LEAVING, "saved": _S.ENDED, "end": _S.ENDED},
    _S.ENDED: _END,
}  # fmt: skip
"""What may happen in each state. Requests, questions and changes that it does not list are kept, or
forgotten where nothing more will be handled."""
