"""`fluxsched resource`: the table of its commands."""

from __future__ import annotations

import click

from fluxsched.cli.common.base import Lazy, LazyGroup

_VIEWS = "fluxsched.cli.resource.views"
_ADMIN = "fluxsched.cli.resource.admin"
_MAP = "fluxsched.cli.resource.machine_map"

SECTIONS = {
    "Show": {
        "list": Lazy(f"{_VIEWS}:list_resources", "Show resources: free, allocated, down."),
        "status": Lazy(f"{_VIEWS}:status", "Show the state of targets: avail, drained, offline and so on."),
        "map": Lazy(f"{_MAP}:machine_map", "Print a map of the machine."),
        "info": Lazy(f"{_VIEWS}:info", "Print the numbers of nodes, cores and GPUs."),
        "R": Lazy(f"{_VIEWS}:print_r", "Print the resources as R (RFC 20)."),
        "groups": Lazy(f"{_VIEWS}:groups", "List groups, their acquirers, and moving targets."),
        "eventlog": Lazy(f"{_VIEWS}:eventlog", "Print the journal of resource events (RFC 44)."),
        "acquire": Lazy(f"{_VIEWS}:acquire", "Follow the live acquisition stream of a scheduler."),
    },
    "Administer": {
        "drain": Lazy(f"{_ADMIN}:drain", "Drain targets, or list drained targets."),
        "undrain": Lazy(f"{_ADMIN}:undrain", "Return drained targets to service."),
        "exclude": Lazy(f"{_ADMIN}:exclude", "Withdraw targets from all schedulers."),
        "include": Lazy(f"{_ADMIN}:include", "Return targets to their configured group."),
        "assign": Lazy(f"{_ADMIN}:assign", "Move targets to a group."),
        "property": Lazy(f"{_ADMIN}:properties", "Add, remove and list properties."),
        "reload": Lazy(f"{_ADMIN}:reload", "Reload the inventory."),
    },
}


@click.group("resource", cls=LazyGroup, sections=SECTIONS, subcommand_metavar="COMMAND [ARGS]...")
def resource() -> None:
    """Show, drain, exclude and move targets.

    TARGETS are ranks (0-3,7), hosts (node[0-3]), sets (all, property:X, group:X, queue:X) or a list of these.

    Of a set a command takes the targets to which it applies: `undrain all` returns those that are drained.
    """
