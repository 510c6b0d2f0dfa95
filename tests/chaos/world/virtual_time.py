"""Virtual time: one list of events for the whole world, and for each process a loop that only sees its own.

Law: which event comes next follows from the times and the order in which events were asked for, and from nothing else.
While an event runs, time moves on by what its process spends, so what comes next may be late, as on a busy machine.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, cast

Run = Callable[[], object]


class Event:
    """Something that will happen; `cancel()` is idempotent."""

    __slots__ = ("run",)

    def __init__(self, run: Run) -> None:
        self.run: Run | None = run

    def cancel(self) -> None:
        """Let it not happen."""
        self.run = None


class VirtualTime:
    """What happens when; `now_s` is true time, in seconds since the world began."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.count = 0
        """Events that have happened."""
        self._events: list[tuple[float, int, Event]] = []
        self._sequence = 0

    def at(self, at_s: float, run: Run) -> Event:
        """Have `run` happen at a time; at once if that is past."""
        event = Event(run)
        self._sequence += 1
        heapq.heappush(self._events, (max(at_s, self.now_s), self._sequence, event))
        return event

    def after(self, delay_s: float, run: Run) -> Event:
        """Have `run` happen later."""
        return self.at(self.now_s + delay_s, run)

    def step(self, until_s: float) -> bool:
        """The next event, if it is due by then; otherwise that is what the time is now."""
        events = self._events
        while events and events[0][2].run is None:
            heapq.heappop(events)
        if not events or events[0][0] > until_s:
            self.now_s = max(self.now_s, until_s)
            return False
        at_s, _, event = heapq.heappop(events)
        run, event.run = event.run, None
        self.now_s = max(self.now_s, at_s)
        self.count += 1
        assert run is not None
        run()
        return True


class ProcessLoop:
    """As much of a loop as the services use. What belongs to a dead process never runs; a stopped one's waits."""

    def __init__(self, time: VirtualTime, guard: Callable[[Run], None]) -> None:
        self._time = time
        self._guard = guard
        """Runs what is due: it knows whether the process lives."""

    def time(self) -> float:
        """See asyncio."""
        return self._time.now_s

    def call_soon(self, callback: Callable[..., object], *args: object, context: object = None) -> Event:
        """See asyncio."""
        return self.call_later(0.0, callback, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> Event:
        """See asyncio."""
        guard, run = self._guard, partial(callback, *args) if args else callback
        return self._time.at(self._time.now_s + delay, lambda: guard(run))

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=cast(asyncio.AbstractEventLoop, self))

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def is_closed(self) -> bool:
        """See asyncio."""
        return False
