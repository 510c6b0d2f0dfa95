"""The services of an instance, put together in the order in which they depend on each other.

Everything from the outside world comes in `Surroundings`, so a simulation composes the same services. Each part's own
file says what it does. The order of the end-of-turn hooks is the order of the data: publish, store, flush.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from fluxsched import __version__
from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import FluidGenerator
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.errors import FluxschedError
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.common import InstanceInfo
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.changes.mirror import with_mirrors
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.client.enclosing import attributes_of
from fluxsched.runtime.clusters.clusters import Clusters
from fluxsched.runtime.config.reader import banks_of, queue_configs
from fluxsched.runtime.exec.base import Reports
from fluxsched.runtime.flux_compat.endpoint import serve_instance, serve_jobs
from fluxsched.runtime.history.intervals import StateIntervals
from fluxsched.runtime.history.sampling import Sampling
from fluxsched.runtime.instance.parts.enclosed_targets import EnclosedTargets
from fluxsched.runtime.instance.parts.kept_changes import KeptChanges
from fluxsched.runtime.instance.parts.reloading import Reloading
from fluxsched.runtime.instance.parts.surroundings import Surroundings
from fluxsched.runtime.instance.settings import Settings
from fluxsched.runtime.instance.stored_state import StoredState
from fluxsched.runtime.inventory.sources import Sources
from fluxsched.runtime.loop.faults import Faults
from fluxsched.runtime.loop.queries import Queries
from fluxsched.runtime.messaging.disk_guard import DiskGuard
from fluxsched.runtime.messaging.listening import local_uri
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.messaging.services import Handler
from fluxsched.runtime.messaging.tracing import with_log
from fluxsched.runtime.services.agents import AgentService
from fluxsched.runtime.services.history import HistoryService, kept_conditions, look_at
from fluxsched.runtime.services.instance import InstanceService
from fluxsched.runtime.services.jobs.effects import JobEffects
from fluxsched.runtime.services.jobs.history import JobHistory
from fluxsched.runtime.services.jobs.input import JobInputs
from fluxsched.runtime.services.jobs.running import RunningService
from fluxsched.runtime.services.jobs.scheduling import SchedulingService
from fluxsched.runtime.services.jobs.service import JobService
from fluxsched.runtime.services.jobs.streams import JobStreams
from fluxsched.runtime.services.jobs.waits import JobWaits
from fluxsched.runtime.services.leases import LeaseService
from fluxsched.runtime.services.metrics import MetricsService
from fluxsched.runtime.services.modules.process import ModuleTable
from fluxsched.runtime.services.modules.service import ModuleService
from fluxsched.runtime.services.resource import ResourceService, allocated
from fluxsched.runtime.services.resource_watch import ResourceWatch
from fluxsched.runtime.services.trace import TraceService
from fluxsched.runtime.system import log as logs

log = logs.logger("instance")


class Assembly:
    """The parts of one instance. `restore`, then `start`."""

    def __init__(self, settings: Settings, outside: Surroundings, restored: StoredState) -> None:
        self.settings = settings
        self.outside = outside
        self.turns, self.store = outside.turns, outside.store
        self.faults = Faults()
        self.turns.failed, self.turns.noted = self.fail, self.faults.note
        self.store.failed = self.fail
        self.uri = outside.servers[0].endpoint
        self.router = Router(self.turns, list(outside.servers), with_log(settings.trace), outside.access)
        self.is_ready = False
        self.is_complete = True
        """Whether every scheduler that was to be started came to serve its groups."""
        self._loading = 0
        self._unloaded = settings.schedulers
        self._is_settled = False
        self._compose(restored)

    @property
    def ended(self) -> asyncio.Future[FluxschedError | None]:
        """Completes when the instance is to end: with None, or with the error that ends it."""
        return self.outside.ended

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All that it listens at, with the ports that the system chose."""
        return tuple(server.endpoint for server in self.outside.servers)

    def _compose(self, restored: StoredState) -> None:
        config, now_s = self.settings.config, self.turns.clock.wall_s()
        sources = self.settings.sources
        self._kept = KeptChanges(self.store, sources.source, restored.source, now_s)
        mirrors = {one.name: restored.clusters.mirrors.get(one.name, EMPTY_R) for one in config.clusters}
        inventory, groups = with_mirrors(sources.inventory, sources.groups, mirrors.items())
        module = ResourceModule(inventory, groups, restored.saved, now_s=now_s, mirrors=mirrors)
        new_id = self._fluids(restored).at
        manager = JobManager(new_id, queue_configs(config), default_queue=config.defaults.queue, banks=banks_of(config))
        self.effects = JobEffects(manager, self.router, self.store, self.turns, self.outside.spool)
        raise_jobs = self.effects.raise_jobs
        modules = ModuleTable()
        self.resource = ResourceService(
            module, self.router, self.store, self.turns, raise_jobs, self._reload, self._kept.keep_expiration,
            manager.queues, modules,
        )  # fmt: skip
        self.resource.allocated = lambda: allocated(manager.holdings, module.resources)
        self.watch = ResourceWatch(self.resource, manager.holdings, self.router, self.turns)
        manager.holdings.there = lambda: module.resources
        self.effects.accounting.group_of = module.group_of
        self.effects.held, self.effects.unheld = self._held, self._unheld
        self.scheduling = SchedulingService(self.effects, self.router, self.store, modules)
        self.scheduling.foreign = module.foreign
        self.jobs = JobService(self.effects, self.scheduling, self.router, self.store, new_id, self.resource.targets)
        self._leases(restored)
        RunningService(manager, self.router, self.turns, self.resource.targets)
        self.streams = JobStreams(self.effects, self.router, self.store, self.turns)
        self.waits = JobWaits(self.effects, self.router, self.store, self.turns)
        self.history = JobHistory(self.effects, self.store, config.history, self.outside.background)
        self.inputs = JobInputs(self.effects, self.streams, self.router)
        serve_jobs(self.router, self.effects, self.jobs, self.streams, self.inputs, self.store)
        self.modules = ModuleService(
            modules, self.router, self.scheduling, self.turns, self.outside.start_module, lambda: self.uri,
            self.outside.pid,
            config.queues, self.outside.connecting, config.unsatisfiable, config.preempt_timeout_s,
        )  # fmt: skip
        self.jobs.policy_of = self.modules.policy_of
        self.agents = AgentService(self.resource, self.router, self.turns, config.resource)
        self.agents.on_change.append(self._check_ready)
        self.instance = InstanceService(self.router, self.info, self.stop, self.outside.restart)
        self.reloading = Reloading(
            config, self.settings.reload, self.router, self.effects, self.modules, self.resource,
            self.outside.read_keys, self.settings.try_imports, self.outside.background,
        )  # fmt: skip
        self.router.permissions.owner_of = manager.jobs.user_of
        self._common_services()
        MetricsService(
            module, manager, self.effects.counts, self.store, self.router, self.outside.started_s,
            lambda: self.faults.count,
        )  # fmt: skip
        self.sampling = Sampling(self.turns, self.store, lambda: look_at(module, manager, self.effects.counts))
        self.sampling.on_minute.append(self._each_minute)
        self.intervals = StateIntervals(self.turns, self.store, lambda: kept_conditions(module))
        self.resource.changed.append(self.intervals.note_change)
        self.past = HistoryService(
            Queries(self.store, self.outside.background), self.store, self.effects.accounting, manager, self.resource,
            self.sampling, self.turns, self.router,
        )
        TraceService(self.router, self.turns)
        serve_instance(self.router, self.resource, self.instance, self.modules, self.turns, self.outside.started_s)
        self._executors()
        self.router.guard(DiskGuard(self.store, self.turns, self.outside.disk_shortage).guards())
        self.turns.at_end(self.store.flush)
        self.turns.at_end(self.router.flush)

    def _leases(self, restored: StoredState) -> None:
        """Jobs that are run for other instances, and those that others run for this one."""
        outside = self.outside
        self.leases = LeaseService(self.effects, self.jobs, self.router, self.store)
        self.clusters = Clusters(
            self.settings.config.clusters,
            restored.clusters,
            f"{restored.epoch_ms:x}-{outside.generator_id:x}-{outside.pid:x}",
            outside.connect,
            outside.connecting,
            self.effects,
            self.resource,
            self.router,
            self.store,
            outside.spool,
        )
        self.clusters.on_change, self.jobs.extend_listed = self._check_ready, self.clusters.extend_listed

    def _each_minute(self, now_s: float) -> None:
        self.effects.accounting.write()
        if self.store.fault is None:
            self.effects.accounting.age(now_s)
            self.intervals.age(now_s)

    def _held(self, jobid: int, ranks: Idset) -> None:
        self.watch.note_jobs(ranks)
        self._follow_jobs(self.resource.module.hold(jobid, ranks))
        if self.clusters.is_used:
            self.clusters.held(jobid, ranks)

    def _unheld(self, jobid: int, ranks: Idset) -> None:
        self.watch.note_jobs(ranks)
        if self.intervals.waits_for_jobs:
            self.intervals.note_change()
        self._follow_jobs(self.resource.module.unhold(jobid, ranks, self.turns.wall_s))
        if self.clusters.is_used:
            self.clusters.jobs_changed(ranks)

    def _follow_jobs(self, effects: list[Any]) -> None:
        if effects:  # rarely: targets that leave and were waited for
            self.resource.perform(effects)

    def _fluids(self, restored: StoredState) -> FluidGenerator:
        if restored.epoch_ms is None:
            restored.epoch_ms = int(self.outside.started_s * 1000)
            self.store.add("saved", ("instance", "epoch_ms", msgspec.json.encode(restored.epoch_ms)))
        return FluidGenerator(self.outside.generator_id, restored.epoch_ms, last_id=restored.last_jobid)

    def _common_services(self) -> None:
        stats: dict[str, Handler] = {
            "resource": lambda request: request.respond(self.resource.report()),
            "job-manager": self.jobs.stats,
            "instance": lambda request: request.respond(self.report()),
        }
        self.modules.builtin.update(stats)
        self.instance.serve_common({**stats, "history": lambda request: request.respond(self.past.report())})
        self.instance.set_attributes(
            {
                **attributes_of(self.settings.parent),
                "rank": "0",
                "size": str(len(self.resource.module.resources.ranks)),
                "security.owner": str(os.getuid()),
                "broker.starttime": str(self.outside.started_s),
                "hostlist": str(self.resource.module.resources.nodelist),
                "rundir": str(self.outside.run_directory),
                "local-uri": local_uri(self.outside.run_directory),
                "endpoints": " ".join(self.endpoints),
                "version": __version__,
            }
        )

    def _executors(self) -> None:
        effects, outside = self.effects, self.outside
        reports = Reports(
            effects.started,
            effects.finished,
            effects.exec_failed,
            effects.record_process,
            effects.raise_reported,
            self.inputs.opened,
            effects.after_commit,
            effects.released,
        )
        local, leased = outside.executors(reports), self.clusters.executor(reports)
        effects.executors = local | {"lease": leased}
        self.inputs.input_of = lambda jobid: (leased if self.clusters.has(jobid) else local["local"]).input_of(jobid)
        self.jobs.give_back = local["local"].give_back
        effects.preempt_timeout_s = self.settings.config.preempt_timeout_s
        effects.environment = dict(outside.environment)
        self._take_up(self.settings.sources)

    def enclosed_targets(self, outer: ResourceSet, left: Callable[[Idset], None]) -> EnclosedTargets:
        """What has the targets follow those of the job around this instance."""
        return EnclosedTargets(outer, self.resource, self.agents, self.effects, left)

    def _take_up(self, sources: Sources) -> None:
        """Record what is made up, and bind tasks to their cores where targets have those of this machine."""
        self.resource.made_up = lambda resources: sources.made_up_of(resources) - self.clusters.mirrored
        self.effects.cores = list(sources.topology.cores) if sources.topology and not sources.made_up else None

    def restore(self, restored: StoredState) -> None:
        """Make the dead instance's state ours; its jobs are taken up in the first turn."""
        effects, manager, now_s = self.effects, self.effects.manager, self.turns.clock.wall_s()
        self.turns.wall_s = now_s  # what happens before the first turn is not older than the start
        for name, state in restored.queues.items():
            manager.queue_control.restore(name or None, state)
        self.turns.spread(manager.restore_ended(restored.ended, self.outside.state_notice.leave_out))
        effects.accounting.restore(restored.counted, self.history.start)
        found = manager.restore(restored.jobs, now_s)
        self.leases.restore(restored.leased)
        effects.perform(found.effects)
        self.resource.perform(self.resource.module.start(now_s))
        self.turns.post(lambda: self._resume(found.orphans, restored.processes))

    def _resume(self, jobids: Iterable[int], records: Mapping[int, object]) -> None:
        """Without an answer to what became of the jobs there can be no instance; they go on."""
        try:
            self.effects.resume(jobids, records, self._jobs_settled)
        except FluxschedError as fault:
            self.fail(fault)

    def _jobs_settled(self) -> None:
        self._is_settled = True
        self._check_ready()

    # -- running ------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to run turns and to serve, and load the schedulers. Raises FluxschedError if one cannot be."""
        self.router.start()
        for server in self.outside.servers:
            server.start(loop, self.turns.wake)
        self.turns.wall_s = self.turns.clock.wall_s()
        self.agents.embed(self._ours(self.settings.sources))
        self.turns.start(loop)
        self.turns.post(self.clusters.open)
        self.intervals.start()
        self.sampling.start()
        self.load_schedulers()
        self._check_ready()

    def load_schedulers(self) -> None:
        """Start the processes of the schedulers, unless they were: they import while the jobs are restored.

        Raises FluxschedError if one cannot be started.
        """
        wanted, self._unloaded = self._unloaded, ()
        for one in wanted:
            self._loading += 1
            self.modules.load(one.policy, one.name, one.groups, self._loaded, one.recovery)

    def _ours(self, sources: Sources) -> Idset:
        """The targets that the instance itself reports online: made-up ones, and of real ones those of its own host."""
        module = self.resource.module
        away = module.lost | self.clusters.mirrored
        if sources.made_up or sources.real or sources.topology is None:
            return module.resources.ranks - away
        return module.resources.ranks_of(sources.topology.host) - away

    def _loaded(self, error: str | None) -> None:
        self._loading -= 1
        self.is_complete &= error is None
        self._check_ready()

    def _check_ready(self) -> None:
        """Ready: every target that is ours to report is online, every scheduler is ready or has failed, and of each
        job of the instance before it is known what became of it.
        """
        if not self.is_ready and self._loading == 0 and self._is_settled and self.clusters.have_answered:
            self.is_ready = True
            self.instance.became_ready()

    def not_ready(self) -> Iterator[str]:
        """What the instance waits for before it is ready, in words."""
        for module in self.modules.modules.values():
            if not module.has_served and module.is_running:
                yield f"module {module.name} does not serve its groups yet"
        if not self._is_settled:
            yield "it is not known yet what became of the jobs that ran before"
        if not self.clusters.have_answered:
            yield "not all clusters have answered"

    def info(self) -> InstanceInfo:
        """What `instance.info` answers."""
        return InstanceInfo(
            uri=self.uri,
            endpoints=self.endpoints,
            rundir=str(self.outside.run_directory),
            statedir=None if self.settings.statedir is None else str(self.settings.statedir.absolute()),
            pid=self.outside.pid,
            version=__version__,
            size=len(self.resource.module.resources.ranks),
            owner=os.getuid(),
            starttime=self.outside.started_s,
            ready=self.is_ready,
            state="run",
            level=0 if self.settings.parent is None else self.settings.parent.level + 1,
            parent=None if self.settings.parent is None else self.settings.parent.uri,
            state_notice=self.outside.state_notice.text,
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
            "state_notice": self.outside.state_notice.text,
            "ended_jobs": self.history.count,
            "faults": self.faults.count,
            "memory": self.outside.memory_enforced(),
        }

    def _reload(self, wanted: ReloadRequest) -> tuple[Inventory, Mapping[str, Idset], Callable[[], object]]:
        """What a reload finds, and what is to be done once the resource module has accepted it."""
        sources, take_up = self.reloading.read(wanted)

        def accepted() -> object:
            if wanted.R is None and wanted.path is None:
                self._kept.return_to(sources.source)
            else:
                ours = self.resource.module.targets.admit(sources.source).resources
                self._kept.keep_resources(ours, wanted.path, self.turns.wall_s)
            self._take_up(sources)
            self.agents.reloaded(self._ours(sources))
            return take_up()

        inventory, groups = with_mirrors(sources.inventory, sources.groups, self.clusters.mirrors())
        return replace(inventory, method="reload"), groups, accepted

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

    def fail(self, exc: BaseException) -> None:
        """End the instance with an error."""
        log.critical("the instance ends: %s", exc, exc_info=exc)
        if not self.ended.done():
            error = exc if isinstance(exc, FluxschedError) else FluxschedError(f"{type(exc).__name__}: {exc}")
            self.ended.set_result(error)
