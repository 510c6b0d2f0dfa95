"""Asks an instance for its figures, at most once in SAMPLE_S however often it is asked itself.

Law: an instance that is gone, hangs or is restarted is a figure (`fluxsched_up 0`), not an error; it is looked for anew
at the next question.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from fluxsched.errors import FluxschedError
from fluxsched.protocol.messages.metrics import MetricsResponse
from fluxsched.runtime.client.asyncio_client import AsyncHandle
from fluxsched.runtime.metrics.families import SchedulerAnswer, text
from fluxsched.runtime.system.clock import SystemClock
from fluxsched.runtime.system.log import logger

log = logger("metrics")

SAMPLE_S = 1.0
"""An answer is as old as this at most, and the instance is asked no more often (seconds)."""
ANSWER_S = 4.0
"""How long the instance may take; Prometheus gives up after 10 s (seconds)."""


class Sampler:
    """The figures of the instance at `uri`, or of the user's newest one."""

    def __init__(self, uri: str | None, *, sample_s: float = SAMPLE_S, answer_s: float = ANSWER_S) -> None:
        self._uri = uri
        self._sample_s, self._answer_s = sample_s, answer_s
        self._handle: AsyncHandle | None = None
        self._text = ""
        self._sampled_s: float | None = None
        self._sampling: asyncio.Task[None] | None = None
        self.samples = 0
        """How often the instance was asked."""

    async def text(self) -> str:
        """All figures, as text. All who ask while the instance is asked get the same answer."""
        now_s = SystemClock.monotonic_s()
        if self._sampling is None and (self._sampled_s is None or now_s - self._sampled_s >= self._sample_s):
            self._sampling = asyncio.create_task(self._sample())
        if self._sampling is not None:
            await asyncio.shield(self._sampling)
        return self._text

    async def close(self) -> None:
        """End the connection."""
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.__aexit__(None, None, None)

    async def _sample(self) -> None:
        begun_s = SystemClock.monotonic_s()
        self.samples += 1
        try:
            metrics, schedulers = await self._ask()
            self._text = text(metrics, schedulers, SystemClock.monotonic_s() - begun_s)
        except (FluxschedError, OSError, msgspec.ValidationError) as exc:
            log.warning("the instance did not answer: %s", exc)
            self._text = text(None, (), SystemClock.monotonic_s() - begun_s)
            await self.close()
        finally:
            self._sampled_s = SystemClock.monotonic_s()
            self._sampling = None

    async def _ask(self) -> tuple[MetricsResponse, tuple[SchedulerAnswer, ...]]:
        if self._handle is None:
            handle = AsyncHandle(self._uri)
            await handle.__aenter__()
            self._handle = handle
        asked, listed = await asyncio.gather(
            self._handle.rpc("instance.metrics", timeout_s=self._answer_s),
            self._handle.rpc("module.list", timeout_s=self._answer_s),
        )
        names = [each["name"] for each in listed["mods"] if each["path"] != "builtin"]
        stats = [self._handle.rpc("module.stats", {"name": name}, timeout_s=self._answer_s) for name in names]
        answers: list[Any] = await asyncio.gather(*stats, return_exceptions=True)
        found = [None if isinstance(each, BaseException) else each for each in answers]
        return msgspec.convert(asked, MetricsResponse), tuple(map(SchedulerAnswer, names, found))
