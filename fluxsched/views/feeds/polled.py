"""What is asked for again and again: the whole each time, of which viewers get what differs.

Law: what takes an instance long is asked for less often, so that viewers cost it at most a SHARE of its time each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fluxsched.views.changes import Body, differences
from fluxsched.views.feeds.feed import Asking, Audience

SHARE = 0.05
"""The most of the time that an answer of one topic is waited for."""

AskWhole = Callable[[Asking], Awaitable[dict[str, Any]]]


class PolledFeed:
    """`ask` gives the whole; `every_s` is the shortest time between two (seconds)."""

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
