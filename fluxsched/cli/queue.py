"""`fluxsched queue`: whether queues take jobs (enable) and whether their jobs are scheduled (start)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fluxsched.cli.base import CommandGroup
from fluxsched.cli.options import (
    InstanceHandle,
    Output,
    TableSpec,
    complete_queues,
    connected,
    json_option,
    table_options,
    viewing,
)
from fluxsched.cli.output import GREEN, RED, Field, duration_text, print_json, print_line, tick
from fluxsched.core.constraint import Constraint


def _up_colour(value: object) -> str:
    return GREEN if value in ("✔", "y") else RED


def _reason(status: dict[str, Any]) -> Callable[[str], str]:
    """Why something is off; a reason given when it was turned on is ignored."""
    return lambda what: "" if status[what] else status.get(f"{what}_reason") or ""


def _duration(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: duration_text(row[name]) if row.get(name) else ""


def _nodes(row: dict[str, Any]) -> str:
    """`1-64` or, without a most, `8-`."""
    least, most = (row.get(name) for name in ("nnodes_min", "nnodes_max"))
    return "" if least is None and most is None else f"{1 if least is None else least}-{'' if most is None else most}"


def _needs(row: dict[str, Any]) -> str:
    """Return the requirements of the queue's jobs; a queue that lists its hosts marks them with a property of its own
    (RFC 33).
    """
    if row.get("constraints") == {"properties": [f"+{row.get('name')}"]}:
        return "its hosts"
    return str(Constraint.parse(row["constraints"])) if row.get("constraints") else ""


_SWITCHES = "{queue:<12} {enabled:>2} {started:>2}"
_LIMITS = "?:{group:<10} ?:{policy:<10} ?:{defaults:>8} ?:{limit:>8} ?:{nnodes:>7} ?:{ncores:>6} ?:{ngpus:>5}"
LIST = TableSpec(
    {"default": f"{_SWITCHES} {_LIMITS} ?:{{requires}} ?:{{reason}}"},
    {
        "group": Field("GROUP", lambda row: ",".join(row.get("groups") or [row.get("group") or "default"])),
        "policy": Field("POLICY", lambda row: row.get("policy")),
        "defaults": Field("TDEFAULT", _duration("duration_default")),
        "limit": Field("TLIMIT", _duration("duration_max")),
        "nnodes": Field("NNODES", _nodes),
        "ncores": Field("NCORES", lambda row: row.get("ncores_max")),
        "ngpus": Field("NGPUS", lambda row: row.get("ngpus_max")),
        "requires": Field("REQUIRES", _needs),
        "queue": Field("QUEUE", lambda row: row.get("name") or "-"),
        "enabled": Field("EN", lambda row: tick(row["enable"]), _up_colour),
        "started": Field("ST", lambda row: tick(row["start"]), _up_colour),
        "reason": Field("REASON", lambda row: "; ".join(filter(None, map(_reason(row), ("enable", "start"))))),
    },
)


@click.group("queue", cls=CommandGroup)
def queue() -> None:
    """Show, enable, disable, start and stop queues."""


def _asked(handle: InstanceHandle, name: str | None) -> list[dict[str, Any]]:
    names = handle.rpc("job-manager.queue-list")["queues"] if name is None else [name]
    return [handle.rpc("job-manager.queue-status", {} if each is None else {"name": each}) for each in names or [None]]


_name = click.option("-q", "--queue", "name", metavar="NAME", shell_complete=complete_queues, help="Only this queue.")


@queue.command("list")
@_name
@table_options(LIST)
@viewing
def list_queues(handle: InstanceHandle, name: str | None, output: Output) -> None:
    """List queues: EN is whether they accept jobs, ST whether jobs are scheduled; then group and limits.

    Columns without any value are omitted: POLICY, TDEFAULT and TLIMIT (durations),
    NNODES, NCORES, NGPUS, REQUIRES.
    """
    queues = _asked(handle, name)
    output.show({"queues": queues}, lambda shown: queues)


@queue.command("status")
@click.argument("argument", metavar="[NAME]", required=False, shell_complete=complete_queues)
@_name
@json_option
@viewing
def status(handle: InstanceHandle, argument: str | None, name: str | None, as_json: bool) -> None:
    """Describe the queues, with the reason where one is disabled or stopped."""
    queues = _asked(handle, name if argument is None else argument)
    if as_json:
        print_json({"queues": queues})
        return
    for each in queues:
        prefix = f"{each['name']}: " if each.get("name") else ""
        for what, is_on, words, reason in (
            ("Job submission", each["enable"], ("enabled", "disabled"), each.get("enable_reason")),
            ("Scheduling", each["start"], ("started", "stopped"), each.get("start_reason")),
        ):
            why = f": {reason}" if reason and not is_on else ""
            print_line(f"{prefix}{what} is {words[not is_on]}{why}")
        if each.get("groups"):
            print_line(f"{prefix}Jobs run in one of the groups {', '.join(each['groups'])}")
        if each.get("policy"):
            print_line(f"{prefix}Scheduling policy is {each['policy']}")


def _which(with_reason: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        if with_reason:
            handler = click.option("-m", "--message", metavar="TEXT", help="The reason, shown to submitters.")(handler)
        metavar = "[NAME] [REASON...]" if with_reason else "[NAME]"
        handler = click.argument("words", metavar=metavar, nargs=-1, shell_complete=complete_queues)(handler)
        handler = click.option("-a", "--all", "all_queues", is_flag=True, help="All queues.")(handler)
        return click.option("-q", "--queue", "option", metavar="NAME", shell_complete=complete_queues,
                            help="The queue, as an option.")(handler)  # fmt: skip

    return decorate


def _set(handle: InstanceHandle, topic: str, request: dict[str, Any], words: tuple[str, ...], option: str | None, *,
         all_queues: bool, message: str | None = None) -> None:  # fmt: skip
    """`words` begin with the queue's name unless the options say which; those after it are the reason.

    So also where there is one queue without a name: who misspells a name there must not stop that one.
    """
    if option is not None and all_queues:
        raise click.UsageError("name one queue, or give --all")
    name = option
    if words and option is None and not all_queues:
        name, words = words[0], words[1:]
    is_off = False in request.values()
    if words and not is_off:
        raise click.UsageError(f"{' '.join(words)!r} is more than one queue: name one, or give --all")
    why = message or " ".join(words)
    named = {"all": True} if all_queues else {} if name is None else {"name": name}
    handle.rpc(topic, {**request, **named, **({"reason": why} if why else {})})


@queue.command("enable")
@_which(with_reason=False)
@connected
def enable(handle: InstanceHandle, **which: Any) -> None:
    """Accept jobs in a queue."""
    _set(handle, "job-manager.queue-enable", {"enable": True}, **which)


@queue.command("disable")
@_which(with_reason=True)
@connected
def disable(handle: InstanceHandle, **which: Any) -> None:
    """Stop accepting jobs in a queue; REASON is shown to submitters."""
    _set(handle, "job-manager.queue-enable", {"enable": False}, **which)


@queue.command("start")
@_which(with_reason=False)
@connected
def start(handle: InstanceHandle, **which: Any) -> None:
    """Start scheduling a queue's jobs."""
    _set(handle, "job-manager.queue-start", {"start": True}, **which)


@queue.command("stop")
@_which(with_reason=True)
@connected
def stop(handle: InstanceHandle, **which: Any) -> None:
    """Stop scheduling a queue's jobs; running jobs continue."""
    _set(handle, "job-manager.queue-start", {"start": False}, **which)
