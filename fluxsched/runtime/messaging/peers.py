"""A peer of the instance, and a request of it that is answered exactly once.

Law: what a peer has in flight is counted, and a response to a peer that is gone is dropped; it never reaches another
peer that has taken over its identity.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from fluxsched.errors import RemoteProtocolError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.header import (
    NORESPONSE,
    ROLE_ADMIN,
    ROLE_OWNER,
    STREAMING,
    Message,
    make_error,
    make_response,
)
from fluxsched.runtime.loop.faults import error_answer
from fluxsched.runtime.messaging.limits import PeerLimits, check_streams
from fluxsched.runtime.system.logs.format import message_fields
from fluxsched.runtime.system.private_files import user_name
from fluxsched.transport.base import Lost, Server

T = TypeVar("T")

USER_NAMES_KEPT = 64
"""Users whose names are kept: the system reads files for each, and few people drain."""


class Peer:
    """One connection: its user, its outbox and what it has open."""

    __slots__ = (
        "bundles",
        "dropped",
        "gone",
        "identity",
        "in_flight",
        "inbox",
        "json",
        "key",
        "key_name",
        "limits",
        "name",
        "on_lost",
        "outbox",
        "rolemask",
        "server",
        "services",
        "streams",
        "userid",
    )

    def __init__(
        self, server: Server, identity: bytes, userid: int, rolemask: int, refusal: str | None = None
    ) -> None:
        self.server = server
        self.json = server.json
        self.identity = identity
        self.userid = userid
        self.rolemask = rolemask
        self.key: bytes | None = None
        """The public key that the peer has proved to have, where its transport asks for one."""
        self.key_name: str | None = None
        self.name = identity.hex()
        self.inbox: deque[Message | Lost] = deque()
        """Read and not handled yet."""
        self.outbox: list[Message] = []
        self.bundles = False
        self.dropped: str | None = None
        self.gone = False
        self.on_lost: list[Callable[[], None]] | None = []
        """What waits until all that the peer had is free; None when it is."""
        self.in_flight = 0
        self.limits = PeerLimits(is_guest=not rolemask & (ROLE_OWNER | ROLE_ADMIN), refusal=refusal)
        self.streams: dict[int, RpcRequest] = {}
        self.services: set[str] = set()


Post = Callable[[Peer, Message], None]

_name_of = lru_cache(USER_NAMES_KEPT)(user_name)


class RpcRequest:
    """A request on its way; answer it exactly once, or stream and end it."""

    __slots__ = ("_is_stream", "_post", "is_open", "message", "on_end", "peer")

    def __init__(self, post: Post, peer: Peer, message: Message) -> None:
        self.peer = peer
        self.message = message
        self.on_end: Callable[[], None] | None = None
        self.is_open = not message.flags & NORESPONSE
        self._is_stream = False
        self._post = post
        if self.is_open:
            peer.in_flight += 1

    @property
    def topic(self) -> str:
        """The request's topic."""
        return self.message.topic

    def log_fields(self) -> dict[str, str]:
        """What log lines tell that are written while it is handled."""
        return message_fields(self.message.matchtag, self.message.topic, self.peer.name)

    @property
    def userid(self) -> int:
        """The authenticated user of the requester."""
        return self.message.userid

    @property
    def who(self) -> str:
        """The name of the requester's key, else of its user: for people to read."""
        return self.peer.key_name or _name_of(self.userid)

    @property
    def streaming(self) -> bool:
        """Whether the requester asked for a stream."""
        return bool(self.message.flags & STREAMING)

    def payload(self, kind: type[T]) -> T:
        """The payload decoded and validated as `kind`; EPROTO names the part that is wrong."""
        return codec.unpack(self.message.payload, kind)

    def respond(self, payload: object = None) -> None:
        """Send one response: the only one, or the next of a stream."""
        if self.is_open:
            answer = make_response(self.message, None if payload is None else codec.pack(payload))
            if not self._is_stream:
                self._close(answer)
            self._post(self.peer, answer)

    def error(self, errnum: int, text: str = "") -> None:
        """End the request with an error response (ENODATA ends a stream that went well)."""
        if self.is_open:
            answer = make_error(self.message, errnum, text)
            self._close(answer)
            self._post(self.peer, answer)

    def failed(self, exc: Exception) -> None:
        """End the request with what was raised on the way to its answer."""
        self.error(*error_answer(self.topic, exc))

    def relay(self, answer: Message) -> None:
        """Send another service's answer as the answer to this request."""
        if self.is_open:
            back = make_response(self.message, answer.payload)
            back.aux1 = answer.errnum
            self._close(back)
            self._post(self.peer, back)

    def open_stream(self, on_end: Callable[[], None]) -> None:
        """Keep the request open; `on_end` runs once when the peer cancels it or is lost."""
        if not self.streaming or not self.is_open:
            raise RemoteProtocolError(f"{self.topic}: the request needs the streaming flag, and must want responses")
        if self.message.matchtag in self.peer.streams:
            raise RemoteProtocolError(f"{self.topic}: matchtag {self.message.matchtag} is in use by another stream")
        check_streams(len(self.peer.streams))
        self.on_end = on_end
        self._is_stream = True
        self.peer.streams[self.message.matchtag] = self

    def finish(self) -> None:
        """End a stream that went well."""
        self.error(errno.ENODATA)

    def _close(self, last: Message) -> None:
        """This is the last answer. Only a stream's has the streaming flag: without it the matchtag is free (RFC 6)."""
        self.is_open = False
        self.peer.in_flight -= 1
        if not self._is_stream:
            last.flags &= ~STREAMING
        elif self.peer.streams.get(self.message.matchtag) is self:
            del self.peer.streams[self.message.matchtag]


def ping_answer(request: RpcRequest, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What every service answers to `NAME.ping`: the request's payload with route, user and rank."""
    answer = dict(request.payload(dict))
    answer.update(route=request.peer.name, userid=request.userid, rolemask=request.message.rolemask, rank=0)
    answer.update(extra or {})
    return answer
