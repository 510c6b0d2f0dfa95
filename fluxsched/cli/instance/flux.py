"""`fluxsched flux`: our schedulers inside a real Flux instance."""

from __future__ import annotations

from pathlib import Path

import click

from fluxsched.cli.common.base import CommandGroup

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
    from fluxsched.adapters.flux.install import words_to_load

    words, fault = words_to_load()
    if fault is not None:
        click.echo(f"fluxsched: flux module-path: {fault}", err=True)
    click.echo(" ".join(words))


@flux.command("install")
@_directory
@click.argument("options", metavar="[OPTION=VALUE...]", nargs=-1)
def put(directory: Path | None, options: tuple[str, ...]) -> None:
    """Make fluxsched the default scheduler of the Flux on PATH, with these module options."""
    from fluxsched.adapters.flux.install import install

    done = install(options, directory)
    click.echo(f"{done.path}: written; Flux loads it at its next start")
    for found in done.python_path:
        click.echo(f"Flux's Python will also search {found}")


@flux.command("uninstall")
@_directory
def remove(directory: Path | None) -> None:
    """Undo install: Flux loads its own default scheduler again."""
    from fluxsched.adapters.flux.install import uninstall

    click.echo(f"{uninstall(directory)}: removed")
