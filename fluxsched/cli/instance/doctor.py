"""`fluxsched doctor`: what is installed, what works, what is missing and how to get it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import STATE_DIRECTORY, json_option

SIGNS = {"ok": "ok", "none": "-", "warn": "warn", "fail": "FAIL"}
COLOURS = {"ok": show.GREEN, "none": show.DIM, "warn": show.YELLOW, "fail": show.RED}
NAME_WIDTH = 24


@click.command("doctor", cls=Command)
@click.option("--statedir", metavar="D", type=STATE_DIRECTORY, help="Check this state directory, too.")
@json_option
def doctor(statedir: Path | None, as_json: bool) -> int:
    """Check what is installed and what works here, and say how to get what is missing.

    Exit status 1 if a check fails. Nothing is changed; a small instance is started and stopped.
    """
    from fluxsched.doctor.doctor import examine, is_well

    checks = []
    for section, some in groupby(examine(statedir), key=lambda check: check.section):
        if not as_json:
            click.echo(click.style(section, bold=True) if show.colourful() else section)
        for check in some:
            checks.append(check)
            if as_json:
                continue
            sign = f"{SIGNS[check.state]:<4}"
            sign = click.style(sign, fg=COLOURS[check.state]) if show.colourful() else sign
            show.flushed(f"  {sign}  {check.name:<{NAME_WIDTH}}  {check.found}")
            if check.remedy and check.state != "ok":
                show.flushed(f"        {'':<{NAME_WIDTH}}  -> {check.remedy}")
    well = is_well(checks)
    if as_json:
        show.print_json({"ok": well, "checks": [check._asdict() for check in checks]})
    return 0 if well else 1
