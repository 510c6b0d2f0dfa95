"""Values of a configuration, frozen, and readers of `[[cluster]]`, `[topology]`, `[engine]`, tables of operation, and
programs of the site (`[prolog]`, `[epilog]`, `[health]`, `[notify]`).

Law: every value here has been checked as far as the text alone allows. What needs the targets (do the hosts exist, do
groups overlap) is checked by `config.inventory`, which asks `Config.where` for the line. What a set of switches may be
is decided by `core.topology`; here each fault gets its place, a key of the configuration or a line of Slurm's
topology.conf. A program is looked up when the file is read, so that a start and `config check` refuse one that is
missing or that this user cannot execute. A relative path counts from the directory of the file; a name without a slash
is looked up in the PATH that programs have. Other hosts must have it at the same path.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from fluxsched.config.policies import with_absolute_file
from fluxsched.config.submit_filters import check_filter
from fluxsched.config.toml import KeyPath, Lines, TomlFault, TomlTable
from fluxsched.core.constraint import SET_KINDS
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import SiteLimit
from fluxsched.core.outages import Outage, checked
from fluxsched.core.programs import PROGRAM_PATH, WHEN, HealthCheck, SiteProgram, check_words, parse_words
from fluxsched.core.quantities import Amounts
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import shown
from fluxsched.core.topology import (
    EMPTY_TOPOLOGY,
    TOPOLOGY_BYTES_MAX,
    Switch,
    Topology,
    check_hosts,
    check_switches,
    parse_topology_conf,
    switch_faults,
)
from fluxsched.errors import FluxschedError, InvalidParts, InvalidValue
from fluxsched.jobs.queues import QueueConfig
from fluxsched.messaging.keys import AccessRules
from fluxsched.resource.inventory import DEFAULT, EXCLUDE, SPARES, check_group_name
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.system.files import parse_bind, parse_page_bind, read_text
from fluxsched.system.log import FORMATS, TEXT


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Address at which metrics are served (None: nowhere), and whether other hosts may connect."""

    bind: str | None = None
    public: bool = False


@dataclass(frozen=True, slots=True)
class PageSettings:
    """Address at which the page is served (None: nowhere), whether other hosts may connect, and its host names."""

    bind: str | None = None
    public: bool = False
    names: tuple[str, ...] = ()

    def wanted(self) -> PageSettings:
        """Return these settings, with a free port of loopback if no address is set."""
        return self if self.bind is not None else replace(self, bind="127.0.0.1:0")


INACTIVE_NUMBER_MAX = 100_000
"""Ended jobs that are remembered: 100 MB of the state, and as many as are listed at once."""
INACTIVE_AGE_MAX_S = 365 * 86_400.0
"""And for how long at most: a year (seconds)."""


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """Number of ended jobs that are remembered, and their maximum age (seconds)."""

    number_max: int = INACTIVE_NUMBER_MAX
    age_max_s: float = INACTIVE_AGE_MAX_S


def read_history(table: TomlTable) -> HistorySettings:
    """Return the settings of `[job-manager]`; the names are Flux's."""
    number, age_s = table.integer("inactive-num-limit", 1), table.duration_s("inactive-age-limit")
    table.done()
    return HistorySettings(
        INACTIVE_NUMBER_MAX if number is None else number, INACTIVE_AGE_MAX_S if age_s is None else age_s
    )


def read_log(table: TomlTable) -> str:
    """Return the format of the log, one of FORMATS."""
    found = table.choice("format", FORMATS) or TEXT
    table.done()
    return found


def read_metrics(table: TomlTable) -> MetricsSettings:
    """Return the settings of `[metrics]`."""
    found = MetricsSettings(*_bind(table, parse_bind))
    table.done()
    return found


def read_page(table: TomlTable) -> PageSettings:
    """Return the settings of `[web]`."""
    found = PageSettings(*_bind(table, parse_page_bind), table.texts("names"))
    table.done()
    return found


def _bind(table: TomlTable, parse: Callable[..., object]) -> tuple[str | None, bool]:
    """Return the address at which something is served, and whether it may be public."""
    bind, public = table.text("bind"), bool(table.flag("public"))
    if bind is not None:
        try:
            parse(bind, public=public)
        except FluxschedError as fault:
            table.fault("bind", str(fault))
    return bind, public


# ---- submit filters

REFUSE, PASS = "refuse", "pass"
"""Fate of jobs that are submitted while the process of the submit filters is not there."""

FILTERS_MAX = 16
"""Filters of a site: each job goes through all of them."""

FILTER_S = 5.0
"""Default of the time within which filters answer (seconds)."""
FILTER_MIN_S = 0.1
"""Below it a pause of the machine would count as a fault of the filters."""


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """The submit filters of a site with their options, the time within which they answer, and whether jobs pass while
    they do not.
    """

    filters: tuple[str, ...] = ()
    timeout_s: float = FILTER_S
    passes_without: bool = False


def read_ingest(table: TomlTable, directory: Path) -> IngestSettings:
    """Return the settings of `[ingest]`; filters in files count from `directory`."""
    filters, timeout_s = table.texts("filters", check_filter), table.duration_within("timeout", FILTER_S, FILTER_MIN_S)
    without = table.choice("without-filters", (REFUSE, PASS))
    if len(filters) > FILTERS_MAX:
        table.fault("filters", f"has {len(filters)} filters, the maximum is {FILTERS_MAX}")
    table.done()
    located = [with_absolute_file(each, directory) for each in filters]
    return IngestSettings(tuple(located), timeout_s, without == PASS)


# ---- clusters

CLUSTERS_MAX = 64
"""Each has a connection and a group of its own."""

RETURN_AFTER_S = 60.0
"""Maximum time for which a job may wait in another instance before it begins, unless `return-after` sets another one.
"""

SCHEMES = ("ipc://", "tcp://", "local://")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """One `[[cluster]]`: the other instance's address, the queue for our jobs there (None: its default), the file of
    the key to show at a tcp port, and after how many seconds a job that was not begun there is taken back.
    """

    name: str
    uri: str
    queue: str | None = None
    key: str | None = None
    return_after_s: float = RETURN_AFTER_S

    @property
    def is_flux(self) -> bool:
        """Return whether the cluster is a real Flux: at a local socket, Flux's own protocol is spoken."""
        return self.uri.startswith("local://")


def read_clusters(root: TomlTable, groups: Iterable[str], directory: Path) -> tuple[ClusterSettings, ...]:
    """Return every `[[cluster]]`; files of keys count from `directory`. Faults are noted in the document."""
    found: list[ClusterSettings] = []
    taken = {DEFAULT, EXCLUDE, SPARES, *groups}
    for at, table in enumerate(root.tables("cluster")):
        if at >= CLUSTERS_MAX:
            table.fault(None, f"is above the limit of {CLUSTERS_MAX} clusters")
            break
        one = _cluster(table, taken, directory)
        if one is not None:
            taken.add(one.name)
            found.append(one)
    return tuple(found)


def _cluster(table: TomlTable, taken: set[str], directory: Path) -> ClusterSettings | None:
    name, uri = table.text("name", check_cluster_name), table.text("uri", check_cluster_uri)
    for wanted, such in (("name", "east"), ("uri", "tcp://KEY@east-login:5555")):
        if wanted not in table:
            table.fault(None, f'has no {wanted}, such as {wanted} = "{such}"')
    if name in taken:
        table.fault("name", f"there is a group {name!r} already: a cluster is a group of its own, give another name")
        name = None
    queue, key = table.text("queue"), table.text("key")
    return_after_s = table.duration_s("return-after")
    if return_after_s is not None and not 0.0 < return_after_s < math.inf:
        table.fault("return-after", f"{return_after_s:g} s is not above 0 and finite: give a duration such as 60s")
        return_after_s = None
    table.done()
    if name is None or uri is None:
        return None
    path = None if key is None else str(directory / key)
    return ClusterSettings(name, uri, queue, path, RETURN_AFTER_S if return_after_s is None else return_after_s)


def check_cluster_name(name: str) -> None:
    """Raise InvalidValue for a name that cannot name a group, or would make a host of the cluster look like a named
    set.
    """
    check_group_name(name)
    if name in SET_KINDS:
        raise InvalidValue(f"cluster name {name!r} is the prefix of a set of targets ({name}:NAME): give another name")


def check_cluster_uri(uri: str) -> None:
    """Raise InvalidValue for a text that is no address of an instance."""
    if not uri.startswith(SCHEMES) or uri in SCHEMES:
        raise InvalidValue(f"{uri[:80]!r} is not the address of an instance, which begins with {', '.join(SCHEMES)}")


# ---- topology


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """The topology as configured.

    `place_of` has of each leaf the key of the configuration that has its hosts, and how that is called:
    `[[topology.switch]] hosts`, or `[topology] path: FILE:LINE: Nodes`.
    """

    topology: Topology = EMPTY_TOPOLOGY
    place_of: Mapping[str, tuple[KeyPath, str]] = field(default_factory=dict)

    def host_faults(self, resources: ResourceSet, line_of: Callable[[KeyPath], int]) -> Iterator[TomlFault]:
        """Yield a fault for each leaf with hosts that no target is on; `line_of` knows the lines of the
        configuration.
        """
        if not self.topology:
            return
        known = set(resources.nodelist.hosts)
        for name, switch in self.topology.switches.items():
            if unknown := [host for host in switch.hosts.hosts if host not in known]:
                keys, place = self.place_of[name]
                said = f"no target is on {Hostlist(tuple(unknown))}, under switch {name}: take it out"
                yield TomlFault(line_of(keys), f"{place}: {said}, or add it to the resources", keys)


def read_topology(table: TomlTable, directory: Path) -> TopologySettings:
    """Return the settings of a `[topology]` table; faulty values are omitted, and the faults are noted in its
    document.
    """
    path, switches = table.text("path"), table.tables("switch")
    settings = TopologySettings()
    if path is not None and "switch" in table:
        table.fault("path", "give either path or [[topology.switch]], not both")
    elif path is not None:
        settings = _of_file(table, directory / Path(path).expanduser())
    elif "switch" in table:
        settings = _of_tables(table, switches)
    table.done()
    return settings


def _of_file(table: TomlTable, path: Path) -> TopologySettings:
    try:
        found = parse_topology_conf(read_text(path, "topology", TOPOLOGY_BYTES_MAX), str(path))
    except InvalidValue as fault:
        for text in str(fault).split("\n"):
            table.fault("path", text)
        return TopologySettings()
    keys = (*table.path, "path")
    places = {name: (keys, f"[topology] path: {path}:{at}: Nodes") for name, at in found.line_of.items()}
    return TopologySettings(found.topology, places)


def _of_tables(table: TomlTable, tables: list[TomlTable]) -> TopologySettings:
    switches: list[Switch] = []
    right = True
    try:
        check_switches(len(tables))
        for each in tables:
            switch = _switch(each)
            right = right and switch is not None
            switches.append(switch or Switch(""))
        check_hosts(sum([len(switch.hosts) for switch in switches]))
    except InvalidValue as fault:
        table.fault("switch", str(fault))
        return TopologySettings()
    faults = switch_faults(switches) if right else []
    for at, key, text in faults:
        tables[at].fault(key, text)
    if faults or not right:
        return TopologySettings()
    places = {
        switch.name: ((*each.path, "hosts"), "[[topology.switch]] hosts")
        for switch, each in zip(switches, tables, strict=True)
    }
    return TopologySettings(Topology(switches), places)


def _switch(table: TomlTable) -> Switch | None:
    """Return one switch; None for one that cannot be read, which is noted."""
    name, hosts, switches = table.text("name"), table.joined("hosts"), table.joined("switches")
    table.done()
    if name is None:
        if "name" not in table:
            table.fault(None, "has no name: give it one that no other switch has")
        return None
    try:
        return Switch.read(name, hosts, switches)
    except InvalidParts as wrong:
        for path, text in wrong.faults:
            table.fault_at(path, text)
    return None


# ---- engine

SLURM, FLUX, SSH, PROCESSES, AUTO_ENGINE, NO_ENGINE = "slurm", "flux", "ssh", "processes", "auto", "none"
JOB_ENGINE = "job"
"""Kind of engine of an instance that is a job over several hosts of another one, which nobody has to name."""
ENGINE_KINDS = (SLURM, FLUX, SSH, PROCESSES, AUTO_ENGINE, NO_ENGINE)
ENGINE_TEXT = "slurm, flux, ssh:HOSTLIST, auto or none"
"""Values of `start --engine`; `processes:N` is for tests."""
START_TIMEOUT_S = 60.0
"""Maximum time until the keepers of all hosts must have reported (seconds), unless `start-timeout` sets another one."""
PING_S, PING_MAX_S = 2.0, 4.0
"""Interval of the pings of a keeper, and that where there are many hosts (seconds)."""
ORPHAN_TIMEOUT_S, KEPT_ORPHAN_TIMEOUT_S = 10.0, 60.0
"""Time for which keepers run on without their instance (seconds), unless `orphan-timeout` sets another one: without a
state directory, and with one, in which a restarted instance finds their jobs.
"""
ORPHAN_TIMEOUT_MIN_S = 2 * PING_S
"""The shortest: a keeper must have missed two answers before it ends its tasks."""
ENGINE_TIME_MAX_S = 86_400.0
"""The longest of these times: a day."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine that holds the hosts of an instance (`engine.engines`)."""

    kind: str = NO_ENGINE
    hosts: str = ""
    """Hostlist, for ssh and processes."""
    start_timeout_s: float = START_TIMEOUT_S
    orphan_timeout_s: float | None = None
    """None: the default, which depends on whether there is a state directory."""
    address: str | None = None
    """Address of this machine at which the hosts reach the instance; None: the one on the way to them."""

    def named(self, text: str) -> EngineSettings:
        """Return these settings with the engine of a `--engine` option. Raises InvalidValue."""
        kind, hosts = parse_engine(text)
        return replace(self, kind=kind, hosts=hosts)

    def orphan_timeout(self, *, is_kept: bool) -> float:
        """Return the time for which keepers run on without their instance; `is_kept`: it has a state directory."""
        if self.orphan_timeout_s is not None:
            return self.orphan_timeout_s
        return KEPT_ORPHAN_TIMEOUT_S if is_kept else ORPHAN_TIMEOUT_S


def parse_engine(text: str) -> tuple[str, str]:
    """Return kind and hostlist of a text such as `ssh:n[1-4]`; hosts of `processes:3` are p[0-2]. Raises
    InvalidValue.
    """
    kind, colon, hosts = text.partition(":")
    if kind == PROCESSES and hosts.isascii() and hosts.isdecimal() and len(hosts) < 5 and int(hosts):
        return kind, f"p[0-{int(hosts) - 1}]"
    if kind == SSH:
        if not hosts:
            raise InvalidValue(f"engine {text!r} names no hosts: give them as in ssh:n[1-4]")
        Hostlist.parse(hosts)
        return kind, hosts
    if colon or kind not in ENGINE_KINDS or kind == PROCESSES:
        raise InvalidValue(f"engine {text[:80]!r} is not one of {ENGINE_TEXT}")
    return kind, ""


def read_engine(table: TomlTable) -> EngineSettings:
    """Return the settings of `[engine]`."""
    kind, hosts = table.choice("kind", ENGINE_KINDS), table.joined("hosts")
    table.accepts("hosts", Hostlist.parse, hosts)
    start_s = table.duration_within("start-timeout", START_TIMEOUT_S, 1.0, ENGINE_TIME_MAX_S)
    orphan_s = table.duration_within("orphan-timeout", None, ORPHAN_TIMEOUT_MIN_S, ENGINE_TIME_MAX_S)
    address = table.text("address")
    if kind in (SSH, PROCESSES) and not hosts:
        table.fault("kind", f'{kind} needs hosts = "n[1-4]"')
    elif kind is not None and hosts and kind not in (SSH, PROCESSES):
        table.fault("hosts", f"is for kind ssh: the hosts of {kind} are those of its allocation")
    elif "kind" not in table and hosts:
        table.fault("hosts", 'is for kind ssh: give kind = "ssh", or name the hosts with --engine')
    table.done()
    return EngineSettings(kind or NO_ENGINE, hosts, start_s, orphan_s, address or None)


# ---- the whole configuration

HEARTBEAT_S = 2.0
"""Interval of heartbeats (seconds) as in Flux's overlay: a handful of messages a second for a thousand hosts."""

TORPID_HEARTBEATS = 3
"""Number of missed heartbeats that makes a target torpid, unless `torpid-after` sets a time."""

OFFLINE_HEARTBEATS = 10
"""Number of missed heartbeats that makes a target offline, unless `offline-after` sets a time."""

KILL_TIMEOUT_S = 5.0
"""Time from SIGTERM to SIGKILL (Flux's default)."""

RESTARTS = 3
"""A scheduler that fails a fourth time within ten minutes will fail again."""

FALLBACK = "fifo"
"""Ours, with nothing in it that could go wrong."""

HUNG_AFTER_S = 30.0
"""Ours answer within 20 ms whatever they do; a policy that does not yield for so long is not coming back."""

NO_LIMIT = -1
"""Value of job-size limits for no limit, even if the global policy has one."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One `[[resource.config]]`: hosts (RFC 29), idsets of their cores and GPUs, their properties and countables."""

    hosts: str
    cores: str = ""
    gpus: str = ""
    properties: tuple[str, ...] = ()
    amounts: Amounts = ()


def withheld_cores(text: str) -> list[tuple[Idset, str]]:
    """Return the cores and targets in `CORES@TARGETS`, several behind spaces. Raises InvalidValue."""
    found: list[tuple[Idset, str]] = []
    for part in text.split():
        cores, at, targets = part.partition("@")
        if not (cores and at and targets):
            raise InvalidValue(f"{part!r} is not CORES@TARGETS, such as 0-1@n[0-99]")
        found.append((Idset.parse(cores), targets))
    return found


@dataclass(frozen=True, slots=True)
class ResourceConfig:
    """`[resource]`: where R comes from (`path` or `entries`, or neither), groups as texts, and when silence counts."""

    path: str | None = None
    entries: tuple[HostEntry, ...] = ()
    exclude: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Without `exclude` and `spares`, which have fields of their own wherever the file names them."""
    heartbeat_s: float = HEARTBEAT_S
    torpid_after_s: float = TORPID_HEARTBEATS * HEARTBEAT_S
    offline_after_s: float = OFFLINE_HEARTBEATS * HEARTBEAT_S
    lost_after_s: float | None = None
    """Seconds offline until a discovered target counts as lost; None: never."""
    shared: Amounts = ()
    """Countable resources that the instance has once."""
    withhold: str = ""
    """Cores of targets that are in no R, such as `0-1@n[0-99]`."""
    spares: str = ""


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
    """Recovery of a scheduler module that fails after it has served its groups.

    The module is started again `restart` times within ten minutes, then with the policy `fallback` instead (None: not
    at all). `hung_after_s` seconds without a sign of life are a failure, too (infinity: never).
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
class OutageSettings:
    """One `[[outages]]`; `targets` as they are written, times in seconds since the epoch."""

    name: str
    targets: str
    from_s: float
    until_s: float
    every_s: float
    reason: str
    ends_jobs: bool
    queue: str


def read_outages(root: TomlTable) -> tuple[OutageSettings, ...]:
    """Return the planned outages; faulty ones are left out, and the faults noted."""
    found: list[OutageSettings] = []
    for number, table in enumerate(root.tables("outages"), 1):
        name, targets, reason = table.text("name"), table.text("targets"), table.text("reason") or ""
        from_s, until_s = (table.number_or_text(key, parse_moment) for key in ("from", "until"))
        lasts_s, every_s = table.duration_s("for"), table.duration_s("every") or 0.0
        ends_jobs, queue = table.flag("end-jobs") or False, table.text("queue") or ""
        if missing := [key for key in ("targets", "from") if key not in table]:
            table.fault(None, f"has no {' and no '.join(missing)}")
        if ("until" in table) == ("for" in table):
            table.fault(None, "has an end: give either until or for")
        table.done()
        if from_s is None or targets is None or (until_s is None and lasts_s is None):
            continue
        end_s = from_s + (lasts_s or 0.0) if until_s is None else until_s
        one = OutageSettings(name or f"config{number}", targets, from_s, end_s, every_s, reason, ends_jobs, queue)
        try:
            checked(Outage(one.name, EMPTY, one.from_s, one.until_s, one.every_s, one.reason))
            if one.name in [each.name for each in found]:
                raise InvalidValue(f"there are two outages {one.name!r}: give each a name of its own")
        except InvalidValue as fault:
            table.fault(None, str(fault))
            continue
        found.append(one)
    return tuple(found)


def parse_moment(text: str) -> float:
    """Return the seconds since the epoch of a date and time, in local time if it has no zone. Raises InvalidValue."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InvalidValue(f"{text[:40]!r} is no date and time, such as 2030-01-31T18:00") from None


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
    """Rules for users other than the owner who may connect."""
    raw: dict[str, Any] = field(default_factory=dict)
    """The file as JSON, for `config.get`."""
    lines: Lines | None = field(default=None, compare=False, repr=False)
    unsatisfiable: str = WAIT
    """Treatment of accepted jobs that their group can no longer hold: one of `UNSATISFIABLE`."""
    preempt_timeout_s: float = KILL_TIMEOUT_S
    """Time from SIGTERM to SIGKILL for a preempted job; `kill_timeout_s` unless the file sets it."""
    fair: FairSettings = field(default_factory=FairSettings)
    log_format: str = TEXT
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    page: PageSettings = field(default_factory=PageSettings)
    network: TopologySettings = field(default_factory=TopologySettings)
    clusters: tuple[ClusterSettings, ...] = ()
    engine: EngineSettings = EngineSettings()
    outages: tuple[OutageSettings, ...] = ()
    site_limits: tuple[SiteLimit, ...] = ()
    ingest: IngestSettings = IngestSettings()
    prolog: SiteProgram | None = None
    epilog: SiteProgram | None = None
    health: HealthCheck | None = None
    notify: tuple[str, ...] | None = None
    """Program that is told of job events."""

    def where(self, table: str, key: str | int | None = None) -> str:
        """Return `file:line` of a key in a table named by its dotted path, for error texts."""
        return f"{self.name}:{self.line(table, key)}"

    def line(self, table: str, key: str | int | None = None) -> int:
        """Return the line of a key in a table named by its dotted path, or of the innermost table around it; else 1."""
        path: KeyPath = tuple(table.split("."))
        return self.line_of(path if key is None else (*path, key))

    def line_of(self, path: KeyPath) -> int:
        """Return the line of a path of keys."""
        return self.lines.of(path) if self.lines is not None else 1


# ---- programs of the site

PER_HOST, PER_JOB = "host", "job"
AS_OWNER, AS_USER = "owner", "user"
PERILOG_TIMEOUT_S: Final = 60.0
"""Time limit of a prolog or an epilog (seconds), unless `timeout` sets another one: a job waits for it on all hosts."""
HEALTH_INTERVAL_S: Final = 300.0
"""Interval of health checks (seconds), unless `interval` sets another one."""
PROGRAM_TIMEOUT_MIN_S: Final = 0.1
PROGRAM_TIMEOUT_MAX_S: Final = 86_400.0
"""The longest time limit of a program, and interval of health checks: a day."""


def read_perilog(root: TomlTable, name: str, directory: Path) -> SiteProgram | None:
    """Return the program of the table `prolog` or `epilog`; None if there is none, or it is faulty."""
    if name not in root:
        return None
    table = root.table(name)
    words, timeout_s = read_words(table, directory), _time(table, "timeout", PERILOG_TIMEOUT_S)
    per = table.choice("per", (PER_HOST, PER_JOB)) or PER_HOST
    run_as = table.choice("run-as", (AS_OWNER, AS_USER)) or AS_OWNER
    table.done()
    return None if words is None else SiteProgram(words, timeout_s, per == PER_HOST, run_as == AS_USER)


def read_health(root: TomlTable, directory: Path) -> HealthCheck | None:
    """Return the health check of `[health]`; None if there is none, or it is faulty."""
    if "health" not in root:
        return None
    table = root.table("health")
    words, timeout_s = read_words(table, directory), _time(table, "timeout", PERILOG_TIMEOUT_S)
    interval_s = _time(table, "interval", HEALTH_INTERVAL_S)
    when = [word.strip() for word in table.joined("when").split(",")] if "when" in table else list(WHEN)
    if unknown := [word for word in when if word not in WHEN]:
        table.fault("when", f"{shown(unknown[0])} is not one of {', '.join(WHEN)}: name some of them")
    table.done()
    return None if words is None else HealthCheck(SiteProgram(words, timeout_s), interval_s, frozenset(when))


def read_notify(root: TomlTable, directory: Path) -> tuple[str, ...] | None:
    """Return the words of the program of `[notify]`; None if there is none, or it is faulty."""
    if "notify" not in root:
        return None
    table = root.table("notify")
    words = read_words(table, directory)
    table.done()
    return words


def _time(table: TomlTable, key: str, default_s: float) -> float:
    return table.duration_within(key, default_s, PROGRAM_TIMEOUT_MIN_S, PROGRAM_TIMEOUT_MAX_S)


def read_words(table: TomlTable, directory: Path) -> tuple[str, ...] | None:
    """Return the words of `program`, a text or a list, with the path of the program; None if they are faulty."""
    if "program" not in table:
        table.fault(None, 'names no program, such as program = "/usr/sbin/site-check --quick"')
        return None
    try:
        words = parse_words(table.text("program") or "") if table.has_text("program") else list(table.texts("program"))
        first, *arguments = check_words(words)
        return (found_program(first, directory), *arguments)
    except InvalidValue as fault:
        table.fault("program", str(fault))
        return None


def found_program(word: str, directory: Path) -> str:
    """Return the absolute path of a program. Raises InvalidValue if it is missing or cannot be executed."""
    if "/" not in word:
        found = shutil.which(word, path=PROGRAM_PATH)
        if found is None:
            raise InvalidValue(f"there is no program {shown(word)} in {PROGRAM_PATH}: give its path")
        return found
    path = os.path.abspath(directory / Path(word).expanduser())
    if not os.path.exists(path):
        raise InvalidValue(f"there is no program {shown(path)}: correct the path")
    if os.path.isdir(path) or not os.access(path, os.X_OK):
        raise InvalidValue(f"{shown(path)} cannot be executed: name a program, and allow it (chmod +x)")
    return path
