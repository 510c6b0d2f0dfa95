"""A process that does not outlive the one that started it, whatever ends that one and whatever it is busy with itself.

Law: the kernel sees to it. A look at the parent now and then, or the end of a pipe, would not reach foreign code that
loops.
"""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread of process `parent` that started it ends; at once if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)
