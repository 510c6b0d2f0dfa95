"""The waker of a connection: one call for many wishes."""

from __future__ import annotations

import asyncio

from fluxsched.transport.base import Waker


async def test_a_waker_calls_at_once_unless_a_call_is_due() -> None:
    calls: list[str] = []
    waker = Waker(asyncio.get_running_loop(), lambda: calls.append("called"))
    waker.now()
    assert len(calls) == 1
    waker.soon()
    waker.now()
    waker.soon()
    assert len(calls) == 1, "that which is due is enough"
    await asyncio.sleep(0)
    assert len(calls) == 2
    waker.now()
    assert len(calls) == 3
    waker.stop()
