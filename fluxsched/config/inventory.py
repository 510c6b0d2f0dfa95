"""Sources of an instance's R: a file, the configuration, an engine's hosts, an enclosing job, this machine, or nowhere.

Law: what the command line names replaces what the configuration names; groups, exclude and the members of queues are
then looked up among the targets that there are, and everything that does not fit is named at once, with its line.
An R whose time is over (RFC 20, `expiration`) is refused before anything starts or is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fluxsched.config.discovery import CORES_MAX, GPUS_MAX, MachineTopology
from fluxsched.config.toml import TomlFault, raise_faults
from fluxsched.config.values import Config, HostEntry, withheld_cores
from fluxsched.core.constraint import parse_targets
from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outage
from fluxsched.core.resources import EMPTY_R, LOCAL_PREFIX, ResourceSet
from fluxsched.core.rlite import NO_PARTS, Children, Entry, PartsByRank, merge
from fluxsched.core.text import TEXT_CHARS_MAX
from fluxsched.core.topology import is_foreign
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.resource.inventory import EXCLUDE, SPARES, Inventory, describe
from fluxsched.system.clock import local_moment
from fluxsched.system.files import read_text
from fluxsched.system.log import logger

ENCLOSED = "job-info"
"""RFC 44's method of resources that come from an enclosing job."""


def unexpired(found: Sources, path: object, now_s: float) -> Sources:
    """Return `found`, whose R is from the file `path` or from nowhere (None). Raises InvalidValue if its time is
    over.
    """
    resources = found.inventory.resources
    expiration_s = resources.expiration_s
    if not 0 < expiration_s <= now_s:
        return found
    when = f"expired at {local_moment(expiration_s)} (expiration {expiration_s:.15g}), so no job could ever start"
    if found.inventory.method == ENCLOSED:
        remedy = "start inside a job that has time left, or name other resources (--R, --fake, --config)"
        raise InvalidValue(f"the resources of the enclosing job {when}: {remedy}")
    name = "R" if path is None else f"{path}: R"
    raise InvalidValue(f"{name} {when}: give its execution.expiration a later time, or 0 for no end")


# ---- sources of R

log = logger("config")

_FAKE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})(?:\+([0-9]{1,9}))?", re.ASCII)
_RESOURCES = {("resource", "config"), ("resource", "path")}
"""Keys that say which targets there are."""

_CONFIGURED, _DISCOVERED, _ENCLOSED = "configuration", "dynamic-discovery", "job-info"  # RFC 44's methods


class _FaultyResources(Exception):
    """The configuration's own resources cannot be had; the one argument is the TomlFault."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The inventory and what belongs to it.

    `groups` are the configured ones and `exclude`, without `default`. `real`: every target represents this machine.
    `made_up`: the targets are nowhere, so they are online from the start, and what runs there runs here, unpinned.
    `topology` is this machine, with cores numbered as the inventory numbers them; None for made-up targets, and for
    remote ones, where keepers bind what they run. `source` is R without what the configuration adds to it: groups,
    queues, switches, shared amounts.
    """

    inventory: Inventory
    groups: dict[str, Idset]
    real: bool
    made_up: bool
    topology: MachineTopology | None
    source: ResourceSet = EMPTY_R
    outages: tuple[Outage, ...] = ()
    remote: bool = False
    """True if an engine has started a keeper on each host: targets are online while their keeper is connected."""

    def made_up_of(self, resources: ResourceSet) -> Idset:
        """Return those of the targets that are not this machine; their tasks run on this machine all the same."""
        if self.remote:
            return EMPTY
        if self.topology is None:
            return resources.ranks
        return resources.ranks - resources.ranks_of(self.topology.host)

    def held_by_keepers(self) -> Sources:
        """Return these sources as those of an engine's hosts."""
        return replace(self, real=False, made_up=False, topology=None, remote=True)


def unchanged(found: Sources) -> Sources:
    """Return what a source has found as it is."""
    return found


def build_inventory(
    config: Config | None,
    *,
    r_path: Path | None = None,
    fake: str | None = None,
    test_size: int | None = None,
    reported: ResourceSet | None = None,
    enclosing: ResourceSet | None = None,
    is_elastic: bool = False,
    given: ResourceSet | None = None,
    topology: Callable[[], MachineTopology],
    known: Iterable[TomlFault] = (),
    changed: Callable[[Sources], Sources] = unchanged,
) -> Sources:
    """Return the resources of these options, else of the configuration, else of an enclosing job's R, else of this
    machine.

    `reported` is the R of an engine's hosts, which takes the place of the options.

    `is_elastic`: the enclosing job may get other targets.

    `given` is an R from a request, used like a file's, instead of all of these. `known` are faults of the configuration
    that were found already. `changed` returns what a source has found as requests have changed it; only then its hosts
    are looked up for the configuration. Raises InvalidValue naming all that is wrong: these, and with the line of each
    group and queue all unknown and all doubly owned targets.
    """
    if config is None:
        config = Config()
    faults = list(known)
    _check_exclusive({"--R": r_path, "--fake": fake, "--test-size": test_size, "--engine": reported})
    if all(source is None for source in (given, fake, test_size, r_path, reported)):
        found = _found_by_config(config, enclosing, is_elastic, topology, faults)
    elif given is not None:
        found = described(usable_resources(given, "R"), topology())
    elif reported is not None:
        inventory = Inventory(_dressed(reported, config), _DISCOVERED)
        found = Sources(inventory, {}, real=False, made_up=False, topology=None, remote=True)
    elif fake is not None:
        made = _dressed(fake_resources(fake), config)
        found = Sources(Inventory(made, _CONFIGURED), {}, real=False, made_up=True, topology=None)
    elif test_size is not None:
        here = topology()
        made = _dressed(here.without_memory().resources(test_size), config)
        found = Sources(Inventory(made, _CONFIGURED), {}, real=True, made_up=False, topology=here)
    else:
        assert r_path is not None
        found = described(read_resources(r_path), topology())
    return _completed(config, changed(replace(found, source=found.inventory.resources)), faults)


def _found_by_config(
    config: Config,
    enclosing: ResourceSet | None,
    is_elastic: bool,
    topology: Callable[[], MachineTopology],
    faults: list[TomlFault],
) -> Sources:
    """Return the resources of the configuration. Raises InvalidValue with all faults where they cannot be had."""
    if any(fault.path[:2] in _RESOURCES for fault in faults):  # the targets would be unknown
        raise_faults(config.name, faults)
    try:
        return _of_config(config, enclosing, is_elastic, topology)
    except _FaultyResources as fault:
        raise_faults(config.name, [*faults, fault.args[0]])
        raise


def _completed(config: Config, found: Sources, faults: list[TomlFault]) -> Sources:
    """Return these sources with what the configuration adds to them. Raises InvalidValue with all faults."""
    groups = _groups(config, found.inventory.resources, faults)
    outages = _outages(config, found.inventory.resources, faults)
    withheld = _withheld(config, found.inventory.resources, faults)
    resources = _without(found.inventory.resources, withheld)
    resources = _with_queue_members(config, resources, faults)
    if config.resource.shared:
        resources = resources.with_shared(config.resource.shared)
    resources = _connected(config, resources)
    if not found.inventory.dynamic:  # else the hosts may still come
        faults += config.network.host_faults(resources, config.line_of)
    raise_faults(config.name, faults)
    inventory = replace(found.inventory, resources=resources, withheld=withheld)
    return replace(found, inventory=inventory, groups=groups, outages=outages)


def _outages(config: Config, resources: ResourceSet, faults: list[TomlFault]) -> tuple[Outage, ...]:
    """Return the configured outages; adds a fault for each whose targets are unknown."""
    found: list[Outage] = []
    for at, each in enumerate(config.outages):
        try:
            targets = _targets(each.targets, resources)
            if not targets:
                raise InvalidValue("names no target")
        except InvalidValue as fault:
            line = config.line_of(("outages", at, "targets"))
            faults.append(TomlFault(line, f"[[outages]] {each.name}: targets: {fault}"))
            continue
        if each.queue and each.queue not in config.queues:
            line = config.line_of(("outages", at, "queue"))
            faults.append(TomlFault(line, f"[[outages]] {each.name}: there is no queue {each.queue!r}"))
            continue
        group = config.queues[each.queue].group if each.queue else ""
        times_s = each.from_s, each.until_s, each.every_s
        found.append(Outage(each.name, targets, *times_s, each.reason, each.ends_jobs, each.queue, group))
    return tuple(found)


def _of_config(
    config: Config, enclosing: ResourceSet | None, is_elastic: bool, topology: Callable[[], MachineTopology]
) -> Sources:
    """Return the resources that the configuration names, else those of the enclosing job, else this machine's."""
    if config.resource.path is not None or config.resource.entries:
        return described(_configured(config), topology())
    if enclosing is not None:
        return _enclosed(enclosing, topology(), is_elastic)
    here = topology()
    inventory = Inventory(here.resources(), _DISCOVERED, dynamic=True)
    return Sources(inventory, {}, real=True, made_up=False, topology=here)


def fake_resources(spec: str) -> ResourceSet:
    """R of made-up targets: `1000x64+4` is 1,000 hosts, fake[0-999], each of 64 cores and 4 GPUs.

    Raises InvalidValue for any other text, LimitExceeded naming the number that is out of range.
    """
    match = _FAKE.fullmatch(spec)
    if match is None:
        raise InvalidValue(f"--fake {spec[:40]!r} is not HOSTSxCORES or HOSTSxCORES+GPUS, such as 1000x64+4")
    hosts, cores, gpus = (int(number or 0) for number in match.groups())
    for what, value, lowest, limit in (
        ("hosts", hosts, 1, HOSTS_MAX),
        ("cores a host", cores, 1, CORES_MAX),
        ("GPUs a host", gpus, 0, GPUS_MAX),
    ):
        if not lowest <= value <= limit:
            raise LimitExceeded(f"--fake {spec}: {value} {what} is not within {lowest}..{limit}")
    children = Children(Idset.span(0, cores - 1), Idset.span(0, gpus - 1) if gpus else EMPTY)
    return ResourceSet((Entry(Idset.span(0, hosts - 1), children),), Hostlist.parse(f"fake[0-{hosts - 1}]"))


def read_resources(path: Path) -> ResourceSet:
    """Return the R in a file, which must have hosts and at least one target; another instance's `+` properties are
    dropped.

    Raises InvalidValue naming the file and what is wrong.
    """
    try:
        resources = ResourceSet.parse(read_text(path, "R", TEXT_CHARS_MAX))
    except InvalidValue as fault:
        text = str(fault)
        raise type(fault)(text if str(path) in text else f"{path}: {text}", fault.errnum) from None
    return usable_resources(resources, f"{path}: R")


def usable_resources(resources: ResourceSet, name: str) -> ResourceSet:
    """Return an R from outside, which must have hosts and at least one target; `+` properties are dropped."""
    if not resources:
        raise InvalidValue(f"{name} has no targets: R_lite is empty")
    if len(resources.nodelist) != len(resources):
        raise InvalidValue(f"{name} has no nodelist, so the hosts of its targets are not known (RFC 20)")
    return replace(resources.job_view(), nslots=None)


def resources_of_entries(entries: tuple[HostEntry, ...]) -> ResourceSet:
    """R of `[[resource.config]]`: a host's rank is its place among all hosts; entries about the same host add up.

    Raises InvalidValue naming all hosts that no entry gives a core.
    """
    rank_of: dict[str, int] = {}
    children: list[Children] = []
    properties: dict[str, list[int]] = {}
    for entry in entries:
        mine = Children(Idset.parse(entry.cores), Idset.parse(entry.gpus), (), entry.amounts)
        ranks = []
        for host in Hostlist.parse(entry.hosts).unique():
            rank = rank_of.setdefault(host, len(children))
            ranks.append(rank)
            if rank == len(children):
                children.append(mine)
            else:
                children[rank] |= mine
        if len(rank_of) > HOSTS_MAX:
            raise LimitExceeded(f"[[resource.config]]: {len(rank_of)} hosts are above the limit of {HOSTS_MAX}")
        for name in entry.properties:
            properties.setdefault(name, []).extend(ranks)
    hosts = Hostlist(tuple(rank_of))
    if not hosts:
        raise InvalidValue("[[resource.config]]: no entry names a host")
    if idle := [host for host, owned in zip(hosts, children, strict=True) if not owned.cores]:
        raise InvalidValue(f"[[resource.config]]: no entry gives hosts {Hostlist.of(idle)} any cores")
    made = ResourceSet(merge(enumerate(children)).entries, hosts)
    for name, having in properties.items():
        made = made.add_property(name, Idset.of(having))
    return made


def _dressed(resources: ResourceSet, config: Config) -> ResourceSet:
    """Return the resources with the properties and amounts that `[[resource.config]]` sets for hosts of these names;
    warn of all others.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, host in zip(resources.ranks, resources.nodelist, strict=True):
        ranks_of.setdefault(host, []).append(rank)
    counted: dict[int, Children] = {}
    properties: dict[str, list[int]] = {}
    absent: dict[str, None] = {}
    for entry in config.resource.entries:
        if not (entry.properties or entry.amounts):
            continue
        hosts, mine = Hostlist.parse(entry.hosts).unique(), Children(amounts=entry.amounts)
        absent |= dict.fromkeys(host for host in hosts if host not in ranks_of)
        ranks = [rank for host in hosts for rank in ranks_of.get(host, ())]
        counted |= {rank: counted.get(rank, mine) | mine for rank in ranks}
        for name in entry.properties:
            properties.setdefault(name, []).extend(ranks)
    if absent:
        where, there_are = config.where("resource", "config"), resources.nodelist.unique()
        lost = f"properties and amounts of hosts {Hostlist.of(absent)} are dropped"
        log.warning("%s: [[resource.config]]: %s: the hosts here are %s", where, lost, there_are)
    having = {name: Idset.of(ranks) for name, ranks in properties.items() if ranks}
    return resources | ResourceSet(merge(counted.items()).entries, resources.hosts(Idset.of(counted)), having)


def _groups(config: Config, resources: ResourceSet, faults: list[TomlFault]) -> dict[str, Idset]:
    """Return the configured groups, `exclude` always among them, as ranks.

    Adds each fault: unknown targets, or targets that an earlier group has.
    """
    groups: dict[str, Idset] = {}
    lines: dict[str, int] = {}
    for name, text, line, table in _group_texts(config):
        try:
            ranks = _targets(text, resources)
        except InvalidValue as fault:
            faults.append(TomlFault(line, f"{table} {name}: {fault}"))
            continue
        for other, owned in groups.items():
            if twice := ranks & owned:
                both = f"{describe(resources, twice)} in group {other!r} too ({config.name}:{lines[other]})"
                faults.append(TomlFault(line, f"{table} {name}: {both}: a target belongs to one group"))
        groups[name], lines[name] = ranks, line
    return {EXCLUDE: EMPTY, **groups}


def _group_texts(config: Config) -> Iterator[tuple[str, str, int, str]]:
    """Yield each group with its text and its place: line 12, `[resource.groups]`."""
    settings = config.resource
    for name, text in settings.groups.items():
        yield name, text, config.line("resource.groups", name), "[resource.groups]"
    for name, text in ((EXCLUDE, settings.exclude), (SPARES, settings.spares)):
        if text:
            table = "resource" if name in config.raw.get("resource", {}) else "resource.groups"
            yield name, text, config.line(table, name), f"[{table}]"


def _targets(text: str, resources: ResourceSet) -> Idset:
    return parse_targets(text, resources)


def _with_queue_members(config: Config, resources: ResourceSet, faults: list[TomlFault]) -> ResourceSet:
    """Return the resources with the membership property `+NAME` on the hosts of each queue that lists its hosts (RFC
    33).
    """
    for name, queue in config.queues.items():
        if queue.hosts is None:
            continue
        try:
            ranks = resources.ranks if queue.hosts == "all" else _targets(queue.hosts, resources)
            if not ranks:
                raise InvalidValue("names no host (RFC 33 asks for at least one)")
            resources = resources.add_property(LOCAL_PREFIX + name, ranks)
        except InvalidValue as fault:
            faults.append(TomlFault(config.line(f"queues.{name}", "hosts"), f"[queues.{name}] hosts: {fault}"))
    return resources


def _withheld(config: Config, resources: ResourceSet, faults: list[TomlFault]) -> PartsByRank:
    """Return the system's own cores; adds a fault for targets that are unknown, lack them, or would have no others."""
    line, found = config.line("resource", "withhold"), NO_PARTS
    for cores, text in withheld_cores(config.resource.withhold):
        try:
            mine = _without(resources.restrict(_targets(text, resources)), found)
            unlike = [each.ranks for each in mine.entries if not cores < each.children.cores]
            if unlike:
                named = "; ".join([describe(resources, ranks) for ranks in unlike])
                raise InvalidValue(f"{named} have no cores {cores}, or no others: leave each a core")
        except InvalidValue as fault:
            faults.append(TomlFault(line, f"[resource] withhold {cores}@{text}: {fault}"))
            continue
        own = Children(cores)
        found = found.replaced({rank: found.of[rank] | own if rank in found.of else own for rank in mine.ranks})
    return found


def _without(resources: ResourceSet, parts: PartsByRank) -> ResourceSet:
    for own in parts.entries():
        mine = resources.restrict(own.ranks)
        left = [(each.ranks, each.children - own.children) for each in mine.entries]
        others = [(each.ranks, each.children) for each in resources.without(mine.ranks).entries]
        resources = replace(resources, entries=merge([*left, *others]).entries)
    return resources


def _connected(config: Config, resources: ResourceSet) -> ResourceSet:
    """Return the resources with the configured switches, else with those of R."""
    topology = config.network.topology
    if not topology:
        return resources
    if is_foreign(resources.scheduling):
        where = config.where("topology")
        log.warning("%s: [topology] is not used: `scheduling` of R was written by another scheduler (RFC 20)", where)
        return resources
    return resources.with_topology(topology)


def _configured(config: Config) -> ResourceSet:
    path = config.resource.path
    try:
        return resources_of_entries(config.resource.entries) if path is None else read_resources(Path(path))
    except InvalidValue as fault:
        line = config.line("resource", "config" if path is None else "path")
        raise _FaultyResources(TomlFault(line, f"{'' if path is None else '[resource] path: '}{fault}")) from fault


def described(resources: ResourceSet, here: MachineTopology) -> Sources:
    """Return targets as configured on the machine `here`; ours are those that have its name."""
    local = resources.ranks_of(here.host)
    fitting = all(entry.children.cores <= here.core_ids for entry in resources.restrict(local).entries)
    real = bool(local) and local == resources.ranks
    topology = here if fitting else replace(here, cores=())
    return Sources(Inventory(resources, _CONFIGURED), {}, real, made_up=False, topology=topology)


def _enclosed(enclosing: ResourceSet, here: MachineTopology, is_elastic: bool) -> Sources:
    """Return the R of the job that we run in, as ranks from 0.

    The job is bound to its cores, so what we may use are these, in order, if there are as many; else (a made-up target
    of the enclosing instance, several targets, or others later) they cannot be distinguished and are not pinned again.
    """
    if not enclosing:
        raise InvalidValue("the enclosing job's R has no targets")
    resources = replace(enclosing.job_view().rerank(), nslots=None)
    cores = EMPTY
    for entry in resources.entries:
        cores |= entry.children.cores
    ours = resources.ranks_of(here.host) == resources.ranks
    bound = ours and len(cores) == len(here.cores) and not is_elastic
    topology = here.numbered(cores) if bound else None
    inventory = Inventory(resources, _ENCLOSED, dynamic=is_elastic)
    return Sources(inventory, {}, real=ours, made_up=not bound, topology=topology)


def _check_exclusive(options: dict[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise InvalidValue(f"{' and '.join(given)} exclude each other: each replaces all resources")
