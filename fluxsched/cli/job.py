"""`fluxsched job`, and `cancel`, `kill`, `urgency`, `update`, `wait`: inspecting one job, and acting on named or
selected jobs.

Law: whom it hits is asked once, then each is hit, many requests under way at a time. A job that is no longer in a state
in which it could be hit has ended, or started, meanwhile: that is no error for who selected it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click

from fluxsched.cli import base
from fluxsched.cli.attach import (
    OutputWriter,
    end_text,
    exit_status,
    follow_output,
    is_own_terminal,
    job_text,
    own_input,
    report_end,
)
from fluxsched.cli.attach import attach as attach_to
from fluxsched.cli.base import Command, CommandGroup, warn
from fluxsched.cli.jobs import JobSelection, described, one_line, selected, selection_options, usage_lines, usage_text
from fluxsched.cli.options import (
    FSD,
    SIGNAL,
    URGENCY,
    InstanceHandle,
    Output,
    TableSpec,
    Whole,
    come_back,
    confirm,
    connected,
    jobid_argument,
    jobids_argument,
    json_option,
    parse_value,
    table_options,
    typed,
    viewing,
    yes_option,
)
from fluxsched.cli.output import (
    EventPrinter,
    Field,
    duration_text,
    event_options,
    jobid_text,
    plural,
    print_flushed,
    print_json,
    print_line,
    print_stream,
    time_text,
)
from fluxsched.core.jobfields import pty_of, system_given
from fluxsched.core.jobid import ended_text, fill, format_dothex, format_f58, format_hex, id_tag
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.reasons import apart
from fluxsched.core.text import TEXT_CHARS_MAX
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, Refused
from fluxsched.views.jobs import efficiency, finish_usage, gpus_held, in_states, memory_asked, parts_text
from fluxsched.views.words import span_text

NAMED_MAX = 100
"""Jobs that one message names; it says how many more there are."""
ASKED_MAX = 10_000
"""Refused jobs whose states are asked for at a time."""

ATTEMPTS_MAX = 1000
"""Earlier attempts of a job that are shown: REQUEUE_MAX count, beside those that its user had requeued."""

dry_run_option = click.option("-n", "--dry-run", is_flag=True, help="Show which jobs would be affected.")


class Act(NamedTuple):
    """Something that can be done to a job: `verb` and `done` are for people, `{}` in `done` is `3 jobs`.

    Jobs in `states` are hit by a selection; a refusal counts as long as the job is in `owed`.
    """

    topic: str
    verb: str
    done: str
    states: str
    owed: str


CANCEL = Act("job-manager.cancel", "cancel", "canceled {}", "active", "active")
KILL = Act("job-manager.kill", "signal", "signaled {}", "running", "run")
REQUEUE = Act("job-manager.raise", "requeue", "requeued {}", "run", "run")
SET_URGENCY = Act("job-manager.urgency", "change the urgency of", "changed the urgency of {}", "pending", "pending")


def raise_refusals(faults: Sequence[tuple[int, FluxschedError]]) -> None:
    """Raise one error that names each job that refused, and why."""
    texts = []
    for jobid, error in faults[:NAMED_MAX]:
        text, name = str(error), jobid_text(jobid)
        texts.append(text if name in text else f"{name}: {text}")
    if len(faults) > NAMED_MAX:
        texts.append(f"and {plural(len(faults) - NAMED_MAX, 'job')} more")
    if faults:
        raise Refused("; ".join(texts), faults[0][1].errnum)


def each(jobids: Iterable[int], act: Callable[[int], object]) -> None:
    """Do it for every job, then raise one error that names each job that refused, and why."""
    faults: list[tuple[int, FluxschedError]] = []
    for jobid in jobids:
        try:
            act(jobid)
        except FluxschedError as error:
            faults.append((jobid, error))
    raise_refusals(faults)


def hit(
    handle: InstanceHandle, asked: JobSelection, act: Act, more: Mapping[str, Any], dry_run: bool, *, yes: bool = True
) -> None:
    """Do it to all jobs that are asked; say how many were hit where they were selected.

    Without `yes` a person is asked first where --all was given.

    Raises Refused where none was there, naming what was asked for, and for each that refused.
    """
    states = in_states(act.states)
    if dry_run:
        _preview(handle, asked, act)
        return
    jobids = list(selected(handle, asked, states)) if asked.is_selection else list(asked.jobs.ids)
    if not jobids and asked.terms:
        raise Refused(none_matches(asked, act.states))
    if asked.everything and jobids and not yes:
        refused = f"no job was {act.done.format('').strip()}"
        confirm(f"{act.verb.capitalize()} {plural(len(jobids), 'job')}?", refused)
    faults: list[tuple[int, FluxschedError]] = []
    answers = handle.rpc_each(act.topic, ({"id": jobid, **more} for jobid in jobids))
    for jobid, answer in zip(jobids, answers, strict=True):
        if isinstance(answer, FluxschedError):
            faults.append((jobid, answer))
        elif answer.get("last"):
            again, done = jobid_text(answer["last"]), act.done.format("").strip()
            warn(f"{jobid_text(jobid)} was submitted again as {again}, which was {done}")
    if asked.is_selection:
        click.echo(act.done.format(plural(len(jobids) - len(faults), "job")))
        faults = list(_still_owed(handle, act, faults))
    raise_refusals(faults)


def none_matches(asked: JobSelection, states: str) -> str:
    """Return the message for a selection that found nothing."""
    return f"no {states} job matches {asked.said()}"


def _still_owed(
    handle: InstanceHandle, act: Act, faults: Sequence[tuple[int, FluxschedError]]
) -> Iterator[tuple[int, FluxschedError]]:
    """Yield the refusals of jobs that could have been hit: others have ended, or started, since they were selected."""
    left = iter(faults)
    while some := dict(islice(left, ASKED_MAX)):
        request = {"ids": list(some), "constraint": in_states(act.owed), "max_entries": ASKED_MAX}
        for job in handle.rpc("job-manager.list", request)["jobs"]:
            yield job["id"], some[job["id"]]


def _preview(handle: InstanceHandle, asked: JobSelection, act: Act) -> None:
    states = in_states(act.states)
    found = described(handle, asked, states, NAMED_MAX)
    if not found and not asked.everything:
        raise Refused(none_matches(asked, act.states) if asked.terms else f"none of these jobs is {act.states}")
    for job in found:
        print_line(f"would {act.verb} {one_line(job)}")
    count = len(found)
    if count == NAMED_MAX:
        everyone = selected(handle, asked, states) if asked.is_selection else iter(asked.jobs.ids)
        count = sum(1 for _ in everyone)
    more = f", {count - len(found):,} of them not shown" if count > len(found) else ""
    click.echo(f"would {act.verb} {count:,} job{'' if count == 1 else 's'}{more}")


@click.command("cancel", cls=Command)
@selection_options("-s", "-S", "--states", all_help="All active jobs.")
@click.option("-m", "--message", metavar="TEXT", default="", help="A note for the job's exception.")
@dry_run_option
@yes_option
@connected
def cancel(handle: InstanceHandle, asked: JobSelection, message: str, dry_run: bool, yes: bool) -> None:
    """Cancel jobs; running ones are terminated, then killed. On a terminal --all asks first."""
    hit(handle, asked, CANCEL, {"note": message} if message else {}, dry_run, yes=yes)


@click.command("kill", cls=Command)
@click.option("-s", "--signal", "signum", type=SIGNAL, default="TERM", show_default=True, metavar="SIG")
@selection_options("-S", "--states", all_help="All running jobs.")
@dry_run_option
@yes_option
@connected
def kill(handle: InstanceHandle, asked: JobSelection, signum: int, dry_run: bool, yes: bool) -> None:
    """Send a signal to all tasks of running jobs. On a terminal --all asks first."""
    hit(handle, asked, KILL, {"signum": signum}, dry_run, yes=yes)


@click.command("requeue", cls=Command)
@selection_options("-s", "-S", "--states", all_help="All running jobs.")
@click.option("-m", "--message", metavar="TEXT", default="", help="A note for the job's exception.")
@dry_run_option
@yes_option
@connected
def requeue(handle: InstanceHandle, asked: JobSelection, message: str, dry_run: bool, yes: bool) -> None:
    """End running jobs and have them wait again, as further attempts. On a terminal --all asks first.

    A job that has ended is submitted again by `fluxsched job info JOBID jobspec | fluxsched job submit`.
    """
    hit(handle, asked, REQUEUE, {"type": "requeue", "severity": 0, "note": message}, dry_run, yes=yes)


@click.command("urgency", cls=Command)
@click.option("-v", "--verbose", is_flag=True, help="Print the previous urgency of a named job.")
@selection_options("-S", "--states", all_help="All pending jobs.")
@click.argument("value", metavar="0-31|hold|default|expedite", type=URGENCY)
@dry_run_option
@connected
def urgency(handle: InstanceHandle, asked: JobSelection, value: int, verbose: bool, dry_run: bool) -> None:
    """Change the urgency of pending jobs: 0 holds them, 31 expedites them."""
    if verbose and len(asked.jobs.ids) == 1 and not asked.is_selection and not dry_run:
        old = handle.rpc("job-manager.urgency", {"id": asked.jobs.ids[0], "urgency": value})["old"]
        click.echo(f"old urgency: {old}")
    else:
        hit(handle, asked, SET_URGENCY, {"urgency": value}, dry_run)


@click.command("wait", cls=Command)
@selection_options("-S", "--states", all_help="All jobs that are active now.")
@click.option("-v", "--verbose", is_flag=True, help="Report successful jobs as well.")
@json_option
@viewing
def wait(handle: InstanceHandle, asked: JobSelection, verbose: bool, as_json: bool) -> int:
    """Wait for jobs to end and exit with their status: the highest, if there are several.

    A job's status is the exit code of its tasks, 128 and the signal's number if one ended them, or 1 if it never ran.

    An array or a range of ids includes jobs that have already ended. Other selections mean jobs that are active
    now; if all matching jobs have ended, there is nothing to wait for.
    """
    jobids: Sequence[int] = asked.jobs.ids
    if asked.is_selection:
        any_state = asked.is_definite or asked.names_states
        jobids = list(selected(handle, asked, *(() if any_state else (in_states("active"),))))
        if not jobids and asked.terms and next(selected(handle, asked), None) is None:
            raise Refused(f"no job matches {asked.said()}")
    return wait_for(handle, jobids, verbose, as_json)


def wait_for(handle: InstanceHandle, jobids: Sequence[int], verbose: bool = False, as_json: bool = False) -> int:
    """Report each job as it ends; return the highest exit status."""
    if not jobids:
        return 0
    seen: set[int] = set()
    left, status = dict.fromkeys(jobids), 0
    while left:
        try:
            for result in handle.stream("job-manager.wait-all", {"ids": list(left)}):
                left.pop(result["id"], None)
                status = max(status, _ended(result, verbose, as_json, seen))
            break
        except Disconnected as fault:
            come_back(handle, fault, "the jobs may continue: wait for them again")
    return status


def _ended(result: Mapping[str, Any], verbose: bool, as_json: bool, seen: set[int]) -> int:
    """Report the end of a job once, though several of its attempts may be waited for; return its exit status."""
    if as_json:
        print_stream([result])
        return exit_status(result)
    last = result.get("last") or result["id"]
    if last in seen:
        return exit_status(result)
    seen.add(last)
    if verbose and result["success"]:
        print_flushed(f"{job_text(result)}: {end_text(result)}")
    return report_end(result)


_KEYS = {"name": "attributes.system.job.name", "queue": "attributes.system.queue"}


def _updates(handle: InstanceHandle, jobid: int, settings: Iterable[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    wrong = [setting for setting in settings if "=" not in setting or setting.startswith("=")]
    if wrong:
        raise click.UsageError(f"{', '.join(map(repr, wrong))} is not KEY=VALUE, such as duration=+10m")
    for setting in settings:
        key, _, text = setting.partition("=")
        path = _KEYS.get(key) or (key if key.startswith("attributes.") else f"attributes.system.{key}")
        is_duration = path == "attributes.system.duration"
        made[path] = _new_duration(handle, jobid, text) if is_duration else parse_value(text)
    return made


def _new_duration(handle: InstanceHandle, jobid: int, text: str) -> float:
    if text[:1] not in ("+", "-"):
        return float(FSD.convert(text, None, None))
    if text in ("+", "-"):
        raise click.UsageError(f"duration={text} does not say by how much: duration={text}10m, for example")
    change_s = FSD.convert(text[1:], None, None)
    found = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
    now_s: float = found[0]["duration"] if found else 0.0
    if not now_s:
        raise InvalidValue(f"{jobid_text(jobid)} has no duration to change by {text}")
    return now_s + float(f"{text[0]}1") * float(change_s)


@click.command("update", cls=Command, context_settings={"ignore_unknown_options": True})
@click.option("-n", "--dry-run", is_flag=True, help="Print the updates and send nothing.")
@jobid_argument
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
@connected
def update(handle: InstanceHandle, jobid: int, settings: tuple[str, ...], dry_run: bool) -> None:
    """Change a job's attributes, such as duration=+10m; other keys are relative to attributes.system."""
    updates = _updates(handle, jobid, settings)
    if dry_run:
        print_json(updates)
    else:
        handle.rpc("job-manager.update", {"id": jobid, "updates": updates})


# ---- `job`

_FORMS: Mapping[str, Callable[[int], str]] = {
    "dec": str,
    "hex": format_hex,
    "dothex": format_dothex,
    "f58": jobid_text,
    "f58plain": lambda jobid: format_f58(jobid, ascii=True),
}


@click.group("job", cls=CommandGroup)
def job() -> None:
    """Inspect and control one job."""


for _same in (cancel, kill, requeue, update, urgency, wait):
    job.add_command(_same)


@job.command("info")
@jobid_argument
@click.argument("key", type=click.Choice(("jobspec", "R", "eventlog")), required=False)
@json_option
@viewing
def info(handle: InstanceHandle, jobid: int, key: str | None, as_json: bool) -> None:
    """Show a job's details, or one part of its record: jobspec, R, eventlog."""
    if key is None:
        _print_job(_with_attempts(handle, _with_tasks(handle, listed_job(handle, jobid))), as_json)
        return
    part = handle.rpc("job-manager.lookup", {"id": jobid, "keys": [key]}).get(key)
    if part is None:
        raise Refused(f"{jobid_text(jobid)} has no {key} (yet)")
    if key == "eventlog" and not as_json:
        print_stream(part)
    else:
        print_json(part)


def listed_job(handle: InstanceHandle, jobid: int) -> dict[str, Any]:
    """Return the job as lists have it. Raises Refused."""
    found: list[dict[str, Any]] = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
    if not found:
        raise Refused(f"no such job: {typed(jobid)}")
    return found[0]


def _with_tasks(handle: InstanceHandle, found: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the resource usage of its tasks from its record: a list has only the sums."""
    if "usage" not in found:
        return found
    events = handle.rpc("job-manager.lookup", {"id": found["id"], "keys": ["eventlog"]})["eventlog"]
    usage = finish_usage(events) or found["usage"]
    tasks = [{**task, "ended": ended_text(task["status"])} for task in usage.get("tasks") or ()]
    return {**found, "usage": {**usage, "tasks": tasks} if tasks else usage}


def _with_attempts(handle: InstanceHandle, found: dict[str, Any]) -> dict[str, Any]:
    """Return the job with the attempts before it, the first one first; those that are forgotten are left out."""
    before: list[dict[str, Any]] = []
    jobid = found.get("requeue_of")
    while jobid is not None and len(before) < ATTEMPTS_MAX:
        listed = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
        before[:0] = listed
        jobid = listed[0].get("requeue_of") if listed else None
    return {**found, "attempts": before} if before else found


def _attempt_line(attempt: Mapping[str, Any]) -> str:
    """Return how an attempt ended, where, and what it used: `ƒ2: exited 75 on node0, 12s wall, ...`."""
    fatal = attempt.get("exception")
    why = f"exception {fatal['type']}" if fatal else attempt.get("ended", "")
    where = f" on {attempt['nodelist']}" if attempt.get("nodelist") else ""
    used = f", {usage_text(attempt['usage'])}" if "usage" in attempt else ""
    return f"{jobid_text(attempt['id'])}: {why}{where}{used}"


def _together(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several attempts have used: the sums of times, and the largest peak."""
    sums = {key: sum(usage[key] for usage in usages) for key in ("wall_s", "user_s", "system_s")}
    return {**max(usages, key=lambda usage: float(usage["max_rss_bytes"])), **sums}


_IN_LINES = ("usage", "attempts")
_JOBIDS = ("id", "array", "requeue_of", "requeued_as")


def _print_job(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    readable = found | {key: jobid_text(found[key]) for key in _JOBIDS if found.get(key)}
    annotations = readable.pop("annotations", None) or {}
    for whose, told in annotations.items():
        is_known = whose != "lease" and isinstance(told, dict)
        readable |= {f"{whose}.{key}": value for key, value in told.items()} if is_known else {whose: told}
    for key, value in readable.items():
        is_time = key.rpartition(".")[2].startswith("t_") or key == "expiration"
        if key in _IN_LINES or value in (None, "", [], {}) or ((is_time or key == "duration") and not value):
            continue
        text = time_text(value) if is_time else value if isinstance(value, str) else _value_text(key, value)
        print_line(f"{key}: {text}")
    if "usage" in found:
        for text in usage_lines(found["usage"]):
            print_line(text)
    before = found.get("attempts", ())
    for attempt in before:
        print_line(f"attempt before: {_attempt_line(attempt)}")
    usages = [attempt["usage"] for attempt in (*before, found) if "usage" in attempt]
    if before and usages:
        print_line(f"used by all attempts: {usage_text(_together(usages))}")


def _value_text(key: str, value: object) -> str:
    if key == "command" and isinstance(value, list):
        return shlex.join(value)
    if key in ("duration", "preemptible_after") and isinstance(value, float):
        return duration_text(value)
    if key == "lease" and isinstance(value, dict):
        there = f", as {jobid_text(value['id'])} there" if value.get("id") else ""
        where = f" on {value['nodelist']}" if value.get("nodelist") else ""
        return f"cluster {value['cluster']}{there}{where}"
    if key == "parts" and isinstance(value, dict):
        return parts_text(value)
    if key == "sizes" and isinstance(value, list):
        former = [f"{ranks or 'not listed'} until {time_text(until_s)}" for ranks, until_s, _ in value]
        return f"ranks {', '.join(former)}"
    return json.dumps(value, ensure_ascii=False)


USED = TableSpec(
    {"default": "{name:<8} {asked:>9} {used:>9} ?:{percent:>6}"},
    {
        "name": Field("", lambda line: line.name),
        "asked": Field("ASKED", lambda line: line.asked),
        "used": Field("USED", lambda line: line.used),
        "percent": Field("%", lambda line: line.percent),
    },
)


@job.command("usage")
@jobid_argument
@table_options(USED)
@viewing
def usage(handle: InstanceHandle, jobid: int, output: Output) -> None:
    """Compare what a job used, cores, memory, GPUs, time, with what it asked for, and say where it could ask for less.

    USED cores are a mean over its run, used memory is the peak of each task's largest process. A job that runs is
    measured now, as far as its processes are alive. Memory is asked for by --mem or --request: a job that did not has
    `-`. GPUs are sampled where nvidia-smi or dcgmi is; a job of a few seconds has no figure.
    """
    found = listed_job(handle, jobid)
    if not found.get("t_run"):
        raise Refused(
            f"{jobid_text(jobid)} has not run{'' if found['state'] == 'INACTIVE' else ' yet'}: it used nothing"
        )
    record = handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["jobspec", "R", "eventlog"]})
    asked_bytes = memory_asked(record.get("jobspec"), record.get("R"))
    used = finish_usage(record["eventlog"])
    if used is None and found["state"] == "RUN":
        used = handle.rpc("job-manager.usage", {"id": jobid})["usage"]
        if used is None:  # perhaps it has ended meanwhile
            used = finish_usage(handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})["eventlog"])
    ngpus = gpus_held(record.get("R"))
    compared = efficiency(found, used, asked_bytes, ngpus)
    answer = {"id": jobid, "usage": used, "ncores": found.get("ncores"), "memory_bytes": asked_bytes, "ngpus": ngpus}
    output.show({**answer, "duration": found["duration"], "advice": compared.advice}, lambda names: compared.lines)
    if not output.as_json:
        for text in compared.advice:
            print_line(text)


@job.command("eventlog")
@click.option("-F", "--follow", is_flag=True, help="Follow until the job is inactive.")
@event_options
@jobid_argument
@viewing
def eventlog(handle: InstanceHandle, jobid: int, printer: EventPrinter, follow: bool) -> None:
    """Show a job's events (RFC 21)."""
    for batch in handle.stream("job-manager.eventlog", {"id": jobid, "follow": follow}):
        for event in batch["events"]:
            printer.show(event)


@job.command("wait-event")
@click.option("-t", "--timeout", type=FSD, metavar="FSD", help="Fail after this time.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print the event.")
@click.option("-v", "--verbose", is_flag=True, help="Print the events before it, too.")
@click.option("-c", "--count", metavar="N", type=Whole(min=1), default=1,
              help="Wait until the event has occurred N times.")  # fmt: skip
@event_options
@jobid_argument
@click.argument("event")
@viewing
def wait_event(
    handle: InstanceHandle, jobid: int, event: str, timeout: float | None, quiet: bool, verbose: bool, count: int,
    printer: EventPrinter,
) -> None:  # fmt: skip
    """Wait for EVENT in a job's eventlog; fail if the job ends without it."""
    with printer.deadline(timeout):
        for batch in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}):
            for entry in batch["events"]:
                count -= entry["name"] == event
                if not quiet and (verbose or (entry["name"] == event and not count)):
                    printer.show(entry)
                if not count:
                    return
    raise Refused(f"{jobid_text(jobid)} has ended without {event!r}")


@job.command("why")
@jobid_argument
@json_option
@viewing
def why(handle: InstanceHandle, jobid: int, as_json: bool) -> None:
    """Explain why a job is not running, by which rule, and its earliest start; or how it ended."""
    answer = handle.rpc("job-manager.why", {"id": jobid})
    if as_json:
        print_json(answer)
        return
    reason, places = apart(answer["reason"])
    print_line(f"{answer['state']}: {reason}".rstrip())
    for place in places:
        print_line(f"  {place}")
    if answer.get("attempt"):
        print_line(answer["attempt"])
    if answer.get("rule"):
        print_line(f"rule: {answer['rule']}")
    if answer.get("earliest") or answer.get("when"):
        print_line(f"earliest start: {', '.join(_earliest(answer))}")


def _earliest(answer: dict[str, Any]) -> Iterator[str]:
    """Yield what is known of an earliest start: its time, how far off that is, and what it rests on."""
    from fluxsched.system.clock import SystemClock

    start_s = answer.get("earliest")
    if start_s:
        yield time_text(start_s)
        left_s = start_s - SystemClock.wall_s()
        if left_s > 0:
            yield f"in {span_text(left_s)}"
    if answer.get("when"):
        yield answer["when"]


@job.command("attach")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@click.option("-r", "--read-only", is_flag=True, help="Do not forward stdin to the job.")
@jobid_argument
@viewing
def attach(handle: InstanceHandle, jobid: int, label_io: bool, read_only: bool) -> int:
    """Follow a job's output to its end and exit with its status; interrupting does not affect the job.

    Input piped into this command is forwarded to the job's tasks. To a job with a terminal (run --pty) all keys
    typed here go, Ctrl-C too, but Ctrl-\\, which detaches.
    """
    _say_files(handle, jobid)
    here = None if read_only else own_input(terminal=True)
    terminal = here is not None and is_own_terminal(here) and _has_pty(handle, jobid)
    source = None if read_only else own_input(terminal=terminal)
    try:
        return attach_to(handle, jobid, labelled=label_io, source=source, terminal=terminal)
    except KeyboardInterrupt:
        base.say(f"detached: {jobid_text(jobid)} continues")
        raise


def _jobspec_of(handle: InstanceHandle, jobid: int) -> dict[str, Any]:
    jobspec: dict[str, Any] = handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})["jobspec"]
    return jobspec


def _has_pty(handle: InstanceHandle, jobid: int) -> bool:
    return pty_of(system_given(_jobspec_of(handle, jobid).get("attributes"))) is not None


def _say_files(handle: InstanceHandle, jobid: int) -> None:
    """Print to stderr to which files a job writes what is not shown here; nothing where its jobspec cannot be read."""
    with suppress(FluxschedError):
        jobspec = Jobspec.parse(_jobspec_of(handle, jobid))
        templates = [(what, path) for what, path in (("output", jobspec.output), ("errors", jobspec.error)) if path]
        paths = [(what, fill(path, lambda tag: id_tag(tag, jobid))) for what, path in templates]
        if files := [f"its {what} to {Path(jobspec.cwd or '', path)}" for what, path in paths]:
            warn(f"{jobid_text(jobid)} writes {' and '.join(files)}")


@job.command("output")
@click.option("-F", "--follow", is_flag=True, help="Follow until the job has finished.")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@json_option
@jobid_argument
@viewing
def output(handle: InstanceHandle, jobid: int, follow: bool, label_io: bool, as_json: bool) -> None:
    """Print the output of a job's tasks so far."""
    if as_json:
        print_stream(handle.stream("job-manager.output", {"id": jobid, "follow": follow}))
    else:
        _say_files(handle, jobid)
        follow_output(handle, jobid, OutputWriter(label_io), follow=follow)


@job.command("raise")
@click.option("-t", "--type", "kind", default="cancel", show_default=True, help="The exception's type.")
@click.option("-s", "--severity", metavar="N", type=Whole(0, 7), default=0, show_default=True, help="0 ends the job.")
@click.option("-m", "--message", "note", metavar="TEXT", default="", help="A note for the job's eventlog.")
@jobids_argument()
@connected
def raise_exception(handle: InstanceHandle, jobids: tuple[int, ...], kind: str, severity: int, note: str) -> None:
    """Raise an exception on jobs (RFC 21)."""
    request = {"type": kind, "severity": severity, "note": note}
    each(jobids, lambda jobid: handle.rpc("job-manager.raise", {"id": jobid, **request}))


@job.command("id")
@click.option("--to", "form", type=click.Choice(tuple(_FORMS)), default="dec", show_default=True)
@jobids_argument(only_read=True)
def convert_id(jobids: tuple[int, ...], form: str) -> None:
    """Convert job ids to another form (RFC 19)."""
    for jobid in jobids:
        click.echo(_FORMS[form](jobid))


@job.command("submit")
@click.option("--urgency", "urgency_value", type=URGENCY, default=16, metavar="N", help="0-31, hold or expedite.")
@click.argument("file", type=click.File("rb"), default="-")
@connected
def submit(handle: InstanceHandle, file: BinaryIO, urgency_value: int) -> None:
    """Submit the jobspec (RFC 14, JSON) in FILE or on stdin."""
    jobspec = Jobspec.parse(file.read(TEXT_CHARS_MAX + 1)).to_json()
    click.echo(jobid_text(handle.submit_many([jobspec], urgency_value)[0]))
