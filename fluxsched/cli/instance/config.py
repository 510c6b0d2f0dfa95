"""`fluxsched config`: checking a configuration file without an instance, showing it, and reloading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import CommandGroup, usage
from fluxsched.cli.common.options import InstanceHandle, connected, json_option

VALUE_CHARS_MAX = 60
"""Longer changes have two lines, the new value on the second."""
LONG_VALUE_CHARS_MAX = 1000
"""A longer value, such as a list of all hosts, is cut."""
NOT_SET = "not set"

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("config", cls=CommandGroup)
def config() -> None:
    """Check, show and reload the configuration."""


@config.command("check")
@click.option("--R", "r_path", metavar="F", type=_FILE, help="Take the targets from this R file (RFC 20).")
@click.option("--fake", metavar="SPEC", help="Use made-up targets, as `fluxsched start --fake`.")
@click.argument("file", metavar="FILE", type=_FILE)
@json_option
def check(file: Path, fake: str | None, r_path: Path | None, as_json: bool) -> int:
    """Report all faults of a configuration FILE without an instance; exit status 1 if there are any.

    Hosts are interpreted as by `fluxsched start` on this machine, and policies are imported.
    """
    from fluxsched.errors import FluxschedError
    from fluxsched.instance.launch import StartOptions, check_config, check_start

    with usage():
        check_start(fake, ())
    faults: list[str] = []
    try:
        found = check_config(StartOptions(config=file, fake=fake, r_path=r_path))
    except FluxschedError as fault:
        if not as_json and not str(fault).startswith(f"{file}:"):
            raise  # not a fault in the file: there is none, or it cannot be read
        faults = str(fault).splitlines()
    if as_json:
        show.print_json({"file": str(file), "faults": faults})
    for fault_line in [] if as_json else faults:
        click.echo(fault_line, err=True)
    if not faults and not as_json:
        click.echo(f"{file}: no faults: {found}")
    return int(bool(faults))


@config.command("show")
@json_option
@connected
def show_config(handle: InstanceHandle, as_json: bool) -> None:
    """Print the configuration in force, as TOML."""
    from fluxsched.core.tomltext import toml_text

    found = handle.rpc("config.get")
    if as_json:
        show.print_json(found)
    else:
        click.echo(toml_text(found), nl=False)
    if not found:
        click.echo("no configuration: everything has its default (rfc/config.md)", err=True)


@config.command("reload")
@json_option
@connected
def reload(handle: InstanceHandle, as_json: bool) -> None:
    """Reload the file, all or nothing: resources, groups, queues and limits take effect at once; jobs continue.

    Lists what has changed, and what needs a restart.
    """
    answer = handle.rpc("config.reload")
    if as_json:
        show.print_json(answer)
        return
    tell(answer)


def tell(answer: dict[str, Any]) -> None:
    """What has changed, line by line."""
    for change in answer["changed"]:
        _print_change(change)
    if any(change["key"].partition(".")[0] == "fair" for change in answer["changed"]):
        show.line("schedulers take [fair] when they are reloaded: fluxsched module reload NAME")
    for name in answer["modules"]:
        show.line(f"module {name} is restarted to serve its queues; jobs continue")
    for change in answer["restart"]:
        is_scheduler = change["key"].partition(".")[0] == "scheduler"
        hint = ", or `fluxsched module remove` and `module load`" if is_scheduler else ""
        _print_change(change, f": needs a restart{hint}")
    if not answer["changed"] and not answer["restart"]:
        show.line("nothing has changed")


def _print_change(change: dict[str, Any], remark: str = "") -> None:
    """Print the key with its old and its new value."""
    old, new = _value_text(change.get("old")), _value_text(change.get("new"))
    if len(f"{old} -> {new}") <= VALUE_CHARS_MAX:
        show.line(f"{change['key']}: {old} -> {new}{remark}")
    else:
        show.line(f"{change['key']}: {old}")
        show.line(f"  -> {new}{remark}")


def _value_text(value: object) -> str:
    from fluxsched.core.tomltext import inline

    text = NOT_SET if value is None else inline(value)
    return text if len(text) <= LONG_VALUE_CHARS_MAX else f"{text[:LONG_VALUE_CHARS_MAX]}... (--json has all)"
