"""The hosts of an instance that an engine holds: each has a keeper, the real service, in front of simulated tasks.

A keeper that is killed leaves its tasks to its guard, which ends them and starts another one, or is late, so that the
next keeper finds some; a keeper that ends by itself is not replaced before the instance asks the engine for that. A
host that crashes has nothing left, and may come back with a new boot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, cast

from fluxsched.errors import Refused
from fluxsched.executor.base import Reports
from fluxsched.executor.keeper import KeeperOutside, KeeperService, LeaseTerms
from fluxsched.executor.wire import VERSION
from fluxsched.instance.hosts import InstanceHosts
from fluxsched.protocol.messages.instance import KeeperConnectRequest
from fluxsched.services.keepers import KeeperConnection
from fluxsched.system.loop import Turns
from tests.chaos.observations import HostStopped, KeeperConnected, Observation
from tests.chaos.world.cable import CRASHED, DELAY_S, DOWN, UP, Cable, CableEnd, HostPath
from tests.chaos.world.disk import THE_END
from tests.chaos.world.host_tasks import HostTasks, SimHostExecutor
from tests.chaos.world.processes import Process
from tests.chaos.world.programs import Programs
from tests.chaos.world.virtual_time import VirtualTime

PING_S = 2.0
RECONNECT_S = 1.0
HELLO_S = 10.0
"""Time within which the instance must say something on a new connection (seconds)."""
END_MARGIN_S = 2.0
"""Time after the kill timeout in which a keeper waits for the end of its tasks (seconds)."""
LOOK_S = 0.05
GUARD_S = 0.01, 0.5
"""How long the guard takes to end what a killed keeper has left (seconds)."""
BACK_S = 0.1, 1.0, 6.0, 40.0
"""When it starts another keeper (seconds)."""
LATE_BACK_S, LATE_GUARD_S = (0.05, 2.0), (4.0, 4.5)
"""When one comes where the guard is late, and when that has ended what was left (seconds): before any lease is over."""
ENGINE_S = 0.2, 6.0
"""How long the engine takes to start a keeper (seconds)."""
FIRST_S = 0.0, 3.0
AT_BOOT = 0.3
"""How often the engine starts a keeper at a boot without being asked."""
CLOCK_OFF_S = 3600.0
CLOCK_OFF = 0.3
"""How many clocks of hosts are off by that."""
SPOOL = Path("/nonexistent/spool")
WAYS = frozenset((UP, DOWN))
IN_ORDER = "its lease is over", "the instance said so"
LATE = "killed, and its guard is late"


class HostsWorld(Protocol):
    """What hosts need of their world."""

    def process(self, name: str) -> Process: ...

    programs: Programs

    def tell(self, one: Observation) -> None: ...

    def noted(self, what: str, exc: Exception) -> None: ...

    def recorded(self, jobid: int) -> frozenset[str]:
        """The hosts whose processes of a job are on the instance's record."""
        ...


class SimKeeper:
    """One keeper of a host, which connects to the instance."""

    def __init__(self, host: SimHost, process: Process) -> None:
        self.process = process
        self._host = host
        self._is_ending = False
        turns = self._turns = Turns(
            process.clock, lambda exc: process.end(f"failed: {type(exc).__name__}: {exc}"), host.hosts.world.noted
        )
        outside = KeeperOutside(
            self._executor_of, self._clear, lambda: None, self._ended, process.pid,
            lease=LeaseTerms(PING_S, host.hosts.orphan_timeout_s), spool=SPOOL,
        )  # fmt: skip
        self._executor: SimHostExecutor
        self.service = KeeperService(turns, outside)
        turns.start(process.loop)
        process.loop.call_soon(self._connect)

    def _executor_of(self, reports: Reports) -> SimHostExecutor:
        self._executor = SimHostExecutor(self._host.tasks, self.process, self._turns, reports)
        return self._executor

    def _clear(self, records: Mapping[int, object], cleared: Callable[[dict[int, str]], None]) -> None:
        self.process.effect()
        done = partial(self.process.run, lambda: self._turns.post(lambda: cleared(notes)))
        notes: dict[int, str] = {}

        def found(what: dict[int, str]) -> None:
            notes.update(what)
            done()

        self._host.tasks.clear(sorted(records), self.process, found)

    # ---- the connection

    def _connect(self) -> None:
        end = self._host.hosts.connect(self._host, self.process)
        if end is None:
            self.process.loop.call_later(RECONNECT_S, self._connect)
            return
        end.on_over = lambda: self.process.loop.call_later(RECONNECT_S, self._connect)
        self._turns.attach(end.start)
        self.service.attend(end)
        self.process.loop.call_later(HELLO_S, self._check_hello, end)

    def _check_hello(self, end: CableEnd) -> None:
        if not end.has_heard:
            end.close()

    # ---- its end

    def _ended(self, is_gone: bool) -> None:
        if self._is_ending:
            return
        self._is_ending = True
        if is_gone:
            self.service.end_jobs()
            self._look(self.process.clock.monotonic_s() + self._executor.kill_timeout_s + END_MARGIN_S)
        else:
            self._end(IN_ORDER[1])

    def _look(self, until_s: float) -> None:
        if self._executor.is_idle() or self.process.clock.monotonic_s() > until_s:
            self._end(IN_ORDER[0])
        else:
            self.process.loop.call_later(LOOK_S, self._look, until_s)

    def _end(self, reason: str) -> None:
        self.service.close()
        self.process.end(reason)


class SimHost:
    """A host that the engine holds."""

    def __init__(self, name: str, hosts: SimHosts) -> None:
        self.name = name
        self.hosts = hosts
        self.path = HostPath(hosts.time, hosts.chance)
        self.is_wanted = True
        """Whether the engine is to start a keeper when it can."""
        self.keeper: SimKeeper | None = None
        is_off = hosts.chance.random() < CLOCK_OFF
        self._clock_off_s = hosts.chance.choice((-CLOCK_OFF_S, CLOCK_OFF_S)) if is_off else 0.0
        self._boot = 0
        self._starts_fail = False
        self.kernel: Process
        self.tasks: HostTasks
        self.boot()

    # ---- the host

    def boot(self) -> None:
        """It comes up, with nothing on it."""
        world = self.hosts.world
        self._boot += 1
        self.kernel = world.process(f"host-{self.name}")
        self.tasks = HostTasks(self.name, self.kernel, self.hosts.chance, world.tell, world.recorded, world.programs)
        self.tasks.starts_fail = self._starts_fail
        self.is_wanted |= self.hosts.chance.random() < AT_BOOT
        self._start_soon(FIRST_S)

    def crash(self) -> None:
        """All is gone at once, and no connection is closed."""
        if self.kernel.is_alive:
            if self.keeper is not None:
                self.keeper.process.end(CRASHED)
            self.kernel.end(CRASHED)

    def come_back(self) -> None:
        """It boots unless it is up."""
        if not self.kernel.is_alive:
            self.boot()

    def stop(self, until_s: float) -> None:
        """Nothing is done on it until then."""
        if self.kernel.is_alive:
            self.hosts.world.tell(HostStopped(self.hosts.time.now_s, self.name, until_s))
            self.kernel.stop(until_s)
            if self.keeper is not None and self.keeper.process.is_alive:
                self.keeper.process.stop(until_s)

    def fail_starts(self, fails: bool) -> None:
        """Have tasks fail to start here, or no longer."""
        self._starts_fail = self.tasks.starts_fail = fails

    # ---- its keepers

    def _start_soon(self, times_s: tuple[float, float]) -> None:
        self.tasks.after(times_s, self._start)

    def want(self) -> None:
        """The engine is to start a keeper here."""
        self.is_wanted = True
        if self.kernel.is_alive:
            self._start_soon(ENGINE_S)

    def _start(self) -> None:
        if not self.is_wanted or self._has_keeper():
            return
        self.is_wanted = False
        process = self.hosts.world.process(f"keeper-{self.name}")
        process.clock.step_s = self._clock_off_s
        process.on_end.append(lambda reason: self._keeper_ended(process, reason))
        self.keeper = SimKeeper(self, process)

    def _has_keeper(self) -> bool:
        return self.keeper is not None and self.keeper.process.is_alive

    def _keeper_ended(self, process: Process, reason: str) -> None:
        self.tasks.keeper_ended(process)
        if reason in (THE_END, CRASHED):
            return
        if reason in IN_ORDER:
            if self.is_wanted:  # it was asked for while the old one was ending
                self._start_soon(ENGINE_S)
            return
        self.is_wanted = True
        if reason == LATE:
            self._start_soon(LATE_BACK_S)
            self.tasks.after(LATE_GUARD_S, partial(self.tasks.kill_left, process))
        else:
            self.tasks.after(GUARD_S, self._guard)

    def _guard(self) -> None:
        self.tasks.kill_all()
        back_s = self.hosts.chance.choice(BACK_S)
        self._start_soon((back_s, back_s))


class SimHosts:
    """All hosts of an instance, and the engine that holds them: `HeldHosts` of each run of the instance."""

    def __init__(
        self, names: Sequence[str], orphan_timeout_s: float, time: VirtualTime, chance: Random, world: HostsWorld
    ) -> None:
        self.hosts: Sequence[str] = names
        self.orphan_timeout_s = orphan_timeout_s
        self.time = time
        self.chance = chance
        self.world = world
        self._is_calm = False
        self._instance: tuple[Process, Turns, InstanceHosts] | None = None
        self.all = {name: SimHost(name, self) for name in names}

    def host_lost(self, host: str) -> None:
        """See `HeldHosts.host_lost`."""
        self.all[host].want()

    def serve(self, process: Process, turns: Turns, hosts: InstanceHosts) -> None:
        """Keepers find this instance from now on."""
        self._instance = process, turns, hosts

    def connect(self, host: SimHost, keeper: Process) -> CableEnd | None:
        """A keeper's end of a new connection to the instance; None if that does not listen, or there is no way."""
        if self._instance is None:
            return None
        process, turns, hosts = self._instance
        cable = host.path.connect(keeper, process)
        if cable is None:
            return None
        request = KeeperConnectRequest(host.name, host.name, VERSION, keeper.pid)
        cable.up.carry(partial(process.run, partial(turns.post, partial(self._arrive, hosts, request, cable))))
        return cable.host_end

    def _arrive(self, hosts: InstanceHosts, request: KeeperConnectRequest, cable: Cable) -> None:
        end: Any = cable.instance_end
        at_s = self.time.now_s
        try:
            hosts.arrived(request, cast(KeeperConnection, end))
        except Refused:
            end.close()
        else:
            self.world.tell(KeeperConnected(at_s, request.host))

    # ---- faults

    def cut(self, host: str, way: str, until_s: float) -> None:
        """Cut what lies between a host and the instance, in one direction or (another word) both, for a while."""
        path = self.all[host].path
        path.cut(frozenset((way,)) if way in WAYS else WAYS)
        self.time.at(until_s, path.mend)

    def slip(self, host: str, share: float, lasts_s: float) -> None:
        """Cut both directions; the instance notices, the host does not; when this share of the lease is over, what was
        held up gets through to it.
        """
        path, after_s = self.all[host].path, share * self.orphan_timeout_s
        until_s = self.time.now_s + after_s + lasts_s
        path.cut_ways |= {DOWN}
        self._later(PING_S, partial(path.cut, WAYS))
        self._later(PING_S, path.end_at_instance)
        self._later(after_s, partial(path.slip, DOWN))
        self.time.at(until_s, path.mend)

    def _later(self, delay_s: float, fault: Callable[[], None]) -> None:
        """Have something go wrong later, unless faults have ended by then."""
        self.time.after(delay_s, lambda: None if self._is_calm else fault())

    def slow(self, host: str, delay_s: float) -> None:
        """Have messages between a host and the instance take so long."""
        self.all[host].path.delay_s = 0.0, delay_s

    def crash(self, host: str, back_s: float) -> None:
        """Crash a host, which is back after a while; 0: not before all faults are over."""
        one = self.all[host]
        one.crash()
        if back_s:
            self.time.after(back_s, one.come_back)

    def fail_starts(self, host: str, until_s: float) -> None:
        """Have tasks fail to start on a host for a while."""
        self.all[host].fail_starts(True)
        self.time.at(until_s, partial(self.all[host].fail_starts, False))

    def calm(self) -> None:
        """End all faults that last."""
        self._is_calm = True
        for host in self.all.values():
            host.path.mend()
            host.path.delay_s = DELAY_S
            host.fail_starts(False)
            host.come_back()
