"""`fluxsched config` and `fluxsched module`: checking, showing and reloading the configuration; loading schedulers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from fluxsched.cli.base import CommandGroup, usage
from fluxsched.cli.options import (
    FSD,
    InstanceHandle,
    Output,
    TableSpec,
    Whole,
    complete_groups,
    complete_modules,
    complete_policies,
    connected,
    json_option,
    table_options,
    viewing,
)
from fluxsched.cli.output import RED, Field, print_json, print_line

VALUE_CHARS_MAX = 60
"""Longer changes have two lines, the new value on the second."""
LONG_VALUE_CHARS_MAX = 1000
"""A longer value, such as a list of all hosts, is cut."""
NOT_SET = "not set"

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("config", cls=CommandGroup)
def config() -> None:
    """Check, show and reload the configuration."""


@config.command("check")
@click.option("--R", "r_path", metavar="F", type=_FILE, help="Take the targets from this R file (RFC 20).")
@click.option("--fake", metavar="SPEC", help="Use made-up targets, as `fluxsched start --fake`.")
@click.argument("file", metavar="FILE", type=_FILE)
@json_option
def check(file: Path, fake: str | None, r_path: Path | None, as_json: bool) -> int:
    """Report all faults of a configuration FILE without an instance; exit status 1 if there are any.

    Hosts are interpreted as by `fluxsched start` on this machine, and policies are imported.
    """
    from fluxsched.errors import FluxschedError
    from fluxsched.instance.launch import StartOptions, check_config, check_start

    with usage():
        check_start(fake, ())
    faults: list[str] = []
    try:
        found = check_config(StartOptions(config=file, fake=fake, r_path=r_path))
    except FluxschedError as fault:
        if not as_json and not str(fault).startswith(f"{file}:"):
            raise  # not a fault in the file: there is none, or it cannot be read
        faults = str(fault).splitlines()
    if as_json:
        print_json({"file": str(file), "faults": faults})
    for fault_line in [] if as_json else faults:
        click.echo(fault_line, err=True)
    if not faults and not as_json:
        click.echo(f"{file}: no faults: {found}")
    return int(bool(faults))


@config.command("show")
@json_option
@connected
def show_config(handle: InstanceHandle, as_json: bool) -> None:
    """Print the configuration in force, as TOML."""
    from fluxsched.core.text import toml_text

    found = handle.rpc("config.get")
    if as_json:
        print_json(found)
    else:
        click.echo(toml_text(found), nl=False)
    if not found:
        click.echo("no configuration: everything has its default (rfc/config.md)", err=True)


@config.command("reload")
@json_option
@connected
def reload(handle: InstanceHandle, as_json: bool) -> None:
    """Reload the file, all or nothing: resources, groups, queues and limits take effect at once; jobs continue.

    Lists what has changed, and what needs a restart.
    """
    answer = handle.rpc("config.reload")
    if as_json:
        print_json(answer)
        return
    tell(handle, answer)
    if any(change["key"] in ("health", "health.program") and change.get("new") is None for change in answer["changed"]):
        from fluxsched.views.machine import PROGRAM_PREFIX

        drains, user = handle.rpc("resource.status").get("drain") or {}, f"{PROGRAM_PREFIX}health"
        if left := ",".join(
            [ranks for ranks, line in drains.items() if not line.get("reasons") and line.get("user") == user]
        ):
            print_line(f"targets {left} stay drained by health checks: fluxsched resource undrain {left}")
        several = [(ranks, each) for ranks, line in drains.items() for each in line.get("reasons", ())]
        for ranks, reason in [(ranks, each["reason"]) for ranks, each in several if each.get("user") == user]:
            undrain = f"fluxsched resource undrain {ranks} --only {shlex.quote(reason)}"
            print_line(f"targets {ranks} stay drained by health checks, too: {undrain}")


def tell(handle: InstanceHandle, answer: dict[str, Any]) -> None:
    """Print the changes, line by line."""
    for change in answer["changed"]:
        _print_change(change)
    for name in answer["modules"]:
        print_line(f"module {name} is restarted to serve its queues; jobs continue")
    if any(change["key"].partition(".")[0] == "fair" for change in answer["changed"]):
        from fluxsched.config.policies import may_keep_accounts

        for module in handle.rpc("module.list")["mods"]:
            if module["name"] not in answer["modules"] and may_keep_accounts(module["path"]):
                print_line(f"[fair] holds for {module['name']} after: fluxsched module reload {module['name']}")
    for change in answer["restart"]:
        is_scheduler = change["key"].partition(".")[0] == "scheduler"
        hint = ", or `fluxsched module remove` and `module load`" if is_scheduler else ""
        _print_change(change, f": needs a restart{hint}")
    if not answer["changed"] and not answer["restart"]:
        print_line("nothing has changed")


def _print_change(change: dict[str, Any], remark: str = "") -> None:
    """Print the key with its old and its new value."""
    old, new = _value_text(change.get("old")), _value_text(change.get("new"))
    if len(f"{old} -> {new}") <= VALUE_CHARS_MAX:
        print_line(f"{change['key']}: {old} -> {new}{remark}")
    else:
        print_line(f"{change['key']}: {old}")
        print_line(f"  -> {new}{remark}")


def _value_text(value: object) -> str:
    from fluxsched.core.text import inline

    text = NOT_SET if value is None else inline(value)
    return text if len(text) <= LONG_VALUE_CHARS_MAX else f"{text[:LONG_VALUE_CHARS_MAX]}... (--json has all)"


# ---- `module`

_STATES = {0: "I", 1: "R", 2: "F", 3: "X"}
"""Flux's letters: initialising, running, finalising, exited."""

_FIRST = "{name:<16} {idle:>5} {state:>2} {sendqueue:>5} {recvqueue:>5} ?:{pid:>7} ?:{groups:<10}"
LIST = TableSpec(
    {
        "default": f"{_FIRST} {{services}} ?:{{error}}",
        "long": f"{_FIRST} {{services:<12}} {{path}} ?:{{error}}",
    },
    {
        "name": Field("MODULE", lambda row: row["name"]),
        "path": Field("PATH", lambda row: row["path"]),
        "idle": Field("IDLE", lambda row: row["idle"]),
        "state": Field("S", lambda row: _STATES.get(row["status"], "?")),
        "sendqueue": Field("SENDQ", lambda row: row["sendqueue"]),
        "recvqueue": Field("RECVQ", lambda row: row["recvqueue"]),
        "services": Field("SERVICE", lambda row: ",".join(row["services"])),
        "pid": Field("PID", lambda row: row.get("pid")),
        "groups": Field("GROUPS", lambda row: ",".join(row.get("groups") or ())),
        "error": Field("ERROR", lambda row: row.get("error"), lambda value: RED if value else None),
    },
)

_name = click.argument("name", shell_complete=complete_modules)


@click.group("module", cls=CommandGroup)
def module() -> None:
    """Load, remove, reload and list modules."""


def _specification(spec: str, options: tuple[str, ...], plugins: tuple[str, ...] = ()) -> str:
    """`fifo` and `placement=best-fit` become one; a file is named so that the instance finds it.

    What follows a `;` are policies of queues, to which options and plugins do not belong.
    """
    from fluxsched.config.policies import located, with_plugins

    general, semicolon, own = spec.partition(";")
    first, bar, others = general.partition("|")
    policy, colon, given = first.partition(":")
    joined = ",".join([given, *options] if given else options)
    first = f"{policy}:{joined}" if joined or colon else policy
    return located(with_plugins(first + bar + others + semicolon + own, plugins), Path.cwd())


@module.command("load")
@click.option("--name", metavar="NAME", help="Name of the module. [default: the policy's name]")
@click.option("--group", "groups", multiple=True, metavar="GROUP", shell_complete=complete_groups,
              help="Acquire this group; may be repeated.")  # fmt: skip
@click.option("--restart", metavar="N", type=Whole(min=0), help="Restart it at most N times. [default: 0]")
@click.option("--fallback", metavar="POLICY", shell_complete=complete_policies,
              help="Policy to load after the last restart. [default: none]")  # fmt: skip
@click.option("--hung-after", "hung_after_s", metavar="FSD", type=FSD,
              help="Kill it when it is silent for this long. [default: 30s]")  # fmt: skip
@click.option("--plugin", "plugins", metavar="SPEC", multiple=True,
              help="A plugin under the policy: NAME:key=value,... or a file; may be repeated.")  # fmt: skip
@click.argument("spec", shell_complete=complete_policies)
@click.argument("options", metavar="[OPTION=VALUE...]", nargs=-1)
@json_option
@connected
def load(handle: InstanceHandle, spec: str, options: tuple[str, ...], name: str | None, groups: tuple[str, ...],
         restart: int | None, fallback: str | None, hung_after_s: float | None, plugins: tuple[str, ...],
         as_json: bool) -> None:  # fmt: skip
    """Start a scheduler: SPEC is a policy (fifo, fifo:placement=best-fit) or a file (./mine.py).

    'easy;debug=fifo' gives queue debug its own policy.
    """
    fallback = None if fallback is None else _specification(fallback, ())
    recovery = {"restart": restart, "fallback": fallback, "hung-after": hung_after_s}
    chosen = {"name": name or None, "groups": list(groups) or None, **recovery}
    named = {key: one for key, one in chosen.items() if one is not None}
    request = {"spec": _specification(spec, options, plugins), **named}
    answer = handle.rpc("module.load", request, timeout_s=None)
    if as_json:
        print_json(answer)


@module.command("remove")
@_name
@connected
def remove(handle: InstanceHandle, name: str) -> None:
    """Stop a module; running jobs continue."""
    handle.rpc("module.remove", {"name": name})


@module.command("reload")
@_name
@json_option
@connected
def reload_module(handle: InstanceHandle, name: str, as_json: bool) -> None:
    """Restart a module with its policy imported anew; a policy that cannot be imported changes nothing."""
    answer = handle.rpc("module.reload", {"name": name}, timeout_s=None)
    if as_json:
        print_json(answer)


@module.command("list")
@click.option("-l", "--long", "is_long", is_flag=True, help="The same as -o long.")
@table_options(LIST)
@viewing
def list_modules(handle: InstanceHandle, is_long: bool, output: Output) -> None:
    """List modules with their services and states.

    S is R for a module that runs, I for one that starts, F for one that ends, X for one that has ended.
    """
    from fluxsched.cli.output import parse_format

    if is_long:
        output = output._replace(layout=parse_format(LIST.formats["long"], LIST.fields))
    answer = handle.rpc("module.list")
    output.show(answer, lambda shown: answer["mods"])


@module.command("stats")
@_name
@click.option("--json", is_flag=True, expose_value=False, help="Accepted for consistency: the output is always JSON.")
@viewing
def stats(handle: InstanceHandle, name: str) -> None:
    """Print a module's statistics as JSON."""
    print_json(handle.rpc("module.stats", {"name": name}))
