"""`fluxsched cluster`: the other instances that run jobs of this one."""

from __future__ import annotations

from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import CommandGroup
from fluxsched.cli.common.options import (
    InstanceHandle,
    Output,
    TableSpec,
    connected,
    json_option,
    table_options,
    viewing,
)
from fluxsched.cli.common.table import Field

_STATE_COLOURS = {"connected": show.GREEN, "silent": show.RED}


def _leases(state: str) -> Field:
    return Field(state.upper(), lambda row: row["leases"].get(state, 0))


LIST = TableSpec(
    {"default": "{name:<12} {kind:<9} {state:<9} {targets:>7} {online:>7} {wanted:>6} {sent:>5} {running:>7} ?:{note}"},
    {
        "name": Field("CLUSTER", lambda row: row["name"]),
        "kind": Field("KIND", lambda row: row["kind"]),
        "state": Field("STATE", lambda row: row["state"], lambda value: _STATE_COLOURS.get(str(value), "")),
        "targets": Field("TARGETS", lambda row: row["targets"]),
        "online": Field("ONLINE", lambda row: row["online"]),
        "wanted": _leases("wanted"),
        "sent": _leases("sent"),
        "running": _leases("running"),
        "uri": Field("URI", lambda row: row["uri"]),
        "note": Field("NOTE", lambda row: row["note"]),
    },
)


@click.group("cluster", cls=CommandGroup)
def cluster() -> None:
    """Show the clusters that run jobs of this instance, and give up leases."""


@cluster.command("list")
@table_options(LIST)
@viewing
def list_clusters(handle: InstanceHandle, output: Output) -> None:
    """Show the clusters, and the numbers of jobs that they run.

    \b
    WANTED   jobs that have not been sent yet
    SENT     jobs that were sent and have not started there
    RUNNING  jobs that run there
    """
    answer: dict[str, Any] = handle.rpc("cluster.list")
    output.show(answer, lambda shown: answer["clusters"])
    if not answer["clusters"] and not output.as_json:
        click.echo("no clusters: describe each in a [[cluster]] table of the configuration (rfc/config.md)", err=True)


@cluster.command("forget")
@click.argument("name")
@json_option
@connected
def forget(handle: InstanceHandle, name: str, as_json: bool) -> None:
    """Give up the leases of a cluster that is gone for good.

    A cluster that does not answer keeps its jobs, since they may still run. With this command you vouch that
    none of them does: jobs that had not started there are submitted again, the others end with an exception.
    """
    answer = handle.rpc("cluster.forget", {"name": name})
    if as_json:
        show.print_json(answer)
    else:
        again, ended = _jobs(answer.get("returned", 0)), _jobs(answer.get("failed", 0))
        show.line(f"submitted again: {again}; ended with an exception: {ended}")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
