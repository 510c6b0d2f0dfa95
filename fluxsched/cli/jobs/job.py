"""`fluxsched job`: inspecting one job, and other commands that Flux users expect under `job`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import click

from fluxsched.cli.common import show, stdio
from fluxsched.cli.common.base import CommandGroup
from fluxsched.cli.common.events import EventPrinter, event_options
from fluxsched.cli.common.options import (
    FSD,
    URGENCY,
    InstanceHandle,
    Whole,
    connected,
    jobid_argument,
    jobids_argument,
    json_option,
    typed,
    viewing,
)
from fluxsched.cli.jobs.attach import OutputWriter, follow_output
from fluxsched.cli.jobs.attach import attach as attach_to
from fluxsched.cli.jobs.control import cancel, each, kill, update, urgency, wait
from fluxsched.cli.jobs.forward import own_input
from fluxsched.cli.jobs.usage import usage_lines
from fluxsched.core.jobid import format_dothex, format_f58, format_hex
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.jsontext import TEXT_CHARS_MAX
from fluxsched.core.waitstatus import ended_text
from fluxsched.core.why import apart
from fluxsched.errors import Refused
from fluxsched.views.jobs import parts_text

_FORMS: Mapping[str, Callable[[int], str]] = {
    "dec": str,
    "hex": format_hex,
    "dothex": format_dothex,
    "f58": show.jobid_text,
    "f58plain": lambda jobid: format_f58(jobid, ascii=True),
}


@click.group("job", cls=CommandGroup)
def job() -> None:
    """Inspect and control one job."""


for _same in (cancel, kill, update, urgency, wait):
    job.add_command(_same)


@job.command("info")
@jobid_argument
@click.argument("key", type=click.Choice(("jobspec", "R", "eventlog")), required=False)
@json_option
@viewing
def info(handle: InstanceHandle, jobid: int, key: str | None, as_json: bool) -> None:
    """Show a job's details, or one part of its record: jobspec, R, eventlog."""
    if key is None:
        found = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
        if not found:
            raise Refused(f"no such job: {typed(jobid)}")
        _print_job(_with_tasks(handle, found[0]), as_json)
        return
    part = handle.rpc("job-manager.lookup", {"id": jobid, "keys": [key]}).get(key)
    if part is None:
        raise Refused(f"{show.jobid_text(jobid)} has no {key} (yet)")
    if key == "eventlog" and not as_json:
        show.print_stream(part)
    else:
        show.print_json(part)


def _with_tasks(handle: InstanceHandle, found: dict[str, Any]) -> dict[str, Any]:
    """The job with the resource usage of its tasks from its record: a list has only the sums."""
    if "usage" not in found:
        return found
    events = handle.rpc("job-manager.lookup", {"id": found["id"], "keys": ["eventlog"]})["eventlog"]
    usage = next(event["context"]["usage"] for event in events if event["name"] == "finish")
    tasks = [{**task, "ended": ended_text(task["status"])} for task in usage.get("tasks") or ()]
    return {**found, "usage": {**usage, "tasks": tasks} if tasks else usage}


_JOBIDS = ("id", "array", "requeue_of", "requeued_as")


def _print_job(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show.print_json(found)
        return
    readable = found | {key: show.jobid_text(found[key]) for key in _JOBIDS if found.get(key)}
    readable["annotations"] = {**(found.get("annotations") or {})}
    readable["lease"] = readable["annotations"].pop("lease", None)
    for key, value in readable.items():
        is_time = key.startswith("t_") or key == "expiration"
        if key == "usage" or value in (None, "", [], {}) or ((is_time or key == "duration") and not value):
            continue
        text = show.time_text(value) if is_time else value if isinstance(value, str) else _value_text(key, value)
        show.line(f"{key}: {text}")
    if "usage" in found:
        for text in usage_lines(found["usage"]):
            show.line(text)


def _value_text(key: str, value: object) -> str:
    if key in ("duration", "preemptible_after") and isinstance(value, float):
        return show.duration_text(value)
    if key == "lease" and isinstance(value, dict):
        there = f", as {show.jobid_text(value['id'])} there" if value.get("id") else ""
        where = f" on {value['nodelist']}" if value.get("nodelist") else ""
        return f"cluster {value['cluster']}{there}{where}"
    if key == "parts" and isinstance(value, dict):
        return parts_text(value)
    if key == "sizes" and isinstance(value, list):
        former = [f"{ranks or 'not listed'} until {show.time_text(until_s)}" for ranks, until_s, _ in value]
        return f"ranks {', '.join(former)}"
    return json.dumps(value, ensure_ascii=False)


@job.command("eventlog")
@click.option("-F", "--follow", is_flag=True, help="Follow until the job is inactive.")
@event_options
@jobid_argument
@viewing
def eventlog(handle: InstanceHandle, jobid: int, printer: EventPrinter, follow: bool) -> None:
    """A job's events (RFC 21)."""
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
    raise Refused(f"{show.jobid_text(jobid)} has ended without {event!r}")


@job.command("why")
@jobid_argument
@json_option
@viewing
def why(handle: InstanceHandle, jobid: int, as_json: bool) -> None:
    """Explain why a job is not running, by which rule, and its earliest start; or how it ended."""
    answer = handle.rpc("job-manager.why", {"id": jobid})
    if as_json:
        show.print_json(answer)
        return
    reason, places = apart(answer["reason"])
    show.line(f"{answer['state']}: {reason}".rstrip())
    for place in places:
        show.line(f"  {place}")
    if answer.get("attempt"):
        show.line(answer["attempt"])
    if answer.get("rule"):
        show.line(f"rule: {answer['rule']}")
    if answer.get("earliest") or answer.get("when"):
        show.line(f"earliest start: {', '.join(_earliest(answer))}")


def _earliest(answer: dict[str, Any]) -> Iterator[str]:
    """The time, how long that is from now, and what it rests on; of these what is known."""
    from fluxsched.system.clock import SystemClock

    start_s = answer.get("earliest")
    if start_s:
        yield show.time_text(start_s)
        left_s = start_s - SystemClock.wall_s()
        if left_s > 0:
            yield f"in {show.duration_text(left_s)}"
    if answer.get("when"):
        yield answer["when"]


@job.command("attach")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@click.option("-r", "--read-only", is_flag=True, help="Do not forward stdin to the job.")
@jobid_argument
@viewing
def attach(handle: InstanceHandle, jobid: int, label_io: bool, read_only: bool) -> int:
    """Follow a job's output to its end and exit with its status; interrupting does not affect the job.

    Input piped into this command is forwarded to the job's tasks.
    """
    source = None if read_only else own_input(terminal=False)
    try:
        return attach_to(handle, jobid, labelled=label_io, source=source)
    except KeyboardInterrupt:
        stdio.say(f"detached: {show.jobid_text(jobid)} continues")
        raise


@job.command("output")
@click.option("-F", "--follow", is_flag=True, help="Follow until the job has finished.")
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@json_option
@jobid_argument
@viewing
def output(handle: InstanceHandle, jobid: int, follow: bool, label_io: bool, as_json: bool) -> None:
    """Print the output of a job's tasks so far."""
    if as_json:
        show.print_stream(handle.stream("job-manager.output", {"id": jobid, "follow": follow}))
    else:
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
    click.echo(show.jobid_text(handle.submit_many([jobspec], urgency_value)[0]))
