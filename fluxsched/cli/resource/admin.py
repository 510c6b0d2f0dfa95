"""`fluxsched resource drain|undrain|exclude|include|assign|property|reload`: what changes the state of targets.

Moving targets ends the jobs on them. On a terminal that is said first, with these jobs by name, and asked; a script
goes ahead. `--graceful` lets jobs end by themselves, so there is nothing to ask. Waiting jobs that no longer fit go on
waiting, or are denied if `[policy] unsatisfiable` says so: which they are is their scheduler's to find, afterwards.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click

from fluxsched.cli.common import complete, show, stdio
from fluxsched.cli.common.base import Command, CommandGroup
from fluxsched.cli.common.options import (
    InstanceHandle,
    Output,
    TableSpec,
    confirm,
    connect,
    connected,
    json_option,
    resolved,
    table_options,
    uri_option,
    viewing,
)
from fluxsched.cli.common.table import Field
from fluxsched.cli.resource.rows import SHARED_FIELDS, STATUS_FIELDS, drain_list, property_rows
from fluxsched.core.idset import Idset
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, RPCError

WAITING = ("depend", "priority", "sched")
"""States of jobs that are judged again when their group has lost targets."""

JOBS_SHOWN_MAX = 10
"""How many jobs a question or an answer names; the rest is a number."""

DRAIN = TableSpec(
    {
        "default": "{timestamp!d:%b%d %R::<12} {state:<9} ?:{user:<8} {reason:<30.30+} ?:{where:<7} {nodelist}",
        "long": "{timestamp!d:%FT%T::<19} {state:<9} ?:{user:<8} {ranks:<8} {reason:<30} ?:{where:<7} {nodelist}",
    },
    STATUS_FIELDS,
)
PROPERTIES = TableSpec(
    {"default": "{property:<16} {nnodes:>6} ?:{where:<7} {ranks:<8} {nodelist}"},
    {"property": Field("PROPERTY", lambda row: row.labels["property"]), **SHARED_FIELDS},
)

_targets = click.argument("targets", metavar="TARGETS", shell_complete=complete.targets)
_reason = click.argument("reason", metavar="[REASON...]", nargs=-1)


def _graceful(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        click.option("-y", "--yes", is_flag=True, help="Do not ask, even if this ends jobs."),
        click.option("--graceful", is_flag=True, help="Drain now, move once no job holds the target."),
    ):
        function = option(function)
    return function


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", ())}


@click.command("drain", cls=Command)
@click.argument("targets", metavar="[TARGETS]", required=False, shell_complete=complete.targets)
@_reason
@click.option("-f", "--force", count=True, help="Replace the reason of targets already drained; twice: the time, too.")
@click.option("-u", "--update", is_flag=True, help="Skip targets that are already drained.")
@table_options(DRAIN)
@uri_option
def drain(
    uri: str | None, targets: str | None, reason: tuple[str, ...], force: int, update: bool, output: Output
) -> None:
    """Drain TARGETS: running jobs continue, no new ones start there. Without TARGETS: list drained targets.

    Time, user and REASON are recorded, and survive a restart.
    """
    if update and force:
        raise click.UsageError("--update keeps the old reason, --force replaces it: give one of them")
    if targets is None:
        if update or force:
            raise click.UsageError("--update and --force need TARGETS")
        with connect(uri, may_guess=True) as handle:
            answer = handle.rpc("resource.status")
        output.show({"drain": answer.get("drain", {})}, lambda shown: drain_list(answer, shown))
        return
    mode = "update" if update else (None, "overwrite", "force-overwrite")[min(force, 2)]
    with connect(uri) as handle:
        handle.rpc("resource.drain", {"targets": targets, **_given(reason=" ".join(reason), mode=mode)})


@click.command("undrain", cls=Command)
@_targets
@_reason
@click.option(
    "-f", "--force", count=True, help="Do not fail for targets that are not drained; may be given twice, as for drain."
)
@click.option("-u", "--update", is_flag=True, help="Do not fail for targets that are not drained.")
@connected
def undrain(handle: InstanceHandle, targets: str, reason: tuple[str, ...], force: int, update: bool) -> None:
    """Return drained TARGETS to service."""
    if update and force:
        raise click.UsageError("give one of --update and --force")
    mode = "update" if update else (None, "overwrite", "force-overwrite")[min(force, 2)]
    handle.rpc("resource.undrain", {"targets": targets, **_given(reason=" ".join(reason), mode=mode)})


@click.command("exclude", cls=Command)
@_targets
@_graceful
@connected
def exclude(handle: InstanceHandle, targets: str, graceful: bool, yes: bool, as_json: bool) -> None:
    """Withdraw TARGETS from all schedulers: they move to the group `exclude`, and jobs on them end at once."""
    _move(handle, "resource.assign", {"targets": targets, "group": "exclude", "graceful": graceful}, yes, as_json)


@click.command("include", cls=Command)
@_targets
@_graceful
@connected
def include(handle: InstanceHandle, targets: str, graceful: bool, yes: bool, as_json: bool) -> None:
    """Return TARGETS to their configured group, else `default`."""
    _move(handle, "resource.include", {"targets": targets, "graceful": graceful}, yes, as_json)


@click.command("assign", cls=Command)
@_targets
@click.argument("group", metavar="GROUP", shell_complete=complete.groups)
@_graceful
@connected
def assign(handle: InstanceHandle, targets: str, group: str, graceful: bool, yes: bool, as_json: bool) -> None:
    """Move TARGETS to GROUP, which is created if needed; jobs on them end at once."""
    _move(handle, "resource.assign", {"targets": targets, "group": group, "graceful": graceful}, yes, as_json)


_OUTCOMES = {
    "moved": "moved {}",
    "leaving": "leaving {}: moves once released",
    "draining": "draining {}: moves once no job holds it",
    "there": "already in the group: {}",
}


def _move(handle: InstanceHandle, topic: str, request: dict[str, Any], yes: bool, as_json: bool) -> None:
    if show.interactive() and not yes and not request["graceful"]:
        _confirm(handle, request["targets"])
    answer = handle.rpc(topic, request)
    if as_json:
        show.print_json(answer)
        return
    for state, line in _OUTCOMES.items():
        if answer.get(state):
            click.echo(line.format(answer[state]))
    if ending := answer.get("ending"):
        named = ", ".join(map(show.jobid_text, ending[:JOBS_SHOWN_MAX]))
        more = f" and {len(ending) - JOBS_SHOWN_MAX} more" if len(ending) > JOBS_SHOWN_MAX else ""
        click.echo(f"ending {show.plural(len(ending), 'job')} there (elastic jobs shrink): {named}{more}")


def _confirm(handle: InstanceHandle, targets: str) -> None:
    """Name the jobs that would end, and ask. Raises Refused when the answer is no."""
    status = handle.rpc("resource.status")
    ranks = resolved(handle, targets)
    listed = handle.rpc("job-manager.list", {"states": ["RUN"]})["jobs"]
    ending = [each for each in listed if not Idset.parse(each.get("ranks") or "").isdisjoint(ranks)]
    taken = not ranks <= Idset.parse(status.get("exclude") or "")  # no job waits for what is excluded
    waiting = _waiting(handle) if taken else 0
    if not ending and not waiting:
        return
    if ending:
        stdio.say(f"This ends {show.plural(len(ending), 'job')} at once (use --graceful to wait for them):")
    for each in ending[:JOBS_SHOWN_MAX]:
        stdio.say(f"  {printable(_named(each))}")
    if len(ending) > JOBS_SHOWN_MAX:
        stdio.say(f"  and {len(ending) - JOBS_SHOWN_MAX} more")
    _ask(waiting, "no target was moved")


def _waiting(handle: InstanceHandle) -> int:
    """How many jobs wait to be scheduled."""
    jobs = handle.rpc("job-manager.stats-get").get("jobs", {})
    return sum(int(jobs.get(state, 0)) for state in WAITING)


def _ask(waiting: int, refused: str) -> None:
    if waiting:
        text = f"{show.plural(waiting, 'job')} pending: those that no longer fit wait (or are denied, by [policy])."
        stdio.say(text)
    confirm("Go ahead?", refused)


def _named(job: Mapping[str, Any]) -> str:
    return f"{show.jobid_text(job['id'])} {job.get('name') or ''} on {job.get('nodelist') or job.get('ranks')}"


@click.group("property", cls=CommandGroup)
def properties() -> None:
    """Add, remove and list properties of targets."""


@properties.command("list")
@table_options(PROPERTIES)
@viewing
def property_list(handle: InstanceHandle, output: Output) -> None:
    """List properties and the targets that have them."""
    answer = handle.rpc("resource.status")
    found = answer["R"]["execution"].get("properties", {})
    output.show({"properties": found}, lambda shown: property_rows(answer, shown))


@properties.command("add")
@_targets
@click.argument("name")
@connected
def property_add(handle: InstanceHandle, targets: str, name: str) -> None:
    """Add the property NAME to TARGETS; a leading `+` keeps it out of the R of jobs."""
    _change_property(handle, "add", targets, name)


@properties.command("remove")
@_targets
@click.argument("name", shell_complete=complete.properties)
@connected
def property_remove(handle: InstanceHandle, targets: str, name: str) -> None:
    """Remove the property NAME from TARGETS."""
    _change_property(handle, "remove", targets, name)


def _change_property(handle: InstanceHandle, verb: str, targets: str, name: str) -> None:
    try:
        handle.rpc(f"resource.property-{verb}", {"properties": {name: targets}})
    except RPCError as error:
        if "unknown hosts" in str(error) and _is_idset(name):  # as 0.1.0 had them
            hint = f"TARGETS come first: fluxsched resource property {verb} {shlex.quote(name)} {shlex.quote(targets)}"
            raise RPCError(f"{error}; {hint}", error.errnum) from None
        raise


def _is_idset(text: str) -> bool:
    try:
        return bool(Idset.parse(text))
    except InvalidValue:
        return False


@click.command("reload", cls=Command)
@click.argument("path", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("-f", "--force", is_flag=True, help="Proceed even if targets are removed that cannot be released first.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if this may end jobs.")
@connected
def reload(handle: InstanceHandle, path: str | None, force: bool, yes: bool) -> None:
    """Reload the inventory: from the R file PATH, else from its source. Hosts keep their drains and groups.

    Jobs on removed targets end.
    """
    if show.interactive() and not yes:
        running = int(handle.rpc("job-manager.stats-get").get("jobs", {}).get("run", 0))
        waiting = _waiting(handle)
        if running:
            stdio.say(f"{show.plural(running, 'job')} running: those on removed targets end.")
        if running or waiting:
            _ask(waiting, "nothing was reloaded")
    wanted = _given(path=path and os.path.abspath(path)) | ({"force": True} if force else {})
    answer = handle.rpc("resource.reload", wanted)
    if answer.get("changed") or answer.get("restart"):  # the configuration was read again with it
        from fluxsched.cli.instance.config import tell

        tell(answer)
