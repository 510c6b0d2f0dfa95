"""The simulated machine: equal targets, an R, or the trace's own; with groups and queues, if configured.

Law: resources and configuration are read by the instance's own readers, so a site simulates with its own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fluxsched.config.inventory import MachineTopology, build_inventory, fake_resources, read_resources
from fluxsched.config.policies import check_policies, composed
from fluxsched.config.reader import banks_of, queue_configs, read_file
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.jobs.queue.banks import ANY_BANK, Banks
from fluxsched.jobs.queue.queues import QueueConfig
from fluxsched.resource.state.groups import EXCLUDE
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.sim.traces.trace import Machine, Trace, machine_of

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
        """This site under the policies `SPEC;QUEUE=SPEC;...`, and these complete with what queues have configured.

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
    """Groups and queues of a configuration, on the machine given beside it, else on its own, else on the trace's."""
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
    """Simulated targets are not on this machine."""
    return MachineTopology("", (), (), "simulated")
