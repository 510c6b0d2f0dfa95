"""Turns of a service: what a bug costs, when garbage is collected, and how much is read between two of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("grpc")

from fluxsched.yunikorn import messages
from fluxsched.yunikorn import service as turns
from fluxsched.yunikorn.machine import RM, SIMachine
from fluxsched.yunikorn.messages import NODES
from fluxsched.yunikorn.service import Garbage, TurnLoop

from .conftest import Client


async def test_a_bug_costs_one_manager_its_state_and_is_logged(client: Client, monkeypatch: Any, caplog: Any) -> None:
    await client.register()
    await client.register("other")
    stream, other = await client.bound(NODES), await client.bound(NODES, "other")
    turn = RM.turn

    def broken(self: RM, *arguments: Any) -> Any:
        if self.rm_id == "rm":
            raise AssertionError("a law was broken")
        return turn(self, *arguments)

    monkeypatch.setattr(RM, "turn", broken)
    assert (await client.rm("other"))["state"] == "Running"
    code, detail = await stream.end()
    assert (code.name, "register again" in detail) == ("ABORTED", True)
    assert "AssertionError: a law was broken" in caplog.text
    assert not other.call.done()


def test_garbage_is_collected_before_there_is_too_much(monkeypatch: Any) -> None:
    found = Garbage()
    monkeypatch.setattr(turns, "GARBAGE_OBJECTS_MAX", 0)
    assert (found.is_there, found.is_much) == (False, False)
    found.add()
    assert (found.is_there, found.is_much) == (True, True)
    found.collect()
    assert (found.is_there, found.is_much) == (False, False)


async def test_garbage_of_ended_registrations_is_collected_when_idle(
    client: Client, machine: SIMachine, monkeypatch: Any
) -> None:
    collected = asyncio.Event()
    monkeypatch.setattr(turns, "IDLE_S", 0.001)
    monkeypatch.setattr(gc, "collect", lambda: collected.set())
    await client.register()
    await client.call("StateDump", messages.StateDumpRequest())
    assert not collected.is_set()
    await client.register()
    async with asyncio.timeout(30):
        await collected.wait()


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
