"""Reading an instance's configuration: TOML into checked values, every fault with file, line and key.

The tables: `[resource]` (with `[[resource.config]]` and `[resource.groups]`), `[topology]`, `[queues.NAME]` and
`[policy]` in the form of RFC 33 with our `group` and `groups`, `[[scheduler]]`, `[[cluster]]`, `[fair]`, `[exec]`,
`[access]`, `[log]`, `[metrics]`, `[web]`, `[job-manager]`.
Law: a key that we do not act upon is refused, since a limit or an access rule that is silently ignored is worse than
none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fluxsched.core.constraint import Constraint
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jsontext import shown
from fluxsched.core.rfields import LOCAL_PREFIX, check_property
from fluxsched.core.sharing import check_name as check_bank
from fluxsched.core.text import some_of
from fluxsched.jobs.queue.banks import Banks
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.resource.state.groups import DEFAULT, EXCLUDE, GROUPS_MAX
from fluxsched.resource.state.groups import check_name as check_group_name
from fluxsched.runtime.config.access import read_access
from fluxsched.runtime.config.fair import read_fair
from fluxsched.runtime.config.operations import read_history, read_log, read_metrics, read_page
from fluxsched.runtime.config.policies import check_policy, located
from fluxsched.runtime.config.schedulers import check_group, check_name, read_schedulers
from fluxsched.runtime.config.tables.clusters import read_clusters
from fluxsched.runtime.config.tables.topology import read_topology
from fluxsched.runtime.config.toml_reader import Document, TomlFault, TomlTable, raise_faults
from fluxsched.runtime.config.values import (
    HEARTBEAT_S,
    KILL_TIMEOUT_S,
    NO_LIMIT,
    OFFLINE_HEARTBEATS,
    TORPID_HEARTBEATS,
    Config,
    Defaults,
    HostEntry,
    Limits,
    ResourceConfig,
    SchedulerSettings,
)
from fluxsched.runtime.system.files import read_text
from fluxsched.sched.accounts.settings import FairSettings
from fluxsched.sched.engine.waiting.set_aside import UNSATISFIABLE, WAIT
from fluxsched.sched.loading import join_plugins
from fluxsched.sched.plugin_registry import check_plugin

__all__ = [
    "Config",
    "Defaults",
    "HostEntry",
    "Limits",
    "ResourceConfig",
    "SchedulerSettings",
    "banks_of",
    "in_full",
    "load_config",
    "parse_config",
    "queue_configs",
    "read_config",
    "read_file",
]

CONFIG_BYTES_MAX = 1 << 24
"""A file with an entry of its own for each of 131,072 hosts takes 10 MiB."""

QUEUES_MAX = 256
"""Every scheduling pass looks at each queue; a site has a handful."""

HEARTBEAT_MIN_S = 0.02
"""Below it the heartbeats are the load."""


def load_config(path: Path) -> Config:
    """The configuration in a file. Raises InvalidValue with a line for each fault: `site.toml:12: [resource] ...`."""
    config, faults = read_file(path)
    raise_faults(config.name, faults)
    return config


def read_file(path: Path) -> tuple[Config, list[TomlFault]]:
    """`read_config` of a file. Raises InvalidValue for one that cannot be read or is not TOML."""
    return read_config(read_text(path, "configuration", CONFIG_BYTES_MAX), str(path))


def parse_config(text: str, name: str) -> Config:
    """The configuration in a text; `name` is its file's, from which relative paths count. Raises InvalidValue."""
    config, faults = read_config(text, name)
    raise_faults(name, faults)
    return config


def read_config(text: str, name: str) -> tuple[Config, list[TomlFault]]:
    """What a text says as far as it can be understood, and all that is wrong with it.

    Raises InvalidValue for what is not TOML at all.
    """
    document = Document.parse(text, name)
    root = document.root
    directory = Path(name).parent
    resource = _resource(root.table("resource"), directory)
    clusters = read_clusters(root, resource.groups, directory)
    groups = {DEFAULT, *resource.groups, *(cluster.name for cluster in clusters)}
    policy = root.table("policy")
    unsatisfiable = policy.choice("unsatisfiable", UNSATISFIABLE) or WAIT
    limits, defaults = _policy(policy, is_global=True)
    queues = _queues(root.table("queues"), groups, limits, defaults, directory)
    if not queues:
        _check_default(policy, None, defaults.duration_s, limits)
    fair = read_fair(root.table("fair"))
    _check_defaults(policy.table("jobspec").table("defaults").table("system"), defaults, queues, fair)
    schedulers = read_schedulers(root, groups, queues, directory)
    kill_timeout_s, preempt_timeout_s = _exec(root.table("exec"))
    access = read_access(root.table("access"), directory)
    log_format, metrics = read_log(root.table("log")), read_metrics(root.table("metrics"))
    history, page = read_history(root.table("job-manager")), read_page(root.table("web"))
    network = read_topology(root.table("topology"), directory)
    root.done()
    raw, lines = document.raw, document.lines
    config = Config(
        name, resource, queues, schedulers, kill_timeout_s, defaults, limits, access, raw, lines, unsatisfiable,
        preempt_timeout_s,
        fair,
        log_format,
        metrics,
        history,
        page,
        network,
        clusters,
    )  # fmt: skip
    return config, document.faults


def _check_defaults(
    system: TomlTable, defaults: Defaults, queues: Mapping[str, QueueConfig], fair: FairSettings
) -> None:
    if defaults.queue is not None and defaults.queue not in queues:
        known = ", ".join(queues) or "none"
        system.fault("queue", f"queue {shown(defaults.queue)} is not configured; there are: {known}")
    if defaults.bank is not None and fair.banks is not None and defaults.bank not in fair.banks:
        known = some_of(list(fair.banks))
        system.fault("bank", f"bank {shown(defaults.bank)} is not in [fair.banks]; there are: {known}")


def queue_configs(config: Config | None) -> dict[str | None, QueueConfig]:
    """The queues for the job manager; None names the anonymous queue of a configuration that has no named ones."""
    if config is None:
        return {}
    found = {queue.name: queue for queue in config.queues.values()}
    if not found and (config.limits, config.defaults) != (Limits(), Defaults()):
        found[None] = _limited(QueueConfig(), config.limits, config.defaults.duration_s)
    return found


def banks_of(config: Config) -> Banks:
    """The banks for the job manager."""
    return Banks(config.defaults.bank, config.fair.banks)


def _limited(queue: QueueConfig, limits: Limits, default_duration_s: float | None) -> QueueConfig:
    """The queue with limits and default duration, its own or else the global ones."""
    sizes = (limits.nodes_min, limits.nodes_max, limits.cores_max, limits.gpus_max)
    nodes_min, nodes_max, cores_max, gpus_max = [None if size == NO_LIMIT else size for size in sizes]
    return replace(
        queue,
        duration_limit_s=limits.duration_s or 0.0,
        default_duration_s=default_duration_s or 0.0,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        cores_max=cores_max,
        gpus_max=gpus_max,
    )


def _resource(table: TomlTable, directory: Path) -> ResourceConfig:
    path = table.text("path")
    if path is not None and "config" in table:
        table.fault("path", "give either path or [[resource.config]], not both")
    entries = tuple(_entry(entry) for entry in table.tables("config"))
    exclude = table.text("exclude") or ""
    groups = _groups(table.table("groups"))
    shared = table.amounts("shared")
    if EXCLUDE in groups and "exclude" in table:
        table.fault("exclude", f"is [resource.groups] {EXCLUDE} too, which is the same group: give one of them")
    exclude = groups.pop(EXCLUDE, exclude)
    heartbeat_s, torpid_after_s, offline_after_s = _silence(table)
    lost_after_s = table.duration_s("lost-after")
    table.done()
    return ResourceConfig(
        str(directory / path) if path is not None else None,
        entries,
        exclude,
        groups,
        heartbeat_s,
        torpid_after_s,
        offline_after_s,
        lost_after_s if lost_after_s is not None and math.isfinite(lost_after_s) else None,
        shared,
    )


def _entry(table: TomlTable) -> HostEntry:
    hosts = table.text("hosts", Hostlist.parse)
    if "hosts" not in table:
        table.fault(None, "has no hosts, the hostlist that its other keys are about")
    cores, gpus = table.text("cores", Idset.parse), table.text("gpus", Idset.parse)
    properties = table.texts("properties", check_property)
    amounts = table.amounts("amounts")
    if not any(key in table for key in ("cores", "gpus", "properties", "amounts")):
        table.fault(None, "has none of cores, gpus, properties and amounts: it says nothing about its hosts")
    table.done()
    return HostEntry(hosts or "", cores or "", gpus or "", properties, amounts)


def _groups(table: TomlTable) -> dict[str, str]:
    groups: dict[str, str] = {}
    for name in table.names(GROUPS_MAX):
        text = table.text(name)
        if name == DEFAULT:
            table.fault(name, "cannot be configured: it owns the targets that no other group names")
        elif table.accepts(name, check_group_name, name) and text is not None:
            groups[name] = text
    return groups


def _silence(table: TomlTable) -> tuple[float, float, float]:
    """Heartbeat, torpid-after and offline-after in seconds, in this order of size."""
    heartbeat_s = table.duration_s("heartbeat")
    if heartbeat_s is None:
        heartbeat_s = HEARTBEAT_S
    elif not HEARTBEAT_MIN_S <= heartbeat_s < math.inf:
        table.fault("heartbeat", f"{heartbeat_s:g} s is not between {HEARTBEAT_MIN_S:g} s and infinity")
        heartbeat_s = HEARTBEAT_S
    torpid_s, offline_s = table.duration_s("torpid-after"), table.duration_s("offline-after")
    if offline_s is None:
        offline_s = max(OFFLINE_HEARTBEATS * heartbeat_s, torpid_s or 0.0)
    if torpid_s is None:
        torpid_s = min(TORPID_HEARTBEATS * heartbeat_s, offline_s)
    for key, after_s in (("torpid-after", torpid_s), ("offline-after", offline_s)):
        if key in table and after_s <= heartbeat_s:
            table.fault(key, f"{after_s:g} s is not above the heartbeat of {heartbeat_s:g} s: every pause would count")
    if torpid_s > offline_s:
        table.fault("torpid-after", f"{torpid_s:g} s is above offline-after, {offline_s:g} s: torpid comes first")
    return heartbeat_s, torpid_s, offline_s


def _policy(table: TomlTable, *, is_global: bool) -> tuple[Limits, Defaults]:
    """A `policy` table; only the global one can name the default queue and bank."""
    limits = table.table("limits")
    size = limits.table("job-size")
    most, least = size.table("max"), size.table("min")
    limit = Limits(
        _unlimited_as_zero(limits.duration_s("duration")),
        least.integer("nnodes", NO_LIMIT),
        most.integer("nnodes", NO_LIMIT),
        most.integer("ncores", NO_LIMIT),
        most.integer("ngpus", NO_LIMIT),
    )
    if limit.nodes_max is not None and NO_LIMIT < limit.nodes_max < (limit.nodes_min or 0):
        least.fault("nnodes", f"{limit.nodes_min} is above the most, {limit.nodes_max}: no job could be submitted")
    jobspec = table.table("jobspec")
    defaults = jobspec.table("defaults")
    system = defaults.table("system")
    duration_s = _unlimited_as_zero(system.duration_s("duration"))
    default = Defaults(duration_s)
    if is_global:
        default = Defaults(duration_s, system.text("queue"), system.text("bank", check_bank))
    for read in (least, most, size, limits, system, defaults, jobspec, table):
        read.done()
    return limit, default


def _unlimited_as_zero(duration_s: float | None) -> float | None:
    return 0.0 if duration_s == math.inf else duration_s


def _queues(
    table: TomlTable, groups: set[str], limits: Limits, defaults: Defaults, directory: Path
) -> dict[str, QueueConfig]:
    found = {}
    for name in table.names(QUEUES_MAX):
        one = _queue(name, table.table(name), groups, limits, defaults, directory)
        if table.accepts(name, check_name, name):
            found[name] = one
    return found


def _queue(
    name: str, table: TomlTable, groups: set[str], limits: Limits, defaults: Defaults, directory: Path
) -> QueueConfig:
    group, others = _groups_of_queue(table, groups)
    requires = table.texts("requires", _check_required)
    hosts = table.text("hosts", Hostlist.parse)
    if hosts is not None and "requires" in table:
        table.fault("hosts", "and requires cannot both be given (RFC 33): hosts alone says who the members are")
    policy, own, own_defaults = _queue_policy(table)
    duration_s = own_defaults.duration_s if own_defaults.duration_s is not None else defaults.duration_s
    merged = _merged(own, limits)
    _check_default(table, None, duration_s, merged)
    properties = list(requires) if hosts is None else [LOCAL_PREFIX + name]
    required = Constraint.parse({"properties": properties}) if properties else None
    if plugins := table.texts("plugins", check_plugin):
        policy = join_plugins(policy or "", plugins)
    table.done()
    policy = None if policy is None else located(policy, directory)
    return _limited(QueueConfig(name, group, required, hosts=hosts, policy=policy, others=others), merged, duration_s)


def _groups_of_queue(table: TomlTable, groups: set[str]) -> tuple[str, tuple[str, ...]]:
    """`group`, or several `groups`, of which the first and the others."""
    if "groups" not in table:
        group = table.text("group") or DEFAULT
        check_group(table, "group", group, groups)
        return group, ()
    if "group" in table:
        table.fault("groups", "and group cannot both be given: name all groups in groups")
    table.text("group")
    named = table.texts("groups")
    for group in named:
        check_group(table, "groups", group, groups)
    twice = sorted({group for group in named if named.count(group) > 1})
    if twice:
        table.fault("groups", f"names {', '.join(twice)} twice")
    if not named:
        table.fault("groups", f"is empty: name at least one group, such as {DEFAULT!r}")
        return DEFAULT, ()
    return named[0], tuple(dict.fromkeys(named[1:]))


def _check_default(table: TomlTable, key: str | None, duration_s: float | None, limits: Limits) -> None:
    if limits.duration_s and duration_s and duration_s > limits.duration_s:
        table.fault(key, f"its default duration of {duration_s:g} s is above its limit of {limits.duration_s:g} s")


def _queue_policy(table: TomlTable) -> tuple[str | None, Limits, Defaults]:
    """What a queue has of its own; `policy = "fifo"` is short for `policy.scheduler.policy = "fifo"`."""
    if table.has_text("policy"):
        return table.text("policy", check_policy), Limits(), Defaults()
    policy = table.table("policy")
    scheduler = policy.table("scheduler")
    spec = scheduler.text("policy", check_policy)
    scheduler.done()
    return spec, *_policy(policy, is_global=False)


def in_full(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as `config.get` tells it: what a queue said in short is a table, as Flux's clients expect."""
    queues = {
        name: {**queue, "policy": {"scheduler": {"policy": queue["policy"]}}}
        if isinstance(queue.get("policy"), str)
        else queue
        for name, queue in raw.get("queues", {}).items()
    }
    return {**raw, "queues": queues} if queues else dict(raw)


def _merged(own: Limits, general: Limits) -> Limits:
    """What the queue says, and where it says nothing, what holds for all."""
    chosen = [(getattr(own, each.name), getattr(general, each.name)) for each in fields(Limits)]
    return Limits(*[general if mine is None else mine for mine, general in chosen])


def _exec(table: TomlTable) -> tuple[float, float]:
    """The times from SIGTERM to SIGKILL: in general, and for a preempted job."""
    kill_timeout_s = table.duration_s("kill-timeout")
    preempt_timeout_s = table.duration_s("preempt-timeout")
    table.done()
    general_s = KILL_TIMEOUT_S if kill_timeout_s is None else kill_timeout_s
    return general_s, general_s if preempt_timeout_s is None else preempt_timeout_s


def _check_required(name: str) -> None:
    Constraint.parse({"properties": [name]})
