"""Turns of the service: how much is read between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc")

from fluxsched.adapters.si.service import turns
from fluxsched.adapters.si.service.turns import TurnLoop


class BusyMachine:
    """Always has something to do, as for a manager with many asks."""

    next_wake_s = 0.0

    def __init__(self) -> None:
        self.turns = 0

    def turn(self, now_s: float) -> Iterator[Any]:
        self.turns += 1
        return iter(())


async def test_items_sent_one_by_one_are_read_between_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a manager waits for a turn of another with each of its messages."""
    monkeypatch.setattr(turns, "BETWEEN_S", 60.0)
    machine = BusyMachine()
    loop = TurnLoop(machine, lambda: 0.0)  # type: ignore[arg-type]
    running = asyncio.create_task(loop.run())
    for _ in range(50):
        for _ in range(3):  # steps that reading a message takes
            await asyncio.sleep(0)
        loop.wake()
    running.cancel()
    assert machine.turns <= 3
