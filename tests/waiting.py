"""The one way in which tests wait on a loop: for what happens, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 60.0
"""Far above what anything takes, so that a slow machine does not fail; a hang does."""
POLL_S = 0.002

Found = TypeVar("Found")


async def until(condition: Callable[[], Found], timeout_s: float = WAIT_S) -> Found:
    """Wait until a condition holds; return its value."""
    async with asyncio.timeout(timeout_s):
        while not (found := condition()):
            await asyncio.sleep(POLL_S)
    return found
