"""`fluxsched jobs|cancel|kill|urgency|update|wait`: many jobs at a time, or the ones named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from fluxsched.cli import complete, show
from fluxsched.cli.attach import end_text, exit_status, report_end
from fluxsched.cli.base import Command
from fluxsched.cli.job_fields import JOBS, RESULTS, STATES, JobRow
from fluxsched.cli.options import (
    FSD,
    SIGNAL,
    URGENCY,
    Handle,
    Output,
    Words,
    connected,
    jobid_argument,
    jobids_argument,
    json_option,
    table_options,
    typed,
)
from fluxsched.errors import FluxschedError, InvalidValue, Refused, RPCError
from fluxsched.runtime.clock import SystemClock

LISTED_DEFAULT = 1000
LISTED_MAX = 100_000
"""More than this no list shows; a filter that only this side knows looks through as many."""

_STATE_WORDS = Words((*STATES, *RESULTS))


def each(jobids: Iterable[int], act: Callable[[int], object]) -> None:
    """Do it for every job, then raise one error that names each job that refused, and why."""
    faults: list[FluxschedError] = []
    for jobid in jobids:
        try:
            act(jobid)
        except FluxschedError as error:
            text = str(error)
            named = show.jobid_text(jobid)
            faults.append(Refused(text if named in text else f"{named}: {text}", error.errnum))
    if faults:
        raise Refused("; ".join(map(str, faults)), faults[0].errnum)


def find_jobs(handle: Handle, words: Sequence[str], count: int = LISTED_DEFAULT, **more: Any) -> dict[str, Any]:
    """job-manager.list of jobs in these states or with these results, newest first, at most `count`."""
    wanted = {state for word in words for state in STATES.get(word, ("INACTIVE",))}
    results = {word.upper() for word in words if word in RESULTS}
    if "inactive" in words:
        results = set()
    limit = LISTED_MAX if results else count
    request = {"max_entries": limit, **({"states": sorted(wanted)} if wanted else {}), **more}
    found = handle.rpc("job-manager.list", {key: value for key, value in request.items() if value not in (None, [])})
    kept = [job for job in found["jobs"] if job["state"] != "INACTIVE" or not results or job.get("result") in results]
    return {"jobs": kept[:count]}


def _user(text: str) -> int | None:
    import pwd

    try:
        return None if text == "all" else int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except KeyError:
        raise click.BadParameter(f"there is no user {text!r}", param_hint="--user") from None


@click.command("jobs", cls=Command)
@jobids_argument(required=False)
@click.option("-a", "all_states", is_flag=True, help="Jobs in all states, not only active ones.")
@click.option("-A", "all_users", is_flag=True, help="Jobs of all users, as is the default here.")
@click.option("-u", "--user", metavar="USER", default="all", help="Only jobs of this user.")
@click.option("-f", "--filter", "words", type=_STATE_WORDS, metavar="STATE|RESULT,...", help="Only these.")
@click.option("-q", "--queue", metavar="NAME", shell_complete=complete.queues, help="Only jobs in this queue.")
@click.option("--name", metavar="NAME", help="Only jobs of this name.")
@click.option("--since", metavar="FSD", type=FSD, help="Jobs that became inactive within this time; implies -a.")
@click.option("-c", "--count", type=click.IntRange(1, LISTED_MAX), default=LISTED_DEFAULT, show_default=True)
@table_options(JOBS)
@connected
def jobs(
    handle: Handle,
    jobids: tuple[int, ...],
    all_states: bool,
    all_users: bool,
    user: str,
    words: tuple[str, ...] | None,
    since: float | None,
    count: int,
    output: Output,
    **more: Any,
) -> None:
    """List jobs: the active ones, or those that are named."""
    now_s = SystemClock.wall_s()
    words = words or (() if all_states or jobids or since else ("active",))
    more |= {"ids": list(jobids), "user": None if all_users else _user(user), "since": since and now_s - since}
    answer = find_jobs(handle, words, count, **more)
    missing = [typed(jobid) for jobid in jobids if jobid not in {job["id"] for job in answer["jobs"]}]
    output.show(answer, lambda shown: _rows(handle, answer["jobs"], now_s, "contextual_info" in shown))
    if missing:
        raise Refused(f"no such job: {', '.join(missing)}")


def _rows(handle: Handle, found: Iterable[Mapping[str, Any]], now_s: float, informed: bool) -> list[JobRow]:
    """`informed`: jobs that wait without a reason of their own get that of their queue, where it has one."""
    rows = [JobRow(info, now_s) for info in found]
    if not informed:
        return rows
    silent = [row.info["state"] in ("PRIORITY", "SCHED") and not row.contextual_info() for row in rows]
    queues = {row.info.get("queue") for row, is_silent in zip(rows, silent, strict=True) if is_silent}
    reasons = {queue: _blocked(handle, queue) for queue in queues}
    return [
        row._replace(blocked=reasons[row.info.get("queue")]) if is_silent else row
        for row, is_silent in zip(rows, silent, strict=True)
    ]


def _blocked(handle: Handle, queue: str | None) -> str:
    """Why nothing of a queue is scheduled; a queue that cannot be asked has nothing to say."""
    try:
        status = handle.rpc("job-manager.queue-status", {"name": queue} if queue else {})
    except RPCError:
        return ""
    if status["start"]:
        return ""
    reason = str(status.get("start_reason") or "")
    return reason if status.get("blocked") else f"queue stopped{reason and ': '}{reason}"


@click.command("cancel", cls=Command)
@jobids_argument(required=False)
@click.option("--all", "all_jobs", is_flag=True, help="All active jobs.")
@click.option("-s", "--states", type=Words(tuple(STATES)), metavar="STATE,...", help="With --all: only these.")
@click.option("-m", "--message", metavar="TEXT", default="", help="A note for the job's exception.")
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be canceled.")
@connected
def cancel(handle: Handle, jobids: tuple[int, ...], all_jobs: bool, states: tuple[str, ...] | None, message: str,
           dry_run: bool) -> None:  # fmt: skip
    """Cancel jobs; running ones are told to end, then killed."""
    if bool(jobids) == all_jobs or (states and not all_jobs):
        raise click.UsageError("give job ids, or --all (and then perhaps --states)")
    if all_jobs:
        jobids = tuple(job["id"] for job in find_jobs(handle, states or ("active",), LISTED_MAX)["jobs"])
    if dry_run:
        for jobid in jobids:
            click.echo(f"would cancel {show.jobid_text(jobid)}")
        return
    note = {"note": message} if message else {}
    each(jobids, lambda jobid: handle.rpc("job-manager.cancel", {"id": jobid, **note}))
    if all_jobs:
        click.echo(f"canceled {show.plural(len(jobids), 'job')}")


@click.command("kill", cls=Command)
@click.option("-s", "--signal", "signum", type=SIGNAL, default="TERM", show_default=True, metavar="SIG")
@jobids_argument()
@connected
def kill(handle: Handle, jobids: tuple[int, ...], signum: int) -> None:
    """Send a signal to all tasks of running jobs."""
    each(jobids, lambda jobid: handle.rpc("job-manager.kill", {"id": jobid, "signum": signum}))


@click.command("urgency", cls=Command)
@click.option("-v", "--verbose", is_flag=True, help="Say what the urgency was.")
@jobid_argument
@click.argument("value", metavar="0-31|hold|default|expedite", type=URGENCY)
@connected
def urgency(handle: Handle, jobid: int, value: int, verbose: bool) -> None:
    """Change a job's urgency: 0 holds it, 31 expedites it."""
    old = handle.rpc("job-manager.urgency", {"id": jobid, "urgency": value})["old"]
    if verbose:
        click.echo(f"old urgency: {old}")


_KEYS = {"name": "attributes.system.job.name", "queue": "attributes.system.queue"}


def _updates(handle: Handle, jobid: int, settings: Iterable[str]) -> dict[str, Any]:
    from fluxsched.cli.jobspec_options import parse_value

    made: dict[str, Any] = {}
    wrong = [setting for setting in settings if "=" not in setting or setting.startswith("=")]
    if wrong:
        raise click.UsageError(f"{', '.join(wrong)} is not KEY=VALUE")
    for setting in settings:
        key, _, text = setting.partition("=")
        path = _KEYS.get(key) or (key if key.startswith("attributes.") else f"attributes.system.{key}")
        is_duration = path == "attributes.system.duration"
        made[path] = _new_duration(handle, jobid, text) if is_duration else parse_value(text)
    return made


def _new_duration(handle: Handle, jobid: int, text: str) -> float:
    if text[:1] not in ("+", "-"):
        return float(FSD.convert(text, None, None))
    change_s = FSD.convert(text[1:], None, None)
    found = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
    now_s: float = found[0]["duration"] if found else 0.0
    if not now_s:
        raise InvalidValue(f"{show.jobid_text(jobid)} has no duration that {text} could change")
    return now_s + float(f"{text[0]}1") * float(change_s)


@click.command("update", cls=Command, context_settings={"ignore_unknown_options": True})
@click.option("-n", "--dry-run", is_flag=True, help="Print the updates and send nothing.")
@jobid_argument
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@connected
def update(handle: Handle, jobid: int, settings: tuple[str, ...], dry_run: bool) -> None:
    """Change a job's attributes, such as duration=+10m; other keys are below attributes.system."""
    updates = _updates(handle, jobid, settings)
    if dry_run:
        show.print_json(updates)
    else:
        handle.rpc("job-manager.update", {"id": jobid, "updates": updates})


@click.command("wait", cls=Command)
@jobids_argument(required=False)
@click.option("--all", "all_jobs", is_flag=True, help="All jobs that are active now.")
@click.option("-v", "--verbose", is_flag=True, help="Also say how jobs ended that went well.")
@json_option
@connected
def wait(handle: Handle, jobids: tuple[int, ...], all_jobs: bool, verbose: bool, as_json: bool) -> int:
    """Wait for jobs to end and leave with their exit status: the highest, if there are several."""
    if bool(jobids) == all_jobs:
        raise click.UsageError("give job ids, or --all")
    if all_jobs:
        jobids = tuple(job["id"] for job in find_jobs(handle, ("active",), LISTED_MAX)["jobs"])
    return max([_ended(handle.wait(jobid), verbose, as_json) for jobid in jobids], default=0)


def _ended(result: Mapping[str, Any], verbose: bool, as_json: bool) -> int:
    if as_json:
        show.print_stream([result])
        return exit_status(result)
    if verbose and result["success"]:
        show.flushed(f"{show.jobid_text(result['id'])}: {end_text(result)}")
    return report_end(result)
