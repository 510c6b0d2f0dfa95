"""Interface of a Flux handle for the bridge, kept small, so that a recording can take Flux's place.

Law: every call returns at once; answers come through the callback and requests through `Bridge.receive`, both from the
reactor and never from within the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

LOG_CRIT, LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG = range(2, 8)
"""The levels of syslog (RFC 5424), as Flux's log takes them."""

LEVELS: Mapping[str, int] = {
    "emerg": 0, "alert": 1, "crit": LOG_CRIT, "err": LOG_ERR, "warning": LOG_WARNING, "notice": LOG_NOTICE,
    "info": LOG_INFO, "debug": LOG_DEBUG,
}  # fmt: skip
"""Their names, as module options give them."""


class BrokerReply(NamedTuple):
    """One answer to a call: `errnum` is 0 for a success, else `text` says what was wrong (RFC 3)."""

    payload: bytes | None = None
    errnum: int = 0
    text: str = ""


class BrokerRequest(NamedTuple):
    """A request from Flux; `token` is the handle's own, for the answer."""

    topic: str
    payload: bytes | None
    token: object


OnReply = Callable[[BrokerReply], None]


class BrokerHandle(Protocol):
    """A module's side of the broker. Payloads are JSON."""

    @property
    def name(self) -> str:
        """The name under which the module was loaded."""
        ...

    @property
    def ascii(self) -> bool:
        """Return whether Flux's tools write job ids with an ASCII f here, for a locale without ƒ (RFC 19)."""
        ...

    def rpc(self, topic: str, payload: bytes | None, done: OnReply, *, streaming: bool = False) -> None:
        """Send a request; `done` gets each answer, for a stream until one has an errnum."""
        ...

    def respond(self, request: BrokerRequest, payload: bytes | None) -> None:
        """Answer a request with success; an alloc request takes several (RFC 27)."""
        ...

    def fail(self, request: BrokerRequest, errnum: int, text: str) -> None:
        """Answer a request with an error."""
        ...

    def commit(self, values: Mapping[str, bytes], done: OnReply) -> None:
        """Put keys with their JSON values into the KVS in one transaction (RFC 16)."""
        ...

    def lookup(self, key: str, done: OnReply) -> None:
        """Read one key of the KVS."""
        ...

    def after(self, delay_s: float) -> None:
        """Have `Bridge.turn` called once after this delay, in place of any call that is still due."""
        ...

    def log(self, level: int, text: str) -> None:
        """Write a line to Flux's log, at one of the levels above."""
        ...

    def debug(self, bit: int) -> bool:
        """Return whether a debug bit is set (`flux module debug --setbit`)."""
        ...

    def stop(self) -> None:
        """Leave the reactor without an error, which would take the broker down."""
        ...
