"""`fluxsched si serve`: the scheduler service."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.si.options import FILE, need_packages


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
    """Schedule for resource managers (YuniKorn's scheduler interface 1.2 to 1.8, rfc/si.proto) until SIGTERM.

    The first line of output is the address. [default: unix:fluxsched_si_UID/socket in $XDG_RUNTIME_DIR, else $TMPDIR]
    Nothing is stored: after a restart resource managers send their state again.
    """
    need_packages()
    import asyncio

    from fluxsched.adapters.si.service import run
    from fluxsched.adapters.si.wire.address import parse_address
    from fluxsched.adapters.si.wire.certificates import certificates_of

    with usage():
        address = parse_address(bind)
        certificates = certificates_of(address, insecure, cert, key, client_ca)
        machine = run.machine_of(groups, plugins)
    asyncio.run(run.serve(machine, address, certificates, verbose, lambda bound: click.echo(bound)))
