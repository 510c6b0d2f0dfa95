"""`fluxsched jobs`: a table of named or selected jobs; its columns, and the selection that other commands share.

Law: jobs are named one by one, and then each must be there; or they are selected, by options that must all hold, and
then those that are there are meant. What was selected can have ended when its turn comes: that is no error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from fluxsched.cli.base import Command
from fluxsched.cli.options import (
    JOBID,
    WHEN,
    Converted,
    Function,
    InstanceHandle,
    Output,
    TableSpec,
    Whole,
    WordList,
    complete_jobids,
    complete_queues,
    complete_targets,
    note_typed,
    parse_jobid,
    table_options,
    typed,
    viewing,
)
from fluxsched.cli.output import (
    GREEN,
    RED,
    YELLOW,
    Field,
    SortKey,
    duration_text,
    jobid_text,
    parse_sort,
    sort_rows,
    unicode_ok,
    user_name,
)
from fluxsched.core.jobid import JOB_ATTRIBUTES, format_dothex, format_f58, format_hex
from fluxsched.core.text import counted
from fluxsched.errors import InvalidValue, Refused, RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.jobs import (
    ABBREVIATIONS,
    ANY_USER,
    JOB_STATES,
    PENDING,
    PREEMPTED,
    RANGES,
    RESULTS,
    RETURNED,
    JobConstraint,
    JobRow,
    Jobs,
    cpu_s,
    list_request,
    on_targets,
    parts_text,
    peak_text,
    queue_reason,
    terms_of,
    user_id,
)
from fluxsched.views.words import size_text


def usage_lines(usage: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job's figures, then those of its tasks."""
    yield f"used: {usage_text(usage)}"
    for rank, task in enumerate(usage.get("tasks") or ()):
        yield f"task {rank}: {task['ended']}, {usage_text(task)}"
    if usage.get("tasks_left_out"):
        yield f"({counted(usage['tasks_left_out'], 'more task')} only in the sums)"


def usage_text(usage: Mapping[str, Any]) -> str:
    """Return times and peak of memory in one line."""
    user, system = duration_text(usage["user_s"]), duration_text(usage["system_s"])
    gpus = usage.get("gpus")
    on_gpus = f", {duration_text(gpus['busy_s'])} GPU, {size_text(gpus['max_bytes'])} GPU memory" if gpus else ""
    return (
        f"{duration_text(usage['wall_s'])} wall, {duration_text(cpu_s(usage))} CPU "
        f"({user} user, {system} system), {peak_text(usage)} peak memory{on_gpus}"
    )


# ---- fields of jobs


def _of(key: str) -> Callable[[JobRow], object]:
    return lambda row: row.info.get(key)


def _jobid(key: str) -> Callable[[JobRow], object]:
    return lambda row: jobid_text(row.info[key]) if row.info.get(key) else None


def _used(figure: Callable[[Mapping[str, Any]], object]) -> Callable[[JobRow], object]:
    def value(row: JobRow) -> object:
        usage = row.info.get("usage")
        return None if usage is None else figure(usage)

    return value


def _colour(value: object) -> str | None:
    return _COLOURS.get(str(value))


_COLOURS = {
    "F": RED, "FAILED": RED, "TO": RED, "TIMEOUT": RED, "CA": YELLOW, "CANCELED": YELLOW,
    "PR": YELLOW, PREEMPTED: YELLOW, "RT": YELLOW, RETURNED: YELLOW,
    "R": GREEN, "RUN": GREEN,
}  # fmt: skip


FIELDS = {
    **{name: Field(one.heading, _of(name)) for name, one in JOB_ATTRIBUTES.items() if one.heading},
    "id": Field("JOBID", lambda row: row.info["id"]),
    "id.dec": Field("JOBID", lambda row: row.info["id"]),
    "id.f58": Field("JOBID", lambda row: jobid_text(row.info["id"])),
    "id.f58plain": Field("JOBID", lambda row: format_f58(row.info["id"], ascii=True)),
    "id.hex": Field("JOBID", lambda row: format_hex(row.info["id"])),
    "id.dothex": Field("JOBID", lambda row: format_dothex(row.info["id"])),
    "nodelist": Field("NODELIST", JobRow.nodelist),
    "array": Field("ARRAY", _jobid("array")),
    "requeue_of": Field("REQUEUE-OF", _jobid("requeue_of")),
    "requeued_as": Field("REQUEUED-AS", _jobid("requeued_as")),
    "username": Field("USER", lambda row: user_name(row.info["userid"])),
    "status": Field("STATUS", JobRow.status, _colour),
    "status_abbrev": Field("ST", JobRow.status_abbrev, _colour),
    "state_single": Field("S", lambda row: ABBREVIATIONS.get(row.info["state"], "?")),
    "runtime": Field("RUNTIME", JobRow.runtime_s),
    "t_remaining": Field("REMAINING", JobRow.remaining_s),
    "contextual_time": Field(
        "TIME", lambda row: row.info["duration"] if row.info["state"] in PENDING else row.runtime_s()
    ),
    "contextual_info": Field("INFO", JobRow.contextual_info),
    "exception": Field("EXCEPTION", JobRow.exception),
    "exception.type": Field("EXCEPTION-TYPE", lambda row: (row.info.get("exception") or {}).get("type")),
    "exception.note": Field("EXCEPTION-NOTE", lambda row: (row.info.get("exception") or {}).get("note")),
    "exception.severity": Field("EXCEPTION-SEVERITY", lambda row: (row.info.get("exception") or {}).get("severity")),
    "result_abbrev": Field("RESULT", lambda row: RESULTS.get(str(row.info.get("result")).lower()), _colour),
    "sched.reason_pending": Field("REASON", lambda row: row.sched().get("reason_pending")),
    "sched.t_estimate": Field("T-ESTIMATE", lambda row: row.sched().get("t_estimate")),
    "sched.resource_summary": Field("RESOURCES", lambda row: row.sched().get("resource_summary")),
    "dependencies": Field("DEPENDENCIES", lambda row: ",".join(row.info.get("dependencies") or ())),
    "inactive_reason": Field("INACTIVE-REASON", JobRow.end_reason),
    "wall": Field("WALL", _used(lambda usage: usage["wall_s"])),
    "cpu": Field("CPU", _used(cpu_s)),
    "cpu_user": Field("USER-CPU", _used(lambda usage: usage["user_s"])),
    "cpu_system": Field("SYSTEM-CPU", _used(lambda usage: usage["system_s"])),
    "max_rss": Field("MAXRSS", _used(peak_text)),
    "max_rss_bytes": Field("MAXRSS", _used(lambda usage: usage["max_rss_bytes"])),
    "uri": Field("URI", JobRow.address),
    "parts": Field("PARTS", lambda row: parts_text(row.info.get("parts") or {})),
    "command": Field("COMMAND", lambda row: shlex.join(row.info.get("command") or ())),
}

_FIRST = "{id.f58:>12} ?:{queue:<8.8} +:{username:<8} {name:<10.10+}"
JOBS = TableSpec(
    {
        "default": f"{_FIRST} {{status_abbrev:>2.2}} {{ntasks:>6}} {{nnodes:>6h}} "
        "{contextual_time!F:>8h} {contextual_info:.12+*}",
        "long": f"{_FIRST} {{status:>9.9}} {{ntasks:>6}} {{nnodes:>6h}} {{t_submit!d:%b%d %R::>12}} "
        "{t_remaining!F:>12h} {contextual_time!F:>8h} {contextual_info:.12+*}",
        "deps": "{id.f58:>12} ?:{queue:<8.8} {name:<10.10+} {urgency:<3} {priority:<12} {state:<8.8} {dependencies}",
        "usage": f"{_FIRST} {{status_abbrev:>2.2}} {{ntasks:>6}} {{wall!F:>8h}} {{cpu!F:>8h}} "
        "{max_rss:>7h} {inactive_reason}",
        "endreason": f"{_FIRST} {{status_abbrev:>2.2}} {{t_inactive!d:%b%d %R::>12h}} {{inactive_reason}}",
    },
    FIELDS,
)


# ---- selection of jobs

SLURM_STATES = {
    "pd": "pending", "r": "running", "cg": "cleanup",
    "cd": "completed", "f": "failed", "ca": "canceled", "to": "timeout",
}  # fmt: skip
"""Our words, by Slurm's abbreviations of states."""
STATE_WORDS = WordList((*JOB_STATES, *RESULTS), SLURM_STATES)


class JobSelection(NamedTuple):
    """Selection by options: the constraints, by option, and the jobs named one by one."""

    jobs: Jobs
    terms: Mapping[str, JobConstraint]
    everything: bool = False

    @property
    def is_selection(self) -> bool:
        """Return whether jobs are selected, not named."""
        return bool(self.terms) or self.everything

    @property
    def is_definite(self) -> bool:
        """Return whether the selection means certain jobs, in any state: an array, or a range of ids."""
        return "--array" in self.terms or RANGES in self.terms

    @property
    def names_states(self) -> bool:
        """Return whether the selection names states of jobs, or how they ended."""
        return "--filter" in self.terms

    def constraint(self, *more: JobConstraint) -> JobConstraint:
        """Return the conjunction of all terms and `more`."""
        return {"and": [*self.terms.values(), *more]}

    def said(self) -> str:
        """Return the options that were given, for an error."""
        ranges = ", ".join("..".join(jobid_text(int(id)) for id in each.split("..")) for each in self.jobs.ranges)
        return ", ".join(ranges if term == RANGES else term for term in self.terms) or "--all"


def _named_sets(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> JobConstraint | None:
    """Jobs of these sets: one's own, unless it is said whose. Other users' sets may have the same names."""
    if not names:
        return None
    if not all(names):  # an empty variable of a script must not select more
        raise click.BadParameter("the name of a set is empty", ctx, param)
    sets: JobConstraint = {"set": list(names)}
    if ctx.get_parameter_source("user") is not ParameterSource.DEFAULT:
        return sets
    return {"and": [sets, {"userid": [os.getuid()]}]}


def _split(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip() for text in texts for name in text.split(","))
    if not all(names):  # an empty variable of a script must not select more
        raise click.BadParameter("the name of a queue is empty", ctx, param)
    return names


def _operands(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Jobs:
    """Job ids and ranges of them; an error names every text that is neither."""
    from fluxsched.core.jobid import parse_jobids

    ids, ranges, faults = [], [], []
    for text in texts:
        try:
            if ".." in text:
                low, high = parse_jobids(text)
                ranges.append(f"{low}..{high}")
            else:
                ids.append(parse_jobid(text))
                note_typed(ctx, ids[-1], text)
        except InvalidValue as error:
            faults.append(str(error))
    if faults:
        raise click.BadParameter("; ".join(faults), ctx, param)
    return Jobs(tuple(dict.fromkeys(ids)), tuple(ranges))


def jobs_argument(handler: Function) -> Function:
    """Return the operands JOBID... and JOBID..JOBID; the handler gets them as `jobs`."""
    return click.argument("jobs", metavar="[JOBID...]", nargs=-1, callback=_operands, shell_complete=complete_jobids)(
        handler
    )


def filter_options(*state_flags: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options that select jobs, without operands; the handler gets `terms(jobs)`, see `terms_of`.

    `state_flags`: further names of `-f/--filter`.
    """

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def run(*args: Any, user: int | None, names: tuple[str, ...], queues: tuple[str, ...],
                words: tuple[str, ...] | None, array: tuple[int, ...], sets: JobConstraint | None,
                targets: JobConstraint | None, **more: Any) -> Any:  # fmt: skip
            def terms(jobs: Jobs) -> dict[str, JobConstraint]:
                return terms_of(
                    jobs, user=user, names=names, queues=queues, words=words, array=array, sets=sets, targets=targets
                )

            return handler(*args, terms=terms, **more)

        for option in reversed((
            click.option("-u", "--user", metavar="USER", default=ANY_USER, type=Converted("user", user_id),
                         is_eager=True, help="Only jobs of this user. [default: all]"),
            click.option("--name", "names", metavar="NAME", multiple=True,
                         help="Only jobs of this name; '*', '?' and '[...]' are wildcards."),
            click.option("-q", "--queue", "queues", metavar="NAME,...", multiple=True, callback=_split,
                         shell_complete=complete_queues, help="Only jobs in these queues."),
            click.option("-f", "--filter", *state_flags, "words", type=STATE_WORDS, metavar="STATE|RESULT,...",
                         help="Only jobs in these states or with these results: pending, running, failed, ..."),
            click.option("--array", metavar="JOBID", multiple=True, type=JOBID,
                         help="Only jobs of the array whose first job this is."),
            click.option("--set", "sets", metavar="NAME", multiple=True, callback=_named_sets,
                         help="Only jobs of this set; your own, unless --user is given."),
            click.option("-i", "--include", "targets", metavar="TARGETS", shell_complete=complete_targets,
                         type=Converted("targets", on_targets),
                         help="Only jobs that have resources on these targets."),
        )):  # fmt: skip
            run = option(run)
        return run

    return decorate


def selection_options(*state_flags: str, all_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add operands and options that say which jobs; the handler gets them as `asked`. One of both must be given."""

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler)
        def run(*args: Any, jobs: Jobs, all_jobs: bool, terms: Callable[[Jobs], dict[str, JobConstraint]],
                **more: Any) -> Any:  # fmt: skip
            asked = JobSelection(jobs, terms(jobs), all_jobs)
            if jobs.ids and not jobs.ranges and asked.is_selection:
                raise click.UsageError(f"give job ids, or {asked.said()}: not both")
            if all_jobs and jobs.ranges:
                raise click.UsageError("give job ids, or --all: not both")
            if not jobs.ids and not asked.is_selection:
                raise click.UsageError("give job ids, or --all, or options that select jobs, such as --name or --user")
            return handler(*args, asked=asked, **more)

        chosen = click.option("--all", "all_jobs", is_flag=True, help=all_help)(run)
        return jobs_argument(filter_options(*state_flags)(chosen))

    return decorate


def selected(handle: InstanceHandle, asked: JobSelection, *more: JobConstraint) -> Iterator[int]:
    """Yield the ids of the jobs that the selection means, active ones first, from the latest."""
    for answer in handle.stream("job-manager.select", {"constraint": asked.constraint(*more)}):
        yield from answer["ids"]


def described(
    handle: InstanceHandle, asked: JobSelection, states: JobConstraint, count: int
) -> Sequence[Mapping[str, Any]]:
    """At most `count` of the jobs that are asked and in these states, as job-manager.list has them."""
    request: dict[str, Any] = {"constraint": asked.constraint(states), "max_entries": count}
    if not asked.is_selection:
        request["ids"] = list(asked.jobs.ids)
    found: list[Mapping[str, Any]] = handle.rpc("job-manager.list", request)["jobs"]
    return found


def one_line(job: Mapping[str, Any]) -> str:
    """Return a job in a few words: `ƒ2 solver (RUN, kim)`."""
    return f"{jobid_text(job['id'])} {job['name']} ({job['state']}, {user_name(job['userid'])})"


# ---- `jobs`

LISTED_DEFAULT = 1000
LISTED_MAX = 100_000
"""More than this no list shows."""
REASONS_ASKED_MAX = 200
"""Waiting jobs whose scheduler is asked why: what one request may name, and more rows than a screen shows."""


def sort_keys(text: str) -> tuple[SortKey, ...]:
    """Return the keys of `--sort`; ids are in order as numbers, however they are written."""
    return tuple(key._replace(name="id") if key.name.startswith("id.") else key for key in parse_sort(text, FIELDS))


def request_for(asked: JobSelection, every_state: bool, since_s: float | None, count: int) -> dict[str, Any]:
    """Return the job-manager.list request: active jobs, unless the options or operands say otherwise."""
    wants_all = every_state or bool(asked.jobs.ids) or asked.names_states
    ids = asked.jobs.ids if not asked.jobs.ranges else ()
    return list_request([*asked.terms.values()], ids, wants_all, since_s, count or LISTED_MAX)


@click.command("jobs", cls=Command)
@jobs_argument
@click.option("-a", "all_states", is_flag=True, help="Jobs in all states, not only active ones.")
@click.option("-A", "all_users", is_flag=True, help="Jobs of all users (the default).")
@filter_options()
@click.option(
    "--since", metavar="WHEN", type=WHEN, help="Active jobs, and jobs that ended since -FSD or a date and time."
)
@click.option(
    "-c",
    "--count",
    metavar="N",
    type=Whole(0, LISTED_MAX),
    default=LISTED_DEFAULT,
    show_default=True,
    help=f"Maximum number of jobs; 0 is {LISTED_MAX:,}.",
)
@click.option(
    "--sort",
    "keys",
    metavar="[-]FIELD,...",
    type=Converted("sort", sort_keys),
    default=(),
    help="Order of the jobs shown; '-' reverses.",
)
@click.option(
    "--watch",
    "is_live",
    is_flag=True,
    help="Show changes as they happen: on a terminal until q is pressed, else one line each.",
)
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
        from fluxsched.cli.watch import Watched, watch

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
    """Raise Refused naming the jobs that were named and are not there."""
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
    rows = [JobRow(info, now_s, is_ascii=not unicode_ok()) for info in found]
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
