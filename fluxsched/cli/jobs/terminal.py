"""This command's terminal as that of a job's task: every key is passed on as it is, and the size of the window.

Law: the terminal is left as it was found, however this ends.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fluxsched.cli.common.options import InstanceHandle
from fluxsched.cli.jobs.forward import Forwarder


def window_of(fd: int) -> tuple[int, int] | None:
    """Rows and columns of a terminal; None if it does not know them, or is none."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return None
    return (rows, columns) if rows and columns else None


class TerminalForwarder:
    """Reads a terminal for a job within `raw`; give it to `InstanceHandle.stream` as `beside`."""

    def __init__(self, handle: InstanceHandle, jobid: int, source: int) -> None:
        self._handle = handle
        self._jobid = jobid
        self._source = source
        self._keys = Forwarder(handle, jobid, source)
        self._both = select.epoll()
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        self._both.register(self._woken, select.EPOLLIN)
        self._is_read = False

    @property
    def fd(self) -> int | None:
        """A descriptor for both: what is typed, if it is to be read now, and changes of the window."""
        if self._is_read != (self._keys.fd is not None):
            self._is_read = not self._is_read
            change = self._both.register if self._is_read else self._both.unregister
            change(self._source)
        return self._both.fileno()

    def look(self) -> None:
        """Send what has been typed, and the size of a window that has changed."""
        if select.select([self._woken], [], [], 0)[0]:
            os.read(self._woken, 4096)
            window = window_of(self._source)
            if window is not None:
                request = {"id": self._jobid, "window": list(window)}
                self._handle.post("job-manager.input", request, _answered)
        if self._keys.fd is not None:
            self._keys.look()

    @contextmanager
    def raw(self) -> Iterator[None]:
        """Have the terminal pass on every key, and print what comes as it is."""
        import termios
        import tty

        def changed(signum: int, frame: object) -> None:
            os.write(self._wake, b"w")

        before = termios.tcgetattr(self._source)
        usual = signal.signal(signal.SIGWINCH, changed)
        try:
            tty.setraw(self._source, termios.TCSADRAIN)
            changed(0, None)  # it may have changed before
            yield
        finally:
            signal.signal(signal.SIGWINCH, usual)
            termios.tcsetattr(self._source, termios.TCSADRAIN, before)

    def close(self) -> None:
        """Give up its descriptors."""
        self._both.close()
        os.close(self._woken)
        os.close(self._wake)


def _answered(answer: Any) -> None:
    """A job that has ended needs no window."""
