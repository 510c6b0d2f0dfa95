"""What a page draws of several policies on one trace, as JSON: jobs on targets, cores in use, queue, waits.

Law: bounded, and what was left out is counted; lines are sampled and classes of waits computed here, so that a page
only draws. Jobs and policies are in columns: names, users and queues are written once, whatever the number of policies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from fluxsched.sim.results.accounts import AccountCourse
from fluxsched.sim.results.metrics import percentile
from fluxsched.sim.results.report import FIGURES, heading, refusals
from fluxsched.sim.results.result import Result
from fluxsched.sim.results.step_functions import averages, busy_steps, queue_steps
from fluxsched.sim.results.stretches import stretches
from fluxsched.sim.traces.trace import Trace

BARS_MAX = 40_000
"""Jobs of a policy on the chart of targets, those with most core seconds: about 50 bytes each in the file.

One that was preempted, or changed its size, has some bars more."""

POINTS_MAX = 800
"""Of a line: more than its part of a page has pixels."""

QUANTILES = 200
"""Points of the curve of all waits."""

USERS_MAX = 20
"""Users in the chart of waits: those with most core seconds."""

SIZE_CLASSES_MAX = 24
"""Powers of two: up to 16 million cores."""

def drawing(trace: Trace, results: Sequence[Result]) -> dict[str, Any]:
    """Everything that the page of a study draws."""
    jobs = results[0].jobs
    end_s = max([result.end_s for result in results])
    users, user_of = _named(jobs.user)
    queues, queue_of = _named(jobs.queue)
    drawn = sorted(set().union(*[largest(result) for result in results]))
    return {
        "trace": trace.name, "heading": list(heading(trace, results)), "begin": min(jobs.submit, default=0.0),
        "end": end_s, "targets": results[0].targets, "cores": results[0].cores, "figures": _figures(results),
        "refusals": list(refusals(results)), "users": users, "queues": queues,
        "jobs": {
            "row": drawn, "id": [str(jobs.job[row]) for row in drawn],
            "submit": [_short(jobs.submit[row]) for row in drawn], "user": [user_of[row] for row in drawn],
            "queue": [queue_of[row] for row in drawn],
        },
        "policies": [_policy(result, drawn, end_s) for result in results],
        "by_size": by_size(results), "by_user": by_user(results),
    }  # fmt: skip


def _policy(result: Result, drawn: Sequence[int], end_s: float) -> dict[str, Any]:
    jobs, ranks = result.jobs, result.jobs.ranks
    shown = [row for row in drawn if ranks is not None and ranks[row] is not None]
    bars = list(stretches(jobs, shown))
    begun = sum([start is not None for start in jobs.start])
    waits = sorted([wait_s for wait_s in result.wait if wait_s is not None])
    return {
        "title": result.title, "policy": result.policy,
        "bars": {
            "at": [bisect_left(drawn, each.row) for each in bars],
            "start": [_short(each.start_s) for each in bars],
            "end": [_short(each.end_s) for each in bars],
            "ranks": [each.ranks for each in bars],
            "procs": [each.procs for each in bars],
        },
        "left_out": begun - len(shown),
        "used": _averaged(busy_steps(jobs), end_s), "usable": [[_short(at), cores] for at, cores in result.capacity],
        "waiting": _averaged(queue_steps(jobs), end_s),
        "quantiles": [_short(percentile(waits, part / QUANTILES)) for part in range(QUANTILES + 1)] if waits else [],
        "accounts": [_account(course, result.summary.makespan_s or 1.0) for course in result.accounts[:USERS_MAX]],
    }  # fmt: skip


def _account(course: AccountCourse, makespan_s: float) -> dict[str, Any]:
    return {
        "name": course.name, "depth": len(course.path) - 1, "jobs": course.jobs, "usage": course.used_s / makespan_s,
        "share": course.share_s / makespan_s, "shortfall_s": course.shortfall_s, "wait_mean_s": course.wait_mean_s,
    }  # fmt: skip


def largest(result: Result) -> list[int]:
    """The rows that have started, those with most core seconds if they are too many."""
    jobs = result.jobs
    begun = [row for row, start_s in enumerate(jobs.start) if start_s is not None]
    if len(begun) <= BARS_MAX:
        return begun

    def work(row: int) -> float:
        start_s, end_s = jobs.start[row], jobs.end[row]
        return ((result.end_s if end_s is None else end_s) - (start_s or 0.0)) * jobs.procs[row]

    return sorted(begun, key=work, reverse=True)[:BARS_MAX]


def _figures(results: Sequence[Result]) -> list[list[Any]]:
    """The lines of the report's table: title, then a text a policy."""
    lines = [[line.title, *[line.text(result, result.summary) for result in results]] for line in FIGURES]
    return [line for line in lines if any(line[1:])]


def _named(names: Iterable[int | str | None]) -> tuple[list[str], list[int]]:
    """The names once each, and the place of each entry's name among them."""
    places: dict[int | str | None, int] = {}
    of = [places.setdefault(name, len(places)) for name in names]
    return ["" if name is None else str(name) for name in places], of


def _size_class(procs: int) -> int:
    return min(SIZE_CLASSES_MAX, max(0, procs - 1).bit_length())


def _size_label(power: int) -> str:
    """`5–8` of the jobs of more than 2^2 cores and at most 2^3."""
    if power == SIZE_CLASSES_MAX:
        return f"over {1 << power - 1:,}"
    return f"{1 << power:,}" if power < 2 else f"{(1 << power - 1) + 1:,}–{1 << power:,}"


def by_size(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Waits of jobs of like size: powers of two of cores."""
    powers = [_size_class(procs) for procs in results[0].jobs.procs]
    return [_class(results, _size_label(power), [at == power for at in powers]) for power in sorted(set(powers))]


def by_user(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Waits of the users that used most under the first policy."""
    users = results[0].jobs.user
    return [
        _class(results, "unknown" if share.name is None else str(share.name), [user == share.name for user in users])
        for share in results[0].summary.users[:USERS_MAX]
    ]


def _class(results: Sequence[Result], label: str, members: Sequence[bool]) -> dict[str, Any]:
    """A class of jobs: under each policy median and 95th percentile of its waits, and how many have started."""
    waits: list[list[float | int | None] | None] = []
    for result in results:
        ordered = sorted([wait_s for wait_s in compress(result.wait, members) if wait_s is not None])
        waits.append(
            [_short(percentile(ordered, 0.5)), _short(percentile(ordered, 0.95)), len(ordered)] if ordered else None
        )
    return {"label": label, "jobs": sum(members), "waits": waits}


def _averaged(steps: Sequence[tuple[float, float]], end_s: float) -> list[list[float | int | None]]:
    """A line of at most POINTS_MAX points: means of equal parts of the time if there are more steps."""
    if len(steps) <= POINTS_MAX:
        return [[_short(when_s), _short(value)] for when_s, value in steps]
    means = averages(steps, 0.0, end_s, POINTS_MAX)
    return [[_short(end_s * part / POINTS_MAX), _short(mean)] for part, mean in enumerate(means)]


def _short(number: float | None) -> float | int | None:
    """Milliseconds are enough for a drawing, and whole numbers shorter."""
    if number is None:
        return None
    rounded = round(number, 3)
    return int(rounded) if rounded == int(rounded) else rounded
