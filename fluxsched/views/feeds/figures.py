"""Topic `figures`: `instance.metrics`, and the same as a sign that something has happened."""

from __future__ import annotations

import asyncio
from typing import Any

from fluxsched.errors import RPCError
from fluxsched.views.feeds.feed import Asking

FIGURES_EVERY_S = 1.0
_FRESH_S = 0.5


class Figures:
    """What was answered last, for all feeds that want it at about the same time."""

    def __init__(self) -> None:
        self._asked_s = -1.0
        self._handle: Asking | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None

    async def ask(self, handle: Asking) -> dict[str, Any]:
        """The figures, at most half a second old. Raises RPCError."""
        now_s = asyncio.get_running_loop().time()
        if self._answer is None or self._handle is not handle or now_s >= self._asked_s + _FRESH_S:
            self._handle, self._asked_s = handle, now_s
            self._answer = asyncio.ensure_future(handle.rpc("instance.metrics"))
        return await asyncio.shield(self._answer)

    async def happened(self, handle: Asking) -> object:
        """What differs once jobs were submitted, started or ended; None where figures are refused."""
        try:
            jobs = (await self.ask(handle))["jobs"]
        except RPCError:
            if handle.is_gone:
                raise
            return None
        return jobs["submitted"], jobs["started"], jobs["ended"]
