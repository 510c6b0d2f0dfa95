"""The services of an instance, put together in the order in which they depend on each other.

Everything from the outside world comes in `InstanceEnvironment`, so a simulation composes the same services. The order
of the end-of-turn hooks is the order of the data: publish, store, flush. What a restart finds in the store is restored
here: resource state, journal, jobs with their logs, and processes left behind.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from fluxsched import __version__
from fluxsched.clusters.clusters import Clusters, LeaseService, StoredClusters
from fluxsched.clusters.links import ClusterPace, connect_peer
from fluxsched.clusters.loop import OpenClient
from fluxsched.config.inventory import Sources
from fluxsched.config.policies import located
from fluxsched.config.reader import (
    Config,
    banks_of,
    queue_configs,
    with_located_policies,
)
from fluxsched.config.submit_filters import FilterProcess, no_filters
from fluxsched.config.values import SchedulerSettings
from fluxsched.core.build import BUILD
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import FluidGenerator
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.text import printable
from fluxsched.engine.process import StartedEngine
from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.executor.base import Executor, Reports, TaskSettings
from fluxsched.executor.perilog import PerilogExecutor
from fluxsched.flux.endpoint import serve_instance, serve_jobs
from fluxsched.history import Moment, Sampling, StateIntervals
from fluxsched.instance.enclosing import (
    ENGINE_ADDRESS_ATTRIBUTE,
    ENGINE_ATTRIBUTE,
    EnclosedTargets,
    Enclosing,
    Parent,
    attributes_of,
)
from fluxsched.instance.hosts import HeldHosts
from fluxsched.instance.reloading import Read, Reloading, TryImports
from fluxsched.instance.restarts import KIND, HandedOver, KeptChanges
from fluxsched.jobs.manager import JobManager, StoredJob
from fluxsched.jobs.states import EPILOG_FINISH, EPILOG_START
from fluxsched.messaging.keys import ReadKeys
from fluxsched.messaging.memo import JSON, JobspecMemo, ObjectMemo
from fluxsched.messaging.peers import Access, PeerLimits
from fluxsched.messaging.router import DiskGuard, Handler, Router, local_uri, with_log
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message
from fluxsched.protocol.messages.common import InstanceInfo
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.resource.changes import joined, with_mirrors
from fluxsched.resource.effects import Saved
from fluxsched.resource.inventory import Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.services.health import HealthChecks
from fluxsched.services.history import HistoryService, kept_conditions, look_at
from fluxsched.services.instance import (
    NOTICE,
    AgentService,
    InstanceService,
    MetricsService,
    NoticeService,
    TraceService,
)
from fluxsched.services.job_effects import JobEffects, JobHistory
from fluxsched.services.job_notify import KIND as JOB_NOTIFICATION
from fluxsched.services.job_notify import JobNotify
from fluxsched.services.job_streams import JobCommands, JobInputs, JobStreams
from fluxsched.services.jobs import JobService, JobWaits, RunningService, SubmitFilters
from fluxsched.services.module_processes import ModuleTable, StartModule
from fluxsched.services.modules import ModuleService
from fluxsched.services.notify import NotifyProgram
from fluxsched.services.outages import OutageService
from fluxsched.services.resource import STORED_EVENTS_MAX, ResourceService
from fluxsched.services.scheduling import KINDS, SchedulingService
from fluxsched.store.integrity import COMMIT, DIFFERS, SELECTED, is_intact
from fluxsched.store.jobs import DamagedJob, JobRecord, ended_last, last_jobid, read_active, read_ended
from fluxsched.store.repair import decode_saved, listed_losses
from fluxsched.store.schema import CONFIGURED, COUNTED, WRITER, read_leased, read_leases
from fluxsched.store.store import ImmediateWriter, Queries, Store, Writer
from fluxsched.system.clock import Clock, SystemClock
from fluxsched.system.log import TEXT, logger
from fluxsched.system.loop import Faults, Turns, pieces
from fluxsched.transport.base import Server

log = logger("instance")


class Assembly:
    """The parts of one instance. `restore`, then `start`."""

    def __init__(self, settings: Settings, outside: InstanceEnvironment, restored: StoredState) -> None:
        self.settings = settings
        self.outside = outside
        self.turns, self.store, self.faults = outside.turns, outside.store, outside.end.faults
        self.uri = outside.servers[0].endpoint
        self.is_ready = False
        self.is_complete = True
        """True if every scheduler that was to be started began to serve its groups."""
        self._loading = 0
        self._unloaded = settings.schedulers
        self._is_settled = False
        self.notify: NotifyProgram | None = None
        """The program that is told of job events, once this has begun."""
        self._compose(restored)

    @property
    def ended(self) -> asyncio.Future[FluxschedError | None]:
        """Return a future that completes when the instance is to end: with None, or with the error that ends it."""
        return self.outside.end.ended

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Return all endpoints at which the instance listens, with the ports that the system chose."""
        return tuple(server.endpoint for server in self.outside.servers)

    def _compose(self, restored: StoredState) -> None:
        config, outside = self.settings.config, self.outside
        module = self._resource_module(restored)
        self.new_id = new_id = self._fluids(restored).at
        manager = JobManager(
            new_id, queue_configs(config), default_queue=config.defaults.queue, banks=banks_of(config),
            limits=config.site_limits,
            there=lambda: module.resources,
            packed=ObjectMemo[msgspec.Raw](lambda jobspec: msgspec.Raw(framing.pack(jobspec))).get,
            sent_r=msgspec.Raw,
        )  # fmt: skip
        self.router = Router(
            self.turns, outside.all_servers(), with_log(self.settings.trace), outside.access, manager.jobs.user_of,
            self.settings.peer_limits,
        )  # fmt: skip
        self.effects = JobEffects(
            manager, self.router, self.store, self.turns, outside.tasks,
            config.preempt_timeout_s, module.group_of,
        )  # fmt: skip
        modules = ModuleTable()
        self.resource = ResourceService(
            module, self.effects, self.router, self.store, self._kept.keep_expiration, modules, self._made_up
        )
        OutageService(self.resource, self.effects, self.router, self.turns)
        self.scheduling = SchedulingService(self.effects, self.router, self.store, modules, module.foreign)
        self.modules = ModuleService(
            modules, self.router, self.scheduling, self.turns, outside.start_module, self.uri, outside.pid,
            config.queues, outside.connecting, config.unsatisfiable, config.preempt_timeout_s, config.site_limits,
        )  # fmt: skip
        self.filters = SubmitFilters(config.ingest, self.turns, outside.filtering, outside.start_filters)
        self.job_notify = JobNotify(self.effects, self.store, restored.notifications)
        self.jobs = JobService(
            self.effects, self.scheduling, self.router, self.store, new_id, self.resource.targets,
            self.modules.policy_of, self.filters, self.job_notify.check,
        )  # fmt: skip
        self._leases(restored)
        self._running_jobs(new_id)
        self.agents = AgentService(self.resource, self.router, self.turns, config.resource)
        self.instance = InstanceService(self.router, self.info, self.stop, outside.restart)
        self.reloading = Reloading(
            config, self.settings.reload, self.router, self.effects, self.modules, self.resource, self._inventory,
            self._replace_sources, outside.read_keys, self._take_programs, self.settings.try_imports,
            outside.background, self._keep_config,
        )  # fmt: skip
        self._common_services()
        MetricsService(
            module, manager, self.effects.counts, self.store, self.router, outside.started_s,
            lambda: self.faults.count,
        )  # fmt: skip
        self._history_services(module, manager)
        TraceService(self.router, self.turns)
        NoticeService(self.router, self.store, self.turns, restored.notices)
        serve_instance(
            self.router, self.resource, self.reloading.reload, self.instance, self.modules, self.turns,
            outside.started_s,
        )  # fmt: skip
        self._executors()
        self.set_present = self.agents.set_present if self._health is None else self._health.set_present
        self.router.guard(DiskGuard(self.store, self.turns, outside.disk_shortage).guards())
        self.turns.at_end(self.store.flush)
        self.turns.at_end(self.router.flush)

    def _running_jobs(self, new_id: Callable[[float], int]) -> None:
        """Set up the services of jobs that run and have run."""
        RunningService(self.effects, self.router, self.resource.targets)
        self.streams = JobStreams(self.effects, self.router, self.store)
        self.waits = JobWaits(self.effects, self.router, self.store)
        self.history = JobHistory(self.effects, self.store, self.settings.config.history, self.outside.background)
        self.commands = JobCommands(self.effects, self.streams, self.router, new_id)
        self.inputs = JobInputs(self.effects, self.streams, self.router, self.commands.running)
        serve_jobs(self.router, self.effects, self.jobs, self.streams, self.inputs, self.store)

    def _resource_module(self, restored: StoredState) -> ResourceModule:
        """Return the resource module in its stored state, with the targets that there are now."""
        config, now_s = self.settings.config, self.turns.clock.wall_s()
        self._sources = sources = self.settings.sources
        self._kept = KeptChanges(self.store, sources.source, restored.source, now_s)
        if config.access.run_as_user and not restored.is_sites:
            self.store.add("saved", (*SITE, msgspec.json.encode(True)))
        mirrors = {one.name: restored.clusters.mirrors.get(one.name, EMPTY_R) for one in config.clusters}
        inventory, groups = with_mirrors(sources.inventory, sources.groups, mirrors.items())
        module = ResourceModule(
            inventory, groups, restored.saved, now_s=now_s, mirrors=mirrors, outages=sources.outages
        )
        self._kept.note_ranks(sources.inventory.resources, now_s)
        return module

    def _keep_config(self, raw: Mapping[str, Any]) -> None:
        """Keep the configuration and the policies with the state, for studies of what was recorded under them.

        Policies in files are named as they can be found from anywhere.
        """
        policies = [[located(one.policy, Path.cwd()), list(one.groups)] for one in self.settings.schedulers]
        config = with_located_policies(raw, Path(self.settings.config.name).absolute().parent)
        row = {"config": config, "policies": policies}
        self.store.add("saved", (*CONFIGURED, msgspec.json.encode(row)))

    def _history_services(self, module: ResourceModule, manager: JobManager) -> None:
        """Set up what is sampled and recorded of targets and jobs, and the requests for it."""

        def look() -> Moment:
            arriving = EMPTY if self._health is None else self._health.arriving
            return look_at(module, manager, self.effects.counts, arriving)

        self.sampling = Sampling(self.turns, self.store, look)
        self.sampling.on_minute.append(self._each_minute)
        self.intervals = StateIntervals(self.turns, self.store, lambda: kept_conditions(module))
        self.resource.changed.append(self.intervals.note_change)
        self.effects.unheld.append(self.intervals.unheld)
        self.past = HistoryService(
            Queries(self.store, self.outside.background),
            self.store,
            self.effects.accounting,
            manager,
            self.resource,
            self.sampling,
            self.turns,
            self.router,
        )

    def _leases(self, restored: StoredState) -> None:
        """Set up the leases of jobs that are run for other instances, and by others for this one."""
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
            outside.tasks.spool,
            self.settings.cluster_pace,
            self._check_ready,
        )

    def _each_minute(self, now_s: float) -> None:
        self.effects.accounting.write()
        if self.store.fault is None:
            self.effects.accounting.age(now_s)
            self.intervals.age(now_s)

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
        self.modules.add_builtin(stats)
        self.instance.serve_common({**stats, "history": lambda request: request.respond(self.past.report())})
        engine = self.settings.engine
        of_engine = {} if engine is None else {
            ENGINE_ATTRIBUTE: engine.identity, ENGINE_ADDRESS_ATTRIBUTE: engine.address,
        }  # fmt: skip
        self.instance.set_attributes(
            {
                **attributes_of(self.settings.parent),
                **of_engine,
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
        effects = self.effects
        reports = Reports(
            effects.started,
            effects.finished,
            effects.exec_failed,
            effects.record_process,
            effects.raise_reported,
            self.inputs.opened,
            effects.after_commit,
            effects.released,
            effects.lost,
            node_failed=effects.node_failed,
            perilog=effects.perilog_reports(self.resource.drain_host),
        )
        for name, executor in self._with_programs(reports).items():
            effects.add_executor(name, executor)
        effects.add_executor("lease", self.clusters.executor(reports))
        self._bind_tasks()

    def _with_programs(self, reports: Reports) -> dict[str, Executor]:
        """Return the executors by name; that of this instance's jobs runs the programs of the configuration, too."""
        config, effects, found = self.settings.config, self.effects, dict[str, Executor]()
        self._health: HealthChecks | None = None
        self._perilog: PerilogExecutor | None = None
        if config.prolog is None and config.epilog is None and config.health is None:
            return self.outside.executors(reports)

        def make(own: Reports) -> Executor:
            found.update(self.outside.executors(own))
            return found["local"]

        found["local"] = self._perilog = perilog = PerilogExecutor(
            self.turns, reports, make, self.new_id, lambda: effects.settings,
            lambda jobid: effects.manager.jobs.get(jobid).userid, config.prolog, config.epilog,
        )  # fmt: skip
        online = self.agents.set_present
        self._health = HealthChecks(self.resource, perilog.programs, self.turns, config.health, online)
        effects.unheld.append(self._health.unheld)
        return found

    def _take_programs(self, config: Config) -> None:
        """Take up the programs of a configuration; those for hosts, if the instance was started with any."""
        if self._perilog is not None and self._health is not None:
            self._perilog.configure(config.prolog, config.epilog)
            self._health.configure(config.health)
        if self.notify is not None and self.notify.words != config.notify:
            self.effects.publish.remove(self.notify.publish)
            self.notify.close(at_end=False)
            self.notify = None
        if self.notify is None and config.notify is not None:
            jobs, environment = self.effects.manager.jobs, self.effects.settings.environment
            self.notify = NotifyProgram(self.turns, config.notify, environment, jobs.get)
            self.effects.publish.append(self.notify.publish)

    def enclosed_targets(self, outer: ResourceSet, left: Callable[[Idset], None]) -> EnclosedTargets:
        """Return the object by which the targets follow those of the job around this instance."""
        return EnclosedTargets(outer, self.resource, self.agents, self.effects, left)

    def _made_up(self, resources: ResourceSet) -> Idset:
        """Return the targets that are not this machine."""
        return self._sources.made_up_of(resources) - self.clusters.mirrored

    def _bind_tasks(self) -> None:
        """Bind tasks to their cores where targets have those of this machine."""
        sources = self._sources
        self.effects.bind_tasks(list(sources.topology.cores) if sources.topology and not sources.made_up else None)

    def restore(self, restored: StoredState) -> None:
        """Make the dead instance's state ours; its jobs are taken up in the first turn."""
        effects, manager, now_s = self.effects, self.effects.manager, self.turns.clock.wall_s()
        self.turns.wall_s = now_s  # what happens before the first turn is not older than the start
        for name, state in restored.queues.items():
            manager.queue_control.restore(name or None, state)
        self.turns.spread(manager.restore_ended(restored.ended, self.outside.state_notice.leave_out))
        effects.accounting.restore(restored.counted, self.history.start)
        found = manager.restore(self.job_notify.follow(restored.jobs), now_s)
        self.leases.restore(restored.leased)
        effects.perform(found.effects)
        self.resource.perform(self.resource.module.start(now_s))
        self.turns.post(lambda: self._resume(found.orphans, restored.processes))

    def _resume(self, jobids: Collection[int], records: Mapping[int, object]) -> None:
        """Resume the jobs; if their state cannot be determined, the instance fails, and they continue. Jobs in an
        epilog, where the configuration has none any more, are over once nothing of it is left.
        """
        jobs, without = self.effects.manager.jobs, set[int]()
        if self._perilog is None:
            without = {jobid for jobid in jobids if jobs.active[jobid].perilog in (EPILOG_START, EPILOG_FINISH)}

        def settled() -> None:
            for jobid in without:
                self.effects.freed(jobid)
            self._jobs_settled()

        try:
            self.effects.resume([jobid for jobid in jobids if jobid not in without], records, settled)
        except FluxschedError as fault:
            self.outside.end.fail(fault)

    def _jobs_settled(self) -> None:
        self._is_settled = True
        self._check_ready()

    # -- running ------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to run turns and to serve, and load the schedulers. Raises FluxschedError if one cannot be."""
        self.router.start()
        for server in self.outside.all_servers():
            server.start(loop, self.turns.wake)
        self.turns.wall_s = self.turns.clock.wall_s()
        self._take_programs(self.settings.config)
        ours = self._ours(self.settings.sources)
        if self._health is None:
            self.agents.embed(ours)
        else:
            for host in self.resource.module.resources.hosts(ours).unique().hosts:
                self._health.set_present(host, True)
        self.turns.start(loop)
        self.turns.post(self.clusters.open)
        self.turns.post(self.filters.open)
        self.turns.post(self.job_notify.start)
        self.intervals.start()
        self.sampling.start()
        self.past.name_damaged(self.outside.state_notice.leave_out_rows)
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
        """Return the targets that the instance itself reports online: made-up ones, and of real ones those of its own
        host.
        """
        module = self.resource.module
        away = module.lost | self.clusters.mirrored
        if sources.remote:
            return EMPTY
        if sources.made_up or sources.real or sources.topology is None:
            return module.resources.ranks - away
        return module.resources.ranks_of(sources.topology.host) - away

    def _loaded(self, error: str | None) -> None:
        self._loading -= 1
        self.is_complete &= error is None
        self._check_ready()

    def _check_ready(self) -> None:
        """Become ready once every target that is ours to report is online, every scheduler is ready or has failed, and
        the fate of each job of the previous instance is known.
        """
        if not self.is_ready and self._loading == 0 and self._is_settled and self.clusters.have_answered:
            self.is_ready = True
            self.instance.became_ready()

    def not_ready(self) -> Iterator[str]:
        """Yield the reasons why the instance is not ready, in words."""
        for module in self.modules.modules.values():
            if not module.has_served and module.is_running:
                yield f"module {module.name} does not serve its groups yet"
        if not self._is_settled:
            yield "the fate of the jobs that ran before is not known yet"
        if not self.clusters.have_answered:
            yield "not all clusters have answered"

    def info(self) -> InstanceInfo:
        """Return the response of `instance.info`."""
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
        """Return the statistics shown by `instance.stats-get`."""
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
            **({} if self.notify is None else {"notify": self.notify.report()}),
        }

    def _inventory(self, sources: Sources) -> tuple[Inventory, dict[str, Idset]]:
        """Return the inventory of a reload and its groups, with the targets of agents and of clusters."""
        inventory = sources.inventory
        if inventory.dynamic:
            whole, _ = joined(inventory.resources, self.agents.brought(inventory.resources))
            inventory = replace(inventory, resources=whole)
        return with_mirrors(inventory, sources.groups, self.clusters.mirrors())

    def _replace_sources(self, wanted: ReloadRequest, sources: Sources) -> None:
        """Replace the inventory by that of a reload. Raises Refused if the resource module does not accept it."""
        inventory, groups = self._inventory(sources)
        self.resource.reload(replace(inventory, method="reload"), groups, sources.outages, force=wanted.force)
        ours = self.resource.module.targets.admit(sources.source).resources
        if wanted.R is None and wanted.path is None:
            self._kept.return_to(sources.source)
        else:
            self._kept.keep_resources(ours, wanted.path, self.turns.wall_s)
        self._kept.keep_ranks(ours, self.turns.wall_s)
        self._sources = sources
        self._bind_tasks()
        if self._health is None:
            self.agents.reloaded(self._ours(sources))
        else:
            new = self._health.reloaded(self._ours(sources))
            self.agents.reloaded(EMPTY)
            for host in new:
                self._health.set_present(host, True)

    def check(self) -> None:
        """Assert that nothing is held twice, over the whole state: for tests."""
        module, manager = self.resource.module, self.effects.manager
        module.check()
        manager.check()
        held = EMPTY
        for job in manager.jobs.active.values():
            held |= job.held
        assert held <= module.held, f"jobs hold {held}, the resource module counts {module.held}"

    def stop(self) -> None:
        """End the instance; `ended` completes."""
        self.jobs.refuse_jobs()
        self.outside.end.stop()


# ---- settings

READY_S = 60.0
"""Maximum time until an embedded instance must be ready (seconds): importing a policy may take half of it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings with which an instance is made."""

    sources: Sources
    reload: Read
    config: Config = field(default_factory=Config)
    statedir: Path | None = None
    salvage: bool = False
    """Start on what can be read of a damaged state, though something is lost."""
    enclosing: Enclosing | None = None
    """Job that provided the resources, if one did."""
    parent: Parent | None = None
    """The instance that this one is inside of."""
    schedulers: tuple[SchedulerSettings, ...] = (SchedulerSettings("fifo"),)
    """The scheduler modules to load."""
    bind: tuple[str, ...] = ()
    """Further endpoints (loopback tcp, local sockets)."""
    insecure_tcp: bool = False
    """tcp endpoints may be bound, where every account of the machine is taken for the owner."""
    try_imports: TryImports | None = None
    """Tries the policies of the configuration that a reload would read; None: they are taken as they are."""
    verbose: int = 0
    log_format: str = TEXT
    trace: Callable[[str, Message], None] | None = None
    clock: Clock = field(default_factory=SystemClock)
    handed: HandedOver | None = None
    """State that this instance has handed over to itself, if it restarts."""
    check_start: Callable[[], object] = lambda: None
    """Reads all again that a start reads. Raises FluxschedError if it would fail."""
    cluster_pace: ClusterPace = field(default_factory=ClusterPace)
    peer_limits: PeerLimits = field(default_factory=PeerLimits)
    ready_within_s: float | None = READY_S
    """Maximum time until the instance must be ready once it is entered; None: no limit."""
    held: HeldHosts | None = None
    """The hosts that an engine holds for the instance; None if tasks run on this host."""
    engine: StartedEngine | None = None
    """The engine itself, which ends with the instance."""
    servers: tuple[Server, ...] = ()
    """Ready-made transports instead of the ipc socket (in-memory ones for tests)."""


# ---- stored state


INACTIVE_RESTORED_MAX = 10_000
"""Inactive jobs that a restart reads back for `jobs -a`, the last to end; others stay in the store for lookups."""

SITE: Final = "instance", "run_as_user"
"""Kind and key of the row which says that tasks run as their users."""

LEFT_OUT_NAMED_MAX = 3
"""Ended jobs that cannot be read and are named in the notice; the log names all."""


@dataclass(slots=True)
class StoredState:
    """Everything read back, as plain values."""

    saved: list[Saved] = field(default_factory=list)
    jobs: Iterable[StoredJob] = ()
    """Active jobs, to be iterated once, job by job: a hundred thousand of them at once are a gigabyte."""
    ended: Iterable[Sequence[StoredJob]] = ()
    """Jobs that ended last, some at a time: they can be read when the instance serves again."""
    processes: dict[int, Any] = field(default_factory=dict)
    queues: dict[str, Any] = field(default_factory=dict)
    notices: dict[str, Any] = field(default_factory=dict)
    notifications: dict[str, Any] = field(default_factory=dict)
    """Notifications about jobs whose commands have not begun."""
    source: dict[str, Any] = field(default_factory=dict)
    """R and its expiration as requests have changed them."""
    epoch_ms: int | None = None
    last_jobid: int = 0
    counted: int = 0
    """The last row of jobs up to which accounts have what ended."""
    clusters: StoredClusters = field(default_factory=StoredClusters)
    leased: dict[str, int] = field(default_factory=dict)
    """Jobs that are run for other instances, by the names of their leases."""
    is_sites: bool = False
    """True if the state is that of an instance whose tasks run as their users."""


class StateNotice:
    """Text for the user about the stored state: that it was damaged, and which ended jobs and rows are left out."""

    def __init__(self, text: str | None = None) -> None:
        self._text = text
        self._left_out: list[str] = []
        self._rows_left_out: list[str] = []

    def leave_out(self, fault: FluxschedError) -> None:
        """Leave out an ended job that cannot be read: listings do not have it."""
        log.error("left out: %s", fault)
        self._left_out.append(str(fault))

    def leave_out_rows(self, names: Iterable[str]) -> None:
        """Leave out damaged rows, of the history or of schedulers, that no job needs."""
        for name in names:
            log.error("left out: %s is damaged: %s", name, DIFFERS)
            self._rows_left_out.append(name)

    @property
    def text(self) -> str | None:
        """Return the whole notice; None if there is none."""
        parts = [] if self._text is None else [self._text]
        if self._left_out:
            is_one = len(self._left_out) == 1
            what = f"{len(self._left_out)} ended {'job is' if is_one else 'jobs are'} left out of listings"
            parts.append(_named(what, self._left_out))
        if self._rows_left_out:
            is_one = len(self._rows_left_out) == 1
            what = f"{len(self._rows_left_out)} {'row is damaged' if is_one else 'rows are damaged'} and left out"
            parts.append(_named(what, self._rows_left_out))
        return ". ".join(parts) or None


def _named(what: str, left_out: list[str]) -> str:
    more = len(left_out) - LEFT_OUT_NAMED_MAX
    named = "; ".join(left_out[:LEFT_OUT_NAMED_MAX])
    return f"{what}: {named}{f'; the log names {more} more' if more > 0 else ''}"


def read_store(store: Store, notice: StateNotice, inactive_restored_max: int = INACTIVE_RESTORED_MAX) -> StoredState:
    """Read all that a restart needs; ended jobs that cannot be read are left out, and listed in `notice`.

    Raises InvalidValue naming other unreadable data, at the latest when all jobs have been iterated.
    """
    found, faults = StoredState(), Unreadable()
    notice.leave_out_rows(
        f"what scheduler {printable(str(key))} saved"
        for kind, key, *rest in store.rows(f"SELECT {SELECTED['saved']} FROM saved WHERE kind IN (?, ?)", KINDS)
        if not is_intact((kind, key, *rest))
    )
    for row in store.read(f"SELECT {SELECTED['saved']} FROM saved WHERE kind NOT IN (?, ?)", KINDS):
        kind, key, *_ = row
        decoded = faults.decoded(kind, key, row)
        if decoded is None:
            continue
        if kind == "queue":
            found.queues[key] = decoded
        elif kind == NOTICE:
            found.notices[key] = decoded
        elif kind == JOB_NOTIFICATION:
            found.notifications[key] = decoded
        elif kind == KIND:
            found.source[key] = decoded
        elif (kind, key) == ("instance", "epoch_ms"):
            found.epoch_ms = int(decoded)
        elif (kind, key) == SITE:
            found.is_sites = True
        elif (kind, key) == COUNTED:
            found.counted = int(decoded)
        elif (kind, key) not in (WRITER, COMMIT, CONFIGURED) and not found.clusters.read(kind, key, decoded):
            found.saved.append(Saved(kind, key, decoded))
    journal = store.read(
        f"SELECT seq, {SELECTED['journal']} FROM journal ORDER BY seq DESC LIMIT ?", (STORED_EVENTS_MAX,)
    )
    events = (faults.decoded("journal", seq, row) for seq, *row in reversed(journal))
    found.saved += [Saved("journal", "", event) for event in events if event is not None]
    for row in store.read(f"SELECT {SELECTED['process']} FROM process"):
        found.processes[row[0]] = faults.decoded("process", row[0], row)
    found.last_jobid = last_jobid(store.read)
    found.clusters.leases = list(read_leases(store.rows, faults.add))
    found.leased = dict(read_leased(store.rows, faults.add))
    specs = JobspecMemo(JSON)
    found.jobs = _active(store, specs, faults)
    if faults.texts:
        deque(found.jobs, maxlen=0)  # names those that cannot be read, too
    found.ended = _ended(store, specs, notice, ended_last(store.read, inactive_restored_max))
    return found


class Unreadable:
    """Required data that a start cannot read, in words."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, fault: FluxschedError) -> None:
        """Add a fault of data that cannot be read."""
        self.texts.append(fault.brief if isinstance(fault, DamagedJob) else str(fault))

    def decoded(self, kind: str, key: object, row: Sequence[Any]) -> Any:
        """Return what a row has whose last columns are a value and its checksum; None for one that cannot be read."""
        try:
            return decode_saved(kind, key, row[-2], is_intact(row))
        except InvalidValue as fault:
            self.add(fault)
            return None


def _active(store: Store, specs: JobspecMemo, faults: Unreadable) -> Iterator[StoredJob]:
    """Yield active jobs. Raises InvalidValue naming all that cannot be read once the others were."""
    for job in read_active(store.rows, faults.add):
        try:
            yield _stored(job, specs)
        except (FluxschedError, ValueError) as fault:
            faults.add(DamagedJob(job.jobid, fault))
    if faults.texts:
        raise InvalidValue(listed_losses(faults.texts))


def _stored(job: JobRecord, specs: JobspecMemo) -> StoredJob:
    return job.jobid, job.events, None if job.jobspec is None else specs.read(job.jobspec), job.R


def _ended(store: Store, specs: JobspecMemo, notice: StateNotice, jobids: list[int]) -> Iterator[list[StoredJob]]:
    """Yield ended jobs by a query for some at a time: an open query would have all others see an old state of the
    store.
    """
    for some in pieces(jobids):
        found = []
        for job in read_ended(store.read, some, notice.leave_out):
            try:
                found.append(_stored(job, specs))
            except (FluxschedError, ValueError) as fault:
                notice.leave_out(DamagedJob(job.jobid, fault))
        yield found


# ---- the environment of an instance


class InstanceEnd:
    """The end of an instance, by a request or by an error, and the faults that did not end it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[FluxschedError | None] = loop.create_future()
        """Completes when the instance is to end: with None, or with the error that ends it."""
        self.faults = Faults()

    def stop(self) -> None:
        """End the instance; `ended` completes."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, exc: BaseException) -> None:
        """End the instance with an error."""
        log.critical("the instance ends: %s", exc, exc_info=exc)
        if not self.ended.done():
            error = exc if isinstance(exc, FluxschedError) else FluxschedError(f"{type(exc).__name__}: {exc}")
            self.ended.set_result(error)


@dataclass(frozen=True, slots=True)
class InstanceEnvironment:
    """Environment in which an instance runs and acts."""

    turns: Turns
    """Turns with the clock; not started yet."""
    store: Store
    servers: Sequence[Server]
    """Servers to which clients connect; the first one's endpoint is the instance's URI."""
    start_module: StartModule
    executors: Callable[[Reports], dict[str, Executor]]
    """Makes the executors by name, given what they report to."""
    run_directory: Path
    tasks: TaskSettings
    """Variables by which tasks find the instance, and the directory in which their output is kept."""
    disk_shortage: Callable[[], str | None]
    """Why nothing new can be stored for lack of room; None if it can."""
    memory_enforced: Callable[[], str | None]
    """Function that returns the way in which jobs are limited to the memory they asked for."""
    generator_id: int
    """Generator id of job ids (RFC 19)."""
    pid: int
    started_s: float
    """Wall time of the instance's start."""
    end: InstanceEnd
    """Ended by errors of `turns` and `store`."""
    background: Writer = field(default_factory=ImmediateWriter)
    """Writer that removes the output of jobs in the background."""
    state_notice: StateNotice = field(default_factory=StateNotice)
    """Notice to the user about the stored state: that it was damaged, and what was lost."""
    access: Access = field(default_factory=Access)
    """Users who may connect, with their roles."""
    read_keys: ReadKeys | None = None
    """Reads the authorized keys again, where a port asks for keys. Raises InvalidValue with all faults."""
    connect: OpenClient = connect_peer
    """Function that connects to another instance."""
    connecting: Writer = field(default_factory=ImmediateWriter)
    """Runs what may take seconds, such as `connect` or the import of a policy, outside of turns."""
    filtering: Writer = field(default_factory=ImmediateWriter)
    """Runs what waits for the process of the submit filters."""
    start_filters: Callable[[], FilterProcess] = no_filters
    """Starts that process. Raises FilterFault."""
    restart: Callable[[], None] | None = None
    """Has the instance end and start again in place; None where that cannot be."""
    keepers: Server | None = None
    """Server for the keepers of an engine's hosts alone, which is no endpoint of the instance."""

    def all_servers(self) -> list[Server]:
        """Return all servers, that for keepers last."""
        return [*self.servers] if self.keepers is None else [*self.servers, self.keepers]
