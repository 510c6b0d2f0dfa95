"""Instances for tests: a real one on the loop of the test, with made-up targets and real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.runtime.client import Handle
from fluxsched.runtime.instance import Instance
from fluxsched.runtime.launch import StartOptions, settings_of

WAIT_S = 10.0


class World:
    """Starts instances and clients and takes them down in reverse order, with a whole-state check at the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.instances: list[Instance] = []

    async def instance(self, **options: Any) -> Instance:
        """An instance that is ready."""
        options.setdefault("fake", None if "config" in options or "test_size" in options else "4x4")
        instance = await self._stack.enter_async_context(Instance(settings_of(StartOptions(**options))))
        self.instances.append(instance)
        await asyncio.wait_for(instance.ready(), WAIT_S)
        return instance

    async def client(self, instance: Instance) -> Handle:
        """A connected client."""
        return await self._stack.enter_async_context(Handle(instance.uri))

    def check(self) -> None:
        """Law 5, on the whole state of every instance."""
        for instance in self.instances:
            instance.check()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("FLUXSCHED_URI", "FLUX_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    async with AsyncExitStack() as stack:
        world = World(stack)
        yield world
        world.check()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait, bounded, until a condition holds."""

    async def wait(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


def timed(duration: str = "1ms", **options: Any) -> Jobspec:
    """A job that only lets time pass."""
    return Jobspec.from_command(["true"], test_run_duration_s=None, **options) if False else _timed(duration, options)


def _timed(duration: str, options: dict[str, Any]) -> Jobspec:
    from fluxsched.core.duration import parse_duration

    return Jobspec.from_command(["true"], test_run_duration_s=parse_duration(duration), **options)
