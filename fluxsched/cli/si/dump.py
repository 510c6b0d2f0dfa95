"""`fluxsched si dump`: the state of a scheduler service."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.si.options import address_argument, need_packages


@click.command("dump", cls=Command)
@click.option("--rm", "rm_id", metavar="ID", default="", help="Only of this resource manager. [default: all]")
@address_argument
def dump(address: str | None, rm_id: str, cert: Path | None, key: Path | None, ca: Path | None) -> None:
    """Print the state of the service at ADDRESS as JSON: queues, nodes, applications, asks, allocations.

    [default: where `si serve` listens without --bind]
    """
    need_packages()
    from fluxsched.adapters.si.wire.address import parse_address
    from fluxsched.adapters.si.wire.certificates import ClientCertificates
    from fluxsched.adapters.si.wire.client import state_dump

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
    click.echo(state_dump(target, certificates, rm_id))
