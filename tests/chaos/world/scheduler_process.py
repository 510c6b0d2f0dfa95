"""A scheduler module as a simulated process: the real host, session and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fluxsched.config.reader import fair_settings
from fluxsched.errors import FluxschedError
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.hooks import with_limits
from fluxsched.sched.policy import needs_accounts
from fluxsched.sched.registry import Loaded
from fluxsched.scheduler.host import SchedulerHost
from fluxsched.scheduler.main import policies_of
from fluxsched.services.module_processes import ModuleStart
from fluxsched.system.loop import Turns
from tests.chaos.wire import messages, request
from tests.chaos.world.network import Network, SimClient
from tests.chaos.world.processes import Process

IMPORT_S = 0.05, 0.4
"""How long a scheduler takes from its start to its first message (seconds)."""
SIGNAL_S = 0.0001, 0.01
"""How long a signal takes."""
CONFIG_TAG = 1


class SimModule:
    """A `ModuleProcess`: real code of a scheduler, whose process is simulated."""

    def __init__(self, network: Network, process: Process, wanted: ModuleStart) -> None:
        self.pid = process.pid
        self._network = network
        self._process = process
        self._wanted = wanted
        self._why = ""
        self._turns: Turns | None = None
        self.host: SchedulerHost | None = None
        process.on_end.append(self._ended)
        process.loop.call_later(network.chance.uniform(*IMPORT_S), self._import)

    # -- what the instance does with it ---------------------------------------------------------------------------

    def terminate(self) -> None:
        """See `ModuleProcess.terminate`."""
        self._later(self._leave)

    def kill(self) -> None:
        """See `ModuleProcess.kill`."""
        process = self._process
        self._network.time.after(self._network.chance.uniform(*SIGNAL_S), lambda: process.end("killed by the instance"))

    def why_ended(self, when: str) -> str:
        """See `ModuleProcess.why_ended`."""
        return f"{self._why}{when}"

    def forget(self) -> None:
        """See `ModuleProcess.forget`: a simulated instance never waits for its end."""

    def finish(self, timeout_s: float) -> None:
        """See `ModuleProcess.finish`."""

    # -- what it does itself --------------------------------------------------------------------------------------

    def _later(self, call: Callable[[], None]) -> None:
        process = self._process
        self._network.time.after(self._network.chance.uniform(*SIGNAL_S), lambda: process.run(call))

    def _leave(self) -> None:
        if self.host is None or self._turns is None:
            self._process.end("ended by signal 15 (Terminated)")
        else:
            self._turns.post(self.host.leave)

    def _ended(self, reason: str) -> None:
        self._why = reason

    def _import(self) -> None:
        try:
            found = policies_of(self._wanted.specs)
            if any(needs_accounts(policy) for policy in (found.policy, *found.own.values())):
                self._ask_config(found)
            else:
                self._serve(found, None)
        except FluxschedError as exc:
            self._process.end(str(exc))

    def _ask_config(self, found: Loaded) -> None:
        client = self._network.connect(self._wanted.name, self._process)

        def wake() -> None:
            for frames in client.receive(16):
                for message in messages(frames):
                    client.close()
                    self._configured(found, message.errnum, message.payload)
            if client.lost is not None and self._turns is None:
                self._process.end(f"the instance is gone: {client.lost}")

        client.start(None, wake)
        client.send(request("config.get", None, CONFIG_TAG))

    def _configured(self, found: Loaded, errnum: int, payload: Any) -> None:
        try:
            if errnum:
                raise FluxschedError(str(payload))
            config: Mapping[str, Any] = payload
            self._serve(found, fair_settings(config))
        except FluxschedError as exc:
            self._process.end(str(exc))

    def _serve(self, found: Loaded, fair: FairSettings | None) -> None:
        process, wanted = self._process, self._wanted
        scheduler = Scheduler(
            found.policy,
            wanted.groups,
            dict(wanted.queues),
            found.own,
            unsatisfiable=wanted.unsatisfiable,
            time_text=lambda time_s: f"{time_s:.0f}",
            fair=fair,
            user_name=str,
            preempt_timeout_s=wanted.preempt_timeout_s,
            plugins=with_limits(found.plugins, wanted.limits),
        )
        client: SimClient = self._network.connect(wanted.name, process)
        turns = self._turns = Turns(process.clock, lambda exc: process.end(f"{type(exc).__name__}: {exc}"))
        host = self.host = SchedulerHost(
            client, scheduler, wanted.groups, turns, wanted.name, lambda reason: process.end(reason or "left")
        )
        client.start(process.loop, turns.wake)
        turns.start(process.loop)
        host.start()
