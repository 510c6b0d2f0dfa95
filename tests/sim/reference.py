"""The same schedules by plain loops that share nothing with the project: counting processors, batched semantics.

Slow and obvious on purpose: lists, sorting, no index. A job is (submit, run, limit, processors); starts come in order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple


class Job(NamedTuple):
    submit: float
    run: float
    limit: float
    procs: int


class Running(NamedTuple):
    end: float
    deadline: float
    procs: int


Decide = Callable[[float, int, list[Running], list[tuple[int, Job]]], list[int]]
"""(now, free, running, waiting in order) -> which of the waiting start now."""


def simulate(jobs: list[Job], procs: int, decide: Decide) -> list[float | None]:
    starts: list[float | None] = [None] * len(jobs)
    waiting: list[tuple[int, Job]] = []
    running: list[Running] = []
    coming = sorted([at for at, job in enumerate(jobs) if job.procs <= procs], key=lambda at: jobs[at].submit)
    while coming or running:
        now = min([jobs[coming[0]].submit if coming else inf, *[one.end for one in running]])
        running = [one for one in running if one.end > now]
        while coming and jobs[coming[0]].submit == now:
            at = coming.pop(0)
            waiting.append((at, jobs[at]))
        free = procs - sum(one.procs for one in running)
        for at in decide(now, free, running, waiting):
            job = jobs[at]
            starts[at] = now
            running.append(Running(now + min(job.run, job.limit), now + job.limit, job.procs))
        waiting = [(at, job) for at, job in waiting if starts[at] is None]
    return starts


def fcfs(now: float, free: int, running: list[Running], waiting: list[tuple[int, Job]]) -> list[int]:
    started = []
    for at, job in waiting:
        if job.procs > free:
            break
        free -= job.procs
        started.append(at)
    return started


def easy(
    now: float, free: int, running: list[Running], waiting: list[tuple[int, Job]], *, sjf: bool = False
) -> list[int]:
    started = fcfs(now, free, running, waiting)
    held = [*running]
    rest = []
    for at, job in waiting:
        if at in started:
            free -= job.procs
            held.append(Running(0, now + job.limit, job.procs))
        else:
            rest.append((at, job))
    if not rest:
        return started
    head = rest[0][1]
    shadow, extra = _shadow(free, held, head)
    others = sorted(rest[1:], key=lambda pair: pair[1].limit) if sjf else rest[1:]
    for at, job in others:
        if job.procs > free:
            continue
        if now + job.limit <= shadow:
            free -= job.procs
            started.append(at)
        elif job.procs <= extra:
            free -= job.procs
            extra -= job.procs
            started.append(at)
    return started


def _shadow(free: int, held: list[Running], head: Job) -> tuple[float, int]:
    """When the head can start by limits, and how much is left over then."""
    for deadline in sorted({one.deadline for one in held}):
        at_that_time = free + sum(one.procs for one in held if one.deadline <= deadline)
        if at_that_time >= head.procs:
            return deadline, at_that_time - head.procs
    raise AssertionError("the head never fits")


def easy_sjf(now: float, free: int, running: list[Running], waiting: list[tuple[int, Job]]) -> list[int]:
    return easy(now, free, running, waiting, sjf=True)


def conservative(now: float, free: int, running: list[Running], waiting: list[tuple[int, Job]]) -> list[int]:
    """Every waiting job planned anew, in order, into what running jobs and the plans before it leave."""
    procs = free + sum(one.procs for one in running)
    taken = [(now, one.deadline, one.procs) for one in running]
    started = []
    for at, job in waiting:
        begin = next(
            begin for begin in sorted({now, *(end for _, end, _ in taken)})
            if _peak(taken, begin, begin + job.limit) + job.procs <= procs
        )  # fmt: skip
        taken.append((begin, begin + job.limit, job.procs))
        if begin == now:
            started.append(at)
    return started


def _peak(taken: list[tuple[float, float, int]], begin: float, end: float) -> int:
    """The most that is taken at any time from `begin` to before `end`."""
    inside = [one for one in taken if one[0] < end and one[1] > begin]
    points = {begin, *(one[0] for one in inside if one[0] > begin)}
    return max([sum(n for b, e, n in inside if b <= point < e) for point in points], default=0)
