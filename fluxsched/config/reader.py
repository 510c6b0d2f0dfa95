"""Reading an instance's configuration: TOML into checked values, every fault with file, line and key.

The tables: `[resource]` (with `[[resource.config]]` and `[resource.groups]`), `[topology]`, `[queues.NAME]` and
`[policy]` in the form of RFC 33 with our `group` and `groups`, `[[scheduler]]`, `[[cluster]]`, `[engine]`, `[fair]`,
`[exec]`, `[prolog]`, `[epilog]`, `[health]`, `[notify]`, `[access]`, `[ingest]`, `[log]`, `[metrics]`, `[web]`,
`[job-manager]`. `[fair]` is also read from the object that `config.get` gives to a scheduler, ours or Flux's. Law: a
key that we do not act upon is refused, since a limit or an access rule that is silently ignored is worse than none.
No code of a plugin is run: only its specification is checked, down to the options of built-in policies.

Differences between two configurations, which of them apply without a restart, and the check of a whole file.

Law: a key that is not named here as live needs a restart, and the answer says so; no change is applied, or left out,
silently. A check looks at the text, the policies' files and the targets in this order, and reports the faults of all
three in one go; only a missing file or one that is not TOML is reported alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fluxsched.config.policies import (
    IMPORT_S,
    POLICY,
    USED_PLUGIN,
    absent_files,
    check_policy,
    composed,
    default_name,
    fault_of,
    located,
    queues_split_by,
    with_plugins,
)
from fluxsched.config.submit_filters import filter_fault
from fluxsched.config.toml import Document, KeyPath, TomlFault, TomlTable, raise_faults
from fluxsched.config.values import (
    HEARTBEAT_S,
    HUNG_AFTER_S,
    KILL_TIMEOUT_S,
    NO_ENGINE,
    NO_LIMIT,
    OFFLINE_HEARTBEATS,
    TORPID_HEARTBEATS,
    Config,
    Defaults,
    HostEntry,
    Limits,
    OutageSettings,
    Recovery,
    ResourceConfig,
    SchedulerSettings,
    read_clusters,
    read_engine,
    read_health,
    read_history,
    read_ingest,
    read_log,
    read_metrics,
    read_notify,
    read_outages,
    read_page,
    read_perilog,
    read_topology,
    withheld_cores,
)
from fluxsched.core.constraint import Constraint
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import EACH, LIMITS_MAX, SiteLimit, check_name
from fluxsched.core.quantities import RESERVED, check_kind, in_unit
from fluxsched.core.resources import LOCAL_PREFIX, check_property
from fluxsched.core.text import path_text, shown, there_are, toml_text
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded
from fluxsched.jobs.queues import Banks, QueueConfig
from fluxsched.messaging.keys import AccessRules, parse_user
from fluxsched.resource.inventory import DEFAULT, EXCLUDE, GROUPS_MAX, SPARES, check_group_name
from fluxsched.sched.engine.policy_queue import UNSATISFIABLE, WAIT
from fluxsched.sched.fair.accounts import (
    ACCOUNTS_MAX,
    ALL,
    DOMINANT,
    RESOURCES_MAX,
    SHARES,
    SIGNALS,
    USAGES,
    WEIGHTS,
    Bank,
    FairSettings,
    Signal,
)
from fluxsched.sched.loading import PLUGIN_SIGN, is_file, join_plugins, split_plugins
from fluxsched.sched.registry import check_plugin, has_plugin, join_queues, split_queues
from fluxsched.system.files import read_text

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
    """Return the configuration in a file.

    Raises InvalidValue with a line for each fault: `site.toml:12: [resource] ...`.
    """
    config, faults = read_file(path)
    raise_faults(config.name, faults)
    return config


def read_file(path: Path) -> tuple[Config, list[TomlFault]]:
    """Return the result of `read_config` for a file. Raises InvalidValue for one that cannot be read or is not TOML."""
    return read_config(read_text(path, "configuration", CONFIG_BYTES_MAX), str(path))


def parse_config(text: str, name: str) -> Config:
    """Return the configuration in a text; `name` is its file's, from which relative paths count. Raises
    InvalidValue.
    """
    config, faults = read_config(text, name)
    raise_faults(name, faults)
    return config


def read_config(text: str, name: str) -> tuple[Config, list[TomlFault]]:
    """Return the configuration in a text as far as it can be understood, and all its faults.

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
        _check_default(policy, defaults.duration_s, limits)
    fair = read_fair(root.table("fair"))
    _check_defaults(policy.table("jobspec").table("defaults").table("system"), defaults, queues, fair)
    schedulers = read_schedulers(root, groups, queues, directory)
    kill_timeout_s, preempt_timeout_s = _exec(root.table("exec"))
    access = read_access(root.table("access"), directory)
    log_format, metrics = read_log(root.table("log")), read_metrics(root.table("metrics"))
    history, page = read_history(root.table("job-manager")), read_page(root.table("web"))
    outages = read_outages(root)
    network, engine = read_topology(root.table("topology"), directory), read_engine(root.table("engine"))
    if engine.kind != NO_ENGINE and resource.path is not None:
        root.table("engine").fault("kind", "the hosts report their resources: remove [resource] path, or [engine]")
    site_limits = _site_limits(root, queues, fair)
    ingest = read_ingest(root.table("ingest"), directory)
    prolog, epilog = [read_perilog(root, name, directory) for name in ("prolog", "epilog")]
    health, notify = read_health(root, directory), read_notify(root, directory)
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
        engine,
        outages,
        site_limits,
        ingest,
        prolog,
        epilog,
        health,
        notify,
    )  # fmt: skip
    return config, document.faults


def recorded_config(raw: Mapping[str, Any]) -> tuple[Config, list[TomlFault]]:
    """Return a configuration of a record, as `config.get` has it, and its faults in this version."""
    return read_config(toml_text(raw), "the recorded configuration")


def _check_defaults(
    system: TomlTable, defaults: Defaults, queues: Mapping[str, QueueConfig], fair: FairSettings
) -> None:
    if defaults.queue is not None and defaults.queue not in queues:
        system.fault("queue", f"queue {shown(defaults.queue)} is not configured; {there_are(list(queues))}")
    if defaults.bank is not None and fair.banks is not None and defaults.bank not in fair.banks:
        system.fault("bank", f"bank {shown(defaults.bank)} is not in [fair.banks]; {there_are(list(fair.banks))}")


def queue_configs(config: Config | None) -> dict[str | None, QueueConfig]:
    """Return the queues for the job manager; None names the anonymous queue of a configuration that has no named
    ones.
    """
    if config is None:
        return {}
    found = {queue.name: queue for queue in config.queues.values()}
    if not found and (config.limits, config.defaults) != (Limits(), Defaults()):
        found[None] = _limited(QueueConfig(), config.limits, config.defaults.duration_s)
    return found


def banks_of(config: Config) -> Banks:
    """Return the banks for the job manager."""
    return Banks(config.defaults.bank, config.fair.banks)


def _limited(queue: QueueConfig, limits: Limits, default_duration_s: float | None) -> QueueConfig:
    """Return the queue with limits and default duration, its own or else the global ones."""
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
    exclude, spares = table.text("exclude") or "", table.text("spares") or ""
    groups = _groups(table.table("groups"))
    shared = table.amounts("shared")
    for key in (EXCLUDE, SPARES):
        if key in groups and key in table:
            table.fault(key, f"is [resource.groups] {key} too, which is the same group: give one of them")
    exclude, spares = groups.pop(EXCLUDE, exclude), groups.pop(SPARES, spares)
    withhold = table.text("withhold", withheld_cores) or ""
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
        withhold,
        spares,
    )


def _entry(table: TomlTable) -> HostEntry:
    hosts = table.text("hosts", Hostlist.parse)
    if "hosts" not in table:
        table.fault(None, "has no hosts, the hostlist that its other keys are about")
    cores, gpus = table.text("cores", Idset.parse), table.text("gpus", Idset.parse)
    properties = table.texts("properties", check_property)
    amounts = table.amounts("amounts")
    if not any(key in table for key in ("cores", "gpus", "properties", "amounts")):
        table.fault(None, "has none of cores, gpus, properties and amounts: it describes nothing of its hosts")
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
    heartbeat_s = table.duration_within("heartbeat", HEARTBEAT_S, HEARTBEAT_MIN_S)
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
    """Return the limits and defaults of a `policy` table; only the global one can name the default queue and bank."""
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
        default = Defaults(duration_s, system.text("queue"), system.text("bank", check_name))
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
        if table.accepts(name, _check_section_name, name):
            found[name] = one
    return found


def _queue(
    name: str, table: TomlTable, groups: set[str], limits: Limits, defaults: Defaults, directory: Path
) -> QueueConfig:
    group, others = _groups_of_queue(table, groups)
    requires = table.texts("requires", _check_required)
    hosts = table.text("hosts", Hostlist.parse)
    if hosts is not None and "requires" in table:
        table.fault("hosts", "and requires cannot both be given (RFC 33): hosts alone determines the members")
    policy, own, own_defaults = _queue_policy(table)
    is_own = own_defaults.duration_s is not None
    duration_s = own_defaults.duration_s if is_own else defaults.duration_s
    merged = _merged(own, limits)
    _check_default(table, duration_s, merged, is_own=is_own)
    properties = list(requires) if hosts is None else [LOCAL_PREFIX + name]
    required = Constraint.parse({"properties": properties}) if properties else None
    if plugins := table.texts("plugins", check_plugin):
        policy = join_plugins(policy or "", plugins)
    table.done()
    policy = None if policy is None else located(policy, directory)
    return _limited(QueueConfig(name, group, required, hosts=hosts, policy=policy, others=others), merged, duration_s)


def _groups_of_queue(table: TomlTable, groups: set[str]) -> tuple[str, tuple[str, ...]]:
    """Return `group`, or several `groups`, as the first and the others."""
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


def _check_default(table: TomlTable, duration_s: float | None, limits: Limits, *, is_own: bool = True) -> None:
    if limits.duration_s and duration_s and duration_s > limits.duration_s:
        above = f"is above its limit of {limits.duration_s:g} s"
        if is_own:
            table.fault(None, f"its default duration of {duration_s:g} s {above}")
        else:
            remedy = "set policy.jobspec.defaults.system.duration for this queue"
            table.fault(None, f"the default duration of [policy], {duration_s:g} s, {above}: {remedy}")


def _queue_policy(table: TomlTable) -> tuple[str | None, Limits, Defaults]:
    """Return the policy, limits and defaults of a queue; `policy = "fifo"` is short for `policy.scheduler.policy =
    "fifo"`.
    """
    if table.has_text("policy"):
        return table.text("policy", check_policy), Limits(), Defaults()
    policy = table.table("policy")
    scheduler = policy.table("scheduler")
    spec = scheduler.text("policy", check_policy)
    scheduler.done()
    return spec, *_policy(policy, is_global=False)


def in_full(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as sent by `config.get`: short forms of queues are tables, as Flux's clients expect."""
    queues = {
        name: {**queue, "policy": {"scheduler": {"policy": queue["policy"]}}}
        if isinstance(queue.get("policy"), str)
        else queue
        for name, queue in raw.get("queues", {}).items()
    }
    return {**raw, "queues": queues} if queues else dict(raw)


def with_located_policies(raw: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a configuration in full whose queues name policies in absolute files; others count from `directory`."""
    found = in_full(raw)
    queues = {name: dict(queue) for name, queue in found.get("queues", {}).items()}
    for queue in queues.values():
        if spec := queue.get("policy", {}).get("scheduler", {}).get("policy"):
            queue["policy"] = {**queue["policy"], "scheduler": {"policy": located(spec, directory)}}
        if "plugins" in queue:
            queue["plugins"] = [
                located(PLUGIN_SIGN + each.lstrip(PLUGIN_SIGN), directory).lstrip(PLUGIN_SIGN)
                for each in queue["plugins"]
            ]
    return {**found, "queues": queues} if queues else found


def _merged(own: Limits, general: Limits) -> Limits:
    """Return the limits of the queue; a limit that it does not set is the general one."""
    chosen = [(getattr(own, each.name), getattr(general, each.name)) for each in fields(Limits)]
    return Limits(*[general if mine is None else mine for mine, general in chosen])


def _exec(table: TomlTable) -> tuple[float, float]:
    """Return the times from SIGTERM to SIGKILL: in general, and for a preempted job."""
    kill_timeout_s = table.duration_s("kill-timeout")
    preempt_timeout_s = table.duration_s("preempt-timeout")
    table.done()
    general_s = KILL_TIMEOUT_S if kill_timeout_s is None else kill_timeout_s
    return general_s, general_s if preempt_timeout_s is None else preempt_timeout_s


def _check_required(name: str) -> None:
    Constraint.parse({"properties": [name]})


# ---- limits on users, banks and queues


def _site_limits(root: TomlTable, queues: Mapping[str, QueueConfig], fair: FairSettings) -> tuple[SiteLimit, ...]:
    """Return the limits of all `[[limits]]` tables, in their order."""
    found: list[SiteLimit] = []
    for at, table in enumerate(root.tables("limits")):
        if at >= LIMITS_MAX:
            table.fault(None, f"is above the maximum of {LIMITS_MAX} limits: use '*' for each user, bank or queue")
            break
        found.append(_site_limit(table, queues, fair))
    return tuple(found)


def _site_limit(table: TomlTable, queues: Mapping[str, QueueConfig], fair: FairSettings) -> SiteLimit:
    user, bank, queue = table.text("user", _each_or_user), table.text("bank", check_name), table.text("queue")
    for key, name, known in (("queue", queue, queues), ("bank", bank, fair.banks)):
        if name is not None and name != EACH and known is not None and name not in known:
            table.fault(key, f"{shown(name)} is not configured; {there_are(list(known))}")
    bounds = {key: table.integer(key, 0) for key in ("running", "waiting", "nodes", "cores", "gpus", "minutes")}
    if not any(key in table for key in ("user", "bank", "queue")):
        table.fault(None, "names no user, bank or queue: user = '*' is each user by itself")
    if not any(key in table for key in bounds):
        table.fault(None, f"bounds nothing: give one of {', '.join(bounds)}")
    table.done()
    return SiteLimit(None if user is None else _each_or_user(user), bank, queue, **bounds, user_name=user or "")


def _each_or_user(text: str) -> int | str:
    return EACH if text == EACH else _user(text)


# ---- access


def read_access(table: TomlTable, directory: Path) -> AccessRules:
    """Return the rules; relative paths count from `directory`."""
    allow_guests = table.flag("allow-guest-user")
    allow_root_owner = table.flag("allow-root-owner")
    private_jobs = table.flag("private-jobs")
    run_as_user = table.flag("run-as-user")
    server_key, authorized_keys = table.text("server-key", _not_empty), table.text("authorized-keys", _not_empty)
    admin_users = table.texts("admin-users", _user)
    table.done()
    return AccessRules(
        allow_guests=bool(allow_guests),
        allow_root_owner=bool(allow_root_owner),
        admin_users=frozenset(map(_user, admin_users)),
        private_jobs=bool(private_jobs),
        run_as_user=bool(run_as_user),
        server_key=_path(server_key, directory),
        authorized_keys=_path(authorized_keys, directory),
    )


def _user(text: str) -> int:
    if not text:
        raise InvalidValue("the name of a user must not be empty")
    return parse_user(text)


def _not_empty(path: str) -> None:
    if not path:
        raise InvalidValue("a path must not be empty")


def _path(text: str | None, directory: Path) -> Path | None:
    return None if text is None else directory / Path(text).expanduser()


# ---- schedulers and their queues

SCHEDULERS_MAX = 64
"""Each is a process of its own."""

HUNG_AFTER_MIN_S = 0.2
"""Below it a busy machine is taken for a scheduler that hangs."""

NO_FALLBACK = "none"

DEFAULT_RECOVERY = Recovery()

TAKEN = ("instance", "job-manager", "resource")
"""Names of modules that are part of the instance."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_schedulers(
    root: TomlTable, groups: set[str], queues: Mapping[str, QueueConfig], directory: Path
) -> tuple[SchedulerSettings, ...]:
    """Return every `[[scheduler]]`; policies in files count from `directory`. Faults are noted in the document."""
    found: list[SchedulerSettings] = []
    names = set(TAKEN)
    served: dict[str, int] = {}
    for at, table in enumerate(root.tables("scheduler")):
        if at >= SCHEDULERS_MAX:
            table.fault(None, f"is above the limit of {SCHEDULERS_MAX} schedulers")
            break
        mine = table.texts("groups")
        split = queues_split_by(mine or (DEFAULT,), queues)
        for text in split.values():
            table.fault("groups" if mine else None, text)
        ours = (mine or (DEFAULT,))[0]
        whole = {queue: replace(one, group=ours, others=()) if queue in split else one for queue, one in queues.items()}
        policy = table.text("policy", partial(composed, groups=mine or (DEFAULT,), queues=whole))
        plugins = table.texts("plugins", check_plugin)
        policy = policy and with_plugins(policy, plugins)
        name = table.text("name", _check_section_name)
        if "policy" not in table:
            table.fault(None, 'has no policy, such as policy = "fifo"')
        twice = False
        for group in mine or (DEFAULT,):
            check_group(table, "groups" if mine else None, group, groups)
            twice |= group in served
            if group in served:
                text = f"group {group!r} is served by scheduler number {served[group] + 1} already: one a group"
                table.fault("groups" if mine else None, text)
            served.setdefault(group, at)
        known = name or (default_name(policy, mine) if policy else None)
        if known in names and (name or not twice):  # two schedulers of one group mostly have one name, too
            whose = f"{known!r} is a part of the instance" if known in TAKEN else f"two schedulers are named {known!r}"
            table.fault("name" if name else None, f"{whose}: give another name")
        names |= {known} if known else set()
        recovery = _recovery(table, directory)
        table.done()
        found.append(SchedulerSettings(located(policy, directory) if policy else "", name, mine, recovery))
    return tuple(found)


def _recovery(table: TomlTable, directory: Path) -> Recovery:
    restart = table.integer("restart", 0)
    fallback = table.text("fallback", check_fallback)
    hung_after_s = table.duration_s("hung-after")
    if hung_after_s is not None and hung_after_s < HUNG_AFTER_MIN_S:
        table.fault("hung-after", f"{hung_after_s:g} s is below {HUNG_AFTER_MIN_S:g} s: every pause would count")
    return recovery_of(restart, fallback and located(fallback, directory), hung_after_s)


def recovery_of(
    restart: int | None, fallback: str | None, hung_after_s: float | None, default: Recovery = DEFAULT_RECOVERY
) -> Recovery:
    """Return the given values, else the defaults; the fallback `none` means no fallback."""
    return Recovery(
        default.restart if restart is None else restart,
        default.fallback if fallback is None else None if fallback == NO_FALLBACK else fallback,
        default.hung_after_s if hung_after_s is None else hung_after_s,
    )


def check_fallback(spec: str) -> None:
    """Raise InvalidValue for a text that is neither a policy nor `none`."""
    if spec != NO_FALLBACK:
        check_policy(spec)


def check_group(table: TomlTable, key: str | None, group: str, groups: set[str]) -> None:
    """Report a group that cannot be acquired or is unknown."""
    if group in (EXCLUDE, SPARES):
        table.fault(key, f"group {group!r} cannot be acquired")
    elif group not in groups:
        known = there_are(sorted(groups))
        table.fault(key, f"group {group!r} is not in [resource.groups]; {known} (it may be empty there)")


def _check_section_name(name: str) -> None:
    """Raise InvalidValue for a name that is neither a queue's nor a module's."""
    if not _NAME.fullmatch(name):
        raise InvalidValue(f"name {name!r} must be at most 64 letters, digits, '.', '_' and '-', the first no sign")


# ---- `[fair]`

_COUNTED = frozenset(("core", "gpu"))
_PER_UNIT = re.compile(r"([0-9][0-9.eE+-]*) ?/ ?([A-Za-z]{1,3})", re.ASCII)

DEFAULTS = FairSettings()


def fair_settings(config: Mapping[str, Any]) -> FairSettings:
    """Return the settings in a configuration as `config.get` gives it. Raises InvalidValue with all that is wrong."""
    document = Document({"fair": config.get("fair", {})}, "the configuration")
    found = read_fair(document.root.table("fair"))
    if document.faults:
        raise InvalidValue("; ".join([fault.text for fault in document.faults]))
    return found


def outage_settings(config: Mapping[str, Any]) -> tuple[OutageSettings, ...]:
    """Return the planned outages in a configuration as `config.get` gives it. Raises InvalidValue with all that is
    wrong.
    """
    document = Document({"outages": config.get("outages", [])}, "the configuration")
    found = read_outages(document.root)
    if document.faults:
        raise InvalidValue("; ".join([fault.text for fault in document.faults]))
    return found


def read_fair(table: TomlTable) -> FairSettings:
    """Return the settings of a `[fair]` table; defaults replace faulty values, and the faults are noted in its
    document.
    """
    signal, usage = table.choice("signal", SIGNALS), table.choice("usage", USAGES)
    shares, half_life_s = table.choice("shares", SHARES), table.duration_s("half-life")
    rate = table.integer("rate", 0)
    cap, budget_min = table.number("cap"), table.number("budget")
    weights, banks = _weights(table.table("weights")), _banks(table.table("banks"))
    table.done()
    try:
        return FairSettings(
            DEFAULTS.signal if signal is None else Signal(signal),
            DEFAULTS.half_life_s if half_life_s is None else half_life_s,
            usage == DOMINANT,
            weights if "weights" in table else WEIGHTS,
            shares == ALL,
            cap,
            budget_min,
            DEFAULTS.rate if rate is None else rate,
            banks if "banks" in table else None,
        )
    except InvalidParts as wrong:
        for path, text in wrong.faults:
            table.fault_at(path, text)
    except LimitExceeded as fault:
        table.fault(None, str(fault))
    return DEFAULTS


def _weights(table: TomlTable) -> dict[str, float]:
    found = {}
    for name in table.names(RESOURCES_MAX):
        weight = table.number_or_text(name, _weight)
        table.accepts(name, _check_resource, name)
        found[name] = 1.0 if weight is None else weight
    return found


def _weight(text: str) -> float:
    """Return the weight in a text such as `0.25/GiB`: so much for each of this unit."""
    match = _PER_UNIT.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{shown(text)} is not a weight: give a number, or one by a unit such as '0.25/GiB'")
    try:
        return float(match[1]) / in_unit(1, match[2])
    except ValueError as fault:
        if isinstance(fault, InvalidValue):
            raise
        raise InvalidValue(f"{shown(match[1])} is not a number") from None


def _check_resource(name: str) -> None:
    singular = name.removesuffix("s")
    if name in RESERVED - _COUNTED or singular in _COUNTED - {name}:
        raise InvalidValue(f"{name} is not counted: give weights for core, gpu and countable resources such as memory")
    if name not in _COUNTED:
        check_kind(name)


def _banks(table: TomlTable) -> dict[str, Bank]:
    found = {}
    for name in table.names(ACCOUNTS_MAX):
        given = table.number_or_table(name)
        if isinstance(given, TomlTable):
            found[name] = _bank(given)
        else:
            found[name] = Bank() if given is None else Bank(given)
    return found


def _bank(table: TomlTable) -> Bank:
    weight, parent, cap = table.number("weight"), table.text("parent"), table.number("cap")
    below = table.table("users")
    users = {}
    for name in below.names(ACCOUNTS_MAX):
        given = below.number(name)
        if given is not None:
            users[name] = given
    table.done()
    return Bank(1.0 if weight is None else weight, parent, cap, users)


# ---- changes

Keys: TypeAlias = tuple[str, ...]

LIVE: tuple[Keys, ...] = (
    ("resource", "path"),
    ("resource", "config"),
    ("resource", "exclude"),
    ("resource", "spares"),
    ("resource", "withhold"),
    ("resource", "groups"),
    ("resource", "shared"),
    ("outages",),
    ("topology",),
    ("policy", "limits"),
    ("policy", "jobspec"),
    ("queues",),
    ("fair",),
    ("limits",),
    ("prolog",),
    ("epilog",),
    ("health",),
    ("notify",),
    ("access", "allow-root-owner"),
    ("access", "admin-users"),
    ("access", "private-jobs"),
    ("access", "authorized-keys"),
)
"""Keys that a reload applies, with all keys below each."""

HOST_PROGRAMS: tuple[Keys, ...] = (("prolog",), ("epilog",), ("health",))
"""Sections that a reload applies only to an instance that was started with one of them."""


class KeyChange(NamedTuple):
    """A key, and what it was and is; None: it was or is not there."""

    key: str
    old: Any
    new: Any
    is_live: bool


def changes(old: Mapping[str, Any], new: Mapping[str, Any], fixed: Sequence[Keys] = ()) -> list[KeyChange]:
    """Return every key that is different, in the order of the new configuration, then the removed ones; a whole table
    once. What is `fixed` needs a restart for this once.
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    found = [
        KeyChange(path_text(keys), before.get(keys), value, _is_live(keys, fixed))
        for keys, value in after.items()
        if before.get(keys) != value and not (_is_filled(keys, before) and _is_filled(keys, after))
    ]
    gone = dict.fromkeys(_gone(keys, after) for keys in before if not _is_filled(keys, after) and keys not in after)
    return found + [KeyChange(path_text(keys), _at(old, keys), None, _is_live(keys, fixed)) for keys in gone]


def in_force(old: Mapping[str, Any], new: Mapping[str, Any], fixed: Sequence[Keys] = ()) -> dict[str, Any]:
    """Return the configuration in force once `new` was read: its live keys, and the old values of all others."""
    merged: dict[str, Any] = {}
    for source, live in ((new, True), (old, False)):
        for keys, value in _flat(source):
            if _is_live(keys, fixed) == live:
                *tables, last = keys
                at = merged
                for table in tables:
                    at = at.setdefault(table, {})
                at[last] = value
    return merged


def _flat(table: Mapping[str, Any], at: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Yield all keys with values; an empty table is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*at, key))
        else:
            yield (*at, key), value


def _gone(keys: Keys, after: Mapping[Keys, Any]) -> Keys:
    """Return the outermost table around a key that was removed as a whole, as long as it is as live as the key."""
    for length in range(1, len(keys)):
        table = keys[:length]
        if _is_live(table) == _is_live(keys) and not any(other[:length] == table for other in after):
            return table
    return keys


def _at(table: Any, keys: Keys) -> Any:
    for key in keys:
        table = table[key]
    return table


def _is_live(keys: Keys, fixed: Sequence[Keys] = ()) -> bool:
    return any(keys[: len(live)] == live for live in LIVE if live not in fixed)


def _is_filled(keys: Keys, flat: Mapping[Keys, Any]) -> bool:
    """Return whether the table is present, empty or not."""
    return flat.get(keys) == {} or any(other[: len(keys)] == keys and other != keys for other in flat)


# ---- check of a configuration


def read_site(path: Path | None, *, trying: bool = False) -> tuple[Config, list[TomlFault]]:
    """Return the configuration of a file, and all its faults except those of its targets (`build_inventory`).

    With `trying` its policies are also imported, each in a process of its own, which starting an instance does anyway.
    Without a file everything has its default. Raises InvalidValue for what cannot be read or is not TOML.
    """
    if path is None:
        return Config(), []
    config, faults = read_file(path)
    return config, [*faults, *_faulty_policies(config, trying), *_faulty_filters(config, trying)]


def _faulty_policies(config: Config, trying: bool) -> Iterator[TomlFault]:
    """Yield the faults of policies and plugins in files that do not exist, and of those that cannot be used."""
    for keys, title, specs in _policies(config):
        line, absent = config.line_of(keys), list(absent_files(specs))
        yield from (TomlFault(line, f"{title}: there is no file {name}", keys) for name in absent)
        if trying and not absent:
            yield from (TomlFault(line, f"{title}: {fault}", keys) for fault in import_faults(specs))


def _faulty_filters(config: Config, trying: bool) -> Iterator[TomlFault]:
    """Yield the faults of submit filters in the same way."""
    keys: KeyPath = ("ingest", "filters")
    for spec in config.ingest.filters:
        name, fault = spec.partition(":")[0], None
        if is_file(name) and not Path(name).is_file():
            fault = f"there is no file {name}"
        elif trying:
            fault = filter_fault(spec, IMPORT_S)
        if fault is not None:
            yield TomlFault(config.line_of(keys), f"[ingest] filters: {fault}", keys)


def import_faults(specs: str, import_s: float = HUNG_AFTER_S) -> Iterator[str]:
    """Import the policies and plugins of `SPEC;QUEUE=SPEC;...`, each in a process of its own: why some cannot be used.

    A queue may have plugins alone. Each may take `import_s` seconds, by default as long as in a scheduler.
    """
    general, own = split_queues(specs)
    for spec in (general, *own.values()):
        policy, plugins = split_plugins(spec)
        tried = [(policy, POLICY)] if has_plugin(policy) else []
        for each, noun in (*tried, *((plugin, USED_PLUGIN) for plugin in plugins)):
            fault = fault_of(each, noun, import_s)
            if fault is not None:
                yield fault


def _policies(config: Config) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield every text that names policies: its position, its title, and the text."""
    for at, scheduler in enumerate(config.schedulers):
        if scheduler.policy:
            tables = config.raw.get("scheduler", ())
            table = tables[at] if at < len(tables) else {}
            yield from _by_key(table, ("scheduler", at), "[[scheduler]]", scheduler.policy)
        if scheduler.recovery.fallback is not None:
            yield ("scheduler", at, "fallback"), "[[scheduler]] fallback", scheduler.recovery.fallback
    for name, queue in config.queues.items():
        if queue.policy is not None:
            table = config.raw.get("queues", {}).get(name, {})
            yield from _by_key(table, ("queues", name), f"[queues.{name}]", queue.policy)


def _by_key(table: Mapping[str, Any], keys: KeyPath, title: str, specs: str) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the policies of a table and the plugins of its key `plugins`, if it has one, each by its key."""
    general, own = split_queues(specs)
    policy, plugins = split_plugins(general)
    if plugins and "plugins" in table:
        yield (*keys, "plugins"), f"{title} plugins", join_plugins("", plugins)
        specs = join_queues(policy, own)
    if specs:
        yield (*keys, "policy"), f"{title} policy", specs
