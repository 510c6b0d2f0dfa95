"""A trace is run: simulated under one policy, of what a caller names, which is read and checked; or replayed on a
running instance, on a faster clock.

>>> from fluxsched.sim import Ask, Trace, TraceJob, run
>>> jobs = [TraceJob(1, 0.0, 60.0, 120.0, Ask(4)), TraceJob(2, 1.0, 5.0, 10.0, Ask(2))]
>>> run(Trace.of(jobs), "fifo", procs=4).jobs.start
[0.0, 60.0]

Law: a replay simulates nothing. Each job is submitted with its run time and limit divided by the speed, for the `test`
execution; what the instance then says of its jobs is multiplied again, so the table compares with a simulated one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Final, Protocol

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import format_duration
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.jobs.queues import QueueConfig
from fluxsched.sched.hooks.api import Plugin
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import load
from fluxsched.sim.engine.simulation import Progress, Simulation
from fluxsched.sim.engine.site import Site, SiteEvent, read_site, site_of, with_switches
from fluxsched.sim.engine.trace_jobspecs import TraceJobspecs, with_system
from fluxsched.sim.result import Cost, Result
from fluxsched.sim.table import COMPLETED, DENIED, FAILED, TIMEOUT, WAITING, Columns
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


# ---- replay

SUBMIT_JOBS_MAX = 500
"""Jobs submitted in one go: an instance stores these within some milliseconds."""

LIST_JOBS_MAX = 500
"""Jobs asked about at once."""

_STATES = {"COMPLETED": COMPLETED, "TIMEOUT": TIMEOUT}


class LiveInstance(Protocol):
    """Methods of a connection to an instance that a replay uses (`client.blocking.Handle`)."""

    def rpc(self, topic: str, payload: dict[str, Any] | None = None) -> dict[str, Any]: ...

    def submit_each(self, jobspecs: list[dict[str, Any]]) -> Sequence[int | RPCError]: ...

    def wait(self, jobid: int) -> dict[str, Any]: ...


class ReplayClock(Protocol):
    """Clock of real time, injected for tests."""

    def wall_s(self) -> float: ...

    def sleep(self, delay_s: float) -> None: ...


def replay(
    instance: LiveInstance, trace: Trace, speed: float, clock: ReplayClock, progress: Progress | None = None
) -> Result:
    """Replay the whole trace, `speed` times as fast as it was; return when the last job is over.

    Raises InvalidValue for a speed that is not positive, and what the connection raises.
    """
    if not 0 < speed < float("inf"):
        raise InvalidValue(f"speed {speed} is not a positive number")
    names = instance.rpc("job-manager.queue-list")["queues"]
    queues = {None: QueueConfig(), **{name: QueueConfig(name) for name in names}}  # their limits are the instance's own
    specs = TraceJobspecs(queues, None)
    wanted = [_jobspec(job, specs, speed) for job in trace.jobs]
    begun_s = clock.wall_s()
    table = _table(trace)
    ids = _submit_all(instance, trace, wanted, speed, clock, progress, table)
    _collect(instance, ids, begun_s, speed, table)
    targets, cores = _machine(instance)
    return Result("live", trace.name, table, [(0.0, cores)], targets, Cost(0, 0, clock.wall_s() - begun_s))


def _jobspec(job: TraceJob, specs: TraceJobspecs, speed: float) -> dict[str, Any] | str:
    made = specs.of(job)
    if isinstance(made, str):
        return made
    run_s = job.run_s if job.work is None else job.work / made.request.least_cores
    made = _faster(made, speed)
    return with_system(made, "exec", {"test": {"run_duration": format_duration(run_s / speed)}})


def _faster(jobspec: Jobspec, speed: float) -> Jobspec:
    if not jobspec.duration_s:
        return jobspec
    limit_s = jobspec.duration_s / speed
    return replace(jobspec, duration_s=limit_s, raw=with_system(jobspec, "duration", limit_s))


def _submit_all(
    instance: LiveInstance,
    trace: Trace,
    wanted: Sequence[dict[str, Any] | str],
    speed: float,
    clock: ReplayClock,
    progress: Progress | None,
    table: Columns,
) -> dict[int, int]:
    """Submit each job when its time has come; the place in the table by job id."""
    ids: dict[int, int] = {}
    begun_s = clock.wall_s()
    at = 0
    while at < len(wanted):
        now_s = (clock.wall_s() - begun_s) * speed
        due = [
            place for place in range(at, min(at + SUBMIT_JOBS_MAX, len(wanted))) if trace.jobs[place].submit_s <= now_s
        ]
        if not due:
            clock.sleep((trace.jobs[at].submit_s - now_s) / speed)
            continue
        _submit(instance, due, wanted, table, ids)
        at += len(due)
        if progress is not None:
            progress(at, len(wanted), now_s)
    return ids


def _submit(
    instance: LiveInstance,
    places: Sequence[int],
    wanted: Sequence[dict[str, Any] | str],
    table: Columns,
    ids: dict[int, int],
) -> None:
    """One go: what the instance refuses stays out, the others run."""
    specs: list[dict[str, Any]] = []
    fine: list[int] = []
    for place in places:
        spec = wanted[place]
        if isinstance(spec, str):
            _refused(table, place, spec)
        else:
            specs.append(spec)
            fine.append(place)
    for place, answer in zip(fine, instance.submit_each(specs), strict=True):
        if isinstance(answer, RPCError):
            _refused(table, place, str(answer))
        else:
            ids[answer] = place


def _refused(table: Columns, place: int, note: str) -> None:
    table.state[place], table.notes[place] = DENIED, note


def _collect(instance: LiveInstance, ids: dict[int, int], begun_s: float, speed: float, table: Columns) -> None:
    """Wait for all jobs, and take over what the instance recorded."""
    for jobid in ids:
        instance.wait(jobid)
    known = list(ids)
    for at in range(0, len(known), LIST_JOBS_MAX):
        some = known[at : at + LIST_JOBS_MAX]
        for row in instance.rpc("job-manager.list", {"ids": some, "max_entries": len(some)})["jobs"]:
            _take(row, ids[row["id"]], begun_s, speed, table)


def _take(row: dict[str, Any], place: int, begun_s: float, speed: float, table: Columns) -> None:
    def traced(key: str) -> float | None:
        return (row[key] - begun_s) * speed if row.get(key) else None

    table.submit[place] = (row["t_submit"] - begun_s) * speed
    table.start[place] = traced("t_run")
    table.end[place] = traced("t_cleanup") if table.start[place] is not None else None
    denied = (row.get("exception") or {}).get("type") == "alloc"  # RFC 27: what a scheduler's deny becomes
    table.state[place] = DENIED if denied else _STATES.get(row.get("result") or "", FAILED)
    table.procs[place] = row.get("ncores") or table.procs[place]
    if table.ranks is not None:
        table.ranks[place] = row.get("ranks")


def _table(trace: Trace) -> Columns:
    jobs, n = trace.jobs, len(trace.jobs)
    return Columns(
        [job.job for job in jobs], [job.submit_s for job in jobs], [None] * n, [None] * n,
        [job.ask.nslots * job.ask.cores for job in jobs], [job.user for job in jobs], [job.queue for job in jobs],
        [WAITING] * n, [None] * n,
    )  # fmt: skip


def _machine(instance: LiveInstance) -> tuple[int, int]:
    """Targets and cores of the instance."""
    execution = instance.rpc("resource.sched-status")["all"]["execution"]
    targets = cores = 0
    for entry in execution["R_lite"]:
        ranks = len(Idset.parse(str(entry["rank"])) or EMPTY)
        targets += ranks
        cores += ranks * len(Idset.parse(str(entry["children"]["core"])))
    return targets, cores
