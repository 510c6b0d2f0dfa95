"""Child processes of an instance or a keeper: their end arrives as an event, through a pidfd on the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class ExitWatch:
    """Calls `ended` once when process `pid` (a child) has ended; it is left for the owner to reap."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._fd = os.pidfd_open(pid)
        self._ended = ended
        loop.add_reader(self._fd, self._ready)

    def _ready(self) -> None:
        self.close()
        self._ended()

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def ended_status(pid: int) -> int | None:
    """Return the wait status of a child that has ended, and leave it to be reaped; None while it runs.

    Raises ChildProcessError if there is no such child.
    """
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
