"""Why a scheduler process ended: the line in which it says so itself, and what the instance finds without one.

Law: an ordinary line of the log is never mistaken for a reason. A process that ends without writing one (a policy that
calls `os._exit`, a crash) is described by its exit status or its signal.
"""

from __future__ import annotations

import signal
from pathlib import Path

REASON = "ended: "
"""Prefix of the last line that a scheduler process writes if it can give a reason."""

READ_BYTES = 4096
"""How much of the end of its output is read."""


def reason_line(reason: str) -> str:
    """The line that `why_ended` finds."""
    return f"{REASON}{' '.join(reason.split())}\n"


def why_ended(status: int, log: Path, begin: int, when: str = "") -> str:
    """The reason a process wrote to `log` after byte `begin`, else its signal, its traceback's last line or status.

    `status` is negative for a signal, as in `subprocess`; `when` is appended to what the process did not say itself.
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
