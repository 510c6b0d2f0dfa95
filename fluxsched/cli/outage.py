"""`fluxsched outage`: planned outages of targets: no job starts there that would not be over when one begins."""

from __future__ import annotations

from typing import Any

import click

from fluxsched.cli.base import Command, CommandGroup
from fluxsched.cli.jobspec_options import parse_begin_time
from fluxsched.cli.options import (
    FSD,
    Converted,
    InstanceHandle,
    Output,
    TableSpec,
    complete_targets,
    connected,
    table_options,
    viewing,
)
from fluxsched.cli.output import Field, duration_text, time_text

_TIME = "%b%d %H:%M"
LIST = TableSpec(
    {"default": "{name:<12} {state:<8} {from:<12} {until:<12} ?:{every:>6} {targets:<20} ?:{user:<8} ?:{reason}"},
    {
        "name": Field("NAME", lambda row: row["name"]),
        "state": Field("STATE", lambda row: "on" if row.get("on") else "planned"),
        "from": Field("FROM", lambda row: time_text(row["from"], _TIME)),
        "until": Field("UNTIL", lambda row: time_text(row["until"], _TIME)),
        "every": Field("EVERY", lambda row: duration_text(row["every"]) if row.get("every") else ""),
        "targets": Field("TARGETS", lambda row: row["nodelist"]),
        "user": Field("USER", lambda row: "(config)" if row.get("configured") else row.get("user") or ""),
        "reason": Field("REASON", lambda row: row.get("reason") or ""),
    },
)

_when = Converted("time", parse_begin_time)
_until = click.option("--until", type=_when, metavar="TIME", help="When it ends.")
_lasts = click.option("--for", "lasts", type=FSD, metavar="FSD", help="How long it lasts.")
_every = click.option("--every", type=FSD, metavar="FSD", help="It recurs: so long from begin to begin.")


@click.group("outage", cls=CommandGroup)
def outage() -> None:
    """Plan outages of targets: jobs end before one begins, or start behind it.

    TIME is +FSD, seconds since the epoch, a time such as 23:59, tomorrow, or a date and time.
    """


@outage.command("add", cls=Command)
@click.argument("targets", metavar="TARGETS", shell_complete=complete_targets)
@click.argument("reason", metavar="[REASON]...", nargs=-1)
@click.option("--from", "begin", type=_when, metavar="TIME", required=True, help="When it begins.")
@_until
@_lasts
@_every
@click.option("--name", metavar="NAME", help="Its name; without one it is given one, which is printed.")
@connected
def add(
    handle: InstanceHandle,
    targets: str,
    reason: tuple[str, ...],
    begin: float,
    until: float | None,
    lasts: float | None,
    every: float | None,
    name: str | None,
) -> None:
    """Plan an outage of TARGETS, which are drained for REASON while it lasts. Running jobs are left alone.

    No job starts there whose time limit ends after its begin, and none without a limit.
    """
    if (until is None) == (lasts is None):
        raise click.UsageError("an outage has an end: give either --for or --until")
    asked = {"targets": targets, "from": begin, "until": until, "for": lasts, "every": every, "name": name}
    found = handle.rpc("resource.outage-add", _given({**asked, "reason": " ".join(reason) or None}))
    if name is None:
        click.echo(found["name"])


@outage.command("list", cls=Command)
@table_options(LIST)
@viewing
def list_outages(handle: InstanceHandle, output: Output) -> None:
    """List planned outages, the next one first: FROM and UNTIL of the occurrence that is on or comes next."""
    from fluxsched.core.idset import Idset
    from fluxsched.core.resources import ResourceSet

    outages = handle.rpc("resource.outage-list")["outages"]
    resources = ResourceSet.parse(handle.rpc("resource.status")["R"]) if outages else None
    rows = []
    for each in outages:
        targets = Idset.parse(each["targets"])
        known = "" if resources is None else str(resources.hosts(targets & resources.ranks))
        rows.append({**each, "nodelist": known or each["targets"]})
    output.show({"outages": outages}, lambda shown: rows)


@outage.command("remove", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connected
def remove(handle: InstanceHandle, names: tuple[str, ...]) -> None:
    """Call outages off; the targets of one that is on are undrained."""
    for name in names:
        handle.rpc("resource.outage-remove", {"name": name})


@outage.command("update", cls=Command)
@click.argument("name", metavar="NAME")
@click.argument("reason", metavar="[REASON]...", nargs=-1)
@click.option("--targets", metavar="TARGETS", shell_complete=complete_targets, help="Other targets.")
@click.option("--from", "begin", type=_when, metavar="TIME", help="When it begins; it then lasts as long as before.")
@_until
@_lasts
@_every
@connected
def update(
    handle: InstanceHandle,
    name: str,
    reason: tuple[str, ...],
    targets: str | None,
    begin: float | None,
    until: float | None,
    lasts: float | None,
    every: float | None,
) -> None:
    """Change an outage; what is not given stays. `--every 0` has it recur no more."""
    if until is not None and lasts is not None:
        raise click.UsageError("--for and --until are two ends: give one of them")
    changed = {"targets": targets, "from": begin, "until": until, "for": lasts, "every": every}
    asked = _given({**changed, "reason": " ".join(reason) or None})
    if not asked:
        raise click.UsageError("nothing is to be changed: give --from, --for, --until, --every, --targets or REASON")
    handle.rpc("resource.outage-update", {"name": name, **asked})


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
