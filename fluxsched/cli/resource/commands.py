"""`fluxsched resource`: the table of its commands, by file: views, administration, streams."""

from __future__ import annotations

import click

from fluxsched.cli.common.base import Lazy, LazyGroup

_VIEWS = "fluxsched.cli.resource.views"
_ADMIN = "fluxsched.cli.resource.admin"

SECTIONS = {
    "Show": {
        "list": Lazy(f"{_VIEWS}:list_resources", "What schedulers see: free, allocated, down."),
        "status": Lazy(f"{_VIEWS}:status", "What the resource module knows: avail, drained, offline and so on."),
        "info": Lazy(f"{_VIEWS}:info", "One line: how many nodes, cores and GPUs."),
        "R": Lazy(f"{_VIEWS}:print_r", "Print the resources as R (RFC 20)."),
        "groups": Lazy(f"{_VIEWS}:groups", "Groups, who has acquired them, and what moves."),
        "eventlog": Lazy(f"{_VIEWS}:eventlog", "The journal of resource events (RFC 44)."),
        "acquire": Lazy(f"{_VIEWS}:acquire", "See what a scheduler sees: the live acquisition stream."),
    },
    "Administer": {
        "drain": Lazy(f"{_ADMIN}:drain", "Drain targets, or list what is drained."),
        "undrain": Lazy(f"{_ADMIN}:undrain", "Let drained targets be used again."),
        "exclude": Lazy(f"{_ADMIN}:exclude", "Take targets away from every scheduler."),
        "include": Lazy(f"{_ADMIN}:include", "Give targets back to their configured group."),
        "assign": Lazy(f"{_ADMIN}:assign", "Move targets to a group."),
        "property": Lazy(f"{_ADMIN}:properties", "Add, remove and list properties."),
        "reload": Lazy(f"{_ADMIN}:reload", "Read the inventory anew."),
    },
}


@click.group("resource", cls=LazyGroup, sections=SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def resource() -> None:
    """Show, drain, exclude and move targets.

    TARGETS are an idset of ranks (0-3,7), a hostlist (node[0-3]) or a list of both.
    """
