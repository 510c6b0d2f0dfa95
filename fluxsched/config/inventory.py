"""Sources of an instance's R: a file, the configuration, an engine's hosts, an enclosing job, this machine, or nowhere.

Law: what the command line names replaces what the configuration names; groups, exclude and the members of queues are
then looked up among the targets that there are, and everything that does not fit is named at once, with its line.
Discovery of this machine never fails and never claims more than the affinity mask and the control groups allow: hwloc
is asked first (`lstopo` as a program), then `/sys`, and at the very least each processing unit that we may use counts
as a core. A GPU is a PCI device that a compute runtime speaks for: a mere display adapter is not. An R whose time is
over (RFC 20, `expiration`) is refused before anything starts or is replaced.
"""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluxsched.config.toml import TomlFault, raise_faults
from fluxsched.core.constraint import parse_targets
from fluxsched.core.hostlist import HOSTS_MAX, Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import AMOUNT_MAX, MEMORY
from fluxsched.core.resources import EMPTY_R, LOCAL_PREFIX, ResourceSet
from fluxsched.core.rlite import Children, Entry, merge
from fluxsched.core.text import TEXT_CHARS_MAX
from fluxsched.core.topology import is_foreign
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.resource.inventory import EXCLUDE, Inventory, describe
from fluxsched.system.clock import local_moment
from fluxsched.system.files import read_text
from fluxsched.system.log import logger

if TYPE_CHECKING:  # keepers of other hosts start 50 ms sooner without schedulers
    from fluxsched.config.values import Config, HostEntry

ENCLOSED = "job-info"
"""RFC 44's method of resources that come from an enclosing job."""


def unexpired(found: Sources, path: object, now_s: float) -> Sources:
    """Return `found`, whose R is from the file `path` or from nowhere (None). Raises InvalidValue if its time is over.
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


# ---- hwloc's XML

LSTOPO = "lstopo-no-graphics"

LSTOPO_TIMEOUT_S = 10.0
"""Timeout of lstopo (seconds); it takes 50 ms, or seconds if it has to initialise sleeping GPUs."""

_COMPUTE = re.compile(r"(?:cuda|nvml|rsmi|ze|opencl)[0-9]")

Found = tuple[tuple[Idset, ...], tuple[str, ...]]
"""The processing units of each usable core, and the id of each GPU."""


def run_lstopo(program: str = LSTOPO) -> str | None:
    """Return the topology of this machine as XML; None when the program is not there or fails."""
    try:
        done = subprocess.run(
            [program, "--of", "xml"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LSTOPO_TIMEOUT_S,
            check=True,
            encoding="utf-8",
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout


def parse_topology(xml: str, allowed: Idset) -> Found | None:
    """Return cores and GPUs of an XML topology; None when it does not cover the processing units that we may use."""
    try:
        root = ElementTree.fromstring(xml)
        cores = tuple([pus for pus in (ids & allowed for ids in _cores(root)) if pus])
        gpus = tuple(dict.fromkeys(_gpus(root, None)))
    except (ElementTree.ParseError, ValueError, KeyError, RecursionError):
        return None
    covered = Idset()
    for pus in cores:
        covered |= pus
    return (cores, gpus) if covered == allowed and cores else None


def _cores(element: ElementTree.Element) -> Iterator[Idset]:
    """Depth first; a processing unit outside any core is one of its own."""
    for child in element:
        kind = child.get("type")
        if kind in ("Core", "PU"):
            yield Idset.of([int(each.attrib["os_index"]) for each in child.iter() if each.get("type") == "PU"])
        else:
            yield from _cores(child)


def _gpus(element: ElementTree.Element, pci: str | None) -> Iterator[str]:
    """Yield each compute device by its PCI address, or by its name if it has none; one device may be yielded more than
    once.
    """
    for child in element:
        if child.get("type") == "OSDev" and _COMPUTE.match(child.get("name", "")):
            yield pci or child.attrib["name"]
        yield from _gpus(child, child.get("pci_busid", pci))


# ---- discovery of this host

TEST_SIZE_MAX = 1 << 14
"""Targets that represent this one machine: 16,384, the size that our figures are measured at."""

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MachineTopology:
    """One machine. Core id `i` of R has the processing units `cores[i]`, GPU id `i` is `gpus[i]`.

    `method` is the source of the cores: hwloc, sysfs or affinity. `memory_bytes` 0 is not known.
    """

    host: str
    cores: tuple[Idset, ...]
    gpus: tuple[str, ...]
    method: str
    memory_bytes: int = 0

    def resources(self, n: int = 1) -> ResourceSet:
        """R of `n` targets that each represent this machine. Raises InvalidValue outside 1..TEST_SIZE_MAX."""
        if n < 1:
            raise InvalidValue(f"{n} targets cannot represent this machine: give 1 or more")
        if n > TEST_SIZE_MAX:
            raise LimitExceeded(f"{n} targets are above the limit of {TEST_SIZE_MAX} that may represent one machine")
        gpus = Idset.span(0, len(self.gpus) - 1) if self.gpus else EMPTY
        amounts = ((MEMORY, self.memory_bytes),) if self.memory_bytes else ()
        children = Children(self.core_ids, gpus, (), amounts)
        return ResourceSet((Entry(Idset.span(0, n - 1), children),), Hostlist((self.host,) * n))

    def without_memory(self) -> MachineTopology:
        """Return this topology without memory, for a machine that several made-up targets represent; together they have
        its memory only once.
        """
        return replace(self, memory_bytes=0)

    @property
    def core_ids(self) -> Idset:
        """Return the ids of all cores."""
        return Idset.of([id for id, pus in enumerate(self.cores) if pus])

    def numbered(self, ids: Idset) -> MachineTopology:
        """Return this topology with its cores under other ids, in order; ids between them have no processing units."""
        assert len(ids) == len(self.cores), "one id a core"
        cores = [EMPTY] * (ids.max() + 1)
        for id, pus in zip(ids, self.cores, strict=True):
            cores[id] = pus
        return replace(self, cores=tuple(cores))


def discover(*, root: Path = Path("/"), lstopo: Callable[[], str | None] = run_lstopo) -> MachineTopology:
    """Return the topology of this machine; `root` contains `/sys` and `/proc`."""
    allowed = affinity()
    memory_bytes = system_memory(root)
    xml = lstopo()
    found = parse_topology(xml, allowed) if xml is not None else None
    if found is not None:
        cores, gpus = found
        return MachineTopology(host_name(), cores, gpus or system_gpus(root), "hwloc", memory_bytes)
    siblings = system_cores(root, allowed)
    cores = siblings or tuple([Idset.of([pu]) for pu in allowed])
    method = "sysfs" if siblings else "affinity"
    return MachineTopology(host_name(), cores, system_gpus(root), method, memory_bytes)


def affinity() -> Idset:
    """Return the processing units that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return Idset.of(os.sched_getaffinity(0))
    return Idset.span(0, (os.cpu_count() or 1) - 1)


def host_name() -> str:
    """Return this machine's name if it can be part of a hostlist, else `localhost`."""
    try:
        return Hostlist.of([os.uname().nodename])[0]
    except InvalidValue:
        return "localhost"


def system_cores(root: Path, allowed: Idset) -> tuple[Idset, ...]:
    """Return the cores of `/sys`, in order of their lowest processing unit; none if it lists none."""
    cores, rest = [], allowed
    while rest:
        pu = rest.min()
        siblings = _siblings(root / f"sys/devices/system/cpu/cpu{pu}/topology") & rest
        if pu not in siblings:
            return ()
        cores.append(siblings)
        rest -= siblings
    return tuple(cores)


def system_gpus(root: Path) -> tuple[str, ...]:
    """PCI addresses of the GPUs that NVIDIA's and AMD's kernel drivers show, ascending."""
    return tuple(sorted([*_nvidia(root / "proc/driver/nvidia/gpus"), *_amd(root / "sys/class/kfd/kfd/topology/nodes")]))


def system_memory(root: Path) -> int:
    """Return the machine's memory, or the lowest limit of our control groups; whole MiB, in bytes; 0 when `/proc` is
    silent.

    Swap is not counted: a job in swap is slower than its time limit expects.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        total = next(int(words[1]) * 1024 for words in map(str.split, lines) if words[:1] == ["MemTotal:"])
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
    lowest = min([total, AMOUNT_MAX, *_memory_limits(root)])
    return max(lowest, 0) // _MIB * _MIB


def _memory_limits(root: Path) -> Iterator[int]:
    """Yield limits (bytes) of the control groups that we are in, and of those above them; version 2 and version 1."""
    try:
        groups = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except (OSError, ValueError):
        return
    for number, controllers, path in [group for group in groups if len(group) == 3]:
        if number == "0" and not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif MEMORY in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.strip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(top):  # in a container the paths above its own are not there
                with suppress(OSError, ValueError):  # "max" is no limit
                    yield int((directory / name).read_text())


def _siblings(topology: Path) -> Idset:
    for name in ("core_cpus_list", "thread_siblings_list"):  # the older kernels' name comes last
        try:
            return Idset.parse((topology / name).read_text().strip())
        except (OSError, ValueError):
            continue
    return EMPTY


def _nvidia(directory: Path) -> Iterator[str]:
    try:
        yield from sorted(os.listdir(directory))
    except OSError:
        return


def _amd(directory: Path) -> Iterator[str]:
    """Yield the nodes of the ROCm driver that compute: CPUs are nodes there too, with a gpu_id of 0."""
    for node in sorted(directory.glob("*")):
        try:
            if int((node / "gpu_id").read_text()) == 0:
                continue
            lines = [line.split() for line in (node / "properties").read_text().splitlines()]
            values = {words[0]: int(words[1]) for words in lines if len(words) == 2}
        except (OSError, ValueError):
            continue
        location = values.get("location_id", 0)
        bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
        yield f"{values.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


# ---- sources of R

FAKE_CORES_MAX = 1 << 12
"""Cores of one made-up target: the largest machines have 1,024 hardware threads."""

FAKE_GPUS_MAX = 1 << 8
"""GPUs of one made-up target."""

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
        from fluxsched.config.values import Config

        config = Config()
    faults = list(known)
    _check_exclusive({"--R": r_path, "--fake": fake, "--test-size": test_size, "--engine": reported})
    if all(source is None for source in (given, fake, test_size, r_path, reported)):
        if any(fault.path[:2] in _RESOURCES for fault in faults):  # the targets would be unknown
            raise_faults(config.name, faults)
        try:
            found = _of_config(config, enclosing, is_elastic, topology)
        except _FaultyResources as fault:
            raise_faults(config.name, [*faults, fault.args[0]])
            raise
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
    found = changed(replace(found, source=found.inventory.resources))
    groups = _groups(config, found.inventory.resources, faults)
    resources = _with_queue_members(config, found.inventory.resources, faults)
    if config.resource.shared:
        resources = resources.with_shared(config.resource.shared)
    resources = _connected(config, resources)
    if not found.inventory.dynamic:  # else the hosts may still come
        faults += config.network.host_faults(resources, config.line_of)
    raise_faults(config.name, faults)
    return replace(found, inventory=replace(found.inventory, resources=resources), groups=groups)


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
        ("cores a host", cores, 1, FAKE_CORES_MAX),
        ("GPUs a host", gpus, 0, FAKE_GPUS_MAX),
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
    if settings.exclude:
        short = "exclude" in config.raw.get("resource", {})
        table = "resource" if short else "resource.groups"
        yield EXCLUDE, settings.exclude, config.line(table, EXCLUDE), f"[{table}]"


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
