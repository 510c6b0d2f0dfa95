"""The resources of the machine that we run on: host name, cores that we may use, GPUs, memory.

Law: discovery never fails and never claims more than the affinity mask and the control groups allow. hwloc is asked
first, then `/sys`, and at the very least each processing unit that we may use counts as a core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fluxsched.core.amounts import AMOUNT_MAX, MEMORY
from fluxsched.core.children import Children, Entry
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.runtime.inventory.hwloc import parse_topology, run_lstopo

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
        """The same machine where several made-up targets stand for it, which together have its memory only once."""
        return replace(self, memory_bytes=0)

    @property
    def core_ids(self) -> Idset:
        """The ids of all cores."""
        return Idset.of([id for id, pus in enumerate(self.cores) if pus])

    def numbered(self, ids: Idset) -> MachineTopology:
        """The same machine with its cores under other ids, in order; ids between them have no processing units."""
        assert len(ids) == len(self.cores), "one id a core"
        cores = [EMPTY] * (ids.max() + 1)
        for id, pus in zip(ids, self.cores, strict=True):
            cores[id] = pus
        return replace(self, cores=tuple(cores))


def discover(*, root: Path = Path("/"), lstopo: Callable[[], str | None] = run_lstopo) -> MachineTopology:
    """What there is here; `root` is where `/sys` and `/proc` are."""
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
    """The processing units that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return Idset.of(os.sched_getaffinity(0))
    return Idset.span(0, (os.cpu_count() or 1) - 1)


def host_name() -> str:
    """This machine's name, if it can stand in a hostlist."""
    try:
        return Hostlist.of([os.uname().nodename])[0]
    except InvalidValue:
        return "localhost"


def system_cores(root: Path, allowed: Idset) -> tuple[Idset, ...]:
    """Cores as `/sys` has them, in order of their lowest processing unit; none when it does not say."""
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
    """The machine's memory, or the lowest limit of our control groups; whole MiB, in bytes; 0 when `/proc` is silent.

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
    """Limits (bytes) of the control groups that we are in, and of those above them; version 2 and version 1."""
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
    """Nodes of the ROCm driver that compute: CPUs are nodes there too, with a gpu_id of 0."""
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
