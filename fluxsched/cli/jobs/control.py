"""`fluxsched cancel|kill|urgency|update|wait`: acting on named or selected jobs.

Law: whom it hits is asked once, then each is hit, many requests under way at a time. A job that is no longer in a state
in which it could be hit has ended, or started, meanwhile: that is no error for who selected it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command, warn
from fluxsched.cli.common.options import (
    FSD,
    SIGNAL,
    URGENCY,
    InstanceHandle,
    come_back,
    confirm,
    connected,
    jobid_argument,
    json_option,
    viewing,
    yes_option,
)
from fluxsched.cli.common.values import parse_value
from fluxsched.cli.jobs.attach import end_text, exit_status, job_text, report_end
from fluxsched.cli.jobs.selection import JobSelection, described, one_line, selected, selection_options
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, Refused
from fluxsched.views.jobs import in_states

NAMED_MAX = 100
"""Jobs that one message names; it says how many more there are."""
ASKED_MAX = 10_000
"""Refused jobs whose states are asked for at a time."""

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
SET_URGENCY = Act("job-manager.urgency", "change the urgency of", "changed the urgency of {}", "pending", "pending")


def raise_refusals(faults: Sequence[tuple[int, FluxschedError]]) -> None:
    """One error that names each job that refused, and why."""
    texts = []
    for jobid, error in faults[:NAMED_MAX]:
        text, name = str(error), show.jobid_text(jobid)
        texts.append(text if name in text else f"{name}: {text}")
    if len(faults) > NAMED_MAX:
        texts.append(f"and {show.plural(len(faults) - NAMED_MAX, 'job')} more")
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
    """Do it to all jobs that are asked; say how many were hit where they were selected. Without `yes` a person is asked
    first where --all was given.

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
        confirm(f"{act.verb.capitalize()} {show.plural(len(jobids), 'job')}?", refused)
    faults: list[tuple[int, FluxschedError]] = []
    answers = handle.rpc_each(act.topic, ({"id": jobid, **more} for jobid in jobids))
    for jobid, answer in zip(jobids, answers, strict=True):
        if isinstance(answer, FluxschedError):
            faults.append((jobid, answer))
        elif answer.get("last"):
            again, done = show.jobid_text(answer["last"]), act.done.format("").strip()
            warn(f"{show.jobid_text(jobid)} was submitted again as {again}, which was {done}")
    if asked.is_selection:
        click.echo(act.done.format(show.plural(len(jobids) - len(faults), "job")))
        faults = list(_still_owed(handle, act, faults))
    raise_refusals(faults)


def none_matches(asked: JobSelection, states: str) -> str:
    """What is said where a selection found nothing."""
    return f"no {states} job matches {asked.said()}"


def _still_owed(
    handle: InstanceHandle, act: Act, faults: Sequence[tuple[int, FluxschedError]]
) -> Iterator[tuple[int, FluxschedError]]:
    """The refusals of jobs that could have been hit: others have ended, or started, since they were selected."""
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
        show.line(f"would {act.verb} {one_line(job)}")
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
    """Tell how each job ends, as it ends; the highest exit status."""
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
            come_back(handle, fault, "the jobs may go on: wait for them again")
    return status


def _ended(result: Mapping[str, Any], verbose: bool, as_json: bool, seen: set[int]) -> int:
    """Several attempts of one job may be waited for, and their end is one."""
    if as_json:
        show.print_stream([result])
        return exit_status(result)
    last = result.get("last") or result["id"]
    if last in seen:
        return exit_status(result)
    seen.add(last)
    if verbose and result["success"]:
        show.flushed(f"{job_text(result)}: {end_text(result)}")
    return report_end(result)


_KEYS = {"name": "attributes.system.job.name", "queue": "attributes.system.queue"}


def _updates(handle: InstanceHandle, jobid: int, settings: Iterable[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    wrong = [setting for setting in settings if "=" not in setting or setting.startswith("=")]
    if wrong:
        raise click.UsageError(f"{', '.join(map(repr, wrong))} is not KEY=VALUE")
    for setting in settings:
        key, _, text = setting.partition("=")
        path = _KEYS.get(key) or (key if key.startswith("attributes.") else f"attributes.system.{key}")
        is_duration = path == "attributes.system.duration"
        made[path] = _new_duration(handle, jobid, text) if is_duration else parse_value(text)
    return made


def _new_duration(handle: InstanceHandle, jobid: int, text: str) -> float:
    if text[:1] not in ("+", "-"):
        return float(FSD.convert(text, None, None))
    change_s = FSD.convert(text[1:], None, None)
    found = handle.rpc("job-manager.list", {"ids": [jobid]})["jobs"]
    now_s: float = found[0]["duration"] if found else 0.0
    if not now_s:
        raise InvalidValue(f"{show.jobid_text(jobid)} has no duration to change by {text}")
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
        show.print_json(updates)
    else:
        handle.rpc("job-manager.update", {"id": jobid, "updates": updates})
