"""A world: one instance with its schedulers, its disk, its network, its tasks and its time, all from one seed.

    with World(seed, config) as world:
        client = world.connect("ann")
        world.run_until(10.0)

Law: the same seed and the same calls give the same observations, on every Python and whatever its hash seed.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

from fluxsched.errors import Disconnected, FluxschedError
from fluxsched.instance.assembly import Assembly
from fluxsched.services.module_processes import ModuleProcess, ModuleStart
from tests.chaos.observations import Configured, Observation
from tests.chaos.steps import Awaited
from tests.chaos.world.agents import SimAgent, agent_name
from tests.chaos.world.disk import THE_END, Disk
from tests.chaos.world.hosts import LATE, SimHosts
from tests.chaos.world.instance_process import Site, start_instance
from tests.chaos.world.keeper_process import Keepers, SimKeeper, SimKeeperHost
from tests.chaos.world.network import Network, SimClient
from tests.chaos.world.processes import Machine, Process
from tests.chaos.world.programs import Programs
from tests.chaos.world.recorder import Recorder
from tests.chaos.world.scheduler_process import SIGNAL_S, SimModule
from tests.chaos.world.tasks import Tasks
from tests.chaos.world.virtual_time import VirtualTime

INSTANCE, KEEPER = "instance", "keeper"
HOLDER = "holder"
"""The actor that an instance is in the world of its cluster."""
FIRST_PID = 100
BACK_S = 1.0
AGENT_START_S = 0.0, 1.0
"""When agents are started first (seconds)."""
MEMORY_DISK = Path("/dev/shm")


class World:
    """Everything, from one seed. Use as a context manager: it has a directory, and silences the log."""

    def __init__(
        self, seed: int, config: str = "", targets: str | None = None, *, elsewhere: World | None = None,
        orphan_timeout_s: float = 0.0,
    ) -> None:  # fmt: skip
        """`elsewhere`: another world, of the same time, whose instance is this one's only cluster. With an
        `orphan_timeout_s` the hosts are held by an engine: each has a keeper, and no agent.
        """
        self.seed = seed
        self._elsewhere = elsewhere
        self.time: VirtualTime = VirtualTime() if elsewhere is None else elsewhere.time
        self.site = Site(config, targets)
        self._config = config
        self.processes: dict[str, Process] = {}
        """The last one of each name, alive or not."""
        self.parts: Assembly | None = None
        """The services of the instance while it runs."""
        self.failures: list[str] = []
        """Unexpected exceptions in the services."""
        self.refused_starts = 0
        """Starts of the instance in a row that were refused, since all faults ended."""
        self.refusal = ""
        """Why the last one was."""
        self.back_s: float | None = BACK_S
        """How long after its end the instance, or an agent, is started again (seconds); None: never."""
        self._machine = Machine(self.time, Random(f"machine {seed}"))
        self._chance = Random(f"world {seed}")
        self._numbers: dict[str, int] = {}
        self.recorder = Recorder(self.time)
        self._awaited = Awaited()
        self.recorder.observers.append(self._awaited.see)
        self.network = Network(self.time, Random(f"network {seed}"))
        self.recorder.watch_network(self.network)
        self.programs = Programs(Random(f"programs {seed}"))
        self.tasks = Tasks(self.time, Random(f"tasks {seed}"), self.recorder.tell, self.programs)
        self._keepers = Keepers(self._start_keeper, Random(f"keepers {seed}"))
        self._orphan_timeout_s = orphan_timeout_s
        self._hosts: SimHosts | None = None

    def __enter__(self) -> World:
        where = MEMORY_DISK if MEMORY_DISK.is_dir() else None
        self.directory = Path(tempfile.mkdtemp(prefix="fluxsched-chaos-", dir=where))
        self.recorder.neutralise(self.directory)
        self.disk = Disk(self.directory, Random(f"disk {self.seed}"))
        self._log_level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        hosts = self.site.hosts()
        if self._orphan_timeout_s:
            chance = Random(f"hosts {self.seed}")
            self._hosts, hosts = SimHosts(hosts, self._orphan_timeout_s, self.time, chance, self), []
        self._start_instance()
        for host in hosts:
            self.time.after(self._chance.uniform(*AGENT_START_S), partial(self._start_agent, host))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.back_s = None
        for process in list(self.processes.values()):
            process.end(THE_END)
        logging.disable(self._log_level)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- running ----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """True virtual time (seconds)."""
        return self.time.now_s

    def observe(self, call: Callable[[Observation], None]) -> None:
        """Have `call` see everything that an outsider sees."""
        self.recorder.observers.append(call)

    def at(self, at_s: float, call: Callable[[], object]) -> None:
        """Have `call` run at a time."""
        self.time.at(at_s, call)

    def when(self, step: str, call: Callable[[], object]) -> None:
        """Have `call` run at the next step of that kind (tests/chaos/steps.py)."""
        self._awaited.add(step, call)

    def configure(self, outages: tuple[dict[str, Any], ...]) -> None:
        """Write these planned outages into the configuration file, in place of those that it has."""
        self.site.config = self._config
        for row in outages:
            lines = [f"{key.replace('_', '-')} = {json.dumps(value)}\n" for key, value in row.items()]
            self.site.config += f"[[outages]]\n{''.join(lines)}"
        self.tell(Configured(self.now_s, outages))

    def step(self, until_s: float) -> bool:
        """The next event, if it is due by then."""
        return self.time.step(until_s)

    def run_until(self, until_s: float, after_each: Callable[[], None] = lambda: None) -> None:
        """Everything that happens until then, with a call after each event."""
        while self.time.step(until_s):
            after_each()

    def connect(self, actor: str) -> SimClient:
        """A connection of a client. Raises Disconnected while there is no instance."""
        return self.network.connect(actor)

    def check(self) -> None:
        """Assert the instance's own laws, and that nothing unexpected was raised in it."""
        if self.parts is not None and self.processes[INSTANCE].is_alive:
            self.parts.check()
        assert not self.failures, self.failures

    @property
    def hosts(self) -> SimHosts:
        """The hosts that an engine holds."""
        assert self._hosts is not None, "its hosts are held by no engine"
        return self._hosts

    def recorded(self, jobid: int) -> frozenset[str]:
        """The hosts whose processes of a job are on the instance's record."""
        return self.disk.recorded_hosts(jobid)

    def tell(self, one: Observation) -> None:
        """Have all that observe see this."""
        self.recorder.tell(one)

    # -- faults -------------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a process; the instance and agents come back after `back_s`, schedulers as the instance decides."""
        process = self._living(name)
        if process is not None:
            self.recorder.fault(f"kill {name}")
            process.end("killed")

    def kill_keeper_of(self, host: str) -> None:
        """Kill the keeper of a host whose guard is late: the next one finds tasks of it."""
        process = self._living(f"keeper-{host}")
        if process is not None:
            self.recorder.fault(f"kill {process.name}, whose guard is late")
            process.end(LATE)

    def kill_at_effect(self, name: str, count: int) -> None:
        """Kill a process at its `count`th effect from now."""
        process = self._living(name)
        if process is not None:
            self.recorder.fault(f"kill {name} at effect {count}")
            process.dies_at = process.effects + count

    def hang(self, name: str, until_s: float) -> None:
        """Stop a process for a while: it does nothing, and its connections stay."""
        process = self._living(name)
        if process is not None:
            self.recorder.fault(f"hang {name} until {until_s:.3f}")
            process.stop(until_s)

    def silence(self, host: str, until_s: float) -> None:
        """Have the agent of a host send no heartbeats for a while."""
        self.hang(agent_name(host), until_s)

    def cut(self, actor: str) -> None:
        """Break all connections of a client, scheduler or agent."""
        self.recorder.fault(f"cut {actor}")
        self.network.cut(actor)

    def delay(self, actor: str | None, low_s: float, high_s: float) -> None:
        """Have messages of one, or of all, take so long."""
        self.recorder.fault(f"delay {actor} {low_s:.3f} {high_s:.3f}")
        if actor is None:
            self.network.delay_s = low_s, high_s
        else:
            self.network.delays_s[actor] = low_s, high_s

    def slow(self, actor: str, until_s: float) -> None:
        """Have one receive nothing for a while, though it is connected."""
        self.recorder.fault(f"slow {actor} until {until_s:.3f}")
        self.network.slow_until_s[actor] = until_s

    def disk_full(self, is_full: bool) -> None:
        """Have the disk take nothing more, or again."""
        self.recorder.fault(f"disk full: {is_full}")
        self.disk.is_full = is_full

    def disk_failing(self, is_failing: bool) -> None:
        """Have writes fail with errors, or no longer."""
        self.recorder.fault(f"disk failing: {is_failing}")
        self.disk.is_failing = is_failing

    def disk_torn(self, is_torn: bool) -> None:
        """Have a crash in the midst of a write leave some of it, and garbage."""
        self.recorder.fault(f"disk torn: {is_torn}")
        self.disk.is_torn = is_torn

    def step_clock(self, name: str | None, delta_s: float) -> None:
        """Step the wall clock of one process, or of the machine."""
        self.recorder.fault(f"step clock of {name} by {delta_s:.3f}")
        if name is None:
            self._machine.step_s += delta_s
        elif (process := self._living(name)) is not None:
            process.clock.step_s += delta_s

    def calm(self) -> None:
        """End all faults that last; clocks stay where they are."""
        self.recorder.fault("calm")
        self._awaited.forget()
        self.programs.is_calm = True
        self.network.calm()
        self.disk.is_full = self.disk.is_failing = False
        self.refused_starts = 0
        for process in list(self.processes.values()):
            process.dies_at = None
            process.resume()
        if self._hosts is not None:
            self._hosts.calm()

    # -- processes --------------------------------------------------------------------------------------------------

    def _living(self, name: str) -> Process | None:
        process = self.processes.get(name)
        return process if process is not None and process.is_alive else None

    def process(self, name: str) -> Process:
        """A new one of this name."""
        number = self._numbers[name] = self._numbers.get(name, 0) + 1
        process = Process(name, number, FIRST_PID + sum(self._numbers.values()), self._machine)
        self.processes[name] = process
        self.recorder.watch_process(process)
        return process

    def _again(self, start: Callable[[], None]) -> None:
        if self.back_s is not None:
            self.time.after(self.back_s, start)

    def _start_agent(self, host: str) -> None:
        process = self.process(agent_name(host))
        process.on_end.append(lambda reason: self._again(lambda: self._start_agent(host)))
        process.run(lambda: SimAgent(self.network, process, host))

    def _start_keeper(self) -> SimKeeper:
        return SimKeeper(self.process(KEEPER), self.tasks, self.noted)

    def _start_instance(self) -> None:
        process = self.process(INSTANCE)
        process.on_end.append(lambda reason: self._instance_ended())

        def start() -> None:
            try:
                self.parts = start_instance(
                    self.site,
                    process,
                    self.network,
                    self.disk,
                    SimKeeperHost(process, self._keepers),
                    self._start_module,
                    partial(self._connect_elsewhere, process),
                    self.noted,
                    self._hosts,
                )
                self.refused_starts = 0
            except FluxschedError as exc:
                self.refused_starts += 1
                self.refusal = str(exc)
                process.end(f"cannot start: {exc}")

        process.run(start)

    def _connect_elsewhere(self, process: Process, uri: str, key: str | None) -> SimClient:
        if self._elsewhere is None:
            raise Disconnected("there is no other world")
        return self._elsewhere.network.connect(HOLDER, process)

    def noted(self, what: str, exc: Exception) -> None:
        """An unexpected exception in a service."""
        self.failures.append(f"{what}: {type(exc).__name__}: {exc}")

    def _instance_ended(self) -> None:
        self.parts = None
        self._again(self._start_instance)

    def _start_module(self, wanted: ModuleStart, ended: Callable[[], None]) -> ModuleProcess:
        instance, process = self.processes[INSTANCE], self.process(wanted.name)
        delay_s = self._chance.uniform(*SIGNAL_S)
        process.on_end.append(lambda reason: instance.loop.call_later(delay_s, ended))
        instance.on_end.append(lambda reason: self.time.after(delay_s, lambda: process.end("the instance is gone")))
        return SimModule(self.network, process, wanted)
