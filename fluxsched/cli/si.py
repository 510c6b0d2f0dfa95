"""Commands of the YuniKorn scheduler interface. They need the packages of the extra `si`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

from fluxsched.cli.base import Command, usage
from fluxsched.cli.options import (
    InstanceHandle,
    Output,
    TableSpec,
    complete_groups,
    connected,
    json_option,
    table_options,
)
from fluxsched.cli.output import Field, print_json
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

_rm_option = click.option("--rm", "rm_id", metavar="ID", default="", help="Only this resource manager. [default: all]")


@click.command("dump", cls=Command)
@_rm_option
@address_argument
def dump(address: str | None, rm_id: str, cert: Path | None, key: Path | None, ca: Path | None) -> None:
    """Print the state of the service at ADDRESS as JSON: queues, nodes, applications, asks, allocations.

    [default: where `si serve` listens without --bind]
    """
    click.echo(_state(address, rm_id, cert, key, ca))


def _state(address: str | None, rm_id: str, cert: Path | None, key: Path | None, ca: Path | None) -> str:
    need_packages()
    from fluxsched.yunikorn.wire import ClientCertificates, parse_address, state_dump

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
    return state_dump(target, certificates, rm_id)


# ---- `si status`

INDENT = "  "
OURS = "fluxsched.org/"
"""Kinds that `si rm` adds for itself: they are no resources."""


class QueueRow(NamedTuple):
    """A queue of the service's tree; `counts` are of the applications in it and below it."""

    rm: str
    partition: str
    state: str
    depth: int
    queue: Mapping[str, Any]
    counts: Mapping[str, Counter[str]]

    def count(self, what: str) -> int:
        """Return the number of applications, or of their asks or allocations."""
        return self.counts[what][self.queue["path"]]

    def part(self, of: str) -> str:
        """Return the use in percent of the guarantee or the maximum, of the kind that is used most."""
        bounds, used = self.queue[of], self.queue["used"]
        parts = [100 * used.get(kind, 0) / bound for kind, bound in bounds.items() if bound and _is_resource(kind)]
        return f"{max(parts):.0f}" if parts else ""


def _is_resource(kind: str) -> bool:
    return not kind.startswith(OURS)


def _amounts(key: str) -> Callable[[QueueRow], str]:
    def text(row: QueueRow) -> str:
        from fluxsched.yunikorn.config import quantity_text

        kinds = sorted(filter(_is_resource, row.queue[key]))
        return ",".join([f"{kind}={quantity_text(kind, row.queue[key][kind])}" for kind in kinds])

    return text


STATUS = TableSpec(
    {
        "default": "{queue:<16} ?:{rm:<12} ?:{partition:<10} ?:{state:<8} {applications:>4} {running:>7} {waiting:>7} "
        "{of_guaranteed:>5} {of_max:>4} {used:<16} ?:{guaranteed:<16} {max}",
        "short": "{queue:<16} ?:{rm:<12} ?:{partition:<10} ?:{state:<8} {running:>7} {waiting:>7} {of_guaranteed:>5} "
        "{of_max:>4}",
    },
    {
        "rm": Field("RM", lambda row: row.rm),
        "partition": Field("PARTITION", lambda row: row.partition),
        "queue": Field("QUEUE", lambda row: INDENT * row.depth + row.queue["path"].rpartition(".")[2]),
        "path": Field("PATH", lambda row: row.queue["path"]),
        "state": Field("STATE", lambda row: row.state),
        "applications": Field("APPS", lambda row: row.count("applications")),
        "running": Field("RUNNING", lambda row: row.count("allocations")),
        "waiting": Field("WAITING", lambda row: row.count("asks")),
        "of_guaranteed": Field("GUAR%", lambda row: row.part("guaranteed")),
        "of_max": Field("MAX%", lambda row: row.part("max")),
        "used": Field("USED", _amounts("used")),
        "guaranteed": Field("GUARANTEED", _amounts("guaranteed")),
        "max": Field("MAX", _amounts("max")),
    },
)


@click.command("status", cls=Command)
@_rm_option
@address_argument
@table_options(STATUS)
def status(
    address: str | None, rm_id: str, cert: Path | None, key: Path | None, ca: Path | None, output: Output
) -> None:
    """Show the tree of queues of the service at ADDRESS, what each uses of its guarantee and maximum, and what waits.

    [default: where `si serve` listens without --bind]

    RUNNING counts allocations, WAITING those that are asked for; a queue has those of all queues below it. GUAR% and
    MAX% are of the resource that is used most. The maximum of the root is what all nodes have.
    """
    answer = json.loads(_state(address, rm_id, cert, key, ca))
    output.show(answer, lambda shown: list(queue_rows(answer["rms"])))


def queue_rows(managers: list[dict[str, Any]]) -> Iterator[QueueRow]:
    """Yield the queues of all partitions, parents first; what all rows would have in common is left out."""
    for manager in managers:
        rm = manager["rmID"] if len(managers) > 1 else ""
        for partition in manager["partitions"]:
            name = partition["name"] if len(manager["partitions"]) > 1 else ""
            counts = _counts(partition["applications"])
            state = "" if manager["state"] == "Running" else manager["state"].lower()
            yield from _below(QueueRow(rm, name, state, 0, partition["queues"], counts))


def _below(row: QueueRow) -> Iterator[QueueRow]:
    yield row._replace(state=row.state or ("draining" if row.queue["draining"] else ""))
    for child in row.queue["queues"]:
        yield from _below(row._replace(state="", depth=row.depth + 1, queue=child))


def _counts(applications: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Return the numbers of applications, allocations and pending asks by the paths of their queues and all above."""
    found: dict[str, Counter[str]] = {"applications": Counter(), "allocations": Counter(), "asks": Counter()}
    for each in applications:
        path = each["queue"]
        while path:
            found["applications"][path] += 1
            found["allocations"][path] += len(each["allocations"])
            found["asks"][path] += sum([ask["pending"] for ask in each["asks"]])
            path = path.rpartition(".")[0]
    return found


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
