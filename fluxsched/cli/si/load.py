"""`fluxsched si load`: a scheduler service under load, measured."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Any

import click

from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.si.options import address_argument, need_packages


@click.command("load", cls=Command)
@click.option("--nodes", metavar="N", type=int, default=500, show_default=True, help="Nodes to register.")
@click.option("--asks", metavar="M", type=int, default=10_000, show_default=True, help="Asks of one allocation each.")
@click.option("--shapes", metavar="K", type=int, default=8, show_default=True, help="Sizes of asks.")
@click.option("--each-different", is_flag=True, help="Give every ask a size of its own, instead of --shapes.")
@click.option("--queues", metavar="Q", type=int, default=1, show_default=True, help="Leaves, one application each.")
@click.option("--rate", metavar="R", type=float, default=0.0, help="Asks a second. [default: all at once]")
@click.option("--node-batch", metavar="N", type=int, default=0, help="Nodes in a message. [default: all]")
@click.option("--ask-batch", metavar="N", type=int, default=1000, show_default=True, help="Asks in a message.")
@click.option("--rm", "rm_id", metavar="ID", default="load", show_default=True, help="Name of this resource manager.")
@click.option("--timeout", "limit_s", metavar="S", type=float, default=60.0, show_default=True, help="Give up after S.")
@click.option("--json", is_flag=True, help="As JSON.")
@address_argument
def load(
    address: str | None, rate: float, each_different: bool, limit_s: float, json: bool, shapes: int,
    cert: Path | None, key: Path | None, ca: Path | None, **numbers: Any,
) -> None:  # fmt: skip
    """Register nodes at the service at ADDRESS, ask for allocations and print rates and latencies.

    It uses only messages of YuniKorn's interface, so ADDRESS may be any implementation of it.
    """
    need_packages()
    from fluxsched.adapters.si.load.main import measure, report, table
    from fluxsched.adapters.si.load.messages_made import Load
    from fluxsched.adapters.si.wire.address import parse_address
    from fluxsched.adapters.si.wire.certificates import ClientCertificates

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
        wanted = Load(shapes=0 if each_different else shapes, **numbers).check()
    measured = measure(target, certificates, wanted, rate, limit_s)
    click.echo(json_text.dumps(table(measured)) if json else report(measured))
    if measured.allocated < wanted.asks:
        raise SystemExit(1)
