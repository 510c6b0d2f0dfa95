"""`fluxsched start|stop|restart|uri|ping|agent`: the life of an instance. Only these start one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluxsched.cli.common import complete, show
from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.common.options import (
    FSD,
    JOBID,
    STATE_DIRECTORY,
    InstanceHandle,
    Whole,
    confirm,
    connect,
    json_option,
    uri_option,
    viewing,
    yes_option,
)
from fluxsched.errors import FluxschedError, RPCError

STOP_TIMEOUT_S = 30.0
"""Jobs are terminated, and killed if they do not end: this may take a while."""

PAD_BYTES_MAX = 1 << 20

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("start", cls=Command, context_settings={"allow_interspersed_args": False})
@click.option("--config", metavar="F", type=_FILE, help="Configuration (TOML; rfc/config.md, examples/site.toml).")
@click.option("--R", "r_path", metavar="F", type=_FILE, help="Take the resources from an R file (RFC 20).")
@click.option("--fake", metavar="SPEC", help="Made-up resources: 1000x64+4 is 1000 nodes of 64 cores and 4 GPUs.")
@click.option("--test-size", metavar="N", type=Whole(min=1), help="N targets, each of which is this machine.")
@click.option("--scheduler", "schedulers", metavar="NAME|none", multiple=True, shell_complete=complete.policies,
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
    """Start an instance on this machine's resources.

    With COMMAND: run it inside and exit with its status (127: not found, 126: cannot be run). Without: a shell inside;
    the instance ends with it.
    """
    chosen = [name for name in ("--R", "--fake", "--test-size") if options[_PARAMETERS[name]] is not None]
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
        from fluxsched.cli.instance.web import need_packages

        need_packages()
    with usage():
        check_start(options["fake"], schedulers, options["config"])
    request = StartOptions(schedulers=schedulers, daemon=daemon, command=command, **options)
    if daemon:
        click.echo(start_daemon(request))
        return 0
    status: int = start(request)
    return status


_PARAMETERS = {"--R": "r_path", "--fake": "fake", "--test-size": "test_size"}


def _located(uri: str | None) -> str:
    """Where the instance is; fails now if nothing listens there."""
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

    if show.interactive() and not yes:
        uri, running = _running(uri, timeout)
        if running:
            confirm(f"This ends {show.plural(running, 'running job')}. Go ahead?", "the instance was not stopped")
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
@click.argument("jobid", metavar="[JOBID]", type=JOBID, required=False, shell_complete=complete.jobids)
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
        from fluxsched.cli.submission.batch import address_of

        address = address_of(handle, jobid)
    else:
        from fluxsched.cli.instance.instances import parent_of

        address = parent_of(handle)
    with connect(address) as other:
        _print_uri(other, as_json, local, tcp)


def _print_uri(handle: InstanceHandle, as_json: bool, local: bool, tcp: bool) -> None:
    if as_json:
        show.print_json(handle.rpc("instance.info"))
    elif local:
        click.echo(handle.rpc("attr.get", {"name": "local-uri"})["value"])
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
    from fluxsched.system.clock import SystemClock, sleep

    seq = 0
    while count is None or seq < count:
        if seq:
            sleep(interval)
        sent_s = SystemClock.monotonic_s()
        answer = handle.rpc(f"{service}.ping", {"seq": seq, "pad": "p" * pad})
        time_ms = (SystemClock.monotonic_s() - sent_s) * 1e3
        if as_json:
            show.print_stream([{**answer, "time_ms": round(time_ms, 3)}])
        else:
            show.flushed(f"{service}.ping pad={pad} seq={seq} time={time_ms:.3f} ms ({answer.get('route', '')})")
        seq += 1


@click.command("agent", cls=Command)
@click.option("--host", metavar="HOSTS", help="The hosts to report for, as a hostlist. [default: this one]")
@click.option("--ranks", metavar="IDSET", help="Only these of the host's targets.")
@click.option("--heartbeat", "heartbeat_s", type=FSD, metavar="FSD", help="Interval between heartbeats.")
@uri_option
def agent(uri: str | None, **options: Any) -> int:
    """Report targets online while this runs; without heartbeats they become torpid. It reconnects.

    An instance runs all tasks on its own machine. With another --host the targets are made up, to try out how
    many nodes behave. To run on many machines, use Flux (rfc/flux.md).
    """
    where = _located(uri)
    from fluxsched.instance.launch import agent

    status: int = agent(where, **options)
    return status
