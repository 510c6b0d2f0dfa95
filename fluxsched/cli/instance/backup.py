"""`fluxsched backup` and `restore`: the state of an instance as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import STATE_DIRECTORY, json_option, uri_option

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("backup", cls=Command)
@click.argument("file", metavar="FILE", type=_FILE)
@json_option
@uri_option
def backup(file: Path, uri: str | None, as_json: bool) -> None:
    """Write the state of a running instance to a new FILE.

    It has jobs, drains, groups, queues and the history of accounts at one moment, but not the output of jobs. The
    instance continues meanwhile.
    """
    from fluxsched.instance.backup import backup

    _tell(backup(uri, file), as_json)


@click.command("restore", cls=Command)
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--statedir", metavar="D", type=STATE_DIRECTORY, required=True, help="A directory without a state.")
@json_option
def restore(file: Path, statedir: Path, as_json: bool) -> None:
    """Make a backup FILE the state of a new directory, for `fluxsched start --statedir`.

    It is checked first, and nothing is overwritten. Jobs that waited or ran when the backup was made wait again or
    count as failed, whatever happened to them since.
    """
    from fluxsched.instance.backup import restore

    _tell(restore(file, statedir), as_json)


def _tell(found: Any, as_json: bool) -> None:
    if as_json:
        show.print_json({"path": str(found.path), "bytes": found.size, "jobs": found.jobs})
    else:
        click.echo(f"{found.path}: {found.jobs} jobs, {found.size} bytes")
