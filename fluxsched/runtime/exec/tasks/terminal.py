"""The pseudo-terminal that the only task of a job has as its input, output and controlling terminal.

Law: the task's end stays open here as long as the job runs, so that what was written last can still be read when all
processes have ended. Output goes to the job's own file like that of other jobs; what that does not take is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios

from fluxsched.core.jobfields import Pty
from fluxsched.errors import Refused

READ_BYTES = 64 * 1024
END_OF_INPUT = b"\x04\x04"
"""What a terminal has for it; the first one only completes a line that has begun."""


class Terminal:
    """Both ends of a pseudo-terminal, and the file that keeps what is printed on it."""

    __slots__ = ("_loop", "_main", "_output", "_tasks", "path")

    def __init__(self, size: Pty) -> None:
        """Raises Refused if the system has none left."""
        try:
            self._main, self._tasks = os.openpty()
        except OSError as exc:
            raise Refused(f"cannot open a pseudo-terminal: {os.strerror(exc.errno or 0)}", exc.errno) from exc
        os.set_blocking(self._main, False)
        self.path = os.ttyname(self._tasks).encode()
        self._output = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self.resize(*size)

    def keep_output(self, fd: int) -> None:
        """Copy what is printed to this file, of which an own descriptor is kept."""
        self._output = os.dup(fd)

    def opened(self) -> int:
        """The task runs: read what it prints. Returns a descriptor for its input, which is the caller's."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._main, self._copy)
        return os.dup(self._main)

    def resize(self, rows: int, columns: int) -> None:
        """Its window has another size, of which the kernel tells the task."""
        termios.tcsetwinsize(self._main, (rows, columns))

    def close(self) -> None:
        """Take what is left and give the terminal up; its processes are hung up. Idempotent."""
        if self._main < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._main)
        while self._output >= 0 and self._copy():
            pass
        for fd in (self._main, self._tasks, self._output):
            if fd >= 0:
                os.close(fd)
        self._main = self._tasks = self._output = -1

    def _copy(self) -> bool:
        """Copy a piece; False if there was none."""
        try:
            data = os.read(self._main, READ_BYTES)
        except OSError:  # nothing at present
            return False
        with contextlib.suppress(OSError):  # the disk is full
            os.write(self._output, data)
        return bool(data)
