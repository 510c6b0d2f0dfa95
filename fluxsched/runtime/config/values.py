"""What a configuration says, as frozen values; `runtime.config.reader` reads them from TOML.

Law: every value here has been checked as far as the text alone allows. What needs the targets (do the hosts exist, do
groups overlap) is checked by `runtime.inventory.sources`, which asks `Config.where` for the line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxsched.core.amounts import Amounts
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.runtime.access.rules import AccessRules
from fluxsched.runtime.config.operations import HistorySettings, MetricsSettings, PageSettings
from fluxsched.runtime.config.tables.clusters import ClusterSettings
from fluxsched.runtime.config.tables.topology import TopologySettings
from fluxsched.runtime.config.toml_lines import Lines, Path
from fluxsched.runtime.system.logs.format import TEXT
from fluxsched.sched.accounts.settings import FairSettings
from fluxsched.sched.engine.waiting.set_aside import WAIT

HEARTBEAT_S = 2.0
"""As in Flux's overlay: a handful of messages a second for a thousand hosts."""

TORPID_HEARTBEATS = 3
"""Silence of so many heartbeats makes a target torpid, unless `torpid-after` says otherwise."""

OFFLINE_HEARTBEATS = 10
"""Silence of so many heartbeats makes a target offline, unless `offline-after` says otherwise."""

KILL_TIMEOUT_S = 5.0
"""From SIGTERM to SIGKILL (the default that Flux has)."""

RESTARTS = 3
"""A scheduler that fails a fourth time within ten minutes will fail again."""

FALLBACK = "fifo"
"""Ours, with nothing in it that could go wrong."""

HUNG_AFTER_S = 30.0
"""Ours answer within 20 ms whatever they do; a policy that does not yield for so long is not coming back."""

NO_LIMIT = -1
"""In job-size limits: none, also where the global policy has one."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One `[[resource.config]]`: hosts (RFC 29), idsets of their cores and GPUs, their properties and countables."""

    hosts: str
    cores: str = ""
    gpus: str = ""
    properties: tuple[str, ...] = ()
    amounts: Amounts = ()


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """`[resource]`: where R comes from (`path` or `entries`, or neither), groups as texts, and when silence counts."""

    path: str | None = None
    entries: tuple[HostEntry, ...] = ()
    exclude: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Without `exclude`, which has its own field wherever the file names it."""
    heartbeat_s: float = HEARTBEAT_S
    torpid_after_s: float = TORPID_HEARTBEATS * HEARTBEAT_S
    offline_after_s: float = OFFLINE_HEARTBEATS * HEARTBEAT_S
    lost_after_s: float | None = None
    """Seconds offline until a discovered target counts as lost; None: never."""
    shared: Amounts = ()
    """Countable resources that the instance has once."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`policy.limits` (RFC 33). None: not set; a duration of 0 and a size of NO_LIMIT: no limit."""

    duration_s: float | None = None
    nodes_min: int | None = None
    nodes_max: int | None = None
    cores_max: int | None = None
    gpus_max: int | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """`policy.jobspec.defaults.system` (RFC 33); a duration of 0 means no default."""

    duration_s: float | None = None
    queue: str | None = None
    bank: str | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is done about a scheduler module that fails after it has served its groups.

    It is started again `restart` times within ten minutes, then with the policy `fallback` in its place (None: left as
    it is). `hung_after_s` seconds without a sign of life are a failure, too (infinity: never).
    """

    restart: int = RESTARTS
    fallback: str | None = FALLBACK
    hung_after_s: float = HUNG_AFTER_S


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """One `[[scheduler]]`: a policy with its options, its module name (None: the policy's), the groups it serves, and
    what is done if it fails.
    """

    policy: str
    name: str | None = None
    groups: tuple[str, ...] = ()
    recovery: Recovery = Recovery()


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration; without a file everything has its default."""

    name: str = ""
    resource: ResourceConfig = ResourceConfig()
    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    schedulers: tuple[SchedulerSettings, ...] = ()
    kill_timeout_s: float = KILL_TIMEOUT_S
    defaults: Defaults = Defaults()
    limits: Limits = Limits()
    access: AccessRules = field(default_factory=AccessRules)
    """Who may connect besides the owner."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The file as JSON, for `config.get`."""
    lines: Lines | None = field(default=None, compare=False, repr=False)
    unsatisfiable: str = WAIT
    """What becomes of accepted jobs that their group can no longer hold: one of `UNSATISFIABLE`."""
    preempt_timeout_s: float = KILL_TIMEOUT_S
    """From SIGTERM to SIGKILL for a preempted job; as `kill_timeout_s` where the file does not say."""
    fair: FairSettings = field(default_factory=FairSettings)
    log_format: str = TEXT
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    page: PageSettings = field(default_factory=PageSettings)
    network: TopologySettings = field(default_factory=TopologySettings)
    clusters: tuple[ClusterSettings, ...] = ()

    def where(self, table: str, key: str | int | None = None) -> str:
        """`file:line` of a key in a table named by its dotted path, for error texts."""
        return f"{self.name}:{self.line(table, key)}"

    def line(self, table: str, key: str | int | None = None) -> int:
        """The line of a key in a table named by its dotted path, or of the innermost table around it; else 1."""
        path: Path = tuple(table.split("."))
        return self.line_of(path if key is None else (*path, key))

    def line_of(self, path: Path) -> int:
        """The same of a path of keys."""
        return self.lines.of(path) if self.lines is not None else 1
