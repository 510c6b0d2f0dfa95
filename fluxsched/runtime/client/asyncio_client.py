"""The asynchronous client: `async with fluxsched.connect() as h: ...`.

What one turn of the loop sends leaves as one bundle. To follow thousands of jobs, `watch` them with one stream.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import RPCError
from fluxsched.protocol.framing import codec
from fluxsched.protocol.framing.bundle import pack_bundles, unpack_bundle
from fluxsched.protocol.framing.header import NORESPONSE, RESPONSE, Message, decode, encode, make_request
from fluxsched.protocol.sessions.rpc import Answer, Calls
from fluxsched.runtime.client.blocking import TIMEOUT_S
from fluxsched.runtime.system.live_instances import find_uri
from fluxsched.transport.base import Client
from fluxsched.transport.zeromq import ZmqClient

RECEIVE_MAX = 1024
"""Messages taken in one go before other tasks of the loop run."""


class Stream:
    """Answers of one streaming call, in order; `async for` ends on ENODATA."""

    def __init__(self, handle: AsyncHandle, topic: str, matchtag: int) -> None:
        self._handle = handle
        self._topic = topic
        self._matchtag = matchtag
        self._answers: deque[Answer] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    def put(self, answer: Answer) -> None:
        """An answer has arrived."""
        self._answers.append(answer)
        self._arrived.set()

    async def next(self) -> Answer:
        """The next answer, waited for."""
        while not self._answers:
            self._arrived.clear()
            await self._arrived.wait()
        return self._answers.popleft()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._ended:
            raise StopAsyncIteration
        answer = await self.next()
        if answer.error is not None:
            self._ended = True
            if answer.error.errnum == errno.ENODATA:
                raise StopAsyncIteration
            raise answer.error
        return codec.unpack_answer(answer.payload)

    def cancel(self) -> None:
        """Ask the instance to end the stream; it ends with what was already under way."""
        if not self._ended:
            self._handle.post(self._handle.calls.cancel(self._matchtag, self._topic))


class AsyncHandle:
    """A connection to an instance."""

    def __init__(self, uri: str | None = None, client: Client | None = None) -> None:
        self.uri = "" if client is not None else find_uri(uri)
        self.calls = Calls()
        self._client = client
        self._outbox: list[Message] = []
        self._flushing = False
        self._open: dict[int, Callable[[Answer], None]] = {}

    async def __aenter__(self) -> AsyncHandle:
        if self._client is None:
            self._client = ZmqClient(self.uri)
        self._client.start(asyncio.get_running_loop(), self._take)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.post(make_request("instance.goodbye", None, flags=NORESPONSE))
        self._flush()
        if self._client is not None:
            self._client.close()

    async def rpc(
        self, topic: str, payload: dict[str, Any] | None = None, *, timeout_s: float | None = TIMEOUT_S
    ) -> dict[str, Any]:
        """One request, one answer; `RPCError` carries the peer's errno and text."""
        future = self.call(topic, payload)
        try:
            payload_bytes = await (future if timeout_s is None else asyncio.wait_for(future, timeout_s))
        except TimeoutError:
            raise RPCError(f"{topic}: no answer from {self.uri} within {timeout_s} s", errno.ETIMEDOUT) from None
        return codec.unpack_answer(payload_bytes)

    def call(self, topic: str, payload: dict[str, Any] | None = None) -> asyncio.Future[bytes | None]:
        """One request under way: a future of the answer's payload, to be awaited with thousands of others."""
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def put(answer: Answer) -> None:
            if future.done():
                return
            if answer.error is not None:
                future.set_exception(answer.error)
            else:
                future.set_result(answer.payload)

        self._send(topic, payload, put, streaming=False)
        return future

    def stream(self, topic: str, payload: dict[str, Any] | None = None) -> Stream:
        """A streaming request: `async for answer in h.stream(...)`; `.cancel()` ends it."""
        message = self._send(topic, payload, lambda answer: stream.put(answer), streaming=True)
        stream = Stream(self, topic, message.matchtag)
        return stream

    async def submit(self, jobspec: Jobspec | dict[str, Any], urgency: int = 16) -> int:
        """Submit one job; its id, once the job is on disk."""
        body = jobspec.to_json() if isinstance(jobspec, Jobspec) else jobspec
        return int((await self.rpc("job-manager.submit", {"jobspec": body, "urgency": urgency}))["id"])

    async def submit_many(self, jobspecs: Iterable[Jobspec | dict[str, Any]], urgency: int = 16) -> list[int]:
        """Submit several jobs, bundled; their ids in order. The first refusal is raised when all were answered."""
        bodies = [jobspec.to_json() if isinstance(jobspec, Jobspec) else jobspec for jobspec in jobspecs]
        calls = [self.call("job-manager.submit", {"jobspec": body, "urgency": urgency}) for body in bodies]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [int(codec.unpack_answer(answer)["id"]) for answer in answers]  # type: ignore[arg-type]

    async def wait(self, jobid: int) -> dict[str, Any]:
        """The result of a job once it is inactive (WaitResponse)."""
        return await self.rpc("job-manager.wait", {"id": jobid}, timeout_s=None)

    async def watch(self, names: list[str] | None = None) -> Stream:
        """All jobs' events from now on (WatchResponse), of the given names only when there are any."""
        return self.stream("job-manager.watch", {"names": names} if names else {})

    async def cancel(self, jobid: int, note: str = "") -> None:
        """Cancel a job."""
        await self.rpc("job-manager.raise", {"id": jobid, "type": "cancel", "severity": 0, "note": note})

    async def drain(self, targets: str, reason: str | None = None, mode: str | None = None) -> None:
        """Drain targets, given as idset or hostlist; returns once it is on disk."""
        payload = {"targets": targets, "reason": reason, "mode": mode}
        await self.rpc("resource.drain", {key: value for key, value in payload.items() if value is not None})

    async def undrain(self, targets: str, reason: str | None = None) -> None:
        """Give drained targets back."""
        await self.rpc("resource.undrain", {"targets": targets} | ({} if reason is None else {"reason": reason}))

    def _send(
        self, topic: str, payload: dict[str, Any] | None, put: Callable[[Answer], None], *, streaming: bool
    ) -> Message:
        data = None if payload is None else codec.pack(payload)
        message = self.calls.start(topic, data, streaming=streaming, token=put)
        self._open[message.matchtag] = put
        self.post(message)
        return message

    def post(self, message: Message) -> None:
        """Send with whatever else this turn of the loop sends."""
        self._outbox.append(message)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        messages, self._outbox = self._outbox, []
        if self._client is None or self._client.lost is not None:
            self._lost()
        elif len(messages) == 1:
            self._client.send(encode(messages[0]))
        elif messages:
            for frames in pack_bundles(messages):
                self._client.send(frames)

    def _take(self) -> None:
        assert self._client is not None
        for frames in self._client.receive(RECEIVE_MAX):
            for one in unpack_bundle(decode(frames)):
                if one.type != RESPONSE:
                    continue
                answer = self.calls.receive(one)
                if answer.done:
                    self._open.pop(one.matchtag, None)
                answer.token(answer)
        if self._client.lost is not None:
            self._lost()

    def _lost(self) -> None:
        reason = "the connection is closed" if self._client is None else self._client.lost
        error = RPCError(f"the instance at {self.uri} is gone: {reason}", errno.ECONNRESET)
        waiting, self._open = self._open, {}
        for put in waiting.values():
            put(Answer(token=None, payload=None, error=error, done=True))


def connect(uri: str | None = None) -> AsyncHandle:
    """Connect to an instance: `async with fluxsched.connect() as h: await h.submit(...)`."""
    return AsyncHandle(uri)

