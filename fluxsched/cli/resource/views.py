"""`fluxsched resource list|status|info|R|groups`: one request and its answer; and the streams `eventlog|acquire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from fluxsched.cli.common import complete, show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.events import EventPrinter, event_options
from fluxsched.cli.common.options import (
    FSD,
    InstanceHandle,
    Output,
    TableSpec,
    WordList,
    connected,
    include_option,
    json_option,
    resolved,
    table_options,
    viewing,
)
from fluxsched.cli.common.table import Field
from fluxsched.cli.resource.rows import (
    LIST_STATES,
    MADE_UP,
    STATUS_FIELDS,
    STATUS_STATES,
    ResourceRow,
    list_rows,
    scheduler_view,
    status_rows,
    where_of,
)
from fluxsched.cli.resource.switches import SWITCH_FIELDS, show_switches
from fluxsched.core.amounts import amount_text
from fluxsched.core.idset import Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.targets import QUEUE

LIST = TableSpec(
    {
        "default": "{state:>10} {nnodes:>6} {ncores:>8} {ngpus:>8} ?:{amounts:<16} ?:{where:<7} {nodelist}",
        "long": "{state:>10} ?:{properties:<10} {nnodes:>6} {ncores:>8} {ngpus:>8} "
        "?:{amounts:<16} ?:{where:<7} {ranks:<8} {nodelist}",
        "rlist": "{state:>10} {nnodes:>6} {ncores:>8} {ngpus:>8} {rlist}",
    },
    SWITCH_FIELDS,
)
STATUS = TableSpec(
    {
        "default": "{state:>10} {up:>2} {nnodes:>6} ?:{where:<7} {nodelist}",
        "long": "{state:>10} {up:>2} {group:<8} {nnodes:>6} ?:{where:<7} ?:{user:<8} ?:{reason:<30.30+} "
        "{ranks:<8} {nodelist}",
    },
    STATUS_FIELDS,
)


def _of(kind: str) -> Callable[[Any], object]:
    return lambda row: row[0].get(kind)


GROUPS = TableSpec(
    {
        "default": "{name:<10} {nnodes:>6} ?:{leaving:>8} ?:{incoming:>8} {acquired:<8} ?:{where:<7} {ranks:<8} "
        "{nodelist}",
    },
    {
        "name": Field("GROUP", _of("name")),
        "nnodes": Field("NNODES", lambda row: len(row[1])),
        "leaving": Field("LEAVING", _of("leaving")),
        "incoming": Field("INCOMING", _of("incoming")),
        "acquired": Field("ACQUIRED", lambda row: (row[0].get("dialect") or "yes") if row[0].get("acquired") else "no"),
        "acquirer": Field("ACQUIRER", _of("acquirer")),
        "where": Field("WHERE", lambda row: row[3]),
        "ranks": Field("RANKS", lambda row: str(row[1])),
        "nodelist": Field("NODELIST", lambda row: str(row[2].hosts(row[1]).unique()) if row[2].nodelist else ""),
    },
)

_QUEUE = click.option("-q", "--queue", metavar="NAME", shell_complete=complete.queues,
                      help="Only resources that jobs of this queue may use.")  # fmt: skip


def _states(allowed: tuple[str, ...], default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("-s", "--states", metavar="STATE,...", type=WordList(allowed), default=default,
                        show_default=True, help=f"Only these of {', '.join(allowed)}.")  # fmt: skip


def _wanted(handle: InstanceHandle, include: str | None, queue: str | None) -> Idset | None:
    """The ranks that the options leave, None if that is all."""
    named = [*([include] if include is not None else []), *([f"{QUEUE}:{queue}"] if queue is not None else [])]
    found = [resolved(handle, text) for text in named]
    return found[0] & found[-1] if found else None


def _only(rows: list[ResourceRow], wanted: Idset | None) -> list[ResourceRow]:
    if wanted is None:
        return rows
    return [ResourceRow(row.labels, row.ranks & wanted, row.source) for row in rows if row.ranks & wanted]


@click.command("list", cls=Command)
@_states(LIST_STATES, "free,allocated,down")
@include_option
@_QUEUE
@click.option("--topology", is_flag=True, help="The switches of the network, with the free nodes under each.")
@table_options(LIST)
@viewing
def list_resources(
    handle: InstanceHandle, states: tuple[str, ...], include: str | None, queue: str | None, topology: bool,
    output: Output,
) -> None:  # fmt: skip
    """Show the resources of schedulers: free, allocated, down; without excluded targets.

    AMOUNTS are countable resources (memory, licences), if there are any.
    """
    answer = handle.rpc("resource.sched-status")
    wanted = _wanted(handle, include, queue)
    if topology:
        show_switches(handle, answer, wanted, output)
        return
    output.show(answer, lambda shown: _only(list_rows(answer, states, shown), wanted))


@click.command("status", cls=Command)
@_states(STATUS_STATES, "all")
@include_option
@_QUEUE
@click.option(
    "--watch",
    "is_live",
    is_flag=True,
    help="Show changes as they happen: on a terminal until q is pressed, else one line each.",
)
@table_options(STATUS)
@viewing
def status(
    handle: InstanceHandle,
    states: tuple[str, ...],
    include: str | None,
    queue: str | None,
    is_live: bool,
    output: Output,
) -> int:
    """Show the state of each target in the resource module; `*` and the UP column mark offline targets."""
    if is_live:
        from fluxsched.cli.resource.watch import watch_status

        def rows(answer: Mapping[str, Any], is_all: bool) -> list[ResourceRow]:
            wanted = _wanted(handle, include, queue)
            return _only(status_rows(answer, ("all",) if is_all else states, output.layout.names), wanted)

        return watch_status(handle, rows, output)
    answer = handle.rpc("resource.status")
    wanted = _wanted(handle, include, queue)
    output.show(answer, lambda shown: _only(status_rows(answer, states, shown), wanted))
    return 0


def _asked(
    handle: InstanceHandle, answer: Mapping[str, Any], states: tuple[str, ...], include: str | None
) -> ResourceSet:
    held = EMPTY_R
    for state in states:
        held |= scheduler_view(answer, state)
    return held if include is None else held.restrict(resolved(handle, include))


@click.command("info", cls=Command)
@_states(LIST_STATES, "all")
@include_option
@json_option
@viewing
def info(handle: InstanceHandle, states: tuple[str, ...], include: str | None, as_json: bool) -> None:
    """Print the numbers of nodes, cores and GPUs of schedulers in one line, and countable resources."""
    answer = handle.rpc("resource.sched-status")
    held = _asked(handle, answer, states, include)
    counts = {"nnodes": len(held), "ncores": held.count("core"), "ngpus": held.count("gpu")}
    amounts, made_up = held.counted(), held.ranks & Idset.parse(answer.get("made_up", ""))
    if as_json:
        more = {"amounts": dict(amounts)} if amounts else {}
        show.print_json(counts | more | ({"made_up": str(made_up)} if made_up else {}))
    else:
        nouns = zip(counts.values(), ("Node", "Core", "GPU"), strict=True)
        words = [show.plural(count, noun) for count, noun in nouns]
        some = "all" if made_up == held.ranks else len(made_up)
        words += [*[amount_text(*one) for one in amounts], *([f"{some} {MADE_UP}"] if made_up else [])]
        click.echo(", ".join(words))


@click.command("R", cls=Command)
@_states(LIST_STATES, "all")
@include_option
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for consistency: R is always JSON.")
@viewing
def print_r(handle: InstanceHandle, states: tuple[str, ...], include: str | None) -> None:
    """Print the resources in the scheduler's view as R (RFC 20)."""
    show.print_json(_asked(handle, handle.rpc("resource.sched-status"), states, include).to_json())


@click.command("groups", cls=Command)
@table_options(GROUPS)
@viewing
def groups(handle: InstanceHandle, output: Output) -> None:
    """List groups, their targets, acquirers and dialects, and targets that are leaving or incoming."""
    answer = handle.rpc("resource.groups")
    known = {} if output.as_json else handle.rpc("resource.status")
    source = ResourceSet.parse(known["R"]) if known else EMPTY_R
    made_up = Idset.parse(known.get("made_up", ""))
    targets = [(each, Idset.parse(each["targets"])) for each in answer["groups"]]
    rows = [(each, ranks, source, where_of(ranks, source, made_up)) for each, ranks in targets]
    output.show(answer, lambda shown: rows)


@click.command("eventlog", cls=Command)
@click.option("-F", "--follow", is_flag=True, help="Follow new events as they happen.")
@click.option("-w", "--wait", metavar="EVENT", help="Wait for EVENT and print all events up to it.")
@click.option("-t", "--timeout", type=FSD, metavar="FSD", help="With --wait: fail after this time.")
@event_options
@viewing
def eventlog(
    handle: InstanceHandle, printer: EventPrinter, follow: bool, wait: str | None, timeout: float | None
) -> None:
    """Print the journal of resource events (RFC 44); with -F follow it."""
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
@click.option("--plain", is_flag=True, help="Use the plain dialect of the current RFC 28: group `default`, no release.")
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for consistency: the stream is always JSON.")
@connected
def acquire(handle: InstanceHandle, group: str, plain: bool) -> None:
    """Acquire a group and print the stream of a scheduler, one JSON object per line, until interrupted.

    Fails with EBUSY if a scheduler has acquired the group. Nothing is released while this runs:
    leaving targets are released when it ends.
    """
    if plain and group != "default":
        raise click.UsageError("--plain acquires the group default and cannot be combined with --group")
    request = None if plain else {"group": group, "accept": ["update"]}
    show.print_stream(handle.stream("resource.acquire", request))
