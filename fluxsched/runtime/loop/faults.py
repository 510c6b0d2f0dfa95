"""Unexpected exceptions: how the requester is answered, and what is logged.

Law: a fault ends the call in which it occurred and no other; it is logged with its traceback and counted. A handler
decides before it changes anything, so that its state is consistent afterwards. Only where later calls depend on what
was not done (the hooks at the end of a turn) does a fault still end the instance.
"""

from __future__ import annotations

import errno

from fluxsched.errors import FluxschedError, LocalProtocolError
from fluxsched.runtime.system.log import logger

log = logger("instance")


class Faults:
    """Logs and counts unexpected exceptions."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, what: str, exc: Exception) -> None:
        """Log a fault with its traceback; `what` says during which call."""
        self.count += 1
        log.error("%s: a fault of fluxsched, please report it: %s", what, exc, exc_info=exc)


def is_expected(exc: Exception) -> bool:
    """Whether it is an answer to a request, not a bug."""
    return isinstance(exc, FluxschedError) and not isinstance(exc, LocalProtocolError)


def error_answer(topic: str, exc: Exception) -> tuple[int, str]:
    """Errno and text of the error response to a request whose handler raised `exc`.

    A value that was not checked is still the sender's fault (EINVAL); any other unexpected exception is ours (EIO).
    """
    if isinstance(exc, FluxschedError):
        return exc.errnum, str(exc)
    said = f"{type(exc).__name__}: {exc}"
    if isinstance(exc, ValueError | OverflowError):
        return errno.EINVAL, f"{topic}: some value in the request cannot be used ({said})"
    return errno.EIO, f"{topic}: a fault of fluxsched ended this call ({said}): the instance's log has the traceback"
