"""The process of `fluxsched si rm`: a scheduler module of an instance, connected to a scheduler service.

Law: the two conversations know nothing of each other's bytes. The service may be lost and come back at any time; the
instance and its jobs go on, and what waits is asked for again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluxsched.adapters.si import messages
from fluxsched.adapters.si.rm.effects import EndJob, SendRequest
from fluxsched.adapters.si.rm.policy import RemoteDecisions
from fluxsched.adapters.si.rm.resource_manager import InstanceRM
from fluxsched.adapters.si.wire.address import Address
from fluxsched.adapters.si.wire.certificates import ClientCertificates
from fluxsched.adapters.si.wire.rm_client import RMClient
from fluxsched.errors import FluxschedError
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.scheduler.host import SchedulerHost
from fluxsched.scheduler.main import host_until_end
from fluxsched.system.files import user_name
from fluxsched.system.log import logger, setup
from fluxsched.system.loop import Turns

log = logger("si")

VERSION: Final = "1"
AGAIN_S: Final[tuple[float, ...]] = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Pauses between attempts to reach a service (seconds); the last one stays."""


class RMSettings(NamedTuple):
    """`uri` is the instance's; `rm_id` is our name at the service, empty for one made of uri and group."""

    uri: str
    address: Address
    certificates: ClientCertificates | None
    group: str
    queue: str
    rm_id: str
    policy_group: str
    config: str

    @property
    def name(self) -> str:
        """Return our name at the service."""
        return self.rm_id or f"{Path(self.uri.partition('://')[2]).parent.name}/{self.group}"


def run(settings: RMSettings) -> str | None:
    """Run until the instance ends or asks us to stop (None), or something fails (the reason); logs go to stderr."""
    setup(None, verbose=1)
    return asyncio.run(serve(settings))


async def serve(settings: RMSettings) -> str | None:
    """Run as `run` does, in an event loop."""
    policy = RemoteDecisions()
    scheduler = Scheduler(policy, (settings.group,), user_name=user_name)
    rm = policy.rm = InstanceRM(scheduler.group(settings.group), settings.name, settings.queue, user_name)
    link = _Link(settings, rm)
    try:
        return await host_until_end(
            settings.uri, f"sched-si-{settings.group}", scheduler, (settings.group,), link.attend
        )
    finally:
        await link.leave()


class _Link:
    """Keeps the connection to the service, and carries messages between it and the turns of the host."""

    def __init__(self, settings: RMSettings, rm: InstanceRM) -> None:
        self._settings = settings
        self._rm = rm
        self._client: RMClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._due_s = float("inf")

    def attend(self, host: SchedulerHost, turns: Turns) -> None:
        """Be called at the end of each turn of the host."""
        self._host, self._turns = host, turns
        turns.at_end(self._turn)

    async def leave(self) -> None:
        """Half-close: what we had told the service is gone; jobs that run are told again by the next of us."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._client is not None:
            await self._client.leave()

    def _turn(self) -> None:
        if not self._host.session.may_decide:
            return
        if self._task is None:  # only now do we know what runs
            self._task = asyncio.get_running_loop().create_task(self._stay_connected())
        now_s = self._turns.wall_s
        for one in self._rm.reconcile(now_s):
            match one:
                case SendRequest(kind, request):
                    if self._client is not None:
                        self._client.send(kind, request)
                case EndJob(jobid, type, note):
                    self._host.raise_exception(jobid, type, note)
        next_s = self._rm.next_s
        if next_s < self._due_s or self._due_s <= now_s:
            self._due_s = next_s
            if next_s < float("inf"):
                self._turns.after(next_s - now_s, lambda: None)

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            client = RMClient(self._settings.address, self._settings.certificates)
            try:
                await client.register(self._registration())
                failures = 0
                self._client = client
                client.open(self._take)
                self._turns.post(self._rm.connected)
                log.info("resource manager %s is registered at %s", self._settings.name, self._settings.address)
                why = await client.ended
            except FluxschedError as fault:
                why = str(fault)
            pause_s = AGAIN_S[min(failures, len(AGAIN_S) - 1)]
            log.warning("no scheduler service: %s; the next attempt is in %g s", why, pause_s)
            self._client = None
            self._turns.post(self._rm.lost)
            await client.close()
            failures += 1
            await asyncio.sleep(pause_s)

    def _registration(self) -> Any:
        settings = self._settings
        return messages.RegisterResourceManagerRequest(
            rmID=settings.name, version=VERSION, policyGroup=settings.policy_group, config=settings.config
        )

    def _take(self, kind: str, response: Any) -> None:
        self._turns.post(lambda: self._rm.take(kind, response, self._turns.wall_s))
        if kind != "nodes":
            return
        for rejected in response.rejected:
            log.error("node %s is refused: %s", rejected.nodeID, rejected.reason)
