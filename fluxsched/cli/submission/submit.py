"""`fluxsched submit` and `fluxsched run`: a command becomes a job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command, EndedBySignal, warn
from fluxsched.cli.common.options import InstanceHandle, connect, uri_option
from fluxsched.cli.common.signals import EndingSignals
from fluxsched.cli.jobs.attach import attach
from fluxsched.cli.jobs.forward import OWN, own_input
from fluxsched.cli.jobs.terminal import window_of
from fluxsched.cli.submission.array import After, Template, after_options, check, copies_of, copy_options, paired
from fluxsched.cli.submission.array import submit as submit_all
from fluxsched.cli.submission.feasibility import check_feasible
from fluxsched.cli.submission.jobspec_options import build, job_options
from fluxsched.core.idset import Idset
from fluxsched.errors import Disconnected, RPCError

COMMAND_LAST = {"allow_interspersed_args": False, "ignore_unknown_options": False}
"""Options end where the command begins."""
PTY = "pty"
"""The shell option for a pseudo-terminal, as in Flux."""


def refuse_own_input(options: Mapping[str, Any]) -> None:
    """`--input=-` is for who stays. Raises click.BadParameter."""
    if options["input"] == OWN:
        raise click.BadParameter("input cannot be forwarded to a background job: use run", param_hint="'--input'")


@click.command("submit", cls=Command, context_settings=COMMAND_LAST)
@copy_options
@after_options
@uri_option
@job_options
def submit(cc: Idset | None, bcc: Idset | None, after: After, uri: str | None, dry_run: bool, **options: Any) -> int:
    """Submit a job, or an array of copies, and print each id.

    Options come before COMMAND. Without --input the tasks read what `job attach` sends
    them. The id of the first copy identifies the array: cancel, wait, kill, urgency and jobs accept it as --array.
    """
    refuse_own_input(options)
    [template] = paired([Template(options, copies_of(cc, bcc))], uri)
    jobspecs = check([template])
    if dry_run:
        for copy in template.copies.ids:
            show.print_json(template.job(copy))
        return 0
    with connect(uri) as handle:
        check_feasible(handle, jobspecs)
        return submit_all(handle, [template], after)


@click.command("run", cls=Command, context_settings=COMMAND_LAST)
@click.option("-l", "--label-io", is_flag=True, help="Prefix each line with the task rank.")
@click.option("--pty", is_flag=True, help="Give the only task a terminal: this one, if there is one.")
@uri_option
@job_options
def run(label_io: bool, pty: bool, uri: str | None, dry_run: bool, **options: Any) -> int:
    """Run a job in the foreground: show its output and exit with its status.

    Ending this command by Ctrl-C, SIGTERM or SIGHUP cancels the job. Input piped into this command is forwarded to
    all tasks; on a terminal they read /dev/null, unless --input=- forwards what is typed. With --pty (Flux's
    -o pty.interactive) all keys go to the job once it has started, Ctrl-C too.
    """
    source, terminal = None, False
    if pty or any(setting.split(".")[0] == PTY for setting in options["shell_options"]):
        source = _terminal_options(options)
        terminal = os.isatty(source)
    elif options["input"] in (None, OWN):
        source = own_input(terminal=options["input"] == OWN)
        options["input"] = os.devnull if source is None else None
    jobspec = build(options)
    if dry_run:
        show.print_json(jobspec)
        return 0
    with connect(uri) as handle, own_job(handle, jobspec, options, _reason) as jobid:
        return attach(handle, jobid, labelled=label_io, source=source, terminal=terminal)


def _terminal_options(options: dict[str, Any]) -> int:
    """Ask for a terminal with a window of the size that ours has; the descriptor of what its task reads."""
    source = own_input(terminal=True)
    if source is None:
        source = os.open(os.devnull, os.O_RDONLY)
    window = window_of(source)
    size = () if window is None else (f"{PTY}.rows={window[0]}", f"{PTY}.columns={window[1]}")
    given = [setting for setting in options["shell_options"] if setting != PTY]
    options["shell_options"] = (f"{PTY}.interactive", *size, *given)
    if options["input"] == OWN:
        options["input"] = None
    return source


@contextmanager
def own_job(
    handle: InstanceHandle, jobspec: dict[str, Any], options: Mapping[str, Any], reason: Callable[[BaseException], str]
) -> Iterator[int]:
    """A job, by its id, that does not outlive this command if a signal ends it or its output cannot be written.

    `reason` is the note of its exception then. Raises Refused for a job that could never run.
    """
    with EndingSignals() as signals:
        check_feasible(handle, [jobspec])
        with signals.hold():
            jobid = submit_one(handle, jobspec, options)
        try:
            signals.release()
            yield jobid
        except (KeyboardInterrupt, OSError) as end:
            try:
                handle.rpc("job-manager.cancel", {"id": jobid, "note": reason(end)})
            except Disconnected as gone:
                warn(f"{show.jobid_text(jobid)} is not canceled and may go on: {gone}")
            except RPCError:
                pass  # it has ended by itself
            raise


def submit_one(handle: InstanceHandle, jobspec: dict[str, Any], options: Mapping[str, Any]) -> int:
    """Submit a job with the urgency and the flags that `options` have; its id."""
    if not options["flags"]:
        return handle.submit_many([jobspec], options["urgency"])[0]
    request = {"jobspec": jobspec, "urgency": options["urgency"], "flags": options["flags"]}
    return int(handle.rpc("job-manager.submit", request)["id"])


def _reason(end: BaseException) -> str:
    """Why `run` ends before its job: for the note of the job's exception."""
    if isinstance(end, OSError):
        return "the output of run is closed or full"
    if isinstance(end, EndedBySignal) and end.signum != signal.SIGINT:
        return f"run was ended by {signal.Signals(end.signum).name}"
    return "interrupted by user"
