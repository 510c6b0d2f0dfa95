"""An instance of its own: resource module, job manager, executors and module host on one loop.

    async with Instance(settings) as instance:      # running; instance.uri is where clients connect
        ...

This file only puts the parts together, in the order in which they depend on each other; each part's own file says
what it does. The order of the end-of-turn hooks is the order of the data: publish, store, flush.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import msgspec

from fluxsched import __version__
from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import FluidGenerator
from fluxsched.errors import FluxschedError
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.common import InstanceInfo
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.client.enclosing import attributes_of, environment_of
from fluxsched.runtime.config.reader import banks_of, queue_configs
from fluxsched.runtime.exec.base import Reports
from fluxsched.runtime.exec.cleanup.keeper import Keeper, RecordProcesses
from fluxsched.runtime.exec.cleanup.orphans import clear_orphans
from fluxsched.runtime.exec.local import LocalExecutor
from fluxsched.runtime.exec.timed import TimedExecutor
from fluxsched.runtime.flux_compat.endpoint import serve_instance, serve_jobs
from fluxsched.runtime.instance.reloading import Reloading
from fluxsched.runtime.instance.run_directory import lock_state, make_run_directory, remove_dead, scratch_directory
from fluxsched.runtime.instance.settings import Settings
from fluxsched.runtime.instance.shutdown import end_jobs, end_modules, until
from fluxsched.runtime.instance.stored_state import StoredState, read_store
from fluxsched.runtime.inventory.sources import Sources
from fluxsched.runtime.loop.faults import Faults
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.disk_guard import DiskGuard
from fluxsched.runtime.messaging.listening import listen, local_uri, open_to_all
from fluxsched.runtime.messaging.router import Handler, Router
from fluxsched.runtime.services.agents import AgentService
from fluxsched.runtime.services.instance import InstanceService
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.input import JobInputs
from fluxsched.runtime.services.jobs.scheduling import SchedulingService
from fluxsched.runtime.services.jobs.service import JobService
from fluxsched.runtime.services.jobs.streams import JobStreams
from fluxsched.runtime.services.jobs.waits import JobWaits
from fluxsched.runtime.services.modules.service import ModuleService
from fluxsched.runtime.services.resource import ResourceService, allocated
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.clock import generator_id
from fluxsched.runtime.system.kept_logs import ENDED, begin_line, keep_log
from fluxsched.runtime.system.live_instances import write_info
from fluxsched.runtime.system.own_process import settle, uncollected
from fluxsched.runtime.system.paths import DATABASE_NAME, LOG_NAME, TEMPORARY_VARIABLE, temporary_directory
from fluxsched.runtime.system.private_files import SPOOL_NAME, private_state, user_name
from fluxsched.transport.base import Server

log = logs.logger("instance")

ORPHANS_S = 5.0
"""How long a restart waits for processes of a killed predecessor to be gone (seconds)."""


class Instance:
    """A running instance; `ended` completes when it stops, with None or with the error that stopped it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.servers: list[Server] = []
        self.faults = Faults()
        self._closing = False
        with ExitStack() as begun:
            restored = self._begin(begun)
            self._compose(restored)
            self._restore(restored)
            self._release = begun.pop_all()

    def _begin(self, begun: ExitStack) -> StoredState:
        """Take what the outside world gives; `begun` gives it back, also when a later step fails."""
        settings = self.settings
        self.run_directory, self._owner = make_run_directory()
        self.local_uri = local_uri(self.run_directory)
        begun.callback(os.close, self._owner)
        begun.callback(shutil.rmtree, self.run_directory, ignore_errors=True)
        self._started_s = settings.clock.wall_s()
        self.ended: asyncio.Future[FluxschedError | None] = asyncio.get_running_loop().create_future()
        state = settings.statedir or self.run_directory
        private_state(state)
        begun.enter_context(lock_state(state))
        keep_log(begun, self.run_directory, settings.statedir, self._started_s)
        logs.setup(self.run_directory / LOG_NAME, settings.verbose)
        begun.callback(self._say_ended)
        remove_dead(settings.clock)
        self._scratch = begun.enter_context(scratch_directory(self.run_directory))
        self.turns = Turns(settings.clock)
        self.turns.failed, self.turns.noted = self._fail, self.faults.note
        self._loading = 0
        self.is_complete = True
        """Whether every scheduler that was to be started came to serve its groups."""
        self._ready = False
        self._following: asyncio.Future[None] | None = None
        self.store = Store(state / DATABASE_NAME, self.turns)
        begun.callback(self.store.close)
        self.store.failed = self._fail
        guests = settings.config.allow_guests
        wanted = listen(self.run_directory, settings.bind, guests=guests, insecure_tcp=settings.insecure_tcp)
        for server in settings.servers or wanted:
            begun.callback(server.close)
            self.servers.append(server)
        self.uri = self.servers[0].endpoint
        log.info("%s", begin_line(self.uri, settings.statedir))
        self.is_open_to_all = open_to_all(self.endpoints, user_name(os.getuid()))
        """What is to be said of tcp ports."""
        if self.is_open_to_all is not None:
            log.warning("listening at %s", self.is_open_to_all)
        self.router = Router(self.turns, self.servers, settings.trace)
        self._disk_guard = DiskGuard(self.store, self.turns, state)
        self._spool = state / SPOOL_NAME
        return read_store(self.store)

    def _compose(self, restored: StoredState) -> None:
        sources, config = self.settings.sources, self.settings.config
        now_s = self.settings.clock.wall_s()
        module = ResourceModule(sources.inventory, sources.groups, restored.saved, now_s=now_s)
        new_id = self._fluids(restored).at
        manager = JobManager(new_id, queue_configs(config), default_queue=config.defaults.queue, banks=banks_of(config))
        self.effects = JobEffects(manager, self.router, self.store, self.turns, self._spool)
        raise_jobs = self.effects.raise_jobs
        self.resource = ResourceService(module, self.router, self.store, self.turns, raise_jobs, self._reload)
        self.resource.allocated = lambda: allocated(manager.holdings, module.resources)
        manager.holdings.there = lambda: module.resources
        self.effects.held, self.effects.unheld = self._held, self._unheld
        self.scheduling = SchedulingService(self.effects, self.router, self.store)
        self.scheduling.foreign = module.foreign
        self.jobs = JobService(self.effects, self.scheduling, self.router, self.store, new_id)
        self.streams = JobStreams(self.effects, self.router, self.store, self.turns)
        self.waits = JobWaits(self.effects, self.router, self.store, self.turns)
        self.inputs = JobInputs(self.effects, self.streams, self.router)
        serve_jobs(self.router, self.effects, self.jobs, self.streams, self.inputs, self.store)
        self.modules = ModuleService(
            self.router, self.scheduling, self.turns, self.run_directory, lambda: self.uri, config.queues,
            config.unsatisfiable, config.preempt_timeout_s,
        )  # fmt: skip
        self.jobs.policy_of = self.modules.policy_of
        self.agents = AgentService(self.resource, self.router, self.turns, config.resource)
        self.agents.on_change.append(self._check_ready)
        self.instance = InstanceService(self.router, self.info, self.stop)
        self.reloading = Reloading(config, self.settings.reload, self.router, self.effects, self.modules, self.resource)
        self._common_services()
        serve_instance(self.router, self.resource, self.instance, self.modules, self.turns, self._started_s)
        self._executors()
        self.router.guard(self._disk_guard.guards())
        self.turns.at_end(self.store.flush)
        self.turns.at_end(self.router.flush)

    def _held(self, jobid: int, ranks: Idset) -> None:
        self._follow_jobs(self.resource.module.hold(jobid, ranks))

    def _unheld(self, jobid: int, ranks: Idset) -> None:
        self._follow_jobs(self.resource.module.unhold(jobid, ranks, self.turns.wall_s))

    def _follow_jobs(self, effects: list[Any]) -> None:
        if effects:  # rarely: targets that leave and were waited for
            self.resource.perform(effects)

    def _fluids(self, restored: StoredState) -> FluidGenerator:
        if restored.epoch_ms is None:
            restored.epoch_ms = int(self._started_s * 1000)
            self.store.add("saved", ("instance", "epoch_ms", msgspec.json.encode(restored.epoch_ms)))
        return FluidGenerator(generator_id(), restored.epoch_ms, last_id=restored.last_jobid)

    def _common_services(self) -> None:
        stats: dict[str, Handler] = {
            "resource": lambda request: request.respond(self.resource.report()),
            "job-manager": self.jobs.stats,
            "instance": lambda request: request.respond(self.report()),
        }
        self.modules.builtin.update(stats)
        self.instance.serve_common(stats)
        self.instance.set_attributes(
            {
                **attributes_of(self.settings.parent),
                "rank": "0",
                "size": str(len(self.resource.module.resources.ranks)),
                "security.owner": str(os.getuid()),
                "broker.starttime": str(self._started_s),
                "hostlist": str(self.resource.module.resources.nodelist),
                "rundir": str(self.run_directory),
                "local-uri": self.local_uri,
                "endpoints": " ".join(self.endpoints),
                "version": __version__,
            }
        )

    def _executors(self) -> None:
        effects, config = self.effects, self.settings.config
        record: RecordProcesses = effects.record_process
        self.keeper: Keeper | None = None
        if self.settings.statedir is None:  # else the next instance on it ends what this one leaves
            self.keeper = Keeper(self.turns, self.run_directory, self._owner, config.kill_timeout_s)
            record = self.keeper.before(record)
        reports = Reports(effects.started, effects.finished, effects.exec_failed, record, effects.raise_job)
        self._local = local = LocalExecutor(self.turns, reports, config.kill_timeout_s)
        local.opened, self.inputs.input_of = self.inputs.opened, local.input_of
        effects.executors = {"local": local, "test": TimedExecutor(self.turns, reports)}
        effects.scratch, effects.preempt_timeout_s = self._scratch, config.preempt_timeout_s
        given = environment_of(self.uri, self.settings.parent)
        effects.environment = given | {TEMPORARY_VARIABLE: temporary_directory()}
        self._take_up(self.settings.sources)

    def _take_up(self, sources: Sources) -> None:
        """Record what is made up, and bind tasks to their cores where targets have those of this machine."""
        self.resource.made_up = sources.made_up_of
        self.effects.cores = list(sources.topology.cores) if sources.topology and not sources.made_up else None

    @uncollected()
    def _restore(self, restored: StoredState) -> None:
        """Make the dead instance's state ours: no process of a job may be left before its targets count as free."""
        notes = clear_orphans(restored.processes, ORPHANS_S)
        effects, manager, now_s = self.effects, self.effects.manager, self.settings.clock.wall_s()
        self.turns.wall_s = now_s  # what happens before the first turn is not older than the start
        for name, state in restored.queues.items():
            manager.queue_control.restore(name or None, state)
        found = manager.restore(restored.jobs, now_s)
        effects.perform(found.effects)
        self.resource.perform(self.resource.module.start(now_s))
        for jobid in found.orphans:
            reason = notes.get(jobid, "no process of the job was left")
            effects.perform(manager.execution.exec_failed(jobid, f"the instance was restarted; {reason}", now_s))
        for jobid in restored.processes:
            self.store.remove("process", (jobid,))

    def began(self, program: int) -> None:
        """The initial program runs: it must not outlive the instance either."""
        if self.keeper is not None:
            self.keeper.keep(self.store, program)

    # -- running ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Instance:
        loop = asyncio.get_running_loop()
        self.router.start()
        for server in self.servers:
            server.start(loop, self.turns.wake)
        self.turns.wall_s = self.settings.clock.wall_s()
        self.agents.embed(self._ours(self.settings.sources))
        self.turns.start(loop)
        try:
            for one in self.settings.schedulers:
                self._loading += 1
                self.modules.load(one.policy, one.name, one.groups, self._loaded, one.recovery)
        except FluxschedError:
            await self.close()
            raise
        if self.settings.enclosing is not None:
            self._following = asyncio.ensure_future(self.settings.enclosing.follow(self._expires))
        write_info(self.run_directory, msgspec.to_builtins(self.info()))
        settle()
        self._check_ready()
        return self

    def _expires(self, expiration_s: float) -> None:
        self.turns.post(lambda: self.resource.set_expiration(expiration_s))

    def _ours(self, sources: Sources) -> Idset:
        """The targets that the instance itself reports online: made-up ones, and of real ones those of its own host."""
        module = self.resource.module
        if sources.made_up or sources.real or sources.topology is None:
            return module.resources.ranks - module.lost
        return module.resources.ranks_of(sources.topology.host) - module.lost

    def _loaded(self, error: str | None) -> None:
        self._loading -= 1
        self.is_complete &= error is None
        self._check_ready()

    def _check_ready(self) -> None:
        """Ready: every target that is ours to report is online, every scheduler is ready or has failed."""
        if not self._ready and self._loading == 0:
            self._ready = True
            self.instance.became_ready()

    async def ready(self) -> None:
        """Wait until jobs can be run: the schedulers are ready or have failed."""
        await until(self.turns, lambda: self._ready or self.ended.done())

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All that it listens at, with the ports that the system chose."""
        return tuple(server.endpoint for server in self.servers)

    def info(self) -> InstanceInfo:
        """What `instance.info` answers."""
        return InstanceInfo(
            uri=self.uri,
            endpoints=self.endpoints,
            rundir=str(self.run_directory),
            statedir=None if self.settings.statedir is None else str(self.settings.statedir),
            pid=os.getpid(),
            version=__version__,
            size=len(self.resource.module.resources.ranks),
            owner=os.getuid(),
            starttime=self._started_s,
            ready=self._ready,
            state="run",
            level=0 if self.settings.parent is None else self.settings.parent.level + 1,
            parent=None if self.settings.parent is None else self.settings.parent.uri,
        )

    def report(self) -> dict[str, Any]:
        """What `instance.stats-get` shows."""
        return {
            "build": BUILD,
            "turns": self.turns.count,
            "peers": len(self.router.peers),
            "messages_received": self.router.received,
            "messages_sent": self.router.sent,
            "commits": self.store.commits,
            "store_fault": self.store.fault,
            "faults": self.faults.count,
            "memory": self._local.memory.way,
        }

    def _reload(self, wanted: ReloadRequest) -> tuple[Inventory, Mapping[str, Idset], Callable[[], object]]:
        """What a reload finds, and what is to be done once the resource module has accepted it."""
        sources, take_up = self.reloading.read(wanted)

        def accepted() -> object:
            self._take_up(sources)
            self.agents.reloaded(self._ours(sources))
            return take_up()

        return replace(sources.inventory, method="reload"), sources.groups, accepted

    def check(self) -> None:
        """Assert law 5 over the whole state: for tests."""
        module, manager = self.resource.module, self.effects.manager
        module.check()
        manager.check()
        held = EMPTY
        for job in manager.jobs.active.values():
            held |= job.held
        assert held <= module.held, f"jobs hold {held}, the resource module counts {module.held}"

    def stop(self) -> None:
        """End the instance; `ended` completes."""
        self.jobs.accepting = False
        if not self.ended.done():
            self.ended.set_result(None)

    def _fail(self, exc: BaseException) -> None:
        log.critical("the instance ends: %s", exc, exc_info=exc)
        if not self.ended.done():
            error = exc if isinstance(exc, FluxschedError) else FluxschedError(f"{type(exc).__name__}: {exc}")
            self.ended.set_result(error)

    def _say_ended(self) -> None:
        if not self.ended.done() or self.ended.result() is None:
            log.info(ENDED)

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave cleanly: modules end, running jobs are killed and their end is stored, the run directory goes.
        Idempotent.
        """
        if self._closing:
            return
        self._closing = True
        self.stop()
        if self.ended.result() is None:
            self.turns.post(self.scheduling.suspend)
            await end_jobs(self.effects, self.store)
        if self._following is not None:
            self._following.cancel()
        await end_modules(self.modules, self.turns)
        for executor in self.effects.executors.values():
            executor.close()
        if self.keeper is not None:
            self.keeper.close()
        self.router.flush()
        self.turns.stop()
        self._release.close()
