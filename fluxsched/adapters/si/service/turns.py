"""Turns of a scheduler service: what has arrived is applied, the machine decides, and its effects go to the streams.

Law: only a turn performs effects; calls hand requests over and wait for a turn where they must. A bug of ours ends the
service, and resource managers send all again to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import grpc

from fluxsched.adapters.si.machine.effects import (
    Broke,
    Effect,
    EndStreams,
    Observed,
    PluginProblem,
    SendResponse,
)
from fluxsched.adapters.si.machine.machine import SIMachine
from fluxsched.adapters.si.service.connections import RMConnection, UpdateStream
from fluxsched.adapters.si.service.garbage import IDLE_S, Garbage
from fluxsched.adapters.si.service.status import CallEnd
from fluxsched.system.log import exception_text, logger

log = logger("si")

BACKLOG_HIGH_ITEMS: Final = 10_000
"""A stream is read no further while so many items of its resource manager wait to be applied."""


STEPS_BETWEEN: Final = 16
"""Steps of the loop between two turns, from the last message that came in them: a message takes some to be read, and an
answer to be written.
"""

BETWEEN_S: Final = 0.005
"""All of them together; else a manager that sends its items one by one would have a few of them read a turn, while
turns are long because of another.
"""


class TurnLoop:
    """The machine, and the connections of its resource managers; `clock_s` gives the wall time (seconds)."""

    def __init__(self, machine: SIMachine, clock_s: Callable[[], float]) -> None:
        self.machine = machine
        self.clock_s = clock_s
        self.connections: dict[str, RMConnection] = {}
        self._garbage = Garbage()
        self._wakes = 0
        self._due = asyncio.Event()
        self._turned = asyncio.Event()

    # ---- from calls

    def wake(self) -> None:
        """Something has arrived: a turn is due."""
        self._wakes += 1
        self._due.set()

    async def turned(self) -> None:
        """Returns when what had arrived has been through a turn."""
        self._due.set()
        await self._turned.wait()

    async def applied(self, rm_id: str, left_items: int) -> None:
        """Returns when at most `left_items` of what a resource manager has sent are not applied."""
        while self.machine.backlog(rm_id) > left_items:
            await self._turned.wait()

    def connection(self, rm_id: str) -> RMConnection:
        """Return the connection of a resource manager, also of one that is not registered."""
        return self.connections.setdefault(rm_id, RMConnection())

    def begin_anew(self, rm_id: str) -> None:
        """A registration was accepted: the streams of the one before end."""
        if rm_id in self.connections:
            self._garbage.add()
        found = self.connection(rm_id)
        found.end_streams(CallEnd(grpc.StatusCode.ABORTED, "another registration of this rmID has replaced this one"))
        self.machine.unread(rm_id, found.unread_items)
        if found.watchers:
            self.machine.observe(rm_id, True)

    def forget(self, stream: UpdateStream) -> None:
        """A stream has ended; another may have replaced it."""
        found = self.connections.get(stream.rm_id or "")
        if found is not None and found.streams.get(stream.kind) is stream:
            del found.streams[stream.kind]

    def read(self, rm_id: str) -> None:
        """A resource manager has read a response."""
        found = self.connections.get(rm_id)
        if found is not None:
            self.machine.unread(rm_id, found.unread_items)
            self._due.set()

    # ---- turns

    async def run(self) -> None:
        """Run turns until the task is canceled."""
        while True:
            await self._until_due()
            self._due.clear()
            turned, self._turned = self._turned, asyncio.Event()
            for effect in self.machine.turn(self.clock_s()):
                self._perform(effect)
            turned.set()
            await self._take_in()

    async def _take_in(self) -> None:
        """Lets calls read what has come, and write."""
        loop, quiet = asyncio.get_running_loop(), 0
        end_s = loop.time() + BETWEEN_S
        while quiet < STEPS_BETWEEN and loop.time() < end_s:
            before = self._wakes
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._wakes == before else 0

    async def _until_due(self) -> None:
        if self._garbage.is_much:
            self._garbage.collect()
        while (delay_s := self.machine.next_wake_s - self.clock_s()) > 0 and not self._due.is_set():
            is_idle = self._garbage.is_there and delay_s > IDLE_S
            try:
                async with asyncio.timeout(IDLE_S if is_idle else None if delay_s == inf else delay_s):
                    await self._due.wait()
            except TimeoutError:
                if is_idle:
                    self._garbage.collect()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Broke):
            log.error("resource manager %r: a bug in fluxsched: %s", effect.rm_id, exception_text(effect.fault))
            return
        if isinstance(effect, PluginProblem):
            log.error("resource manager %r: %s", effect.rm_id, effect.note)
            return
        found = self.connections.get(effect.rm_id)
        if found is None:
            return
        match effect:
            case SendResponse(rm_id, kind, response):
                found.queues[kind].put(response)
                self.machine.unread(rm_id, found.unread_items)
            case EndStreams(rm_id, detail):
                self._garbage.add()
                found.end_streams(CallEnd(grpc.StatusCode.ABORTED, detail))
                self._forget_if_stopped(rm_id, found, detail)
            case Observed():
                for watcher in found.watchers:
                    watcher.put(effect)

    def _forget_if_stopped(self, rm_id: str, found: RMConnection, detail: str) -> None:
        if not self.machine.is_registered(rm_id):
            log.info("resource manager %r is gone: %s", rm_id, detail)
            for watcher in found.watchers:
                watcher.end(CallEnd(grpc.StatusCode.ABORTED, detail))
            del self.connections[rm_id]
