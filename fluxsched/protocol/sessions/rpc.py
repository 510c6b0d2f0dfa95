"""Calls of one client: which response belongs to which request (RFC 6), without I/O.

Law: a matchtag belongs to one call until its last response has come, even if its caller has given up.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fluxsched.errors import LimitExceeded, RemoteProtocolError, RPCError
from fluxsched.protocol.framing.codec import pack
from fluxsched.protocol.framing.header import (
    ERROR_CHARS_MAX,
    NODEID_ANY,
    NORESPONSE,
    RESPONSE,
    STREAMING,
    Message,
    make_request,
)
from fluxsched.protocol.messages.common import CancelRequest

IN_FLIGHT_MAX = 100_000
"""Calls of one client that wait at once: 20,000 submits and as many waits fit five times over."""

MATCHTAG_MAX = 0xFFFFFFFF


class Answer(NamedTuple):
    """One response: its call, its payload or error, and whether it was the last. A stream ends with ENODATA."""

    token: Any
    payload: bytes | None
    error: RPCError | None
    done: bool


@dataclass(slots=True)
class _Call:
    topic: str
    token: Any
    streaming: bool
    payload: bytes | None
    """Of a stream, to open it again."""
    cancelled: bool = False


class Calls:
    """Makes requests and finds the token of each response; tokens are the caller's own (futures, callbacks, ids).

    Matchtags follow on `last_tag`; clients begin anywhere, so that logs tell their requests apart.
    """

    def __init__(self, in_flight_max: int = IN_FLIGHT_MAX, last_tag: int = 0) -> None:
        self._in_flight_max = in_flight_max
        self._calls: dict[int, _Call] = {}
        self._last = last_tag

    def __len__(self) -> int:
        return len(self._calls)

    def start(
        self,
        topic: str,
        payload: bytes | None = None,
        streaming: bool = False,
        token: Any = None,
        *,
        nodeid: int = NODEID_ANY,
    ) -> Message:
        """The request of a new call. Raises LimitExceeded at `in_flight_max` calls."""
        if len(self._calls) >= self._in_flight_max:
            raise LimitExceeded(
                f"{topic}: {len(self._calls)} calls wait for responses, limit {self._in_flight_max}: "
                "receive some before starting more"
            )
        matchtag = self._tag()
        self._calls[matchtag] = _Call(topic, token, streaming, payload if streaming else None)
        return make_request(topic, payload, matchtag=matchtag, flags=STREAMING if streaming else 0, nodeid=nodeid)

    def receive(self, message: Message) -> Answer:
        """Return the response with its call. Raise RemoteProtocolError for a stray response."""
        call = self._calls.get(message.matchtag)
        if message.type != RESPONSE or call is None or call.topic != message.topic:
            raise RemoteProtocolError(
                f"message type {message.type}, topic {message.topic}, matchtag {message.matchtag}: it matches no call"
            )
        errnum = message.aux1
        # peers differ in the flag of a stream's last response: only an error ends a stream (RFC 6)
        done = errnum != 0 or not call.streaming
        if done:
            del self._calls[message.matchtag]
        if errnum:
            return Answer(call.token, None, _failure(message), done)
        return Answer(call.token, message.payload, None, done)

    def cancel(self, matchtag: int, topic: str) -> Message:
        """The request that ends the stream `matchtag` of `topic`; its last response (ENODATA) is still to come."""
        call = self._calls.get(matchtag)
        if call is not None:
            call.cancelled = True
        return tell(f"{topic}-cancel", pack(CancelRequest(matchtag)))

    def open(self) -> Iterator[tuple[str, Any]]:
        """Topic and token of every call that waits, the oldest first."""
        return ((call.topic, call.token) for call in self._calls.values())

    def lose(self, error: RPCError) -> list[Answer]:
        """End all calls but streams: the connection is lost, and no response will come; the answers to hand out.

        A stream that was cancelled has ended. The others stay open, see `again`.
        """
        ended = {tag: call for tag, call in self._calls.items() if call.cancelled or not call.streaming}
        for tag in ended:
            del self._calls[tag]
        over = RPCError("the stream has ended", errno.ENODATA)
        return [Answer(call.token, None, over if call.cancelled else error, True) for call in ended.values()]

    def again(self) -> list[Message]:
        """The requests of all open streams, for a new connection: their responses go to the same tokens."""
        return [
            make_request(call.topic, call.payload, matchtag=tag, flags=STREAMING)
            for tag, call in self._calls.items()
            if call.streaming
        ]

    def abandon(self) -> list[Any]:
        """The tokens of all calls that wait: the connection is lost, and no response will come."""
        calls, self._calls = self._calls, {}
        return [call.token for call in calls.values()]

    def _tag(self) -> int:
        tag = self._last
        while True:
            tag = tag + 1 if tag < MATCHTAG_MAX else 1  # 0 means: no matchtag
            if tag not in self._calls:
                self._last = tag
                return tag


def tell(topic: str, payload: bytes | None, *, nodeid: int = NODEID_ANY) -> Message:
    """A request that wants no response."""
    return make_request(topic, payload, flags=NORESPONSE, nodeid=nodeid)


def _failure(message: Message) -> RPCError:
    text = (message.payload or b"").removesuffix(b"\0").decode(errors="replace")[:ERROR_CHARS_MAX]
    return RPCError(text or f"{message.topic}: error {message.errnum}", message.errnum)
