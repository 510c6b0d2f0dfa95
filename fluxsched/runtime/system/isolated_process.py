"""Foreign code in a process of its own: it may exit, crash or loop without affecting its caller.

The process writes lines to a pipe; its other output goes to stderr, or nowhere. Law: the wait for each line is bounded,
and how a process ended that did not finish is reported in words: its status, its signal, or that it did not come back.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from math import inf

from fluxsched.core.waitstatus import signal_name

LINE_BYTES_MAX = 1 << 20
"""Expected lines have some hundred bytes; anything longer comes from foreign code."""

LEAVING_S = 2.0
"""How long a process may take to be gone once it has closed its end of the pipe (seconds)."""


class IsolatedProcess:
    """One such process: `python -m MODULE WORDS FD`, which writes its lines to descriptor FD."""

    def __init__(self, module: str, words: Sequence[str], *, quiet: bool = False) -> None:
        self._fd, theirs = os.pipe()
        self._read = b""
        out = subprocess.DEVNULL if quiet else 2
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *words, str(theirs)], stdin=subprocess.DEVNULL, stdout=out,
                stderr=out, pass_fds=(theirs,),
            )  # fmt: skip
        except OSError:
            os.close(self._fd)
            raise
        finally:
            os.close(theirs)

    def line(self, limit_s: float) -> str | None:
        """The next line; None when no more come, or none within `limit_s` seconds: `ending` says which."""
        timeout_s = None if limit_s == inf else limit_s
        while b"\n" not in self._read:
            if len(self._read) > LINE_BYTES_MAX or not select.select([self._fd], [], [], timeout_s)[0]:
                return None
            data = os.read(self._fd, 1 << 16)
            if not data:
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    def ending(self, limit_s: float) -> str:
        """`ended the process with status 3`, `died by SIGSEGV`, or `did not come back within 10 s`."""
        if not select.select([self._fd], [], [], 0.0)[0] and self._process.poll() is None:
            return f"did not come back within {limit_s:g} s"
        try:
            status = self._process.wait(LEAVING_S)
        except subprocess.TimeoutExpired:
            return "closed its connection to us"
        return f"died by {signal_name(-status)}" if status < 0 else f"ended the process with status {status}"

    def close(self) -> None:
        """End it, if it is not over."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)
