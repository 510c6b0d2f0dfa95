"""Every error of fluxsched, in one tree.

Two kinds of fault are distinguished: what a peer or a person did wrong (`InvalidValue`, `RemoteProtocolError`,
`Refused`) is answered with its errno and text and the service continues; what we did wrong (`LocalProtocolError`,
`InvalidTransition`) is a bug and must surface. Texts name the value, the limit and the remedy.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence


class FluxschedError(Exception):
    """Root of the tree; `errnum` is what an RFC 3 error response carries, the text is its payload."""

    errnum: int = errno.EINVAL

    def __init__(self, message: str, errnum: int | None = None) -> None:
        super().__init__(message)
        if errnum is not None:
            self.errnum = errnum


class InvalidValue(FluxschedError, ValueError):
    """A text, object or option that is not what its specification says (EINVAL)."""


class LimitExceeded(InvalidValue):
    """A value within its grammar but above one of our named limits."""


class InvalidParts(InvalidValue):
    """A value of several parts, some of which are wrong: `faults` has the path of keys to each, and what is wrong."""

    def __init__(self, message: str, faults: Sequence[tuple[tuple[str, ...], str]]) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class Refused(FluxschedError):
    """A well-formed request that is not granted; carries its errno (EEXIST, EBUSY, EPERM, ENOENT, ...)."""


class RemoteProtocolError(FluxschedError):
    """The peer broke the protocol: answer EPROTO to that peer and continue."""

    errnum = errno.EPROTO


class LocalProtocolError(FluxschedError):
    """We tried to break the protocol: a bug of ours, never caught but by the last resort of the shell."""

    errnum = errno.EPROTO


class InvalidTransition(LocalProtocolError):
    """A state machine was given an event that its table does not list for its state."""


class RPCError(FluxschedError):
    """A call of a client that failed; `errnum` and text are those of the peer's error response.

    ETIMEDOUT: no answer in time. `Disconnected`: no answer, since the connection is lost.
    """


class Disconnected(RPCError):
    """Nothing listens at the endpoint, or it went away (ECONNREFUSED, ECONNRESET): what was under way may be done."""

    errnum = errno.ECONNRESET
