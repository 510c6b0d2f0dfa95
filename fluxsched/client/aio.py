"""The asynchronous client: `async with fluxsched.connect() as h: ...`.

What one turn of the loop sends leaves in bundles. To follow thousands of jobs, `watch` them with one stream.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from fluxsched.client.calls import TIMEOUT_S, AsyncCalls, Object, TypedCall
from fluxsched.client.find import find_uri, key_for
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Disconnected, FluxschedError, RPCError
from fluxsched.protocol import framing
from fluxsched.protocol.framing import BUNDLE_MESSAGES_MAX, NORESPONSE, STREAMING, Message, make_request, pack_bundles
from fluxsched.protocol.sessions import Answer
from fluxsched.transport.base import Client
from fluxsched.transport.zeromq import ZmqClient

RECEIVE_MAX = 1024
"""Messages taken in one go before other tasks of the loop run."""
LOOK_S = 1.0
"""Interval at which the client looks for calls that have exceeded their timeout (seconds)."""

P = ParamSpec("P")
R = TypeVar("R")


class Reply(asyncio.Future[R]):
    """The result of one call, to be awaited; the request is under way already.

    `asyncio.create_task` accepts it, like the coroutine of an `async def`, but it needs no task of its own.
    """

    def __init__(self, read: Callable[[bytes | None], R], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._read = read
        self._awaited: Generator[Any, None, R] | None = None
        self.due_s: float | None = None
        """Time of the loop at which the call exceeds its timeout; None: the usual timeout does not apply."""

    def __call__(self, answer: Answer) -> None:
        """Set the result, or the exception, from the answer that has arrived."""
        if self.done():
            return
        if answer.error is not None:
            self.set_exception(answer.error)
            return
        try:
            self.set_result(self._read(answer.payload))
        except FluxschedError as fault:
            self.set_exception(fault)

    def send(self, value: None) -> Any:
        return self._steps().send(value)

    def throw(self, *fault: Any) -> Any:
        return self._steps().throw(*fault)

    def _steps(self) -> Generator[Any, None, R]:
        if self._awaited is None:
            self._awaited = self.__await__()
        return self._awaited

    def close(self) -> None:
        self.cancel()


class Stream:
    """Answers of one streaming call, in order; `async for` ends on ENODATA."""

    def __init__(self, handle: AsyncHandle, topic: str) -> None:
        self._handle = handle
        self._topic = topic
        self.matchtag = 0
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._ended = False

    def __call__(self, answer: Answer) -> None:
        """Append an answer that has arrived, and wake the reader."""
        self._answers.put_nowait(answer)

    async def next(self) -> Answer:
        """Wait for the next response and return it."""
        return await self._answers.get()

    def __aiter__(self) -> AsyncIterator[Object]:
        return self

    async def __anext__(self) -> Object:
        if self._ended:
            raise StopAsyncIteration
        answer = await self.next()
        if answer.error is not None:
            self._ended = True
            if answer.error.errnum == errno.ENODATA:
                raise StopAsyncIteration
            raise answer.error
        return framing.unpack_answer(answer.payload)

    def cancel(self) -> None:
        """Ask the instance to end the stream; responses already under way still arrive."""
        if not self._ended:
            self._handle.post(self._handle.calls.cancel(self.matchtag, self._topic))


class AsyncHandle(AsyncCalls):
    """A connection to an instance."""

    def __init__(
        self,
        uri: str | None = None,
        client: Client | None = None,
        *,
        key: str | os.PathLike[str] | None = None,
        reconnect_s: float = 0.0,
    ) -> None:
        """Create a handle.

        With `reconnect_s`, a lost instance is looked for during that time; without it, its loss is final.
        """
        super().__init__()
        self._reconnect_s = 0.0 if client is not None else reconnect_s
        self._returning: asyncio.Task[None] | None = None
        """Looks for the instance while that is away."""
        self.reconnects = 0
        """Number of times the connection to the instance was restored."""
        self._key = key
        self.uri = "" if client is not None else find_uri(uri)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._outbox: list[Message] = []
        self._flushing = False
        self._looking: asyncio.TimerHandle | None = None
        self._gone: asyncio.Future[RPCError] = self._loop.create_future()

    async def __aenter__(self) -> AsyncHandle:
        if self._client is None:
            self._client = ZmqClient(self.uri, keys=key_for(self.uri, self._key))
        self._client.start(self._loop, self._take)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reconnect_s = 0.0
        if self._returning is not None:
            self._returning.cancel()
            self._returning = None
        self.post(make_request("instance.goodbye", None, flags=NORESPONSE))
        self._flush()
        if self._looking is not None:
            self._looking.cancel()
        if self._client is not None:
            self._client.close()

    async def gone(self) -> RPCError:
        """Wait until the instance is lost; return the error with which calls fail since."""
        return await asyncio.shield(self._gone)

    @property
    def is_gone(self) -> bool:
        """Return whether the connection is lost for good."""
        return self._gone.done()

    def rpc(self, topic: str, payload: Object | None = None, *, timeout_s: float | None = TIMEOUT_S) -> Reply[Object]:
        """Send one request and return its response; `RPCError` carries the peer's errno and text."""
        return self._ask(topic, payload, framing.unpack_answer, timeout_s)

    def call(self, topic: str, payload: Object | None = None) -> Reply[bytes | None]:
        """Return a reply with the undecoded payload of the answer; it has no timeout."""
        return self._ask(topic, payload, _raw, None)

    def perform(self, call: TypedCall[P, Any, Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[Any]:
        """Send the request of one of `InstanceCalls` and return its reply."""
        request = call.request(self, *args, **kwargs)
        if call.result is None:
            return self._opened(call.topic, request)
        return self._ask(call.topic, request, call.read, call.timeout_of(kwargs))

    def stream(self, topic: str, payload: object = None) -> Stream:
        """Send a streaming request: `async for answer in h.stream(...)`; `.cancel()` ends it."""
        stream = Stream(self, topic)
        message = self.start(topic, payload, stream, streaming=True)
        stream.matchtag = message.matchtag
        self.post(message)
        return stream

    async def _opened(self, topic: str, payload: object) -> Stream:
        return self.stream(topic, payload)

    async def submit_many(self, jobspecs: Iterable[Jobspec | Object], urgency: int = 16) -> list[int]:
        """Submit several jobs, bundled; their ids in order. The first refusal is raised when all were answered."""
        calls = [self.submit(jobspec, urgency) for jobspec in jobspecs]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        ids = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            ids.append(answer)
        return ids

    def _ask(self, topic: str, payload: object, read: Callable[[bytes | None], R], timeout_s: float | None) -> Reply[R]:
        loop = self._loop
        reply = Reply(read, loop)
        try:
            self.post(self.start(topic, payload, reply))
        except FluxschedError as fault:
            reply.set_exception(fault)
            return reply
        if timeout_s == TIMEOUT_S:  # one timer for all of these
            reply.due_s = loop.time() + timeout_s
            if self._looking is None:
                self._looking = loop.call_later(LOOK_S, self._look)
        elif timeout_s is not None:
            timer = loop.call_later(timeout_s, self._expire, topic, timeout_s, reply)
            reply.add_done_callback(lambda reply: timer.cancel())
        return reply

    def _look(self) -> None:
        """Fail the calls that have waited too long, and look again as long as there are others."""
        self._looking = None
        now_s = self._loop.time()
        for topic, token in self.calls.open():
            if isinstance(token, Reply) and token.due_s is not None and not token.done():
                if token.due_s <= now_s:
                    self._expire(topic, TIMEOUT_S, token)
                elif self._looking is None:
                    self._looking = self._loop.call_later(LOOK_S, self._look)

    def _expire(self, topic: str, timeout_s: float, reply: Reply[Any]) -> None:
        if not reply.done():
            text = f"{topic}: no answer from {self.uri} within {timeout_s} s"
            reply.set_exception(RPCError(text, errno.ETIMEDOUT))

    def post(self, message: Message) -> None:
        """Send with whatever else this turn of the loop sends; a full bundle leaves at once."""
        self._outbox.append(message)
        if len(self._outbox) >= BUNDLE_MESSAGES_MAX:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        if self._returning is not None:  # it is sent when the instance is back
            return
        messages, self._outbox = self._outbox, []
        if self._client is None or self._client.lost is not None:
            self._lost()
            return
        for frames in pack_bundles(messages):
            self._client.send(frames)

    def _take(self) -> None:
        assert self._client is not None
        for frames in self._client.receive(RECEIVE_MAX):
            self.receive(frames)
        if self._client.lost is not None:
            self._lost()

    def _lost(self) -> None:
        reason = "the connection is closed" if self._client is None else self._client.lost
        error = Disconnected(f"the instance at {self.uri} is gone: {reason}")
        if self._reconnect_s:
            self._outbox = []
            for answer in self.calls.lose(error):
                answer.token(answer)
            if self._returning is None:
                self._returning = self._loop.create_task(self._return(error))
        else:
            self._end(error)

    async def _return(self, error: Disconnected) -> None:
        """Connect to the instance again when it is back and ready, and open all streams again."""
        from fluxsched.client.find import attempts

        for delay_s in attempts(self.uri, self._reconnect_s):
            await asyncio.sleep(delay_s)
            try:
                client = ZmqClient(self.uri, keys=key_for(self.uri, self._key))
            except Disconnected:
                continue
            assert self._client is not None
            self._client.close()
            self._client = client
            ready = Reply(_raw, self._loop)
            request = self.start("instance.ready", None, ready)
            client.start(self._loop, self._take)
            for frames in pack_bundles([request]):
                client.send(frames)
            try:
                await ready
            except Disconnected:
                continue
            self.reconnects += 1
            self._returning = None
            asked_meanwhile = [message for message in self._outbox if not message.flags & STREAMING]
            self._outbox = [*self.calls.again(), *asked_meanwhile]
            self._flush()
            return
        self._returning = None
        self._reconnect_s = 0.0
        self._end(error)

    def _end(self, error: Disconnected) -> None:
        """End all calls, since the instance is lost for good."""
        if not self._gone.done():
            self._gone.set_result(error)
        for token in self.calls.abandon():
            token(Answer(token=None, payload=None, error=error, done=True))


def _raw(payload: bytes | None) -> bytes | None:
    return payload


def connect(
    uri: str | None = None, *, key: str | os.PathLike[str] | None = None, reconnect_s: float = 60.0
) -> AsyncHandle:
    """Connect to an instance: `async with fluxsched.connect() as h: await h.submit(...)`.

    `key` is the file of the key to show at a tcp port, `reconnect_s` how long a lost instance is looked for (seconds),
    both as for `connect_sync`.
    """
    return AsyncHandle(uri, key=key, reconnect_s=reconnect_s)
