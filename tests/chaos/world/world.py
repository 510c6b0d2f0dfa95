"""A world: one instance with its schedulers, its disk, its network, its tasks and its time, all from one seed.

    with World(seed, config) as world:
        client = world.connect("ann")
        world.run_until(10.0)

Law: the same seed and the same calls give the same observations, on every Python and whatever its hash seed.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import TracebackType

from fluxsched.errors import FluxschedError
from fluxsched.runtime.instance.parts.assembly import Assembly
from fluxsched.runtime.services.modules.starter import ModuleProcess, ModuleStart
from tests.chaos.observations import (
    Answered,
    Faulted,
    LinkEnded,
    Observation,
    ProcessEnded,
    ProcessStarted,
    Received,
    Sent,
)
from tests.chaos.wire import REQUEST, STREAMING, messages
from tests.chaos.world.disk import Disk
from tests.chaos.world.instance_process import Site, start_instance
from tests.chaos.world.network import Link, Network, SimClient
from tests.chaos.world.processes import Process
from tests.chaos.world.scheduler_process import SIGNAL_S, SimModule
from tests.chaos.world.tasks import Tasks
from tests.chaos.world.virtual_time import VirtualTime

INSTANCE = "instance"
BACK_S = 1.0
"""How long after its end the instance is started again (seconds), unless a fault says otherwise."""
MEMORY_DISK = Path("/dev/shm")


class World:
    """Everything, from one seed. Use as a context manager: it has a directory, and silences the log."""

    def __init__(self, seed: int, config: str = "", targets: str | None = "4x4") -> None:
        chance = Random(f"world {seed}")
        self.seed = seed
        self.time = VirtualTime()
        self.site = Site(config, targets)
        self.processes: dict[str, Process] = {}
        self.parts: Assembly | None = None
        """The services of the instance while it runs."""
        self.failures: list[str] = []
        """Unexpected exceptions in the services."""
        self.back_s: float | None = BACK_S
        self._chance = chance
        self._numbers: dict[str, int] = {}
        self._observers: list[Callable[[Observation], None]] = []
        self.network = Network(self.time, Random(f"network {seed}"))
        self.network.sent, self.network.received, self.network.ended = self._sent, self._received, self._link_ended
        self.tasks = Tasks(self.time, Random(f"tasks {seed}"), self.observed)

    def __enter__(self) -> World:
        where = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="fluxsched-chaos-", dir=where))
        self.disk = Disk(self.directory, Random(f"disk {self.seed}"))
        self._log_level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        self._start_instance()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.back_s = None
        for process in list(self.processes.values()):
            process.end("the world ends")
        logging.disable(self._log_level)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- running ----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """True virtual time (seconds)."""
        return self.time.now_s

    def observe(self, call: Callable[[Observation], None]) -> None:
        """Have `call` see everything that an outsider sees."""
        self._observers.append(call)

    def observed(self, one: Observation) -> None:
        """Tell those that observe."""
        for call in self._observers:
            call(one)

    def at(self, at_s: float, call: Callable[[], object]) -> None:
        """Have `call` run at a time."""
        self.time.at(at_s, call)

    def step(self, until_s: float) -> bool:
        """The next event, if it is due by then."""
        return self.time.step(until_s)

    def run_until(self, until_s: float, after_each: Callable[[], None] = lambda: None) -> None:
        """Everything that happens until then, with a call after each event."""
        while self.time.step(until_s):
            after_each()

    def connect(self, actor: str) -> SimClient:
        """A connection of a client. Raises Disconnected while there is no instance."""
        return self._connect(actor, None)

    def check(self) -> None:
        """Assert the instance's own laws, and that nothing unexpected was raised in it."""
        if self.parts is not None and self.processes[INSTANCE].is_alive:
            self.parts.check()
        assert not self.failures, self.failures

    # -- processes --------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a process now; the instance comes back after `back_s`, a scheduler when the instance starts it again."""
        process = self.processes.get(name)
        if process is not None and process.is_alive:
            self.fault(f"kill {name}")
            process.end("killed")

    def kill_at_effect(self, name: str, count: int) -> None:
        """Kill a process at its `count`th effect from now."""
        process = self.processes.get(name)
        if process is not None and process.is_alive:
            self.fault(f"kill {name} at effect {count}")
            process.dies_at = process.effects + count

    def hang(self, name: str, until_s: float) -> None:
        """Stop a process for a while: it does nothing, and its connections stay."""
        process = self.processes.get(name)
        if process is not None and process.is_alive:
            self.fault(f"hang {name} until {until_s:.3f}")
            process.stopped_until_s = until_s

    def fault(self, text: str) -> None:
        """Put on record that a fault is brought about."""
        self.observed(Faulted(self.now_s, text))

    def _process(self, name: str) -> Process:
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        pid = 100 + sum(self._numbers.values())
        process = Process(name, number, pid, self.time, self._chance)
        self.processes[name] = process
        process.on_end.append(lambda reason: self.observed(ProcessEnded(self.now_s, name, number, reason)))
        self.observed(ProcessStarted(self.now_s, name, number))
        return process

    def _start_instance(self) -> None:
        process = self._process(INSTANCE)
        process.on_end.append(lambda reason: self._instance_ended())

        def start() -> None:
            try:
                self.parts = start_instance(self.site, process, self.network, self.disk, self.tasks, self._start_module)
                self.parts.turns.noted = self._noted
            except FluxschedError as exc:
                process.end(f"cannot start: {exc}")

        process.run(start)

    def _noted(self, what: str, exc: Exception) -> None:
        self.failures.append(f"{what}: {type(exc).__name__}: {exc}")

    def _instance_ended(self) -> None:
        self.parts = None
        if self.back_s is not None:
            self.time.after(self.back_s, self._start_instance)

    def _start_module(self, wanted: ModuleStart, ended: Callable[[], None]) -> ModuleProcess:
        instance, process = self.processes[INSTANCE], self._process(wanted.name)
        delay_s = self._chance.uniform(*SIGNAL_S)
        process.on_end.append(lambda reason: instance.loop.call_later(delay_s, ended))
        instance.on_end.append(lambda reason: self.time.after(delay_s, lambda: process.end("the instance is gone")))
        return SimModule(self.network, process, wanted)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def _connect(self, actor: str, process: Process | None) -> SimClient:
        return self.network.connect(actor, process)

    def _sent(self, link: Link, frames: list[bytes]) -> None:
        now_s, actor, number = self.now_s, link.actor, link.number
        for one in messages(frames):
            if one.type == REQUEST:
                seen: Observation = Sent(
                    now_s, actor, number, one.topic, one.payload, one.matchtag, bool(one.flags & STREAMING)
                )
            else:
                seen = Answered(now_s, actor, number, one.topic, one.payload, one.matchtag, one.errnum)
            self.observed(seen)

    def _received(self, link: Link, frames: list[bytes]) -> None:
        for one in messages(frames):
            errnum = None if one.type == REQUEST else one.errnum
            self.observed(Received(self.now_s, link.actor, link.number, one.topic, one.payload, one.matchtag, errnum))

    def _link_ended(self, link: Link, reason: str) -> None:
        self.observed(LinkEnded(self.now_s, link.number, reason))
