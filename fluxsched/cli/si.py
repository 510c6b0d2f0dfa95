"""Commands of the YuniKorn scheduler interface. They need the packages of the extra `si`."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from fluxsched.cli.base import Command, usage
from fluxsched.cli.options import InstanceHandle, complete_groups, connected, json_option
from fluxsched.cli.output import print_json
from fluxsched.errors import Refused

PACKAGES = {"grpc": "grpcio", "google.protobuf": "protobuf", "yaml": "PyYAML"}
"""Modules that the interface needs, and the packages that have them."""


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def need_packages() -> None:
    """Raise Refused, saying what to install, where a package of the extra is missing.

    gRPC's own log on stderr is silenced, unless it is asked for: what goes wrong is in our errors.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    missing = [package for module, package in PACKAGES.items() if not _is_there(module)]
    if missing:
        raise Refused(f"needs {', '.join(missing)}: pip install 'fluxsched[si]'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package around it
        return False


def address_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """ADDRESS of a service, and the certificates to present to one on TCP."""
    for decorate in (
        click.option("--ca", metavar="FILE", type=FILE, help="Certificates (PEM) that vouch for the service."),
        click.option("--key", metavar="FILE", type=FILE, help="The key (PEM) of --cert."),
        click.option("--cert", metavar="FILE", type=FILE, help="The client's certificate (PEM), for a service on TCP."),
        click.argument("address", metavar="[ADDRESS]", required=False),
    ):  # fmt: skip
        command = decorate(command)
    return command


# ---- `si serve`


@click.command("serve", cls=Command)
@click.option("--bind", metavar="ADDRESS", help="unix:PATH, in a directory that is yours alone, or HOST:PORT.")
@click.option("--groups", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Directory with NAME.yaml, the configuration of policyGroup NAME.")  # fmt: skip
@click.option("--plugin", "plugins", metavar="SPEC", multiple=True,
              help="A plugin for all partitions: NAME:key=value,... or a file; may be repeated.")  # fmt: skip
@click.option("--insecure", is_flag=True, help="Serve TCP on loopback without certificates.")
@click.option("--cert", metavar="FILE", type=FILE, help="The server's certificate (PEM), for TCP.")
@click.option("--key", metavar="FILE", type=FILE, help="The key (PEM) of --cert.")
@click.option("--client-ca", metavar="FILE", type=FILE, help="Certificates (PEM) that vouch for clients.")
@click.option("-v", "--verbose", count=True, help="Log more on stderr; may be repeated.")
def serve(
    bind: str | None, groups: Path | None, plugins: tuple[str, ...], insecure: bool, cert: Path | None,
    key: Path | None, client_ca: Path | None, verbose: int,
) -> None:  # fmt: skip
    """Schedule for resource managers (YuniKorn's scheduler interface 1.2 to 1.8) until SIGTERM.

    The first line of output is the address. [default: unix:fluxsched_si_UID/socket in $XDG_RUNTIME_DIR, else $TMPDIR]
    Nothing is stored: after a restart resource managers send their state again.
    """
    need_packages()
    import asyncio

    from fluxsched.yunikorn import service
    from fluxsched.yunikorn.wire import certificates_of, parse_address

    with usage():
        address = parse_address(bind)
        certificates = certificates_of(address, insecure, cert, key, client_ca)
        machine = service.machine_of(groups, plugins)
    asyncio.run(service.serve(machine, address, certificates, verbose, lambda bound: click.echo(bound)))


# ---- `si check`


@click.command("check", cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> int:
    """Report all faults of a configuration FILE (YuniKorn's YAML) with their paths; exit status 1 if there are any.

    Without faults print its partitions, placement rules and queues, with their guarantees and maxima.
    """
    need_packages()
    from fluxsched.yunikorn.config import check_config_file

    report = check_config_file(file)
    if as_json:
        print_json({"file": str(file), "faults": list(report.faults)})
    else:
        for line in report.lines:
            click.echo(line)
        for fault in report.faults:
            click.echo(f"{file}: {fault}", err=True)
    return int(bool(report.faults))


# ---- `si dump`


@click.command("dump", cls=Command)
@click.option("--rm", "rm_id", metavar="ID", default="", help="Only of this resource manager. [default: all]")
@address_argument
def dump(address: str | None, rm_id: str, cert: Path | None, key: Path | None, ca: Path | None) -> None:
    """Print the state of the service at ADDRESS as JSON: queues, nodes, applications, asks, allocations.

    [default: where `si serve` listens without --bind]
    """
    need_packages()
    from fluxsched.yunikorn.wire import ClientCertificates, parse_address, state_dump

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
    click.echo(state_dump(target, certificates, rm_id))


# ---- `si rm`


@click.command("rm", cls=Command)
@click.option("--group", metavar="GROUP", default="default", show_default=True, shell_complete=complete_groups,
              help="The group whose jobs the service schedules.")  # fmt: skip
@click.option("--queue", metavar="QUEUE", default="root.default", show_default=True,
              help="The service's queue for these jobs.")  # fmt: skip
@click.option("--rm", "rm_id", metavar="ID", default="", help="Its name there. [default: from instance and group]")
@click.option("--policy-group", metavar="NAME", default="default", show_default=True,
              help="Policy group at the service, which has its configuration.")  # fmt: skip
@click.option("--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Configuration (YAML), instead of the group's.")  # fmt: skip
@address_argument
@connected
def rm(
    handle: InstanceHandle, address: str | None, group: str, queue: str, rm_id: str, policy_group: str,
    config: Path | None, cert: Path | None, key: Path | None, ca: Path | None,
) -> None:  # fmt: skip
    """Let the scheduler service at ADDRESS decide for a group of an instance, until either ends or Ctrl-C.

    It takes the place of a scheduler module: targets become nodes, jobs applications. Without the service running jobs
    go on, and waiting ones wait.
    """
    need_packages()
    from fluxsched.yunikorn.rm import RMSettings, run
    from fluxsched.yunikorn.wire import ClientCertificates, parse_address

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
    text = "" if config is None else config.read_text()
    settings = RMSettings(handle.uri, target, certificates, group, queue, rm_id, policy_group, text)
    reason = run(settings)
    if reason is not None:
        raise Refused(reason)
