"""Simulated processes: each can be killed at any of its effects, stopped for a while, and started again.

Law: nothing of a killed process runs afterwards. `Killed` unwinds what it was doing; everything that reaches the
outside (disk, network, tasks) asks `effect` first, which never returns to a dead process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import cast

from tests.chaos.observations import EPOCH_S
from tests.chaos.world.virtual_time import ProcessLoop, Run, VirtualTime

READING_S = 2e-6
"""What one reading of a clock takes."""
SLOW_READING_S, SLOW_READINGS = 0.006, 0.01
"""And sometimes: more than a turn's share of time, so that turns end early, too."""


class Killed(BaseException):
    """The process is dead: no handler of exceptions may keep it alive."""


class Machine:
    """What all processes share: the time, and how far the wall clock was stepped."""

    def __init__(self, time: VirtualTime, chance: Random) -> None:
        self.time = time
        self.chance = chance
        self.step_s = 0.0


class ProcessClock:
    """A process's two clocks. The wall clock may be stepped; each reading takes a little time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._time = machine.time
        self._chance = machine.chance.random
        self.step_s = 0.0
        """Where this process alone has another wall time."""

    def wall_s(self) -> float:
        """See `Clock.wall_s`."""
        return EPOCH_S + self._machine.step_s + self.step_s + self._time.now_s

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        time = self._time
        time.now_s += SLOW_READING_S if self._chance() < SLOW_READINGS else READING_S
        return time.now_s


class Process:
    """One run of a simulated program."""

    def __init__(self, name: str, number: int, pid: int, machine: Machine) -> None:
        self.name = name
        self.number = number
        self.pid = pid
        self.time = machine.time
        self.clock = ProcessClock(machine)
        self.loop = cast(asyncio.AbstractEventLoop, ProcessLoop(self.time, self.run))
        self.is_alive = True
        self.effects = 0
        """How many it has had so far."""
        self.dies_at: int | None = None
        """The effect that it does not survive."""
        self.is_stopped = False
        self._waiting: list[Run] = []
        """What it would have done while it was stopped."""
        self.on_end: list[Callable[[str], object]] = []
        """Called once when it has ended, with the reason."""

    def run(self, call: Run) -> None:
        """Have the process do something now; nothing if it is dead, later if it is stopped."""
        if not self.is_alive:
            return
        if self.is_stopped:
            self._waiting.append(call)
            return
        try:
            call()
        except Killed:
            assert not self.is_alive, "only a dead process is unwound"

    def stop(self, until_s: float) -> None:
        """Have it do nothing until then (SIGSTOP)."""
        self.is_stopped = True
        self.time.at(until_s, self.resume)

    def resume(self) -> None:
        """Have it catch up, in order."""
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.time.at(self.time.now_s, partial(self.run, call))

    @property
    def dies_next(self) -> bool:
        """Whether the next effect is its last: what can be done by halves is."""
        return self.dies_at is not None and self.effects + 1 >= self.dies_at

    def effect(self) -> None:
        """The process is about to act on the outside. Raises Killed if it is dead, or dies now."""
        if self.is_alive:
            self.effects += 1
            if self.dies_at is None or self.effects < self.dies_at:
                return
            self.end("killed at an effect")
        raise Killed

    def end(self, reason: str) -> None:
        """It is over, by itself or killed. Idempotent."""
        if self.is_alive:
            self.is_alive = False
            calls, self.on_end, self._waiting = self.on_end, [], []
            for call in calls:
                call(reason)
            calls.clear()  # what they hold is all that the process had in memory
