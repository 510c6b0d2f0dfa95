"""What a feed is: it asks an instance for a topic, for all viewers that asked the same; one that asks at times.

Law: a feed keeps no viewer. It knows the whole at any time, and tells changes to its audience; an instance that is
gone ends `run` with an RPCError, and the next `run` begins anew with a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from fluxsched.views.changes import Body, differences

SHARE = 0.25
"""The most of the time that an answer of one topic is waited for."""


WAIT_S = 0.1
"""How long an answer of a feed waits for one that may take seconds, and is then given without it."""


class Asking(Protocol):
    """What a feed asks with: an `AsyncHandle`."""

    @property
    def is_gone(self) -> bool: ...

    def rpc(self, topic: str, payload: Any = None, *, timeout_s: float | None = ...) -> Any: ...

    def stream(self, topic: str, payload: Any = None) -> Any: ...


class Audience(Protocol):
    """Who is told."""

    def whole(self, body: Body) -> None:
        """Everything, anew."""

    def change(self, body: Body) -> None:
        """What is new."""


class Feed(Protocol):
    """One topic with its parameters."""

    def now(self) -> Body | None:
        """The whole for a viewer that comes now; None before the first answer."""

    async def run(self, handle: Asking, audience: Audience) -> None:
        """Ask until the connection is lost. Raises RPCError for that, and for what the instance refuses."""


@contextmanager
def streaming(handle: Asking, topic: str, payload: Any = None) -> Iterator[Any]:
    """A stream that ends at the instance, too, when its reader ends."""
    stream = handle.stream(topic, payload)
    try:
        yield stream
    finally:
        if not handle.is_gone:
            stream.cancel()


async def together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all; the first fault ends the others and is raised, else it ends when all have."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SlowQuestion:
    """What a scheduler may answer after seconds: with 100,000 jobs that wait it plans as long. It is asked beside a
    feed, whose answers do without; `late` is called once there is more to say than there was for the last one.
    """

    def __init__(self, late: Callable[[], None] = lambda: None) -> None:
        self._late = late
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Ask, unless that is under way or there is nothing to ask, and wait a moment for the answer."""
        if self._task is None and question is not None:
            self._task = asyncio.create_task(question())
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=WAIT_S)
        if self._task.done():
            task, self._task = self._task, None
            task.result()
        else:
            self._task.add_done_callback(lambda _: self._late())

    async def close(self) -> None:
        """Wait for it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


AskWhole = Callable[[Asking], Awaitable[dict[str, Any]]]


class PolledFeed:
    """What is asked for again and again: the whole each time, of which viewers get what differs.

    `ask` gives the whole; `every_s` is the shortest time between two (seconds)."""

    def __init__(self, ask: AskWhole, every_s: float, differing: Callable[[Body, Body], Body] = differences) -> None:
        self._ask = ask
        self._every_s = every_s
        self._differing = differing
        self._whole: Body | None = None

    def now(self) -> Body | None:
        """See `Feed`."""
        return self._whole

    async def run(self, handle: Asking, audience: Audience) -> None:
        """See `Feed`."""
        loop, is_first = asyncio.get_running_loop(), True
        while True:
            begun_s = loop.time()
            whole = await self._ask(handle)
            took_s, before, self._whole = loop.time() - begun_s, self._whole, whole
            if is_first or before is None:
                audience.whole(whole)
            elif change := self._differing(before, whole):
                audience.change(change)
            is_first = False
            await asyncio.sleep(max(self._every_s, took_s / SHARE))
