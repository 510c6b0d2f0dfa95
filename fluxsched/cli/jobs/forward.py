"""Forwards this command's input to the tasks of a job, piece by piece: the next when the last was answered."""

from __future__ import annotations

import errno
import os
import select
import sys
from typing import Any

from fluxsched.cli.common import show
from fluxsched.cli.common.base import warn
from fluxsched.cli.common.options import InstanceHandle

PIECE_BYTES = 64 * 1024
"""Input in one request: what a pipe holds."""
OWN = "-"
"""The usual name for standard input."""


def own_input(*, terminal: bool) -> int | None:
    """The descriptor of this command's input; None if it has none, or has a terminal and that does not count."""
    try:
        fd = sys.stdin.fileno()
    except (AttributeError, OSError):  # closed, or replaced by something that is no file
        return None
    return fd if terminal or not os.isatty(fd) else None


class Forwarder:
    """Reads a descriptor to its end for a job; give it to `InstanceHandle.stream` as `beside`."""

    def __init__(self, handle: InstanceHandle, jobid: int, source: int) -> None:
        self.fd: int | None = source
        self._handle = handle
        self._jobid = jobid
        self._source = source
        self._any = False
        self._unsure_bytes = 0
        """Of what was sent and is not answered."""

    def look(self) -> None:
        """Send what can be read now, or its end."""
        if not select.select([self._source], [], [], 0)[0]:
            return
        try:
            data = os.read(self._source, PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError as exc:
            self._say(f"cannot read the input, ending it for the job: {os.strerror(exc.errno or 0)}")
            data = b""
        self.fd = None  # until it is answered, or for ever
        self._any |= bool(data)
        self._unsure_bytes = len(data)
        request = {"id": self._jobid, **({"data": data} if data else {"eof": True})}
        self._handle.post("job-manager.input", request, lambda answer: self._answered(answer, data))

    def _answered(self, answer: Any, data: bytes) -> None:
        """Input for a job that has ended is dropped; other refusals are reported if there was any input."""
        error, self._unsure_bytes = answer.error, 0
        if error is None:
            self.fd = self._source if data else None
        elif self._any and error.errnum != errno.ESRCH:
            self._say(f"input is not forwarded: {error}")

    def say_what_is_unsure(self) -> None:
        """The instance went away: whether the last piece has reached the job is not known, and it is not sent twice."""
        if self._unsure_bytes:
            self._say(f"the last {self._unsure_bytes} bytes of input may be lost")

    def _say(self, text: str) -> None:
        warn(f"{show.jobid_text(self._jobid)}: {text}")
