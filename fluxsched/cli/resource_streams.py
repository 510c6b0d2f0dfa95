"""`fluxsched resource eventlog|acquire`: the two streams of the resource module, as they come."""

from __future__ import annotations

import click

from fluxsched.cli import show
from fluxsched.cli.base import Command
from fluxsched.cli.events import EventPrinter, event_options
from fluxsched.cli.options import FSD, Handle, connected, viewing


@click.command("eventlog", cls=Command)
@click.option("-F", "--follow", is_flag=True, help="Follow new events as they happen.")
@click.option("-w", "--wait", metavar="EVENT", help="Print events up to EVENT, waiting for it, then leave.")
@click.option("-t", "--timeout", type=FSD, metavar="FSD", help="With --wait: fail after this time.")
@event_options
@viewing
def eventlog(handle: Handle, printer: EventPrinter, follow: bool, wait: str | None, timeout: float | None) -> None:
    """The journal of resource events (RFC 44): the history, and with -F what follows."""
    with printer.deadline(timeout):
        for batch in handle.stream("resource.journal"):
            for event in batch["events"]:
                printer.show(event)
                if wait and event["name"] == wait:
                    return
            if not batch["events"] and not follow and not wait:
                return  # the empty batch marks the end of the history


@click.command("acquire", cls=Command)
@click.option("--group", default="default", show_default=True, help="The group to acquire.")
@click.option("--plain", is_flag=True, help="Speak today's RFC 28: the group `default`, no types, no release.")
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for consistency: the stream is always JSON.")
@connected
def acquire(handle: Handle, group: str, plain: bool) -> None:
    """Acquire a group and print what a scheduler sees, one JSON a line, until interrupted.

    Only one can have a group, so this fails with EBUSY where a scheduler has it. Nothing is released while this runs:
    targets that are told to leave do so when it ends.
    """
    if plain and group != "default":
        raise click.UsageError("--plain acquires the group default; leave --group out")
    request = None if plain else {"group": group, "accept": ["update"]}
    show.print_stream(handle.stream("resource.acquire", request))
