"""`fluxsched si check`: what a configuration says, or all that is wrong with it."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import json_option
from fluxsched.cli.si.options import need_packages


@click.command("check", cls=Command)
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> int:
    """Report all faults of a configuration FILE (YuniKorn's YAML) with their paths; exit status 1 if there are any.

    Without faults print its partitions, placement rules and queues, with their guarantees and maxima.
    """
    need_packages()
    from fluxsched.adapters.si.config.report import check_config_file

    report = check_config_file(file)
    if as_json:
        show.print_json({"file": str(file), "faults": list(report.faults)})
    else:
        for line in report.lines:
            click.echo(line)
        for fault in report.faults:
            click.echo(f"{file}: {fault}", err=True)
    return int(bool(report.faults))
