"""Commands on an instance as a whole and on its installation: start, stop, backup, keys, doctor, metrics, page."""

from __future__ import annotations

import os
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from fluxsched.cli.base import Command, CommandFailed, CommandGroup, usage
from fluxsched.cli.options import (
    FSD,
    JOBID,
    STATE_DIRECTORY,
    InstanceHandle,
    Output,
    TableSpec,
    Whole,
    complete_jobids,
    complete_policies,
    confirm,
    connect,
    json_option,
    table_options,
    uri_option,
    viewing,
    yes_option,
)
from fluxsched.cli.output import (
    DIM,
    GREEN,
    RED,
    YELLOW,
    Field,
    colourful,
    duration_text,
    interactive,
    plural,
    print_flushed,
    print_json,
    print_stream,
    working,
)
from fluxsched.core.role import ROLE_NAMES, Role, parse_role
from fluxsched.core.text import counted, printable
from fluxsched.errors import FluxschedError, Refused, RPCError

STOP_TIMEOUT_S = 30.0
"""Jobs are terminated, and killed if they do not end: this may take a while."""

PAD_BYTES_MAX = 1 << 20

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("start", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--config", metavar="F", type=_FILE, help="Configuration (TOML; rfc/config.md, examples/site.toml).")
@click.option("--R", "r_path", metavar="F", type=_FILE, help="Take the resources from an R file (RFC 20).")
@click.option("--fake", metavar="SPEC", help="Made-up resources: 1000x64+4 is 1000 nodes of 64 cores and 4 GPUs.")
@click.option("--test-size", metavar="N", type=Whole(min=1), help="N targets, each of which is this machine.")
@click.option("--engine", metavar="ENGINE",
              help="Run tasks on the hosts of slurm or flux (the allocation around this), ssh:HOSTLIST, auto or none. "
                   "[default: config or none]")  # fmt: skip
@click.option("--scheduler", "schedulers", metavar="NAME|none", multiple=True, shell_complete=complete_policies,
              help="Policy (fifo:placement=best-fit) or file; 'easy;debug=fifo' sets another for queue debug. May be "
                   "repeated. [default: config or fifo]")  # fmt: skip
@click.option("--plugin", "plugins", metavar="SPEC", multiple=True,
              help="A plugin under these policies: NAME:key=value,... or a file; may be repeated.")  # fmt: skip
@click.option("--statedir", metavar="D", type=STATE_DIRECTORY,
              help="Directory for the state. [default: a temporary directory, removed at exit]")  # fmt: skip
@click.option("--salvage", is_flag=True, help="Start with the readable part of a damaged state.")
@click.option("--bind", metavar="URI", multiple=True,
              help="Additional endpoint (ipc:///PATH, local:///PATH, tcp://HOST:PORT).")  # fmt: skip
@click.option("--insecure-tcp", is_flag=True,
              help="Allow tcp:// without keys, on loopback: any local account can run commands as you.")  # fmt: skip
@click.option(
    "--daemon", is_flag=True, help="Run in the background: print the URI when ready; end it with `fluxsched stop`."
)
@click.option("-v", "--verbose", count=True, help="Be more verbose on stderr.")
@click.option("--log-format", type=click.Choice(("text", "json")),
              help="Write the log as text, or as one JSON object per line. [default: config or text]")  # fmt: skip
@click.option("--trace", metavar="[TOPICS]", is_flag=False, flag_value="",
              help="Show messages on stderr: all of them, or those whose topic has one of these prefixes.")  # fmt: skip
@click.option("--web", is_flag=True, help="Serve a page for browsers, too, and print its address (see fluxsched web).")
@click.option("--nested", is_flag=True, hidden=True, help="This is a job of batch or alloc.")
@click.option("--stays", is_flag=True, help="Run until stopped, without command or shell (for systemd).")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def start(
    schedulers: tuple[str, ...], plugins: tuple[str, ...], daemon: bool, command: tuple[str, ...], **options: Any
) -> int:
    """Start an instance on this machine's resources, or on the hosts of an engine.

    With COMMAND: run it inside and exit with its status (127: not found, 126: cannot be run). Without: a shell inside;
    the instance ends with it.
    """
    chosen = [name for name, parameter in _PARAMETERS.items() if options[parameter] not in (None, "none")]
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} are mutually exclusive: each defines the resources")
    if daemon and command:
        raise click.UsageError("--daemon returns at once, so it cannot run a command: submit it afterwards")
    if "none" in schedulers and len(schedulers) > 1:
        raise click.UsageError("--scheduler none and another scheduler exclude each other")
    from fluxsched.config.policies import with_plugins
    from fluxsched.instance.launch import StartOptions, check_start, start, start_daemon

    if plugins:
        if "none" in schedulers or not (schedulers or options["config"] is None):
            raise click.UsageError("--plugin belongs to --scheduler NAME; a configuration has `plugins = [...]`")
        schedulers = tuple(with_plugins(specs, plugins) for specs in schedulers or ("fifo",))
    if options["web"]:
        need_packages()
    with usage():
        check_start(options["fake"], schedulers, options["config"], options["engine"])
    request = StartOptions(schedulers=schedulers, daemon=daemon, command=command, **options)
    if daemon:
        click.echo(start_daemon(request))
        return 0
    status: int = start(request)
    return status


_PARAMETERS = {"--R": "r_path", "--fake": "fake", "--test-size": "test_size", "--engine": "engine"}


def _located(uri: str | None) -> str:
    """Return the address of the instance; fails now if nothing listens there."""
    with connect(uri) as handle:
        return handle.uri


@click.command("stop", cls=Command)
@click.option("--timeout", type=FSD, metavar="FSD", default=STOP_TIMEOUT_S, help="Give up after it. [default: 30s]")
@yes_option
@uri_option
def stop(uri: str | None, timeout: float, yes: bool) -> None:
    """Stop an instance: its jobs are ended, its state is kept if it has a --statedir.

    With several instances and no FLUXSCHED_URI, one must be named. On a terminal it asks if jobs run.
    """
    from fluxsched.instance.launch import stop

    if interactive() and not yes:
        uri, running = _running(uri, timeout)
        if running:
            confirm(f"This ends {plural(running, 'running job')}. Go ahead?", "the instance was not stopped")
    click.echo(f"stopped {stop(uri, timeout)}")


def _running(uri: str | None, timeout_s: float) -> tuple[str | None, int]:
    """Return which instance is meant, and how many jobs run in it; none if it does not answer."""
    with connect(uri) as handle:
        try:
            jobs = handle.rpc("job-manager.stats-get", timeout_s=timeout_s).get("jobs", {})
        except RPCError:
            jobs = {}
        return handle.uri, int(jobs.get("run", 0))


@click.command("restart", cls=Command)
@click.option("--timeout", type=FSD, metavar="FSD", default=STOP_TIMEOUT_S, help="Give up after it. [default: 30s]")
@uri_option
def restart(uri: str | None, timeout: float) -> None:
    """Restart an instance in place, as after an upgrade of fluxsched: its jobs continue, address and process id stay.

    It runs with the same arguments. With several instances and no FLUXSCHED_URI, one must be named.
    """
    from fluxsched.instance.launch import restart

    click.echo(f"restarted {restart(uri, timeout)}")


@click.command("uri", cls=Command)
@json_option
@click.option(
    "--local", is_flag=True, help="Print the URI for Flux's commands: export FLUX_URI=$(fluxsched uri --local)"
)
@click.option("--tcp", is_flag=True, help="Print its tcp address, if any (start --bind tcp://HOST:PORT).")
@click.option("--parent", is_flag=True, help="Print the URI of the enclosing instance, as `fluxsched --parent uri`.")
@click.argument("jobid", metavar="[JOBID]", type=JOBID, required=False, shell_complete=complete_jobids)
@viewing
def uri(handle: InstanceHandle, jobid: int | None, parent: bool, as_json: bool, local: bool, tcp: bool) -> None:
    """Print the URI of the instance, for FLUXSCHED_URI; with --json all its details.

    With JOBID: the URI of the instance in this job (batch, alloc).
    """
    if local and tcp:
        raise click.UsageError("--local and --tcp exclude each other")
    if jobid is not None and parent:
        raise click.UsageError("the parent of JOBID's instance is this one: give JOBID or --parent")
    if jobid is None and not parent:
        _print_uri(handle, as_json, local, tcp)
        return
    if jobid is not None:
        from fluxsched.cli.batch import address_of

        address = address_of(handle, jobid)
    else:
        from fluxsched.client.find import parent_of

        address = parent_of(handle)
    with connect(address) as other:
        _print_uri(other, as_json, local, tcp)


def _print_uri(handle: InstanceHandle, as_json: bool, local: bool, tcp: bool) -> None:
    if as_json:
        print_json(handle.rpc("instance.info"))
    elif local:
        from fluxsched.client.find import local_uri_of

        click.echo(local_uri_of(handle))
    elif tcp:
        ports = [one for one in handle.rpc("instance.info").get("endpoints", ()) if one.startswith("tcp://")]
        if not ports:
            raise FluxschedError(
                f"{handle.uri} has no tcp port: start the instance with --bind tcp://HOST:PORT and keys "
                "(`fluxsched keygen --server`), or for all accounts with --bind tcp://127.0.0.1:* --insecure-tcp"
            )
        click.echo("\n".join(ports))
    else:
        click.echo(handle.uri)


@click.command("ping", cls=Command)
@click.option("-c", "--count", type=Whole(min=1), metavar="N", help="Stop after N. [default: continue]")
@click.option("-i", "--interval", type=FSD, metavar="FSD", default=1.0, show_default=True, help="Between requests.")
@click.option("-p", "--pad", type=Whole(0, PAD_BYTES_MAX), metavar="BYTES", default=0, help="Extra bytes.")
@json_option
@click.argument("service", default="instance")
@viewing
def ping(handle: InstanceHandle, service: str, count: int | None, interval: float, pad: int, as_json: bool) -> None:
    """Measure the round-trip time to SERVICE (such as resource or sched-fifo)."""
    from fluxsched.system.clock import SystemClock

    seq = 0
    while count is None or seq < count:
        if seq:
            SystemClock.sleep(interval)
        sent_s = SystemClock.monotonic_s()
        answer = handle.rpc(f"{service}.ping", {"seq": seq, "pad": "p" * pad})
        time_ms = (SystemClock.monotonic_s() - sent_s) * 1e3
        if as_json:
            print_stream([{**answer, "time_ms": round(time_ms, 3)}])
        else:
            print_flushed(f"{service}.ping pad={pad} seq={seq} time={time_ms:.3f} ms ({answer.get('route', '')})")
        seq += 1


@click.command("agent", cls=Command)
@click.option("--host", metavar="HOSTS", help="The hosts to report for, as a hostlist. [default: this one]")
@click.option("--ranks", metavar="IDSET", help="Only these of the host's targets.")
@click.option("--heartbeat", "heartbeat_s", type=FSD, metavar="FSD", help="Interval between heartbeats.")
@uri_option
def agent(uri: str | None, **options: Any) -> int:
    """Report targets online while this runs; without heartbeats they become torpid. It reconnects.

    Without `start --engine` an instance runs all tasks on its own machine. With another --host the targets are made
    up, to try out how many nodes behave. To run on many machines, use an engine (rfc/engines.md) or Flux (rfc/flux.md).
    """
    where = _located(uri)
    from fluxsched.instance.launch import agent

    status: int = agent(where, **options)
    return status


# ---- `instances`

LIST = TableSpec(
    {"default": "{pid:>8} {level:>5} {size:>6} {age:>8} {state:<7} {uri} ?:{parent}"},
    {
        "pid": Field("PID", lambda row: row["pid"]),
        "level": Field("LEVEL", lambda row: row["level"]),
        "size": Field("NNODES", lambda row: row["size"]),
        "age": Field("AGE", lambda row: duration_text(row["age"])),
        "state": Field("STATE", lambda row: row["state"] if row["ready"] else "start"),
        "uri": Field("URI", lambda row: row["uri"]),
        "parent": Field("PARENT", lambda row: row.get("parent")),
        "statedir": Field("STATEDIR", lambda row: row.get("statedir")),
    },
)


@click.command("instances", cls=Command)
@table_options(LIST)
def instances(output: Output) -> None:
    """List your instances on this machine, the oldest first.

    LEVEL is the number of enclosing instances; PARENT is the innermost of them. STATE is run, start, or silent
    if it does not respond.
    """
    from fluxsched.instance.backup import survey
    from fluxsched.system.clock import SystemClock

    now_s = SystemClock.wall_s()
    found = [{"level": 0, **info, "age": max(0.0, round(now_s - info["starttime"], 3))} for info in survey()]
    output.show({"instances": found}, lambda names: found)


def go_to_parent(ctx: click.Context) -> None:
    """Have this process, and the programs that it starts, find the parent of the instance that they would find."""
    from fluxsched.client.find import local_uri_of, parent_of

    try:
        with connect(None) as handle:
            parent = parent_of(handle)
        with connect(parent) as handle:
            outer = handle.rpc("instance.info")
            local_uri = local_uri_of(handle)
    except FluxschedError as error:
        raise CommandFailed(ctx, f"--parent: {error}") from error
    around = {"FLUXSCHED_URI": parent, "FLUXSCHED_PARENT_URI": outer.get("parent")}
    if "FLUX_URI" in os.environ:
        around["FLUX_URI"] = local_uri
    for name, value in around.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# ---- `backup` and `restore`

_BACKUP_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("backup", cls=Command)
@click.argument("file", metavar="FILE", type=_BACKUP_FILE)
@json_option
@uri_option
def backup(file: Path, uri: str | None, as_json: bool) -> None:
    """Write the state of a running instance to a new FILE.

    It has jobs, drains, groups, queues and the history of accounts at one moment, but not the output of jobs. The
    instance continues meanwhile.
    """
    from fluxsched.instance.backup import backup

    with working(f"writing {file}"):
        found = backup(uri, file)
    _tell(found, as_json)


@click.command("restore", cls=Command)
@click.argument("file", metavar="FILE", type=_BACKUP_FILE)
@click.option("--statedir", metavar="D", type=STATE_DIRECTORY, required=True, help="A directory without a state.")
@json_option
def restore(file: Path, statedir: Path, as_json: bool) -> None:
    """Make a backup FILE the state of a new directory, for `fluxsched start --statedir`.

    It is checked first, and nothing is overwritten. Jobs that waited or ran when the backup was made wait again or
    count as failed, whatever happened to them since.
    """
    from fluxsched.instance.backup import restore

    with working(f"reading {file}"):
        found = restore(file, statedir)
    _tell(found, as_json)


def _tell(found: Any, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(found.path), "bytes": found.size, "jobs": found.jobs})
    else:
        click.echo(f"{found.path}: {counted(found.jobs, 'job')}, {found.size} bytes")


# ---- `keygen`

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command("keygen", cls=Command)
@click.option("--server", is_flag=True, help="Make the key of an instance's tcp ports instead of a client's.")
@click.option("--role", type=click.Choice(ROLE_NAMES), help="The role of the holder. [default: guest]")  # fmt: skip
@click.option("--user", metavar="USER", help="The account whose jobs are the holder's own.")
@click.option("-d", "--directory", metavar="D", type=_DIRECTORY,
              help="Directory for the files. [default: this one; for --server ~/.config/fluxsched]")  # fmt: skip
@click.argument("name", metavar="[NAME]", required=False)
def keygen(server: bool, role: str | None, user: str | None, directory: Path | None, name: str | None) -> None:
    """Make the key of a client called NAME, or of an instance's tcp ports, and print the file with the secret.

    The client's is NAME.key; give it to its holder alone, as ~/.config/fluxsched/client.key or for --key. NAME.pub
    belongs in the directory of authorized keys of the server; `fluxsched config reload` has it read.
    """
    from fluxsched.messaging.keys import generate, generate_server, key_directory, parse_user

    if server:
        if (name, role, user) != (None, None, None):
            raise click.UsageError("--server takes no NAME, --role or --user: these are of a client's key")
        click.echo(printable(str(generate_server(directory or key_directory()))))
        return
    if name is None:
        raise click.UsageError("give the NAME of a client, or --server")
    with usage():
        userid = None if user is None else parse_user(user)
        secret, _ = generate(name, Role.GUEST if role is None else parse_role(role), userid, directory or Path())
    click.echo(printable(str(secret)))


# ---- `flux`

_directory = click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="The modprobe.d directory. [default: that of the flux on PATH]",
)  # fmt: skip


@click.group("flux", cls=CommandGroup)
def flux() -> None:
    """Use fluxsched as a Flux instance's scheduler (flux-core 0.88 or later)."""


@flux.command("module-path")
def path() -> None:
    """Print the arguments for: flux module load $(fluxsched flux module-path) policy=easy

    That is a file and, if Flux's Python would not find fluxsched (as in a virtual environment), python-path=.
    """
    from fluxsched.flux.install import words_to_load

    words, fault = words_to_load()
    if fault is not None:
        click.echo(f"fluxsched: flux module-path: {fault}", err=True)
    click.echo(" ".join(words))


@flux.command("install")
@_directory
@click.argument("options", metavar="[OPTION=VALUE...]", nargs=-1)
def put(directory: Path | None, options: tuple[str, ...]) -> None:
    """Make fluxsched the default scheduler of the Flux on PATH, with these module options."""
    from fluxsched.flux.install import install

    done = install(options, directory)
    click.echo(f"{done.path}: written; Flux loads it at its next start")
    for found in done.python_path:
        click.echo(f"Flux's Python will also search {found}")


@flux.command("uninstall")
@_directory
def remove(directory: Path | None) -> None:
    """Undo install: Flux loads its own default scheduler again."""
    from fluxsched.flux.install import uninstall

    click.echo(f"{uninstall(directory)}: removed")


# ---- `doctor`

SIGNS = {"ok": "ok", "none": "-", "warn": "warn", "fail": "FAIL"}
COLOURS = {"ok": GREEN, "none": DIM, "warn": YELLOW, "fail": RED}
NAME_WIDTH = 24


@click.command("doctor", cls=Command)
@click.option("--statedir", metavar="D", type=STATE_DIRECTORY, help="Check this state directory, too.")
@json_option
def doctor(statedir: Path | None, as_json: bool) -> int:
    """Check what is installed and what works here, and say how to get what is missing.

    Exit status 1 if a check fails. Nothing is changed; a small instance is started and stopped.
    """
    from fluxsched.doctor import examine, is_well

    checks = []
    for section, some in groupby(examine(statedir), key=lambda check: check.section):
        if not as_json:
            click.echo(click.style(section, bold=True) if colourful() else section)
        for check in some:
            checks.append(check)
            if as_json:
                continue
            sign = f"{SIGNS[check.state]:<4}"
            sign = click.style(sign, fg=COLOURS[check.state]) if colourful() else sign
            print_flushed(f"  {sign}  {check.name:<{NAME_WIDTH}}  {check.found}")
            if check.remedy and check.state != "ok":
                print_flushed(f"        {'':<{NAME_WIDTH}}  -> {check.remedy}")
    well = is_well(checks)
    if as_json:
        print_json({"ok": well, "checks": [check._asdict() for check in checks]})
    return 0 if well else 1


# ---- `metrics`

BIND = "127.0.0.1:9400"


@click.command("metrics", cls=Command)
@click.option("--bind", metavar="HOST:PORT", default=BIND, show_default=True, help="Address to serve at.")
@click.option("--public", is_flag=True, help="Allow an address that other hosts can reach: anyone there can read.")
@click.option("--once", is_flag=True, help="Print the figures and exit (for node_exporter's text files).")
@click.option("--instance", metavar="PID", type=int, hidden=True, help="End with this process.")
@uri_option
def metrics(uri: str | None, bind: str, public: bool, once: bool, instance: int | None) -> None:
    """Serve the metrics of an instance to Prometheus, until interrupted.

    The instance is asked at most once a second. While it is down, `fluxsched_up` is 0; without --uri and
    FLUXSCHED_URI your newest instance is looked for anew.
    """
    from fluxsched.services import metrics_http

    if once:
        click.echo(metrics_http.once(uri), nl=False)
        return
    with usage():
        metrics_http.check_bind(bind, public=public)
    metrics_http.export(uri, bind, public=public, instance=instance, told=print_flushed)


# ---- `web`

WEB_BIND = "127.0.0.1:9480"
MODULES = ("jinja2", "starlette", "uvicorn")


@click.command("web", cls=Command)
@click.option("--bind", metavar="HOST:PORT|unix:PATH", default=WEB_BIND, show_default=True,
              help="Address to serve at; port 0 is any free one.")  # fmt: skip
@click.option("--public", is_flag=True, help="Allow an address that other hosts can reach: nothing is encrypted.")
@click.option("--name", "names", metavar="HOST", multiple=True,
              help="A name that browsers may use for this host, as behind a proxy; may be repeated.")  # fmt: skip
@click.option("--address", is_flag=True, help="Print the address of the page that `start --web` serves, and exit.")
@click.option("--guest-link", metavar="[NAME]", is_flag=False, flag_value="guest",
              help="Print an address for people who look and change nothing, of the page that `start --web` serves, or "
                   "of the one served here.")  # fmt: skip
@click.option("--for", "hold", metavar="FSD", help="Time for which the guests' link holds. [default: 7d]")
@click.option("--instance", metavar="PID", type=int, hidden=True, help="End with this process.")
@click.option("--address-file", metavar="FILE", type=click.Path(path_type=Path), hidden=True,
              help="File for the address; an address in it is used again.")  # fmt: skip
@uri_option
def web(
    uri: str | None, bind: str, public: bool, names: tuple[str, ...], address: bool, guest_link: str | None,
    hold: str | None, instance: int | None, address_file: Path | None,
) -> None:  # fmt: skip
    """Serve an instance as a page for browsers, until interrupted: machine, jobs, queues and so on.

    The printed address has a token: whoever has it acts as you. From other hosts use `ssh -L`. Who has a guests' link
    sees what guests see, until it ends or its file is removed.
    """
    if address:
        at, file = _page_of(uri)
        if file is None:
            raise Refused(f"the instance at {at} serves no page: start it with --web, or run `fluxsched web`")
        click.echo(file.read_text().strip())
        return
    need_packages()
    from fluxsched.web.guests import DEFAULT_S, check_name, parse_hold
    from fluxsched.web.server import ServeOptions, check_bind, serve

    if hold is not None and guest_link is None:
        raise click.UsageError("--for is of a guests' link: give --guest-link, too")
    with usage():
        check_bind(bind, public=public)
        hold_s = DEFAULT_S if hold is None else parse_hold(hold)
        if guest_link is not None:
            check_name(guest_link)
    if guest_link is not None and (file := _page_of(uri)[1]) is not None:
        if bind != WEB_BIND or public or names:
            raise click.UsageError("the instance serves its page already: leave out --bind, --public and --name")
        _print_guest_link(file, guest_link, hold_s)
        return
    if instance is None:
        with connect(uri):  # says what is wrong before the page is served
            pass
    guest = None if guest_link is None else (guest_link, hold_s)
    serve(ServeOptions(uri, bind, public, names, instance, address_file, guest), print_flushed)


def need_packages() -> None:
    """Raise Refused, saying what to install, where a package of the extra is missing."""
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        raise Refused(f"needs {', '.join(missing)}: pip install 'fluxsched[web]'")


def _page_of(uri: str | None) -> tuple[str, Path | None]:
    """Return the instance's URI and the file with the address of the page that it serves, None if it serves none."""
    from fluxsched.instance.launch import PAGE_NAME

    with connect(uri) as handle:
        path = Path(handle.rpc("attr.get", {"name": "rundir"})["value"]) / PAGE_NAME
    return handle.uri, path if path.exists() else None


def _print_guest_link(file: Path, name: str, hold_s: float) -> None:
    from fluxsched.system.files import GUESTS_NAME
    from fluxsched.web.access import read_address
    from fluxsched.web.guests import GuestLinks

    known, links = read_address(file), GuestLinks(file.resolve().parent / GUESTS_NAME)
    if known is None:
        raise Refused(f"{file} has no address: restart the instance with --web")
    token = links.create(name, hold_s)
    click.echo(known.url.replace(known.token, token))
    click.echo(f"for {duration_text(hold_s)}; to end it sooner: rm {printable(str(links.directory / name))}", err=True)
