"""Calls that wait for the network: no turn waits for them, and none for another."""

from __future__ import annotations

import asyncio
import threading

from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.loop.writer import ThreadPerCallWriter
from fluxsched.runtime.system.clock import SystemClock


async def test_a_call_that_waits_for_the_network_holds_up_nothing(eventually):
    turns, answer, done = Turns(SystemClock()), threading.Event(), []
    turns.start(asyncio.get_running_loop())
    writer = ThreadPerCallWriter(turns, "connect")
    writer.run(answer.wait, lambda: done.append("silent"))
    writer.run(lambda: None, lambda: done.append("other"))
    turns.post(lambda: done.append("turn"))
    await eventually(lambda: {"other", "turn"} <= set(done))
    assert "silent" not in done
    writer.close()
    answer.set()
    await eventually(lambda: "silent" in done)
    turns.stop()
