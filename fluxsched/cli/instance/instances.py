"""`fluxsched instances`, and `--parent`: from one instance to the others."""

from __future__ import annotations

import os

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command, CommandFailed
from fluxsched.cli.common.options import InstanceHandle, Output, TableSpec, connect, table_options
from fluxsched.cli.common.table import Field
from fluxsched.errors import FluxschedError

LIST = TableSpec(
    {"default": "{pid:>8} {level:>5} {size:>6} {age:>8} {state:<7} {uri} ?:{parent}"},
    {
        "pid": Field("PID", lambda row: row["pid"]),
        "level": Field("LEVEL", lambda row: row["level"]),
        "size": Field("NNODES", lambda row: row["size"]),
        "age": Field("AGE", lambda row: show.duration_text(row["age"])),
        "state": Field("STATE", lambda row: row["state"] if row["ready"] else "start"),
        "uri": Field("URI", lambda row: row["uri"]),
        "parent": Field("PARENT", lambda row: row.get("parent")),
        "statedir": Field("STATEDIR", lambda row: row.get("statedir")),
    },
)


@click.command("instances", cls=Command)
@table_options(LIST)
def instances(output: Output) -> None:
    """List your instances on this machine, the oldest first.

    LEVEL is the number of enclosing instances; PARENT is the innermost of them. STATE is run, start, or silent
    if it does not respond.
    """
    from fluxsched.instance.backup import survey
    from fluxsched.system.clock import SystemClock

    now_s = SystemClock.wall_s()
    found = [{"level": 0, **info, "age": max(0.0, round(now_s - info["starttime"], 3))} for info in survey()]
    output.show({"instances": found}, lambda names: found)


def parent_of(handle: InstanceHandle) -> str:
    """Where the instance around this one is. Raises FluxschedError for one that is in no other."""
    info = handle.rpc("instance.info")
    parent: str | None = info.get("parent")
    if parent is None:
        raise FluxschedError(f"the instance {info['uri']} has no enclosing instance")
    return parent


def go_to_parent(ctx: click.Context) -> None:
    """Have this process, and what it starts, go to the parent of the instance that it would go to."""
    try:
        with connect(None) as handle:
            parent = parent_of(handle)
        with connect(parent) as handle:
            outer = handle.rpc("instance.info")
            local_uri = handle.rpc("attr.get", {"name": "local-uri"})["value"]
    except FluxschedError as error:
        raise CommandFailed(ctx, f"--parent: {error}") from error
    around = {"FLUXSCHED_URI": parent, "FLUXSCHED_PARENT_URI": outer.get("parent")}
    if "FLUX_URI" in os.environ:
        around["FLUX_URI"] = local_uri
    for name, value in around.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
