"""`fluxsched submit` and `fluxsched run`: a command becomes a job."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import click

from fluxsched.cli import show
from fluxsched.cli.attach import attach, report_end
from fluxsched.cli.base import Command, Ended
from fluxsched.cli.forward import OWN, own_input
from fluxsched.cli.jobspec_options import build, job_options, parse_copies
from fluxsched.cli.options import Converted, Handle, connect, json_option, uri_option
from fluxsched.cli.signals import EndingSignals
from fluxsched.core.idset import Idset
from fluxsched.errors import RPCError

_COMMAND_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def _submit(handle: Handle, jobspecs: list[dict[str, Any]], options: dict[str, Any]) -> list[int]:
    if not options["flags"]:
        return handle.submit_many(jobspecs, options["urgency"])
    requests = [{"jobspec": each, "urgency": options["urgency"], "flags": options["flags"]} for each in jobspecs]
    return [int(handle.rpc("job-manager.submit", request)["id"]) for request in requests]


@click.command("submit", cls=Command, context_settings=_COMMAND_LAST)
@click.option("--cc", type=Converted("idset", parse_copies), metavar="IDSET",
              help="One copy for each id; {cc} in command, name and files becomes the id.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Wait for the jobs to end; leave with the highest status.")
@click.option("--quiet", is_flag=True, help="Do not print the job ids.")
@json_option
@uri_option
@job_options
def submit(cc: Idset | None, wait: bool, quiet: bool, as_json: bool, uri: str | None, dry_run: bool,
           **options: Any) -> int:  # fmt: skip
    """Submit a job and print its id.

    Options come before COMMAND; what follows it is its own. Without --input the tasks read what `job attach` sends
    them.
    """
    if options["input"] == OWN:
        raise click.BadParameter("nothing is sent to a job in the background: use run", param_hint="'--input'")
    jobspecs = [build(options, copy) for copy in cc or (None,)]
    if dry_run:
        for jobspec in jobspecs:
            show.print_json(jobspec)
        return 0
    with connect(uri) as handle:
        ids = _submit(handle, jobspecs, options)
        if as_json:
            show.print_json({"ids": ids})
        elif not quiet:
            for jobid in ids:
                show.flushed(show.jobid_text(jobid))
        return max([report_end(handle.wait(jobid)) for jobid in ids]) if wait else 0


@click.command("run", cls=Command, context_settings=_COMMAND_LAST)
@click.option("-l", "--label-io", is_flag=True, help="Put the task's number before each line.")
@uri_option
@job_options
def run(label_io: bool, uri: str | None, dry_run: bool, **options: Any) -> int:
    """Run a job here: its output comes here, and this command leaves with its exit status.

    Ending this command, by Ctrl-C, SIGTERM or SIGHUP, cancels the job. What is piped into this command goes to all
    its tasks; at a terminal they read /dev/null, unless --input=- passes on what is typed.
    """
    source = None
    if options["input"] in (None, OWN):
        source = own_input(terminal=options["input"] == OWN)
        options["input"] = os.devnull if source is None else None
    jobspec = build(options)
    if dry_run:
        show.print_json(jobspec)
        return 0
    with connect(uri) as handle, EndingSignals() as signals:
        with signals.hold():
            [jobid] = _submit(handle, [jobspec], options)
        try:
            signals.release()
            return attach(handle, jobid, labelled=label_io, source=source)
        except (KeyboardInterrupt, OSError) as end:
            with suppress(RPCError):  # it has ended by itself
                handle.rpc("job-manager.cancel", {"id": jobid, "note": _reason(end)})
            raise


def _reason(end: BaseException) -> str:
    """Why `run` ends before its job: for the note of the job's exception."""
    if isinstance(end, OSError):
        return "the output of run is closed or full"
    if isinstance(end, Ended) and end.signum != signal.SIGINT:
        return f"run was ended by {signal.Signals(end.signum).name}"
    return "interrupted by user"
