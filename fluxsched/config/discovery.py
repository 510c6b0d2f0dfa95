"""Discovery of the machine that this process runs on: the cores, GPUs and memory that it may use.

Law: discovery never fails and never claims more than the affinity mask and the control groups allow: hwloc is asked
first (`lstopo` as a program), then `/sys`, and at the very least each processing unit that we may use counts as a core.
A GPU is a PCI device that a compute runtime speaks for: a mere display adapter is not.

Keepers of other hosts import this file before all others, so it imports little.
"""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.quantities import AMOUNT_MAX, MEMORY
from fluxsched.core.resources import ResourceSet
from fluxsched.core.rlite import Children, Entry
from fluxsched.errors import InvalidValue, LimitExceeded

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

CORES_MAX = 1 << 12
"""Cores of one host: the largest machines have 1,024 hardware threads."""

GPUS_MAX = 1 << 8
"""GPUs of one host: the largest servers have 16."""

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
