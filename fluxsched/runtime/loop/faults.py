"""What nobody foresaw: what is said of it to whoever asked, and what of it is kept.

Law: a fault ends the call in which it showed, and no other; it is logged with its story and counted. A handler decides
before it changes anything, so that what it leaves behind is whole. Only where later calls build on what was not done
(the hooks at the end of a turn) does a fault still end the instance.
"""

from __future__ import annotations

import errno

from fluxsched.errors import FluxschedError, LocalProtocolError
from fluxsched.runtime.system.log import logger

log = logger("instance")


class Faults:
    """Notes what was raised and should not have been."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, what: str, exc: Exception) -> None:
        """Log a fault with its story; `what` was going on."""
        self.count += 1
        log.error("%s: a fault of fluxsched, please report it: %s", what, exc, exc_info=exc)


def is_expected(exc: Exception) -> bool:
    """Whether it is an answer to somebody, not a bug."""
    return isinstance(exc, FluxschedError) and not isinstance(exc, LocalProtocolError)


def error_answer(topic: str, exc: Exception) -> tuple[int, str]:
    """Errno and text of the error response to a request whose handler raised `exc`.

    A value that nobody checked is the sender's all the same (EINVAL); whatever else nobody foresaw is ours (EIO).
    """
    if isinstance(exc, FluxschedError):
        return exc.errnum, str(exc)
    said = f"{type(exc).__name__}: {exc}"
    if isinstance(exc, ValueError | OverflowError):
        return errno.EINVAL, f"{topic}: some value in the request cannot be used ({said})"
    return errno.EIO, f"{topic}: a fault of fluxsched ended this call ({said}): the instance's log has its story"
