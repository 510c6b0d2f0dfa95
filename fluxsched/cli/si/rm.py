"""`fluxsched si rm`: a group of an instance as a resource manager."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common import complete
from fluxsched.cli.common.base import Command, usage
from fluxsched.cli.common.options import InstanceHandle, connected
from fluxsched.cli.si.options import address_argument, need_packages
from fluxsched.errors import Refused


@click.command("rm", cls=Command)
@click.option("--group", metavar="GROUP", default="default", show_default=True, shell_complete=complete.groups,
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
    from fluxsched.adapters.si.rm.main import RMSettings, run
    from fluxsched.adapters.si.wire.address import parse_address
    from fluxsched.adapters.si.wire.certificates import ClientCertificates

    with usage():
        target = parse_address(address)
        certificates = ClientCertificates.of(target, cert, key, ca)
    text = "" if config is None else config.read_text()
    settings = RMSettings(handle.uri, target, certificates, group, queue, rm_id, policy_group, text)
    reason = run(settings)
    if reason is not None:
        raise Refused(reason)
