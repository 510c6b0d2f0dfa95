"""The record of an instance as a trace: its jobs with their real times, at their real requests.

Law: a job whose run time or request is not known is left out and counted, unless it is to go on in a simulation. Where
names are to stay private, numbers take their place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fluxsched.core.resources import ResourceSet
from fluxsched.sim.traces import URGENCY_MAX, Ask, Collector, Machine, Trace, TraceJob
from fluxsched.system.files import user_name


class Numbers:
    """Numbers from 1 for names, in the order in which they are met."""

    def __init__(self) -> None:
        self.of: dict[int | str, int] = {}

    def number(self, name: int | str) -> int:
        """Return the number of a name."""
        return self.of.setdefault(name, len(self.of) + 1)


class RecordPeriod(NamedTuple):
    """Time of a record: from `since_s` (None: the first submission) until `until_s`, by wall time."""

    since_s: float | None
    until_s: float


class RecordedTimes(NamedTuple):
    """Times of a job in a trace, in seconds since it began; `run_s` is None where it is not known."""

    submit_s: float
    run_s: float | None
    limit_s: float | None
    wait_s: float | None
    is_carried: bool = False
    """True if it ran when the trace begins."""
    least_s: float = 0.0
    """Time within which its limit does not end it."""


def recorded(
    name: str,
    jobs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    machine: Machine | None,
    *,
    anonymous: bool = False,
    swf: bool = False,
    period: RecordPeriod | None = None,
) -> Trace:
    """Return the trace of jobs as an instance lists them, each with its jobspec, from the first submission on.

    Each attempt is a job of its own. What never ran, runs, or has lost its jobspec is left out, and counted.
    `anonymous` has numbers for jobs, users, banks and labels of parts; `swf` has processors for requests, and numbers
    for queues and banks. A `period` is to be simulated: it begins with the jobs that ran then, for the rest of their
    time; jobs are submitted when they asked for resources, after what they depend on; and those that run or wait at its
    end are taken to use up their limits.
    """
    found, users, banks, queues = Collector(name), Numbers(), Numbers(), Numbers()
    rows, named = sorted(jobs, key=_t_submit), lru_cache(user_name)
    begin_s: float | None = None if period is None else period.since_s
    for line, (job, jobspec) in enumerate(rows, 1):
        begin_s = job["t_submit"] if begin_s is None else begin_s
        times = _times_of(job, begin_s) if period is None else _times_within(job, begin_s, period)
        if times.run_s is None or jobspec is None:
            is_over, has_run = job.get("result") is not None, job.get("t_run") is not None
            lacks = "has lost its jobspec" if is_over and has_run else "never ran" if is_over or not has_run else "runs"
            found.fault(line, lacks, str(line if anonymous else job["id"]), is_bad=False)
            continue
        queue, bank = job.get("queue") or None, job.get("bank")
        ask = (
            Ask(max(1, job.get("ncores") or job["ntasks"]))
            if swf
            else Ask(jobspec=_asked_text(jobspec, anonymous=anonymous))
        )
        work = None if swf or not _is_elastic(jobspec) else _work(job, times.run_s)
        found.add(
            TraceJob(
                line if anonymous else job["id"], times.submit_s, times.run_s if work is None else 0.0,
                times.limit_s, ask, users.number(job["userid"]) if anonymous else
                job["userid"] if period is None else named(job["userid"]),
                queues.number(queue) if swf and queue else queue, banks.number(bank) if swf and bank else None,
                times.wait_s, URGENCY_MAX if times.is_carried else job["urgency"],
                bank=f"bank{banks.number(bank)}" if anonymous and bank else bank,
                preemptible_after_s=job.get("preemptible_after"), work=work, result=job.get("result"),
                least_s=times.least_s,
            )
        )  # fmt: skip
    found.machine = machine
    if begin_s is not None:
        found.header["UnixStartTime"] = str(int(begin_s))
    if swf:
        shown = {"Queues": queues, "Groups": Numbers() if anonymous else banks}
        found.header |= {
            key: ", ".join(f"{at} {text}" for text, at in each.of.items()) for key, each in shown.items() if each.of
        }
    return found.trace()


def _times_of(job: Mapping[str, Any], begin_s: float) -> RecordedTimes:
    """Return the times of a job that has run and ended."""
    submit_s, begun_s, end_s = job["t_submit"], job.get("t_run"), job.get("t_cleanup") or job.get("t_inactive")
    limit_s = job["duration"] or None
    if begun_s is None or end_s is None or job.get("result") is None:
        return RecordedTimes(submit_s - begin_s, None, limit_s, None)
    return RecordedTimes(submit_s - begin_s, max(0.0, end_s - begun_s), limit_s, max(0.0, begun_s - submit_s))


def _times_within(job: Mapping[str, Any], begin_s: float, period: RecordPeriod) -> RecordedTimes:
    """Return the times of a job within a period that begins at `begin_s`, or goes on after it."""
    asked_s, begun_s, limit_s = max(begin_s, job.get("t_sched") or job["t_submit"]), job.get("t_run"), job["duration"]
    end_s = job.get("t_inactive") or job.get("t_cleanup")  # an epilog has the targets, too
    if job.get("result") is not None:
        run_s = None if begun_s is None or end_s is None else max(0.0, end_s - max(begun_s, begin_s))
    elif begun_s is not None and end_s is not None:  # it is being cleaned up
        run_s = max(0.0, period.until_s - max(begun_s, begin_s))
    elif begun_s is not None:
        run_s = max(period.until_s, begun_s + limit_s) - max(begun_s, begin_s)
    else:
        run_s = limit_s or None if job["state"] != "DEPEND" else None
    least_s = 0.0 if run_s is None or job.get("result") in (None, "TIMEOUT") else run_s
    if begun_s is not None and begun_s < begin_s:
        left_s = max(1.0, begun_s + limit_s - begin_s) if limit_s else None
        return RecordedTimes(0.0, run_s, left_s, None, True, least_s)
    wait_s = None if begun_s is None else max(0.0, begun_s - asked_s)
    return RecordedTimes(asked_s - begin_s, run_s, limit_s or None, wait_s, least_s=least_s)


def _is_elastic(jobspec: Mapping[str, Any]) -> bool:
    system = jobspec.get("attributes", {}).get("system") or {}
    return bool((system.get("fluxsched") or {}).get("elastic"))


def _work(job: Mapping[str, Any], run_s: float) -> float:
    """Return the core seconds of an elastic job in its last `run_s`."""
    end_s = job.get("t_cleanup") or job.get("t_inactive") or job.get("t_run", 0.0) + run_s
    at_s, work = float(end_s) - run_s, 0.0
    for _, ended_s, cores in job.get("sizes", ()):
        work += cores * max(0.0, min(ended_s, end_s) - at_s)
        at_s = max(at_s, min(ended_s, end_s))
    return float(work + (job.get("ncores") or job["ntasks"]) * (end_s - at_s))


def _t_submit(row: tuple[Mapping[str, Any], object]) -> tuple[float, int]:
    return row[0]["t_submit"], row[0]["id"]


_ASKED_OURS: Final = ("elastic", "max-hops", "reservation")


def _asked_text(jobspec: Mapping[str, Any], *, anonymous: bool) -> str:
    """Return what a jobspec asks for, as JSON text, without the program and what it was told.

    `anonymous` numbers the labels of slots, which a user can choose.
    """
    system = jobspec.get("attributes", {}).get("system") or {}
    kept = {key: system[key] for key in ("duration", "constraints") if key in system}
    ours = {key: value for key, value in (system.get("fluxsched") or {}).items() if key in _ASKED_OURS}
    if ours:
        kept["fluxsched"] = ours
    tasks = [{**task, "command": ["simulated"]} for task in jobspec["tasks"]]
    resources = jobspec["resources"]
    if anonymous:
        labels = Numbers()
        resources = [_relabeled(vertex, labels) for vertex in resources]
        tasks = [{**task, "slot": f"slot{labels.number(task['slot'])}"} for task in tasks]
    bare = {"version": jobspec["version"], "resources": resources, "tasks": tasks}
    return json.dumps({**bare, "attributes": {"system": {"duration": 0, **kept}}}, sort_keys=True)


def _relabeled(vertex: Mapping[str, Any], labels: Numbers) -> dict[str, Any]:
    """Return a vertex of `resources`, and what is in it, with numbers for labels."""
    new = dict(vertex)
    if "label" in new:
        new["label"] = f"slot{labels.number(new['label'])}"
    if "with" in new:
        new["with"] = [_relabeled(each, labels) for each in new["with"]]
    return new


def machine_in(resources: ResourceSet) -> Machine | None:
    """Return the machine of equal targets that these resources are; None if they differ."""
    sizes = {(len(entry.children.cores), len(entry.children.gpus)) for entry in resources.entries}
    if len(sizes) != 1:
        return None
    [(cores, gpus)] = sizes
    return Machine(len(resources.ranks), cores, gpus)
