"""`fluxsched outage` and `fluxsched reserve`: planned outages of targets, and advance reservations.

No job starts on targets of an outage that would not be over when it begins; a reservation is an outage for all jobs but
those that name it.
"""

from __future__ import annotations

import errno
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
    Whole,
    complete_queues,
    complete_targets,
    connected,
    table_options,
    viewing,
)
from fluxsched.cli.output import Field, duration_text
from fluxsched.errors import RPCError
from fluxsched.views.words import moment_text, users_text

LIST = TableSpec(
    {
        "default": "{name:<12} {state:<8} {from:<12} {until:<12} ?:{every:>6} ?:{jobs:<4} ?:{queue:<8} {targets:<20} "
        "?:{users:<12} "
        "?:{user:<8} ?:{reason}"
    },
    {
        "name": Field("NAME", lambda row: row["name"]),
        "state": Field("STATE", lambda row: "on" if row.get("on") else "planned"),
        "from": Field("FROM", lambda row: moment_text(row["from"])),
        "until": Field("UNTIL", lambda row: moment_text(row["until"])),
        "jobs": Field("JOBS", lambda row: "end" if row.get("end_jobs") else ""),
        "every": Field("EVERY", lambda row: duration_text(row["every"]) if row.get("every") else ""),
        "queue": Field("QUEUE", lambda row: row.get("queue") or ""),
        "targets": Field("TARGETS", lambda row: row["nodelist"]),
        "users": Field("FOR", lambda row: users_text(row, EVERYBODY)),
        "user": Field("USER", lambda row: "(config)" if row.get("configured") else row.get("user") or ""),
        "reason": Field("REASON", lambda row: row.get("reason") or ""),
    },
)

EVERYBODY = "all"

_when = Converted("time", parse_begin_time)
_begin = click.option("--from", "begin", type=_when, metavar="TIME", required=True, help="When it begins.")
_targets = click.option("--targets", metavar="TARGETS", shell_complete=complete_targets, help="Other targets.")
_moved = click.option(
    "--from", "begin", type=_when, metavar="TIME", help="When it begins; it then lasts as long as before."
)
_until = click.option("--until", type=_when, metavar="TIME", help="When it ends.")
_lasts = click.option("--for", "lasts", type=FSD, metavar="FSD", help="How long it lasts.")
_every = click.option("--every", type=FSD, metavar="FSD", help="It recurs: so long from begin to begin.")
_end_jobs = click.option(
    "--end-jobs/--leave-jobs", default=None, help="Running jobs that cross it end at its begin, or run on."
)
_name = click.option("--name", metavar="NAME", help="Its name; without one it is given one, which is printed.")
_users = click.option("--users", metavar="USER,...", help="Users whose jobs may run there, or all.")
_nodes = click.option("-N", "--nodes", type=Whole(min=1), metavar="N", help="So many targets, free at that time.")


@click.group("outage", cls=CommandGroup)
def outage() -> None:
    """Plan outages of targets: jobs end before one begins, or start behind it.

    TIME is now, +FSD, seconds since the epoch, a time such as 23:59, tomorrow, or a date and time.
    """


@outage.command("add", cls=Command)
@click.argument("targets", metavar="TARGETS", shell_complete=complete_targets)
@click.argument("reason", metavar="[REASON]...", nargs=-1)
@_begin
@_until
@_lasts
@_every
@_end_jobs
@click.option("-q", "--queue", metavar="NAME", shell_complete=complete_queues, help="Dedicate TARGETS to this queue.")
@_name
@connected
def add(
    handle: InstanceHandle,
    targets: str,
    reason: tuple[str, ...],
    begin: float,
    until: float | None,
    lasts: float | None,
    every: float | None,
    end_jobs: bool | None,
    queue: str | None,
    name: str | None,
) -> None:
    """Plan an outage of TARGETS, which are drained for REASON while it lasts.

    No job starts there whose time limit ends after its begin, and none without a limit. Running jobs are left alone
    unless they are to end. With --queue the targets are not drained but given to the group of that queue.
    """
    when = {"from": begin, "until": until, "for": lasts, "every": every}
    asked = {"targets": targets, **when, "name": name, "end_jobs": end_jobs, "queue": queue}
    _add(handle, "an outage", {**asked, "reason": " ".join(reason) or None})


def _add(handle: InstanceHandle, what: str, asked: dict[str, Any]) -> None:
    if (asked["until"] is None) == (asked["for"] is None):
        raise click.UsageError(f"{what} has an end: give either --for or --until")
    name = handle.rpc("resource.outage-add", _given(asked))["name"]
    if asked["name"] is None:
        click.echo(name)
    for row in [each for each in _rows(handle) if each["name"] == name]:
        users = f" for {users_text(row, EVERYBODY)}" if row.get("reservation") else ""
        is_one = f"{name}: {row['nodelist']} from {moment_text(row['from'])} to {moment_text(row['until'])}{users}"
        click.echo(is_one, err=True)


@outage.command("list", cls=Command)
@table_options(LIST)
@viewing
def list_outages(handle: InstanceHandle, output: Output) -> None:
    """List planned outages, the next one first: FROM and UNTIL of the occurrence that is on or comes next."""
    _list(handle, output, reservations=False)


def _list(handle: InstanceHandle, output: Output, *, reservations: bool) -> None:
    rows = [row for row in _rows(handle) if row.get("reservation", False) is reservations]
    outages = [{key: value for key, value in row.items() if key != "nodelist"} for row in rows]
    output.show({"outages": outages}, lambda shown: rows)


def _rows(handle: InstanceHandle) -> list[dict[str, Any]]:
    """Return outages and reservations as they are listed, each with its `nodelist`."""
    from fluxsched.core.idset import Idset
    from fluxsched.core.resources import ResourceSet

    planned = handle.rpc("resource.outage-list")["outages"]
    resources = ResourceSet.parse(handle.rpc("resource.status")["R"]) if planned else None
    rows = []
    for each in planned:
        targets = Idset.parse(each["targets"])
        known = "" if resources is None else str(resources.hosts(targets & resources.ranks))
        rows.append({**each, "nodelist": known or each["targets"]})
    return rows


@outage.command("remove", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connected
def remove(handle: InstanceHandle, names: tuple[str, ...]) -> None:
    """Call outages off; the targets of one that is on are undrained."""
    for name in names:
        handle.rpc("resource.outage-remove", {"name": name, "reservation": False})


@outage.command("update", cls=Command)
@click.argument("name", metavar="NAME")
@click.argument("reason", metavar="[REASON]...", nargs=-1)
@_targets
@_moved
@_until
@_lasts
@_every
@_end_jobs
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
    end_jobs: bool | None,
) -> None:
    """Change an outage; what is not given stays. `--every 0` has it recur no more."""
    changed = {"targets": targets, "from": begin, "until": until, "for": lasts, "every": every}
    changed |= {"end_jobs": end_jobs, "reason": " ".join(reason) or None}
    _update(handle, name, changed, "REASON or an option", is_reservation=False)


@click.group("reserve", cls=CommandGroup)
def reserve() -> None:
    """Reserve targets in advance: only jobs that name the reservation run there (`submit --reservation`).

    TIME is now, +FSD, seconds since the epoch, a time such as 23:59, tomorrow, or a date and time.
    """


@reserve.command("add", cls=Command)
@click.argument("words", metavar="[TARGETS] [REASON]...", nargs=-1, shell_complete=complete_targets)
@_nodes
@_begin
@_until
@_lasts
@_every
@_end_jobs
@_users
@_name
@connected
def add_reservation(
    handle: InstanceHandle,
    words: tuple[str, ...],
    nodes: int | None,
    begin: float,
    until: float | None,
    lasts: float | None,
    every: float | None,
    end_jobs: bool | None,
    users: str | None,
    name: str | None,
) -> None:
    """Reserve TARGETS, or -N of them, for jobs that name the reservation; all others stay off it as off an outage.

    Without --users it is for all users.

    With -N these are the lowest ranks, of TARGETS (all, if none are given) and of one group, that no outage or other
    reservation has at that time and that are not drained now.
    """
    if nodes is None and not words:
        raise click.UsageError("a reservation has targets: give TARGETS or -N")
    targets, reason = (words[0], words[1:]) if words else ("all", ())
    when = {"from": begin, "until": until, "for": lasts, "every": every}
    asked = {"targets": targets, "nodes": nodes, **when, "name": name, "end_jobs": end_jobs, "reservation": True}
    try:
        _add(handle, "a reservation", {**asked, "users": _listed(users), "reason": " ".join(reason) or None})
    except RPCError as fault:
        if nodes is None or not words or fault.errnum != errno.EINVAL:
            raise
        hint = "with -N, too, the first word is TARGETS: give all before REASON"
        raise RPCError(f"{fault} ({hint})", fault.errnum) from None


@reserve.command("list", cls=Command)
@table_options(LIST)
@viewing
def list_reservations(handle: InstanceHandle, output: Output) -> None:
    """List reservations, the next one first, and FOR which users they are."""
    _list(handle, output, reservations=True)


@reserve.command("remove", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@connected
def remove_reservations(handle: InstanceHandle, names: tuple[str, ...]) -> None:
    """Remove reservations; jobs that wait for one end, jobs that run in it go on."""
    for name in names:
        handle.rpc("resource.outage-remove", {"name": name, "reservation": True})


@reserve.command("update", cls=Command)
@click.argument("name", metavar="NAME")
@_targets
@_moved
@_until
@_lasts
@_every
@_users
@connected
def update_reservation(
    handle: InstanceHandle,
    name: str,
    targets: str | None,
    begin: float | None,
    until: float | None,
    lasts: float | None,
    every: float | None,
    users: str | None,
) -> None:
    """Change a reservation; what is not given stays. Jobs that were accepted for it stay so."""
    changed = {"targets": targets, "from": begin, "until": until, "for": lasts, "every": every}
    _update(handle, name, {**changed, "users": _listed(users)}, "an option", is_reservation=True)


def _listed(users: str | None) -> list[str] | None:
    if users is None or users == EVERYBODY:
        return None if users is None else []
    listed = [user for user in users.split(",") if user]
    if not listed:
        raise click.UsageError(f"--users {users!r} names nobody: give names, or {EVERYBODY}")
    return listed


def _update(handle: InstanceHandle, name: str, changed: dict[str, Any], what: str, *, is_reservation: bool) -> None:
    asked = _given(changed)
    until, lasts = changed["until"], changed["for"]
    if until is not None and lasts is not None:
        raise click.UsageError("--for and --until are two ends: give one of them")
    if not asked:
        raise click.UsageError(f"nothing is to be changed: give {what}")
    handle.rpc("resource.outage-update", {"name": name, "reservation": is_reservation, **asked})


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
