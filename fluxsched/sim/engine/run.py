"""Simulation of one policy on one trace: what a caller names is read and checked, and a `Simulation` is run.

>>> from fluxsched.sim import Ask, Trace, TraceJob, run
>>> jobs = [TraceJob(1, 0.0, 60.0, 120.0, Ask(4)), TraceJob(2, 1.0, 5.0, 10.0, Ask(2))]
>>> run(Trace.of(jobs), "fifo", procs=4).jobs.start
[0.0, 60.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from reprlib import repr as shortened
from typing import Final

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import load
from fluxsched.sim.engine.simulation import Progress, Simulation
from fluxsched.sim.engine.site import Site, SiteEvent, read_site, site_of, with_switches
from fluxsched.sim.result import Result
from fluxsched.sim.traces import Trace, TraceJob, read_trace

DEFAULT_POLICY: Final = "easy"

TraceSource = Trace | Path | str | Iterable[TraceJob]
"""A trace, a file that holds one, or jobs."""


def run(
    trace: TraceSource,
    policy: str | Policy = DEFAULT_POLICY,
    *,
    procs: int | None = None,
    nodes: int | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    resources: ResourceSet | Path | str | None = None,
    config: Path | str | None = None,
    site: Path | str | Sequence[SiteEvent] = (),
    until_s: float = inf,
    placements: bool = False,
    check: bool = False,
    feedback: bool = False,
    stopwatch: Callable[[], float] | None = None,
    progress: Progress | None = None,
    label: str | None = None,
    preempt_grace_s: float = 0.0,
    own_time: bool = False,
    accounts: bool = False,
    topology: str | None = None,
) -> Result:
    """Simulate a trace under one policy, `NAME` or `NAME:key=value,...`, on virtual time; `easy;debug=fifo` has another
    one for the queue `debug`, of the configuration or else of the trace.

    The machine: `procs` one-core targets, `nodes` of `cores` and `gpus`, `resources` (R, or a file of it), else what
    `config` (an instance's configuration) or the trace says. `site` changes it meanwhile. `until_s` ends early.
    `placements` fills the column `ranks`; `check` asserts all invariants at each instant; with `feedback` a job that
    has a preceding one (SWF fields 17 and 18) is submitted when that is over; `stopwatch` (seconds) measures what
    passes cost; `label` is what tables and plots call the result instead of its policy; a preempted job ends
    `preempt_grace_s` later. With `own_time` virtual time passes while the scheduler works, as the stopwatch says; with
    `accounts` the result has them whether the policy asks for them or not; `topology` has the machine's switches
    (`with_switches`). Raises InvalidValue for what cannot be read or does not fit together.
    """
    if not until_s >= 0:
        raise InvalidValue(f"until_s {until_s:g} is not a number of seconds of 0 or more")
    if not isinstance(policy, str) and (isinstance(policy, type) or not hasattr(policy, "schedule")):
        raise InvalidValue(f"{shortened(policy)} is not a policy: give a name, or an object with `name` and `schedule`")
    traced = trace_of(trace)
    place = _site(traced, procs, nodes, cores, gpus, resources, config, topology)
    _check_grace(preempt_grace_s, place.preempt_timeout_s)
    if own_time and stopwatch is None:
        raise InvalidValue("own_time needs a stopwatch, which measures the time that the scheduler takes")
    steps = read_site(Path(site), place.resources) if isinstance(site, Path | str) else site
    title = policy if isinstance(policy, str) else policy.name
    own: dict[str, Policy] = {}
    plugins: Mapping[str, Sequence[Plugin]] = {}
    if isinstance(policy, str):
        place, specs = place.under(policy, traced)
        policy, own, plugins = load(specs)
    simulation = Simulation(
        traced, place, policy, title, steps,
        policies=own, plugins=plugins, placements=placements, check=check, feedback=feedback,
        stopwatch=stopwatch, progress=progress,
        preempt_grace_s=preempt_grace_s, own_time=own_time, accounts=accounts,
    )  # fmt: skip
    result = simulation.run(until_s)
    result.label = label
    return result


def _check_grace(preempt_grace_s: float, timeout_s: float) -> None:
    if not 0 <= preempt_grace_s <= timeout_s:
        raise InvalidValue(
            f"preempt-grace {preempt_grace_s:g} s is not within 0-{timeout_s:g} s, the preempt-timeout: "
            "set [exec] preempt-timeout in a configuration"
        )


def trace_of(source: TraceSource) -> Trace:
    """Return the trace that is meant. Raises InvalidValue."""
    if isinstance(source, Trace):
        return source
    if isinstance(source, Path | str):
        return read_trace(source)
    if not isinstance(source, Iterable):
        raise InvalidValue(f"{shortened(source)} is not a trace: give a file name, a Trace, or TraceJobs")
    return Trace.of(source)


def _site(
    trace: Trace,
    procs: int | None,
    nodes: int | None,
    cores: int | None,
    gpus: int | None,
    resources: ResourceSet | Path | str | None,
    config: Path | str | None,
    topology: str | None,
) -> Site:
    if topology is not None:
        place = _site(trace, procs, nodes, cores, gpus, resources, config, None)
        return replace(place, resources=with_switches(place.resources, topology))
    if isinstance(resources, ResourceSet):
        if (procs, nodes, cores, gpus, config) != (None,) * 5:
            raise InvalidValue("resources define the machine: do not give procs, nodes, cores, gpus or config as well")
        return Site(resources)
    return site_of(
        trace,
        procs=procs,
        nodes=nodes,
        cores=cores,
        gpus=gpus,
        r_path=None if resources is None else Path(resources),
        config_path=None if config is None else Path(config),
    )
