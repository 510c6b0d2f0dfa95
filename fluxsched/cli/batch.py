"""`fluxsched batch`, `alloc` and `proxy`: instances inside jobs, their scripts and configuration, and connecting to
them.

Law: directives are read as if they stood on the command line before what was typed, so that what was typed wins; one
that is wrong is refused with the script's name and the line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import click

from fluxsched.cli.attach import end_text, pending_hints, report_end, show_notices
from fluxsched.cli.base import COMMAND_LAST, Command, CommandFailed, naming_ours, warn
from fluxsched.cli.jobspec_options import build, slot_options, submitted_environment, working_directory
from fluxsched.cli.options import (
    JOBID,
    InstanceHandle,
    complete_files,
    complete_jobids,
    connect,
    json_option,
    read_text,
    uri_option,
)
from fluxsched.cli.output import jobid_text, print_flushed, print_json
from fluxsched.cli.submit import check_feasible, hint_of_arrays, own_job, submit_one, with_members
from fluxsched.core.batch import (
    ADDRESS_KEY,
    SCRIPT,
    SCRIPT_BYTES_MAX,
    Directive,
    Nested,
    check_script,
    nested_jobspec,
    parse_directives,
)
from fluxsched.core.text import load_object, with_path
from fluxsched.errors import FluxschedError, InvalidValue, RPCError


def merged_config(texts: Iterable[str]) -> dict[str, Any] | None:
    """Return all `--conf` merged, the later over the earlier; None without any.

    Each is TOML or JSON of several lines, `KEY=VALUE` with VALUE as JSON or text, or a file `*.toml` or `*.json`.
    Raises InvalidValue naming the text, OSError.
    """
    found: dict[str, Any] | None = None
    for text in texts:
        found = _over(found or {}, _read_config(text))
    return found


def _read_config(text: str) -> dict[str, Any]:
    if "\n" in text:
        return _parsed(text, "--conf")
    if "=" in text:
        key, _, value = text.partition("=")
        if not all(key.split(".")):
            raise InvalidValue(f"--conf {text!r}: {key!r} is not a dotted key")
        return with_path({}, key, _value(value))
    if not text.endswith((".toml", ".json")):
        raise InvalidValue(f"--conf {text!r} is neither KEY=VALUE nor a file whose name ends in .toml or .json")
    return _parsed(read_text(text, "--conf"), f"--conf {text}")


def _parsed(text: str, where: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        return load_object(text, where)
    try:
        found = tomllib.loads(text)
        json.dumps(found)
    except (tomllib.TOMLDecodeError, TypeError, RecursionError) as fault:
        raise InvalidValue(f"{where} is not TOML that can be represented in JSON: {fault}") from None
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(below)
    for key, value in above.items():
        before = made.get(key)
        both = isinstance(value, dict) and isinstance(before, dict)
        made[key] = _over(before or {}, value) if both else value
    return made


# ---- the batch script

STDIN = "stdin"
SHELL = "#!/bin/sh\n"
_SCRIPT = "fluxsched.batch-script"
_FOREIGN = re.compile(r"^#(SBATCH|PBS|BSUB)\s", re.MULTILINE)
"""Options for Slurm, PBS, LSF."""


class Script(NamedTuple):
    """A script, and what it is called where it is at fault."""

    text: str
    name: str


class BatchCommand(Command):
    """A command whose argument `command` is a script with its arguments, or with `--wrap` a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the script, and parse its directives and what was typed as one command line."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        typed = list(args)
        super().parse_args(ctx, list(args))  # --help, and every fault of the command line itself, come first
        words, wrap = ctx.params["command"], ctx.params["wrap"]
        try:
            script, directives = _read_script(words, wrap)
        except InvalidValue as fault:
            raise click.UsageError(str(fault), ctx) from None
        except OSError as fault:
            raise CommandFailed(ctx, f"{fault.filename or STDIN}: {fault.strerror}") from None
        for line, options in directives:
            self._check(ctx, script, line, options)
        again = [word for _, options in directives for word in options] + typed
        ctx.params.clear()
        rest = super().parse_args(ctx, again)
        ctx.meta[_SCRIPT] = script
        return rest

    def _check(self, ctx: click.Context, script: Script, line: int, options: Sequence[str]) -> None:
        parsed = click.Context(self, ctx.parent, ctx.info_name)
        parsed.allow_interspersed_args = False
        try:
            if not {"-h", "--help"}.isdisjoint(options):
                raise click.UsageError("--help is only for the command line")
            super().parse_args(parsed, list(options))
            if parsed.params["command"]:
                raise click.UsageError(f"{parsed.params['command'][0]!r} is not an option")
        except click.UsageError as fault:
            text = naming_ours(fault).format_message()
            raise click.UsageError(f"{script.name}: line {line}: {text}", ctx) from None


def script_of(ctx: click.Context) -> Script:
    """Return the script that a BatchCommand has read."""
    script: Script = ctx.meta[_SCRIPT]
    return script


def _read_script(words: Sequence[str], wrap: bool) -> tuple[Script, list[Directive]]:
    """Return the script, and its directives."""
    if wrap and words:
        # one word is text for the shell; several are a command, whose words stay what they are
        text = words[0] if len(words) == 1 else shlex.join(words)
        script = Script(f"{SHELL}{text}\n", words[0])
        check_script(*script)
        return script, []
    name = words[0] if words else STDIN
    text = _text(name, from_stdin=not words)
    try:
        found = parse_directives(text)
    except InvalidValue as fault:
        raise InvalidValue(f"{name}: {fault}") from None
    if foreign := _FOREIGN.findall(text):
        lines = f"{len(foreign)} #{foreign[0]} line{'' if len(foreign) == 1 else 's'}"
        warn(f"{name}: {lines} ignored: options are written here as in `#flux: -N2 -n8 --time-limit=1h --output=x.out`")
    script = Script(SHELL + text if wrap else text, name)
    check_script(*script)
    return script, found


def _text(name: str, *, from_stdin: bool) -> str:
    if from_stdin:
        if sys.stdin.isatty():
            raise InvalidValue("give a SCRIPT, or --wrap and a command; a script may also be piped in")
        data = sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
    else:
        with open(name, "rb") as file:
            data = file.read(SCRIPT_BYTES_MAX + 1)
    try:
        if b"\0" in data:
            raise InvalidValue(f"{name} is a program, not a script: use --wrap {os.path.basename(name)}")
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"{name} is not a script: it is not UTF-8 text") from None


# ---- `batch` and `alloc`

OUTPUT = "flux-{{id}}.out"
"""Default output of a script, as for Flux's batch."""
KEPT = ("none", "kvs")
"""Flux's words for output that is kept with the job, where `job attach` and `job output` show it."""

conf_option = click.option(
    "--conf", "configs", multiple=True, metavar="FILE|KEY=VALUE",
    help="Configuration inside: a .toml or .json file, KEY=VALUE, or TOML text; may be repeated.",
)  # fmt: skip


@click.command("batch", cls=BatchCommand, context_settings=COMMAND_LAST)
@click.option("--wrap", is_flag=True, help="Make a script of the command (or of stdin) by prepending #!/bin/sh.")
@conf_option
@click.option("--wait", is_flag=True, help="Wait for the job to end and exit with its status.")
@click.option("--quiet", is_flag=True, help="Do not print the job id.")
@json_option
@uri_option
@slot_options
@click.argument("command", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED,
                shell_complete=complete_files)  # fmt: skip
def batch(wrap: bool, configs: tuple[str, ...], wait: bool, quiet: bool, as_json: bool,
          uri: str | None, dry_run: bool, **options: Any) -> int:  # fmt: skip
    """Submit a script that runs in its own instance, on the requested resources.

    SCRIPT (else stdin) is stored with the job. Lines `#flux: OPTIONS` at its beginning are options; the command line
    takes precedence. In the script, `fluxsched run` and `flux run` use its own instance, and `fluxsched --parent` this
    one. Its output goes to flux-{{id}}.out unless --output says otherwise.
    """
    script = script_of(click.get_current_context())
    arguments = () if wrap else tuple(options["command"][1:])
    options["job_name"] = options["job_name"] or os.path.basename(script.name) or "batch"
    if options["output"] in KEPT:
        options["output"] = None
    elif options["output"] is None:
        options["output"] = OUTPUT
    options["input"] = options["input"] or os.devnull
    [asked] = with_members([options], uri)
    jobspec = nested_jobspec(_slots(asked), Nested((SCRIPT, *arguments)), script.text, merged_config(configs))
    if dry_run:
        print_json(jobspec)
        return 0
    with connect(uri) as handle:
        check_feasible(handle, [jobspec])
        jobid = submit_one(handle, jobspec, options)
        if as_json:
            print_json({"ids": [jobid]})
        elif not quiet:
            print_flushed(jobid_text(jobid))
            show_notices(handle)
        hint_of_arrays(handle, [options])
        return report_end(handle.wait(jobid)) if wait else 0


@click.command("alloc", cls=Command, context_settings=COMMAND_LAST)
@click.option("--bg", is_flag=True, help="Print the job id once the instance is up, and leave it running.")
@conf_option
@uri_option
@slot_options
@click.argument("command", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def alloc(bg: bool, configs: tuple[str, ...], uri: str | None, dry_run: bool,
          **options: Any) -> int:  # fmt: skip
    """Allocate resources and start an instance on them; run COMMAND, or a shell, in it.

    COMMAND runs on this terminal and uses the new instance, which ends with it. With --bg COMMAND runs in the
    instance, which stays until it has ended or the job is canceled; connect with `fluxsched proxy JOBID`.
    """
    command = tuple(options["command"])
    options["job_name"] = options["job_name"] or (os.path.basename(command[0]) if command else "alloc")
    options["input"] = options["input"] or os.devnull
    nested = Nested(command if bg else (), stays=not (bg and command))
    [asked] = with_members([options], uri)
    jobspec = nested_jobspec(_slots(asked), nested, None, merged_config(configs))
    if dry_run:
        print_json(jobspec)
        return 0
    environment = submitted_environment(options["env_rules"])
    cwd = working_directory(options["cwd"])
    with connect(uri) as handle, own_job(handle, jobspec, options, _interruption) as jobid:
        show_notices(handle)
        address = _await_address(handle, jobid)
        if bg:
            print_flushed(jobid_text(jobid))
            return 0
        return _visit(handle, jobid, address, command, environment, cwd)


def _interruption(end: BaseException) -> str:
    return "the output of alloc is closed or full" if isinstance(end, OSError) else "alloc was interrupted"


@click.command("proxy", cls=Command, context_settings=COMMAND_LAST)
@uri_option
@click.argument("jobid", metavar="JOBID", type=JOBID, shell_complete=complete_jobids)
@click.argument("command", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def proxy(uri: str | None, jobid: int, command: tuple[str, ...]) -> int:
    """Run COMMAND, or a shell, here; fluxsched commands in it use the instance in job JOBID."""
    with connect(uri) as handle:
        address = address_of(handle, jobid)
    return _inside(address, jobid, command, os.environ, os.getcwd())


def _slots(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the jobspec of the slots asked for, with a command that is still to be replaced."""
    chosen = dict(options)
    if chosen["ntasks"] is None:
        if chosen["nodes"] is None:
            raise click.UsageError("give the resources: -n SLOTS, or -N NODES for whole nodes")
        chosen["exclusive"] = True
    return build({**chosen, "command": ("flux", "broker")})


def address_of(handle: InstanceHandle, jobid: int) -> str:
    """Return the URI of the instance that a job runs. Raises FluxschedError if it runs none, or the instance is not
    up.
    """
    found = handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["eventlog"]})["eventlog"]
    address = _address(found)
    if address is None:
        name = jobid_text(jobid)
        raise FluxschedError(f"{name} is not a running instance: see `fluxsched job eventlog {name}`")
    return address


def _address(events: list[dict[str, Any]]) -> str | None:
    """Return the address in the memo of an instance, in the events of its job; None if it has none, or has ended."""
    address = None
    for event in events:
        if event["name"] == "memo":
            address = event["context"].get(ADDRESS_KEY, address)
        elif event["name"] in ("finish", "clean"):
            return None
    return address


def _await_address(handle: InstanceHandle, jobid: int) -> str:
    """Wait until the instance is up; on a terminal, show why it takes long."""
    hints = pending_hints(handle, jobid) if os.isatty(2) else ()
    events: list[dict[str, Any]] = []
    for answer in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}, meanwhile=hints):
        events += answer["events"]
        address = _address(events)
        if address is not None:
            return address
    raise _ended(handle, jobid)


def _visit(handle: InstanceHandle, jobid: int, address: str, command: tuple[str, ...], environment: Mapping[str, str],
           cwd: str) -> int:  # fmt: skip
    """Run the command inside; the instance ends with it, and it with the instance."""
    from fluxsched.instance.launch import stop_instance

    try:
        status = _inside(address, jobid, command, environment, cwd, _ends(handle, jobid))
    except FluxschedError as fault:  # it ended just now, or is lost
        with suppress(RPCError):
            handle.rpc("job-manager.cancel", {"id": jobid, "note": "alloc could not connect"})
        why = end_text(handle.wait(jobid))
        raise FluxschedError(f"{jobid_text(jobid)}: {why}: {fault}") from fault
    with suppress(FluxschedError):
        stop_instance(address)
    result = handle.wait(jobid)
    lost = report_end(result)  # of an instance that was stopped: 0
    return status or lost


def _inside(address: str, jobid: int, command: tuple[str, ...], environment: Mapping[str, str], cwd: str,
            ends: Callable[[Any], None] | None = None) -> int:  # fmt: skip
    """Run the command in the instance that the job is; its exit status, 127 or 126 if it cannot be run."""
    from fluxsched.instance.launch import CannotRun, visit

    base = {**environment, "FLUX_ENCLOSING_ID": jobid_text(jobid)}
    try:
        status: int = visit(address, command, base, cwd, ends)
    except CannotRun as fault:
        warn(str(fault))
        return fault.status
    return status


def _ends(handle: InstanceHandle, jobid: int) -> Callable[[Any], None]:
    """Return a function that waits for the end of the job, and watches `beside` meanwhile."""

    def wait(beside: Any) -> None:
        for answer in handle.stream("job-manager.eventlog", {"id": jobid, "follow": True}, beside=beside):
            if any(event["name"] in ("finish", "clean") for event in answer["events"]):
                return

    return wait


def _ended(handle: InstanceHandle, jobid: int) -> CommandFailed:
    """Return the failure of an instance that ended before it was up, and print its output, which says more."""
    with suppress(RPCError):
        for piece in handle.stream("job-manager.output", {"id": jobid, "follow": False}):
            data = piece["data"]
            click.echo(data if isinstance(data, str) else data.decode(errors="replace"), err=True, nl=False)
    why = end_text(handle.wait(jobid))
    return CommandFailed(click.get_current_context(), f"{jobid_text(jobid)}: the instance did not start: {why}")
