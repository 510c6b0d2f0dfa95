"""`fluxsched fair`: the accounts of a scheduler as a tree, banks with their users below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from fluxsched.cli.common import complete, show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import InstanceHandle, Output, TableSpec, table_options, viewing
from fluxsched.cli.common.table import Field
from fluxsched.core.text import some_of
from fluxsched.errors import InvalidValue

Info = dict[str, Any]

INDENT = "  "


class ShownAccount(NamedTuple):
    """One account as it is shown: so many levels below the first one, in a table with these settings."""

    info: Info
    depth: int
    settings: Info


def _of(name: str) -> Callable[[ShownAccount], object]:
    return lambda row: row.info[name]


def _number(name: str) -> Callable[[ShownAccount], str]:
    def text(row: ShownAccount) -> str:
        number = row.info[name]
        return "" if number is None else show.rounded(number)

    return text


def _percent(name: str) -> Callable[[ShownAccount], str]:
    """A part of the capacity."""

    def text(row: ShownAccount) -> str:
        capacity, usage = row.settings["capacity"], row.info[name]
        return show.rounded(100 * usage / capacity) if capacity and usage is not None else ""

    return text


def _shared(text: Callable[[ShownAccount], str]) -> Callable[[ShownAccount], str]:
    """Without jobs an account's share is what it would be if it had some; such shares add up to more than all."""
    return lambda row: text(row) if row.info["active"] or row.settings["shares"] == "all" else "-"


def _held(row: ShownAccount) -> str:
    from fluxsched.core.amounts import amounts_setting

    return amounts_setting(tuple(row.info["held"].items()))


FAIR = TableSpec(
    {
        "default": "{account:<16} {weight:>6} {share:>6} {used:>6} {history:>8} ?:{cap:>6} ?:{budget:>11} "
                   "{waiting:>5} {running:>5} {preempted:>9}",
        "long": "{account:<16} {weight:>6} {fair:>8} {usage:>8} {signal:>8} {firm:>8} ?:{limit:>8} ?:{budget:>11} "
                "{waiting:>5} {running:>5} {preempted:>9} {held}",
    },
    {
        "account": Field("ACCOUNT", lambda row: INDENT * row.depth + row.info["path"][-1]),
        "path": Field("PATH", lambda row: "/".join(row.info["path"])),
        "weight": Field("WEIGHT", _number("weight")),
        "share": Field("SHARE%", _shared(_percent("fair_usage"))),
        "used": Field("USED%", _percent("usage")),
        "history": Field("HISTORY%", _percent("signal")),
        "cap": Field("CAP%", _shared(_percent("cap"))),
        "budget": Field("BUDGET(min)", _number("budget_left"), zero_is_empty=False),
        "fair": Field("FAIR", _shared(_number("fair_usage"))),
        "usage": Field("USAGE", _number("usage")),
        "signal": Field("SIGNAL", _number("signal")),
        "firm": Field("FIRM", _number("firm_usage")),
        "limit": Field("CAP", _shared(_number("cap"))),
        "waiting": Field("WAIT", _of("waiting")),
        "running": Field("RUN", _of("running")),
        "preempted": Field("PREEMPTED", _of("preempted")),
        "held": Field("HELD", _held),
    },
)  # fmt: skip


@click.command("fair", cls=Command)
@click.option("--bank", "banks", metavar="NAME", multiple=True, shell_complete=complete.banks,
              help="Only this bank and all below it; may be repeated.")  # fmt: skip
@click.option("--group", metavar="NAME", default="default", shell_complete=complete.groups,
              help="Accounts of the scheduler of this group.")  # fmt: skip
@table_options(FAIR)
@viewing
def fair(handle: InstanceHandle, banks: tuple[str, ...], group: str, output: Output) -> None:
    """Show accounts, banks with their users below: shares, usage, limits and jobs.

    SHARE%, USED%, HISTORY% (remembered usage) and CAP% are parts of the whole machine, as it is shared by the accounts
    that have jobs; `-o long` has them in units of weight. BUDGET(min) is what a user has left. PREEMPTED counts since
    the scheduler started.
    """
    answer = _asked(handle, group)
    accounts = in_banks(answer["accounts"], banks)
    output.show(answer | {"accounts": accounts}, lambda shown: tree(accounts, answer))
    if not accounts and not output.as_json:
        click.echo("no accounts yet: the first job of a user in a bank makes one", err=True)


def _asked(handle: InstanceHandle, group: str) -> Info:
    """All parts of the answer as one."""
    whole: Info = {}
    start: int | None = 0
    while start is not None:
        part = handle.rpc("sched.accounts", {"group": group, "start": start})
        start = part.pop("next")
        whole = part | {"accounts": [*whole.get("accounts", ()), *part["accounts"]]}
    return whole


def in_banks(accounts: Sequence[Info], banks: Sequence[str]) -> list[Info]:
    """The accounts of these banks and below, all if none is named. Raises InvalidValue for unknown ones."""
    if not banks:
        return list(accounts)
    known = {info["path"][-1]: None for info in accounts if not info["user"]}
    if unknown := [bank for bank in banks if bank not in known]:
        raise InvalidValue(f"there is no bank {some_of(unknown)}; there are {some_of(list(known))}")
    wanted = set(banks)
    return [info for info in accounts if wanted.intersection(info["path"][:-1] if info["user"] else info["path"])]


def tree(accounts: Sequence[Info], settings: Info) -> list[ShownAccount]:
    """Accounts as lines: each below the one that it is in, banks before users, by name."""
    kinds = {tuple(info["path"]): info["user"] for info in accounts}

    def place(info: Info) -> list[tuple[bool, str]]:
        path = tuple(info["path"])
        return [(kinds.get(path[: end + 1], False), name) for end, name in enumerate(path)]

    lines = []
    for info in sorted(accounts, key=place):
        path = tuple(info["path"])
        lines.append(ShownAccount(info, sum(path[:end] in kinds for end in range(1, len(path))), settings))
    return lines
