"""Follows the instance for the screen: what arrives goes into the picture, and the screen is drawn at a bounded rate.

Law: drawing takes at most DRAWING_SHARE of the time, however large the terminal and busy the instance: what costs more
is drawn less often, down to every DRAWN_LATEST_S. What a person does is drawn at once by who does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from fluxsched.errors import FluxschedError
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.views.feed import Body

DRAWING_SHARE = 0.06
"""Of one core's time, for drawing what arrives."""
DRAWN_EVERY_S, DRAWN_LATEST_S = 0.2, 2.0
"""The least and the most time between two drawings of what arrives (seconds)."""
CLOCK_EVERY_S = 1.0
"""How often run times and the clock are drawn when nothing arrives (seconds)."""

TakeView = Callable[[str, Body], None]


class ViewFollower(Protocol):
    """What the screen asks of `views.follower.Follower`."""

    def subscribe(self, topic: str, params: Mapping[str, Any] | None = None) -> AbstractAsyncContextManager[Any]: ...

    async def ask(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]: ...


class Pacer:
    """Calls `draw` when there is something new, at a rate that follows from what drawing costs."""

    def __init__(self, draw: Callable[[Callable[[], None]], None]) -> None:
        self._draw = draw
        """Draws, and calls its argument once the terminal has it."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_drawing = False
        self._is_stale = False
        self._pause_s = DRAWN_EVERY_S

    def wake(self) -> None:
        """There is something new."""
        self._is_stale = True
        if self._timer is None and not self._is_drawing:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._due)

    def stop(self) -> None:
        """Draw no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_drawing = True

    def _due(self) -> None:
        self._timer = None
        self._is_drawing, self._is_stale = True, False
        begun_s = SystemClock.cpu_s()

        def drawn() -> None:
            cost_s = SystemClock.cpu_s() - begun_s
            wanted_s = max(DRAWN_EVERY_S, min(cost_s / DRAWING_SHARE, DRAWN_LATEST_S))
            self._pause_s = (self._pause_s + wanted_s) / 2
            self._is_drawing = False
            if self._is_stale:
                self.wake()

        self._draw(drawn)


class Followed:
    """The subscriptions of the screen, each a task; one may be replaced by another of the same name."""

    def __init__(self, follower: ViewFollower, failed: Callable[[str], None]) -> None:
        self._follower = follower
        self._failed = failed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, name: str, topic: str, params: Mapping[str, Any] | None, take: TakeView) -> None:
        """Follow a topic, in place of what had this name. Raises InvalidValue for wrong parameters."""
        messages = self._follower.subscribe(topic, params)
        self.leave(name)
        self._tasks[name] = asyncio.get_running_loop().create_task(self._run(messages, take))

    def leave(self, name: str) -> None:
        """Follow it no more."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Follow nothing any more."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, subscription: AbstractAsyncContextManager[Any], take: TakeView) -> None:
        try:
            async with subscription as messages:
                async for kind, body in messages:
                    take(kind, body)
        except FluxschedError as error:
            self._failed(str(error))
