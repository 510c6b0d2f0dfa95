"""An instance that a test speaks for: it answers what it is told to, can be lost, and notes what it was asked."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fluxsched.errors import RPCError


class SpokenStream:
    """Answers of one streaming request, as the test gives them; None ends it."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload
        self.is_cancelled = False
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    def say(self, *answers: Any) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    def __aiter__(self) -> SpokenStream:
        return self

    async def __anext__(self) -> Any:
        answer = await self.answers.get()
        if answer is None:
            raise StopAsyncIteration
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        self.is_cancelled = True


class SpokenHandle:
    """A connection to it."""

    def __init__(self, instance: SpokenInstance) -> None:
        self.instance = instance
        self.lost: asyncio.Future[RPCError] = asyncio.get_running_loop().create_future()
        self.streams: list[SpokenStream] = []

    async def __aenter__(self) -> SpokenHandle:
        if self.instance.is_away:
            raise RPCError("nothing listens", errno.ECONNREFUSED)
        self.instance.handles.append(self)
        return self

    async def __aexit__(self, *fault: object) -> None:
        self.instance.handles.remove(self)

    async def gone(self) -> RPCError:
        return await asyncio.shield(self.lost)

    @property
    def is_gone(self) -> bool:
        return self.lost.done()

    async def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = None) -> Any:
        self.instance.asked.append((topic, payload))
        answer = self.instance.answers[topic]
        found = answer(payload) if callable(answer) else answer
        if isinstance(found, Exception):
            raise found
        return found

    def stream(self, topic: str, payload: Any = None) -> SpokenStream:
        self.instance.asked.append((topic, payload))
        stream = SpokenStream(payload)
        self.streams.append(stream)
        self.instance.streams.setdefault(topic, []).append(stream)
        stream.say(*self.instance.first.get(topic, ()))
        return stream


class SpokenInstance:
    """`answers`: what it says to requests; `first`: with what its streams begin."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"instance.info": {"uri": "fake"}}
        self.first: dict[str, tuple[Mapping[str, Any], ...]] = {}
        self.streams: dict[str, list[SpokenStream]] = {}
        self.handles: list[SpokenHandle] = []
        self.asked: list[tuple[str, Any]] = []
        self.is_away = False

    def connect(self) -> SpokenHandle:
        return SpokenHandle(self)

    def die(self) -> None:
        """All connections are lost, and none is to be had."""
        self.is_away = True
        for handle in self.handles:
            fault = RPCError("gone", errno.ECONNRESET)
            handle.lost.set_result(fault)
            for stream in handle.streams:
                stream.say(fault)

    def count(self, topic: str) -> int:
        return sum(asked == topic for asked, _ in self.asked)


@pytest.fixture
def spoken() -> SpokenInstance:
    return SpokenInstance()


@pytest.fixture
def settle() -> Callable[[], Any]:
    """Lets everything run that needs no time."""

    async def settled() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    return settled
