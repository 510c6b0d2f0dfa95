"""Wait statuses, as wait(2) gives them, as numbers and as text."""

from __future__ import annotations

import signal


def return_code(status: int) -> int:
    """The exit code of a wait status, or minus the signal that ended it (as Python and Flux have it)."""
    signum = status & 0x7F
    return -signum if signum else status >> 8 & 0xFF


def ended_text(status: int) -> str:
    """`exited 3`, `killed by SIGSEGV`."""
    code = return_code(status)
    return f"exited {code}" if code >= 0 else f"killed by {signal_name(-code)}"


def exit_code(fault: SystemExit) -> int:
    """The status with which Python leaves for what `sys.exit` was given."""
    return fault.code if isinstance(fault.code, int) else 0 if fault.code is None else 1


def signal_name(signum: int) -> str:
    """`SIGSEGV`; `signal 40` for one without a name of its own."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
