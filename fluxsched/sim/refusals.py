"""Jobs that were denied, or set aside to the end, by the reasons: what people look for when jobs are missing.

Law: equal reasons are counted, not repeated; the table of jobs has the reason of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fluxsched.sim.result import Result

REASONS_SHOWN = 5
"""Different reasons a policy: the most frequent ones; JSON has all."""

JOBS_SHOWN = 3
"""Jobs that are named for a reason."""

Reasons = dict[tuple[str, str], list[int | str]]


def reasons_of(result: Result) -> Reasons:
    """Jobs by what became of them and why, the most frequent first."""
    jobs, found = result.jobs, Reasons()
    if jobs.notes:
        for row, why in sorted(jobs.notes.items()):
            found.setdefault((jobs.state[row], why), []).append(jobs.job[row])
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def refusals(results: Sequence[Result]) -> Iterator[str]:
    """Lines for people; once where all policies say the same."""
    reasons = [reasons_of(result) for result in results]
    if len(results) > 1 and all(each == reasons[0] for each in reasons):
        yield from _lines("", reasons[0])
        return
    for result, mine in zip(results, reasons, strict=True):
        yield from _lines("" if len(results) == 1 else f"{result.title}: ", mine)


def _lines(title: str, reasons: Reasons) -> Iterator[str]:
    for (state, why), jobs in list(reasons.items())[:REASONS_SHOWN]:
        named = ", ".join(map(str, jobs[:JOBS_SHOWN])) + (", ..." if len(jobs) > JOBS_SHOWN else "")
        yield f"{title}{len(jobs):,} {state}: {why} (job {named})"
    if len(reasons) > REASONS_SHOWN:
        yield f"{title}and {len(reasons) - REASONS_SHOWN} reasons more: the column note of --jobs-out has them all"


def as_json(result: Result) -> list[dict[str, Any]]:
    """All reasons, with how many jobs have each."""
    return [{"state": state, "reason": why, "jobs": len(jobs)} for (state, why), jobs in reasons_of(result).items()]
