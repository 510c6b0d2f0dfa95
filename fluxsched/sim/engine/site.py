"""The simulated machine: equal targets, an R, or the trace's own; its groups, queues and switches.

Law: resources and configuration are read by the instance's own readers, so a site simulates with its own files; hosts
in them that the machine does not have are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fluxsched.config.inventory import MachineTopology, build_inventory, fake_resources, read_resources
from fluxsched.config.policies import check_policies, composed
from fluxsched.config.reader import banks_of, load_config, queue_configs, read_file
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.topology import (
    SWITCH_LEVELS_MAX,
    SWITCHES_MAX,
    TOPOLOGY_BYTES_MAX,
    Switch,
    Topology,
    parse_topology_conf,
)
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.jobs.queues import ANY_BANK, Banks, QueueConfig
from fluxsched.resource.inventory import EXCLUDE
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.sim.traces import Machine, Trace, machine_of
from fluxsched.system.files import read_text

DEFAULT: Final = "default"

QUEUES_SHOWN: Final = 10
"""Queues of a trace that an error names."""


@dataclass(frozen=True, slots=True)
class Site:
    """The resources, the groups beside `default`, the queues and the default queue; which banks there are, what is
    settled about fair shares, and how long a preempted job may take to end.
    """

    resources: ResourceSet
    groups: Mapping[str, Idset] = field(default_factory=dict)
    queues: Mapping[str | None, QueueConfig] = field(default_factory=dict)
    default_queue: str | None = None
    unsatisfiable: str = WAIT
    banks: Banks = ANY_BANK
    fair: FairSettings | None = None
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S

    @property
    def acquired(self) -> list[str]:
        """The groups that the scheduler acquires: all but `exclude`."""
        return [DEFAULT, *(name for name in self.groups if name not in (DEFAULT, EXCLUDE))]

    def under(self, specs: str, trace: Trace) -> tuple[Site, str]:
        """Return this site under the policies `SPEC;QUEUE=SPEC;...`, and these complete with what queues have
        configured.

        Without a configuration a queue is one that the trace names. Raises InvalidValue naming policy or queue.
        """
        _, own = check_policies(specs)
        named = {name: queue for name, queue in self.queues.items() if name is not None}
        if named or not own:
            return self, composed(specs, self.acquired, named)
        there = {str(job.queue) for job in trace.jobs if job.queue is not None}
        if missing := [name for name in own if name not in there]:
            known = ", ".join(sorted(there)[:QUEUES_SHOWN]) or "none"
            raise InvalidValue(f"queue {missing[0]!r} has a policy, but no jobs: {trace.name} has queues {known}")
        return replace(self, queues={None: QueueConfig(), **{name: QueueConfig(name) for name in own}}), specs


def site_of(
    trace: Trace,
    *,
    procs: int | None = None,
    nodes: int | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    r_path: Path | None = None,
    config_path: Path | None = None,
) -> Site:
    """`procs` one-core targets, `nodes` of `cores` and `gpus`, the R in a file, the configured or the trace's machine.

    Raises InvalidValue when several of them are given, or none and the trace does not say what it ran on.
    """
    machine = machine_of(procs, nodes, cores, gpus, r_path)
    if config_path is not None:
        return _configured(config_path, r_path, machine, trace)
    if r_path is not None:
        return Site(read_resources(r_path))
    return Site(fake_resources(_spec(machine or _recorded(trace))))


def _configured(config_path: Path, r_path: Path | None, machine: Machine | None, trace: Trace) -> Site:
    """Return groups and queues of a configuration, on the machine given beside it, else on its own, else on the
    trace's.
    """
    config, faults = read_file(config_path)
    if r_path is None and machine is None and not (config.resource.path or config.resource.entries):
        machine = _recorded(trace)
    found = build_inventory(
        config, r_path=r_path, fake=None if machine is None else _spec(machine), topology=_nowhere, known=faults
    )
    return Site(
        found.inventory.resources, found.groups, queue_configs(config), config.defaults.queue, config.unsatisfiable,
        banks_of(config), config.fair, config.preempt_timeout_s,
    )  # fmt: skip


def _recorded(trace: Trace) -> Machine:
    if trace.machine is None:
        raise InvalidValue(f"{trace.name} does not define a machine: give procs, nodes or an R")
    return trace.machine


def _spec(machine: Machine) -> str:
    return f"{machine.targets}x{machine.cores}+{machine.gpus}"


def _nowhere() -> MachineTopology:
    """Return no topology: simulated targets are not on this machine."""
    return MachineTopology("", (), (), "simulated")


# ---- switches

_MADE_UP: Final = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")


def with_switches(resources: ResourceSet, source: str) -> ResourceSet:
    """Return the machine under the switches of a file (Slurm's topology.conf, or `[topology]` of a `.toml`), or made-up
    ones: `16x8` are leaves of 16 targets, 8 of them under a switch, and all under one root. Raises InvalidValue.
    """
    if _MADE_UP.fullmatch(source):
        return resources.with_topology(_made_up(resources, [int(part) for part in source.split("x")]))
    path = Path(source)
    if path.suffix == ".toml":
        topology = load_config(path).network.topology
    else:
        topology = parse_topology_conf(read_text(path, "topology", TOPOLOGY_BYTES_MAX), source).topology
    there = topology.restrict(resources.nodelist.hosts)
    if not there:
        raise InvalidValue(f"{source}: none of its hosts is a target here: these are {resources.nodelist}"[:400])
    return resources.with_topology(there)


def _made_up(resources: ResourceSet, widths: list[int]) -> Topology:
    if len(widths) >= SWITCH_LEVELS_MAX:
        raise LimitExceeded(f"{len(widths)} levels of switches and a root are more than {SWITCH_LEVELS_MAX} levels")
    hosts, width = resources.nodelist.hosts, widths[0]
    count = -(-len(hosts) // width)
    if 2 * count > SWITCHES_MAX:
        raise LimitExceeded(f"leaves of {width} targets are {count} for {len(hosts)}: above {SWITCHES_MAX // 2}")
    found = [Switch(f"leaf{at}", Hostlist(hosts[at * width : (at + 1) * width])) for at in range(count)]
    level = [switch.name for switch in found]
    for height, width in enumerate([*widths[1:], len(hosts)], 1):
        if len(level) == 1:
            break
        above = [level[at : at + width] for at in range(0, len(level), width)]
        root = len(above) == 1
        names = ["root"] if root else [f"level{height}-{at}" for at in range(len(above))]
        made = [Switch(name, switches=tuple(below)) for name, below in zip(names, above, strict=True)]
        found += made
        level = [switch.name for switch in made]
    return Topology(found)
