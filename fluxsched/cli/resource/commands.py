"""`fluxsched resource`: the table of its commands, by file: views, administration, streams."""

from __future__ import annotations

import click

from fluxsched.cli.common.base import Entry, LazyGroup

_VIEWS = "fluxsched.cli.resource.views"
_ADMIN = "fluxsched.cli.resource.admin"

SECTIONS = {
    "Show": {
        "list": Entry(f"{_VIEWS}:list_resources", "What schedulers see: free, allocated, down."),
        "status": Entry(f"{_VIEWS}:status", "What the resource module knows: avail, drained, offline and so on."),
        "info": Entry(f"{_VIEWS}:info", "One line: how many nodes, cores and GPUs."),
        "R": Entry(f"{_VIEWS}:print_r", "Print the resources as R (RFC 20)."),
        "groups": Entry(f"{_VIEWS}:groups", "Groups, who has acquired them, and what moves."),
        "eventlog": Entry(f"{_VIEWS}:eventlog", "The journal of resource events (RFC 44)."),
        "acquire": Entry(f"{_VIEWS}:acquire", "See what a scheduler sees: the live acquisition stream."),
    },
    "Administer": {
        "drain": Entry(f"{_ADMIN}:drain", "Drain targets, or list what is drained."),
        "undrain": Entry(f"{_ADMIN}:undrain", "Let drained targets be used again."),
        "exclude": Entry(f"{_ADMIN}:exclude", "Take targets away from every scheduler."),
        "include": Entry(f"{_ADMIN}:include", "Give targets back to their configured group."),
        "assign": Entry(f"{_ADMIN}:assign", "Move targets to a group."),
        "property": Entry(f"{_ADMIN}:properties", "Add, remove and list properties."),
        "reload": Entry(f"{_ADMIN}:reload", "Read the inventory anew."),
    },
}


@click.group("resource", cls=LazyGroup, sections=SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def resource() -> None:
    """Show, drain, exclude and move targets.

    TARGETS are an idset of ranks (0-3,7), a hostlist (node[0-3]) or a list of both.
    """
