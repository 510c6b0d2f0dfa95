"""The instance as a simulated process: the real services, composed from simulated surroundings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from fluxsched.clusters.loop import OpenClient
from fluxsched.config.discovery import MachineTopology
from fluxsched.config.inventory import Sources, build_inventory
from fluxsched.config.reader import Config, parse_config
from fluxsched.config.values import SchedulerSettings
from fluxsched.core.idset import Idset
from fluxsched.executor.base import Executor, Reports, TaskSettings
from fluxsched.executor.proxy import KeeperExecutor, KeeperHost
from fluxsched.executor.timed import TimedExecutor
from fluxsched.instance.assembly import Assembly, InstanceEnd, InstanceEnvironment, Settings, read_store
from fluxsched.instance.hosts import InstanceHosts
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.services.module_processes import StartModule
from fluxsched.system.loop import OnBug, Turns
from tests.chaos.world.disk import Disk
from tests.chaos.world.hosts import SimHosts
from tests.chaos.world.network import Network
from tests.chaos.world.processes import Process

HEAD = MachineTopology("head", (Idset.parse("0"),), (), "simulated")
"""The machine of the instance, which has no targets."""
GENERATOR_ID = 5
TARGETS = "4x4"
"""Made-up ones, where neither the configuration nor the caller names any."""


@dataclass(slots=True)
class Site:
    """What a world consists of: the configuration file, and made-up targets where that names none."""

    config: str
    """The text of the file, which may change."""
    targets: str | None = None

    def read(self) -> tuple[Config, Sources]:
        """The file as it is now. Raises InvalidValue."""
        return _read(self.config, self.targets)

    def hosts(self) -> list[str]:
        """Those that have an agent: all that are not made up."""
        sources = self.read()[1]
        return [] if sources.made_up else list(dict.fromkeys(sources.inventory.resources.nodelist))

    def settings(self, process: Process, disk: Disk) -> Settings:
        """What an instance is started with."""
        config, sources = self.read()
        schedulers = config.schedulers or (SchedulerSettings("fifo"),)

        def reload(wanted: ReloadRequest) -> tuple[Config, Sources]:
            return self.read()

        return Settings(sources, reload, config, disk.state, schedulers=schedulers, clock=process.clock)


@lru_cache(maxsize=256)
def _read(text: str, targets: str | None) -> tuple[Config, Sources]:
    config = parse_config(text, "site.toml")
    fake = targets if config.resource.entries else targets or TARGETS
    return config, build_inventory(config, fake=fake, topology=lambda: HEAD)


def start_instance(
    site: Site,
    process: Process,
    network: Network,
    disk: Disk,
    keepers: KeeperHost,
    start_module: StartModule,
    connect: OpenClient,
    noted: OnBug,
    hosts: SimHosts | None = None,
) -> Assembly:
    """A running instance; with `hosts`, which an engine holds, its tasks run there. Raises FluxschedError if it cannot
    start.
    """
    end = InstanceEnd(process.loop)
    turns = Turns(process.clock, end.fail, noted)
    store = disk.open(turns, process, end.fail)
    settings = site.settings(process, disk)

    def executors(reports: Reports) -> dict[str, Executor]:
        grace_s = settings.config.kill_timeout_s
        local: Executor = KeeperExecutor(turns, reports, keepers, grace_s, outlives=True)
        test: Executor = TimedExecutor(turns, reports)
        if hosts is None:
            return {"local": local, "test": test}
        served = InstanceHosts(turns, reports, hosts, set_present, grace_s, outlives=True)
        hosts.serve(process, turns, served)
        return {"local": served.executor, "here": local, "test": test}

    def set_present(host: str, is_present: bool) -> None:
        parts.set_present(host, is_present)

    outside = InstanceEnvironment(
        turns=turns,
        store=store,
        servers=[network.listen(process)],
        start_module=start_module,
        executors=executors,
        run_directory=disk.state,
        tasks=TaskSettings({}, disk.state / "spool"),
        disk_shortage=disk.shortage,
        memory_enforced=lambda: None,
        generator_id=GENERATOR_ID,
        pid=process.pid,
        started_s=process.clock.wall_s(),
        end=end,
        connect=connect,
    )
    restored = read_store(store, outside.state_notice)
    parts = Assembly(settings, outside, restored)
    end.ended.add_done_callback(partial(_ended, process))
    _end_if_incomplete(parts, process)
    parts.restore(restored)
    parts.start(process.loop)
    return parts


def _end_if_incomplete(parts: Assembly, process: Process) -> None:
    """As `fluxsched start` does: an instance one of whose schedulers never served its groups is no instance."""

    def ready() -> None:
        if not parts.is_complete:
            process.loop.call_soon(process.end, "a scheduler never served its groups")

    parts.instance.when_ready(ready)


def _ended(process: Process, ended: object) -> None:
    error = ended.result()  # type: ignore[attr-defined]
    process.end("stopped" if error is None else f"failed: {error}")
