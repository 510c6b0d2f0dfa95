"""Wait statuses, as wait(2) gives them, in numbers and words of people."""

from __future__ import annotations

import signal


def return_code(status: int) -> int:
    """The exit code of a wait status, or minus the signal that ended it (as Python and Flux have it)."""
    signum = status & 0x7F
    return -signum if signum else status >> 8 & 0xFF


def ended_text(status: int) -> str:
    """`exited 3`, `killed by SIGSEGV`."""
    code = return_code(status)
    if code >= 0:
        return f"exited {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
