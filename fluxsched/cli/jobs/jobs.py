"""`fluxsched jobs`: a table of named or selected jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import Converted, InstanceHandle, Output, Whole, table_options, typed, viewing
from fluxsched.cli.common.table import SortKey, parse_sort, sort_rows
from fluxsched.cli.common.values import WHEN
from fluxsched.cli.jobs.fields import FIELDS, JOBS
from fluxsched.cli.jobs.selection import JobSelection, filter_options, jobs_argument
from fluxsched.errors import Refused, RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.jobs import JobConstraint, JobRow, Jobs, list_request, queue_reason

LISTED_DEFAULT = 1000
LISTED_MAX = 100_000
"""More than this no list shows."""
REASONS_ASKED_MAX = 200
"""Waiting jobs whose scheduler is asked why: what one request may name, and more rows than a screen shows."""


def sort_keys(text: str) -> tuple[SortKey, ...]:
    """The keys of `--sort`; ids are in order as numbers, however they are written."""
    return tuple(key._replace(name="id") if key.name.startswith("id.") else key for key in parse_sort(text, FIELDS))


def request_for(asked: JobSelection, every_state: bool, since_s: float | None, count: int) -> dict[str, Any]:
    """The job-manager.list request: active jobs, unless the options or operands say otherwise."""
    wants_all = every_state or bool(asked.jobs.ids) or asked.names_states
    ids = asked.jobs.ids if not asked.jobs.ranges else ()
    return list_request([*asked.terms.values()], ids, wants_all, since_s, count or LISTED_MAX)


@click.command("jobs", cls=Command)
@jobs_argument
@click.option("-a", "all_states", is_flag=True, help="Jobs in all states, not only active ones.")
@click.option("-A", "all_users", is_flag=True, help="Jobs of all users (the default).")
@filter_options()
@click.option("--since", metavar="WHEN", type=WHEN,
              help="Active jobs, and jobs that ended since -FSD or a date and time.")
@click.option("-c", "--count", metavar="N", type=Whole(0, LISTED_MAX), default=LISTED_DEFAULT, show_default=True,
              help=f"Maximum number of jobs; 0 is {LISTED_MAX:,}.")
@click.option("--sort", "keys", metavar="[-]FIELD,...", type=Converted("sort", sort_keys),
              default=(), help="Order of the jobs shown; '-' reverses.")
@click.option("--watch", "is_live", is_flag=True,
              help="Show changes as they happen: on a terminal until q is pressed, else one line each.")
@table_options(JOBS)
@viewing
def jobs(
    handle: InstanceHandle,
    jobs: Jobs,
    all_states: bool,
    all_users: bool,
    terms: Callable[[Jobs], dict[str, JobConstraint]],
    since: float | None,
    count: int,
    keys: Sequence[SortKey],
    is_live: bool,
    output: Output,
) -> int:  # fmt: skip
    """List jobs: active ones, or the named ones."""
    asked = JobSelection(jobs, terms(jobs))
    request = request_for(asked, all_states, since, count)
    shown = output.layout.names | {key.name for key in keys}

    def rows(found: Sequence[Mapping[str, Any]]) -> list[JobRow]:
        return sort_rows(rows_of(handle, found, SystemClock.wall_s(), shown), keys, FIELDS)

    if is_live:
        from fluxsched.cli.jobs.watch import Watched, watch

        _check_there(asked, handle.rpc("job-manager.list", request)["jobs"])
        changes = request_for(asked, True, None, count)
        return watch(handle, Watched(request, changes, rows, frozenset(jobs.ids if not jobs.ranges else ())), output)
    answer = handle.rpc("job-manager.list", request)
    found = answer["jobs"]
    if output.as_json and keys:
        answer = {"jobs": [row.info for row in rows(found)]}
    output.show(answer, lambda names: rows(found))
    _check_there(asked, found)
    return 0


def _check_there(asked: JobSelection, found: Sequence[Mapping[str, Any]]) -> None:
    """Raises Refused naming the jobs that were named and are not there."""
    there = {job["id"] for job in found}
    missing = [typed(jobid) for jobid in asked.jobs.ids if jobid not in there] if not asked.terms else []
    if missing:
        raise Refused(f"no such job: {', '.join(missing)}")


def rows_of(
    handle: InstanceHandle, found: Iterable[Mapping[str, Any]], now_s: float, shown: frozenset[str]
) -> list[JobRow]:
    """Rows for these fields: jobs that wait without a reason of their own get that of their queue, where it has one,
    else what the scheduler says of them, which annotates only the first jobs of a queue.
    """
    rows = [JobRow(info, now_s, is_ascii=not show.unicode_ok()) for info in found]
    if "contextual_info" not in shown:
        return rows
    silent = [row.info["state"] in ("PRIORITY", "SCHED") and not row.contextual_info() for row in rows]
    queues = {row.info.get("queue") for row, is_silent in zip(rows, silent, strict=True) if is_silent}
    reasons = {queue: _blocked(handle, queue) for queue in queues}
    asked = [
        row.info["id"] for row, is_silent in zip(rows, silent, strict=True)
        if is_silent and not reasons[row.info.get("queue")]
    ]  # fmt: skip
    told = _told(handle, asked[:REASONS_ASKED_MAX]) if asked else {}
    return [
        row._replace(blocked=reasons[row.info.get("queue")] or told.get(row.info["id"], "")) if is_silent else row
        for row, is_silent in zip(rows, silent, strict=True)
    ]


def _told(handle: InstanceHandle, ids: Sequence[int]) -> dict[int, str]:
    """Why these jobs wait; a scheduler that cannot be asked has nothing to say."""
    try:
        return {jobid: reason for jobid, reason, *_ in handle.rpc("job-manager.reasons", {"ids": list(ids)})["jobs"]}
    except RPCError:
        return {}


def _blocked(handle: InstanceHandle, queue: str | None) -> str:
    """Why nothing of a queue is scheduled; a queue that cannot be asked has nothing to say."""
    try:
        return queue_reason(handle.rpc("job-manager.queue-status", {"name": queue} if queue else {}))
    except RPCError:
        return ""
