"""Replay of a trace on a running instance, on a faster clock.

Law: a replay simulates nothing. Each job is submitted with its run time and limit divided by the speed, for the `test`
execution; what the instance then says of its jobs is multiplied again, so the table compares with a simulated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.quantities import format_duration
from fluxsched.errors import InvalidValue, RPCError
from fluxsched.jobs.queues import QueueConfig
from fluxsched.sim.result import COMPLETED, DENIED, FAILED, TIMEOUT, WAITING, Columns, Cost, Result
from fluxsched.sim.simulation import Progress
from fluxsched.sim.site import TraceJobspecs, with_system
from fluxsched.sim.traces import Trace, TraceJob

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
    """Clock of real time (`SystemClock`), injected for tests."""

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
