"""Commands of `fluxsched resource` and `fluxsched cluster`: lists and streams of targets, and changes to them.

Moving targets ends the jobs on them. On a terminal that is said first, with these jobs by name, and asked; a script
goes ahead. `--graceful` lets jobs end by themselves, so there is nothing to ask. Waiting jobs that no longer fit go on
waiting, or are denied if `[policy] unsatisfiable` says so: which they are is their scheduler's to find, afterwards.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import click

from fluxsched.cli import base
from fluxsched.cli.base import Command, CommandGroup
from fluxsched.cli.options import (
    FSD,
    InstanceHandle,
    Output,
    TableSpec,
    WordList,
    complete_groups,
    complete_properties,
    complete_queues,
    complete_targets,
    confirm,
    connect,
    connected,
    include_option,
    json_option,
    resolved,
    table_options,
    uri_option,
    viewing,
)
from fluxsched.cli.output import (
    GREEN,
    RED,
    EventPrinter,
    Field,
    event_options,
    interactive,
    jobid_text,
    plural,
    print_json,
    print_line,
    print_stream,
)
from fluxsched.cli.target_rows import (
    LIST_STATES,
    MADE_UP,
    SHARED_FIELDS,
    STATUS_FIELDS,
    STATUS_STATES,
    SWITCH_FIELDS,
    ResourceRow,
    drain_list,
    list_rows,
    property_rows,
    scheduler_view,
    show_switches,
    status_rows,
    where_of,
)
from fluxsched.core.constraint import QUEUE
from fluxsched.core.idset import Idset
from fluxsched.core.quantities import amount_text
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, RPCError

LIST = TableSpec(
    {
        "default": "{state:>10} {nnodes:>6} {ncores:>8} {ngpus:>8} ?:{amounts:<16} ?:{where:<7} ?:{replaces:<8} "
        "{nodelist}",
        "long": "{state:>10} ?:{properties:<10} {nnodes:>6} {ncores:>8} {ngpus:>8} "
        "?:{amounts:<16} ?:{where:<7} ?:{replaces:<8} {ranks:<8} {nodelist}",
        "rlist": "{state:>10} {nnodes:>6} {ncores:>8} {ngpus:>8} {rlist}",
    },
    SWITCH_FIELDS,
)
STATUS = TableSpec(
    {
        "default": "{state:>10} {up:>2} {nnodes:>6} ?:{parts:<14} ?:{where:<7} ?:{replaces:<8} {nodelist}",
        "long": "{state:>10} {up:>2} {group:<8} {nnodes:>6} ?:{parts:<14} ?:{where:<7} ?:{replaces:<8} ?:{user:<8} "
        "?:{reason:<30.30+*} {ranks:<8} {nodelist}",
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

_QUEUE = click.option("-q", "--queue", metavar="NAME", shell_complete=complete_queues,
                      help="Only resources that jobs of this queue may use.")  # fmt: skip


def _states(allowed: tuple[str, ...], default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("-s", "--states", metavar="STATE,...", type=WordList(allowed), default=default,
                        show_default=True, help=f"Only these of {', '.join(allowed)}.")  # fmt: skip


def _wanted(handle: InstanceHandle, include: str | None, queue: str | None) -> Idset | None:
    """Return the ranks that the options leave, None if that is all."""
    named = [*([include] if include is not None else []), *([f"{QUEUE}:{queue}"] if queue is not None else [])]
    found = [resolved(handle, text) for text in named]
    return found[0] & found[-1] if found else None


def _only(rows: list[ResourceRow], wanted: Idset | None) -> list[ResourceRow]:
    if wanted is None:
        return rows
    return [ResourceRow(row.labels, row.ranks & wanted, row.source) for row in rows if row.ranks & wanted]


@click.command("list", cls=Command)
@_states(LIST_STATES, "free,allocated,down,spare,withheld")
@include_option
@_QUEUE
@click.option("--topology", is_flag=True, help="The switches of the network, with the free nodes under each.")
@table_options(LIST)
@viewing
def list_resources(
    handle: InstanceHandle, states: tuple[str, ...], include: str | None, queue: str | None, topology: bool,
    output: Output,
) -> None:  # fmt: skip
    """Show the resources of schedulers: free, allocated, down, spare, and withheld; without excluded targets.

    A target that is partly in use is in several rows, each of its cores in one. AMOUNTS are countable resources
    (memory, licences), if there are any.
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
        from fluxsched.cli.watch import watch_status

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
        print_json(counts | more | ({"made_up": str(made_up)} if made_up else {}))
    else:
        nouns = zip(counts.values(), ("Node", "Core", "GPU"), strict=True)
        words = [plural(count, noun) for count, noun in nouns]
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
    print_json(_asked(handle, handle.rpc("resource.sched-status"), states, include).to_json())


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
    request = None if plain else {"group": group, "accept": ["update", "parts"]}
    print_stream(handle.stream("resource.acquire", request))


# ---- commands of administrators

WAITING = ("depend", "priority", "sched")
"""States of jobs that are judged again when their group has lost targets."""

JOBS_SHOWN_MAX = 10
"""Number of jobs that a question or an answer names; of the rest it gives the number."""

DRAIN = TableSpec(
    {
        "default": "{timestamp!d:%b%d %R::<12} {state:<9} ?:{user:<8} {reason:<30.30+*} ?:{parts:<14} "
        "?:{where:<7} {nodelist}",
        "long": "{timestamp!d:%FT%T::<19} {state:<9} ?:{user:<8} {ranks:<8} {reason:<30} ?:{parts:<14} ?:{where:<7} "
        "{nodelist}",
    },
    STATUS_FIELDS,
)
PROPERTIES = TableSpec(
    {"default": "{property:<16} {nnodes:>6} ?:{where:<7} {ranks:<8} {nodelist}"},
    {"property": Field("PROPERTY", lambda row: row.labels["property"]), **SHARED_FIELDS},
)

_targets = click.argument("targets", metavar="TARGETS", shell_complete=complete_targets)
_reason = click.argument("reason", metavar="[REASON...]", nargs=-1)


def _graceful(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        json_option,
        click.option("-y", "--yes", is_flag=True, help="Do not ask, even if this ends jobs."),
        click.option("--graceful", is_flag=True, help="Drain now, move once no job holds the target."),
    ):
        function = option(function)
    return function


def _parts(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--gpus", metavar="IDS", default="", help="Only these GPUs of each target."),
        click.option("--cores", metavar="IDS", default="", help="Only these cores of each target, such as 4-7."),
    ):
        function = option(function)
    return function


def _without_empty(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, "", ())}


@click.command("drain", cls=Command)
@click.argument("targets", metavar="[TARGETS]", required=False, shell_complete=complete_targets)
@_reason
@click.option("-f", "--force", count=True, help="Replace the reason of targets already drained; twice: the time, too.")
@click.option("-u", "--update", is_flag=True, help="Skip targets that are already drained.")
@click.option("-a", "--add", is_flag=True, help="Keep the reasons of targets already drained, and add this one.")
@_parts
@click.option("--for", "lasts", type=FSD, metavar="FSD", help="Undrain by itself after this time.")
@table_options(DRAIN)
@uri_option
def drain(
    uri: str | None, targets: str | None, reason: tuple[str, ...], force: int, update: bool, add: bool, cores: str,
    gpus: str, lasts: float | None, output: Output,
) -> None:  # fmt: skip
    """Drain TARGETS: running jobs continue, no new ones start there. Without TARGETS: list drained targets.

    With --cores or --gpus only these parts of each target are drained, and the rest of it stays in use.
    Time, user and REASON are recorded, and survive a restart. With --add a target has several reasons, and is drained
    until all are lifted: undrain --only REASON lifts one of them.
    """
    if (update, add, force > 0).count(True) > 1:
        raise click.UsageError("--update keeps the old reason, --force replaces it, --add keeps both: give one of them")
    if targets is None:
        if update or add or force or cores or gpus or lasts is not None:
            raise click.UsageError("--update, --force, --add, --cores, --gpus and --for need TARGETS")
        with connect(uri, may_guess=True) as handle:
            answer = handle.rpc("resource.status")
        parts = _without_empty(parts=tuple(answer.get("parts", ())))
        output.show({"drain": answer.get("drain", {}), **parts}, lambda shown: drain_list(answer, shown))
        return
    if add and not reason:
        raise click.UsageError("--add adds a REASON: give one")
    mode = "add" if add else "update" if update else (None, "overwrite", "force-overwrite")[min(force, 2)]
    with connect(uri) as handle:
        more = _without_empty(reason=" ".join(reason), mode=mode, cores=cores, gpus=gpus, **{"for": lasts})
        _with_remedy(handle, "resource.drain", {"targets": targets, **more}, _DRAINED_REMEDY)


_DRAINED_REMEDY = "--add keeps both reasons, --force replaces the old one, --update skips what is drained"


def _with_remedy(handle: InstanceHandle, topic: str, payload: dict[str, Any], remedy: str) -> None:
    """Send a request; name the options that help in the error of one that is refused for the state of its targets."""
    try:
        handle.rpc(topic, payload)
    except RPCError as error:
        if error.errnum == errno.EEXIST:
            raise RPCError(f"{error}; {remedy}", error.errnum) from None
        raise


@click.command("undrain", cls=Command)
@_targets
@_reason
@click.option(
    "-f", "--force", count=True, help="Do not fail for targets that are not drained; may be given twice, as for drain."
)
@click.option("-u", "--update", is_flag=True, help="Do not fail for targets that are not drained.")
@click.option("--only", metavar="TEXT", help="Lift this reason alone; targets with others stay drained.")
@_parts
@connected
def undrain(
    handle: InstanceHandle, targets: str, reason: tuple[str, ...], force: int, update: bool, only: str | None,
    cores: str, gpus: str,
) -> None:  # fmt: skip
    """Return drained TARGETS to service, or with --cores or --gpus these parts of them."""
    if update and force:
        raise click.UsageError("give one of --update and --force")
    mode = "update" if update else (None, "overwrite", "force-overwrite")[min(force, 2)]
    more = _without_empty(reason=" ".join(reason), mode=mode, cores=cores, gpus=gpus)
    if only is not None:
        more["only"] = only
    _with_remedy(handle, "resource.undrain", {"targets": targets, **more}, "--force undrains the others")


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
@click.argument("group", metavar="GROUP", shell_complete=complete_groups)
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
    if interactive() and not yes and not request["graceful"]:
        _confirm(handle, request["targets"])
    answer = handle.rpc(topic, request)
    if as_json:
        print_json(answer)
        return
    for state, line in _OUTCOMES.items():
        if answer.get(state):
            click.echo(line.format(answer[state]))
    if ending := answer.get("ending"):
        named = ", ".join(map(jobid_text, ending[:JOBS_SHOWN_MAX]))
        more = f" and {len(ending) - JOBS_SHOWN_MAX} more" if len(ending) > JOBS_SHOWN_MAX else ""
        click.echo(f"ending {plural(len(ending), 'job')} there (elastic jobs shrink): {named}{more}")


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
        base.say(f"This ends {plural(len(ending), 'job')} at once (use --graceful to wait for them):")
    for each in ending[:JOBS_SHOWN_MAX]:
        base.say(f"  {printable(_named(each))}")
    if len(ending) > JOBS_SHOWN_MAX:
        base.say(f"  and {len(ending) - JOBS_SHOWN_MAX} more")
    _ask(waiting, "no target was moved")


def _waiting(handle: InstanceHandle) -> int:
    """Return the number of jobs that wait to be scheduled."""
    jobs = handle.rpc("job-manager.stats-get").get("jobs", {})
    return sum(int(jobs.get(state, 0)) for state in WAITING)


def _ask(waiting: int, refused: str) -> None:
    if waiting:
        text = f"{plural(waiting, 'job')} pending: those that no longer fit wait (or are denied, by [policy])."
        base.say(text)
    confirm("Go ahead?", refused)


def _named(job: Mapping[str, Any]) -> str:
    return f"{jobid_text(job['id'])} {job.get('name') or ''} on {job.get('nodelist') or job.get('ranks')}"


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
@click.argument("name", shell_complete=complete_properties)
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
    if interactive() and not yes:
        running = int(handle.rpc("job-manager.stats-get").get("jobs", {}).get("run", 0))
        waiting = _waiting(handle)
        if running:
            base.say(f"{plural(running, 'job')} running: those on removed targets end.")
        if running or waiting:
            _ask(waiting, "nothing was reloaded")
    wanted = _without_empty(path=path and os.path.abspath(path)) | ({"force": True} if force else {})
    answer = handle.rpc("resource.reload", wanted)
    if answer.get("changed") or answer.get("restart"):  # the configuration was read again with it
        from fluxsched.cli.config import tell

        tell(handle, answer)


# ---- `cluster`

_STATE_COLOURS = {"connected": GREEN, "silent": RED}


def _leases(state: str) -> Field:
    return Field(state.upper(), lambda row: row["leases"].get(state, 0))


CLUSTERS = TableSpec(
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
@table_options(CLUSTERS)
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
        print_json(answer)
    else:
        again, ended = _jobs(answer.get("returned", 0)), _jobs(answer.get("failed", 0))
        print_line(f"submitted again: {again}; ended with an exception: {ended}")


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
