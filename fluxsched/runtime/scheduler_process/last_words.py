"""Why a scheduler's process ended: how it says so itself, and how the instance finds out when it could not.

Law: a line of the log is never taken for a reason. What did not come to say anything (a policy that calls `os._exit`, a
crash) is told by its exit status or its signal.
"""

from __future__ import annotations

import signal
from pathlib import Path

REASON = "ended: "
"""What the last line of a scheduler that could say why begins with."""

READ_BYTES = 4096
"""So much of the end of what it wrote is looked at."""


def said(reason: str) -> str:
    """The line that `why_ended` finds."""
    return f"{REASON}{' '.join(reason.split())}\n"


def why_ended(status: int, log: Path, begin: int, when: str = "") -> str:
    """What a process said in `log` since byte `begin`, else its signal, its traceback's last line or its exit status.

    `status` is negative for a signal, as `subprocess` has it; `when` follows what the process did not say itself.
    """
    if status < 0:
        return f"ended by signal {-status} ({signal.strsignal(-status)}){when}"
    try:
        text = log.read_bytes()[begin:][-READ_BYTES:]
    except OSError:
        text = b""
    lines = text.decode(errors="replace").strip().splitlines()
    if lines and lines[-1].startswith(REASON):
        return lines[-1].removeprefix(REASON)
    if status and any(line.startswith("Traceback ") for line in lines):
        return lines[-1]
    return f"exit status {status}{when}"
