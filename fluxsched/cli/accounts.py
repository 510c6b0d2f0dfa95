"""`fluxsched fair` and `report`: accounts of a scheduler as a tree, and past use by users, banks, queues and so on."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from fluxsched.cli.base import Command
from fluxsched.cli.options import (
    WHEN,
    InstanceHandle,
    Output,
    TableSpec,
    Whole,
    complete_banks,
    complete_groups,
    table_options,
    viewing,
)
from fluxsched.cli.output import Field, duration_text, parse_format, plural, rounded, time_text, user_name
from fluxsched.core.text import printable, some_of, there_are
from fluxsched.errors import InvalidValue
from fluxsched.views.jobs import ADVISED_BELOW, NOT_KNOWN

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
        return "" if number is None else rounded(number)

    return text


def _percent(name: str) -> Callable[[ShownAccount], str]:
    """Return a part of the capacity."""

    def text(row: ShownAccount) -> str:
        capacity, usage = row.settings["capacity"], row.info[name]
        return rounded(100 * usage / capacity) if capacity and usage is not None else ""

    return text


def _shared(text: Callable[[ShownAccount], str]) -> Callable[[ShownAccount], str]:
    """Without jobs an account's share is what it would be if it had some; such shares add up to more than all."""
    return lambda row: text(row) if row.info["active"] or row.settings["shares"] == "all" else "-"


def _held(row: ShownAccount) -> str:
    from fluxsched.core.quantities import amounts_setting

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
@click.option("--bank", "banks", metavar="NAME", multiple=True, shell_complete=complete_banks,
              help="Only this bank and all below it; may be repeated.")  # fmt: skip
@click.option("--group", metavar="NAME", default="default", shell_complete=complete_groups,
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
    """Return the accounts of these banks and below, all if none is named. Raises InvalidValue for unknown ones."""
    if not banks:
        return list(accounts)
    known = {info["path"][-1]: None for info in accounts if not info["user"]}
    if unknown := [bank for bank in banks if bank not in known]:
        noun = "bank" if len(unknown) == 1 else "banks"
        raise InvalidValue(f"no such {noun}: {some_of(unknown)}; {there_are(list(known))}")
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


# ---- `report`

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
BY: Final = ("user", "bank", "queue", "group", "property")
ROWS_MAX: Final = 10_000
NONE: Final = "(none)"
TOTAL: Final = "total"
LOST: Final = {"free": "idle", "drained": "lost to drains", "down": "lost to failures"}
"""States of cores, less those that are excluded, as people say it."""


class ShownUse(NamedTuple):
    """A row of the answer, its title, and what the machine had in core-seconds (None: not known)."""

    info: Mapping[str, Any]
    title: str
    core_seconds: float | None


def _hours(key: str) -> Callable[[ShownUse], object]:
    return lambda row: _rounded(row.info[key] / HOUR_S)


def _result(name: str) -> Callable[[ShownUse], int]:
    return lambda row: int(row.info["results"][name])


def _wasted(info: Mapping[str, Any]) -> float:
    """Return the core-seconds that jobs held and did not use, as far as that was measured."""
    return float(max(0.0, info["cpu_core_seconds"] - info["cpu_seconds"]))


def _measured(row: ShownUse, seconds: float) -> str:
    return _rounded(seconds / HOUR_S) if row.info["cpu_core_seconds"] else NOT_KNOWN


def _idle_gpus(info: Mapping[str, Any]) -> float:
    """Return the GPU-seconds that were sampled and not busy."""
    return float(info["gpu_sampled_seconds"] - info["gpu_busy_seconds"])


def _of_gpus(seconds: Callable[[Mapping[str, Any]], float]) -> Callable[[ShownUse], str | None]:
    """Return a time of GPUs that were sampled; None for who held none."""

    def text(row: ShownUse) -> str | None:
        if row.info["gpu_sampled_seconds"]:
            return _rounded(seconds(row.info) / HOUR_S)
        return NOT_KNOWN if row.info["gpu_seconds"] else None

    return text


def _wait(key: str) -> Callable[[ShownUse], object]:
    return lambda row: None if row.info[key] is None else duration_text(row.info[key])


def _rounded(number: float) -> str:
    """Hours: two digits behind the point are half a minute."""
    return f"{number:.2f}" if number < 100 else f"{number:.1f}" if number < 1000 else f"{number:.0f}"


def _part(part: float, whole: float | None) -> str | None:
    return f"{100 * part / whole:.1f}" if whole else None


REPORT = TableSpec(
    {
        "default": "{name:<10} {jobs:>8} ?:{running:>7h} {failures:>7h} {corehours:>10} ?:{part:>6} ?:{gpuhours:>9} "
                   "?:{gpu_percent:>5} ?:{efficiency:>5} {mean:>7} {p50:>8} {p95:>8}",
        "long": "{name:<10} {jobs:>8} {running:>7} {completed:>9} {failed:>7} {canceled:>8} {timeout:>7} "
                "{corehours:>10} ?:{part:>6} {gpuhours:>9} ?:{gpu_percent:>5} ?:{efficiency:>5} {mean:>7} {p50:>8} "
                "{p95:>8}",
        "waste": "{name:<10} {jobs:>8} {corehours:>10} {measured:>10} {cpuhours:>9} {efficiency:>9} {wasted:>9} "
                 "?:{gpuhours:>9} ?:{gpu_percent:>5} ?:{gpu_wasted:>10}",
    },
    {
        "name": Field("NAME", lambda row: row.title),
        "jobs": Field("JOBS", lambda row: row.info["jobs"]),
        "running": Field("RUNNING", lambda row: row.info["running"] or None),
        "completed": Field("COMPLETED", _result("completed")),
        "failed": Field("FAILED", _result("failed")),
        "canceled": Field("CANCELED", _result("canceled")),
        "timeout": Field("TIMEOUT", _result("timeout")),
        "failures": Field("FAILURES", lambda row: row.info["results"]["failed"] + row.info["results"]["timeout"]),
        "corehours": Field("CORE-HOURS", _hours("core_seconds")),
        "part": Field("USED%", lambda row: _part(row.info["core_seconds"], row.core_seconds)),
        "gpuhours": Field("GPU-HOURS", lambda row: _hours("gpu_seconds")(row) if row.info["gpu_seconds"] else None),
        "efficiency": Field("CPU%", lambda row: _part(row.info["cpu_seconds"], row.info["cpu_core_seconds"])),
        "measured": Field("MEASURED", lambda row: _measured(row, row.info["cpu_core_seconds"])),
        "cpuhours": Field("CPU-HOURS", lambda row: _measured(row, row.info["cpu_seconds"])),
        "wasted": Field("WASTED", lambda row: _measured(row, _wasted(row.info))),
        "gpu_busy": Field("GPU-BUSY", _of_gpus(lambda info: info["gpu_busy_seconds"])),
        "gpu_percent": Field("GPU%", lambda row: _part(row.info["gpu_busy_seconds"], row.info["gpu_sampled_seconds"])),
        "gpu_wasted": Field("GPU-WASTED", _of_gpus(_idle_gpus)),
        "mean": Field("WAIT", _wait("wait_mean")),
        "p50": Field("WAIT-P50", _wait("wait_p50")),
        "p95": Field("WAIT-P95", _wait("wait_p95")),
    },
)  # fmt: skip


WASTES: Final[dict[str, Callable[[Info], tuple[bool, float]]]] = {
    "cores": lambda info: (info["cpu_core_seconds"] > 0, _wasted(info)),
    "gpus": lambda info: (info["gpu_sampled_seconds"] > 0, _idle_gpus(info)),
}
"""Orders of `--waste`: the rows in which something was measured, by what was held of it and not used."""
ADVISED_MAX: Final = 5
"""Rows that get advice in words."""


@click.command("report", cls=Command)
@click.option("--by", type=click.Choice(BY), default="user", show_default=True, help="The rows of the table.")
@click.option("--since", metavar="WHEN", type=WHEN, help="Start: -FSD, or a date and time.  [default: -30d]")
@click.option("--until", metavar="WHEN", type=WHEN, help="Until -FSD or a date and time.  [default: now]")
@click.option("-c", "--count", metavar="N", type=Whole(1, ROWS_MAX), default=1000, show_default=True,
              help="Maximum number of rows, those with most core-hours.")  # fmt: skip
@click.option("--waste", is_flag=False, flag_value="cores", type=click.Choice(list(WASTES)),
              help="The rows in which most core-hours (or GPU-hours) were held and not used, those first.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Comma separated values, in hours and seconds.")
@table_options(REPORT)
@viewing
def report(
    handle: InstanceHandle,
    by: str,
    since: float | None,
    until: float | None,
    count: int,
    waste: str | None,
    as_csv: bool,
    output: Output,
) -> None:
    """Report what jobs used: core- and GPU-hours, waits, failures, utilisation, and what drains have cost.

    Jobs count where they ended, what they used where they used it; those that run still count with what they have used.
    Times are whole hours, those of more than a month ago whole days. FAILURES are failed jobs and those whose time was
    up. USED% is of the cores that were there, CPU% of those that a job held. WAIT is a mean; WAIT-P50 and WAIT-P95 are
    estimates, too high or too low by a factor of at most 1.67.

    --waste tells who asks for most and uses least. MEASURED are the core-hours of jobs that have ended and whose CPU
    time is known, WASTED those of them that were not used. GPU% is how busy the GPUs of such jobs were where they
    were sampled, GPU-WASTED are hours of GPUs that were not.
    """
    if since is not None and until is not None and since > until:
        raise InvalidValue("--since is after --until: give an earlier one")
    if as_csv and output.as_json:
        raise InvalidValue("--csv and --json are two formats: give one of them")
    wanted = {"by": by, "since": since, "until": until, "max_entries": ROWS_MAX if waste else count}
    answer = handle.rpc("history.report", {key: value for key, value in wanted.items() if value is not None})
    if waste:
        most = sorted(answer["rows"], key=WASTES[waste], reverse=True)
        answer |= {"rows": most[:count], "left_out": answer["left_out"] + len(most[count:])}
        if click.get_current_context().get_parameter_source("layout") is ParameterSource.DEFAULT:
            output = output._replace(layout=parse_format(REPORT.formats["waste"], REPORT.fields))
    capacity = _capacity(answer)
    rows = [ShownUse(info, _title(by, info["name"]), capacity) for info in answer["rows"]]
    if as_csv:
        _print_csv(by, rows, output.header)
        return
    if not output.as_json and output.header:
        click.echo(f"Use by {by}, {_minute(answer['since'])} to {_minute(answer['until'])}")
    shown = [*rows, ShownUse(answer["total"], TOTAL, capacity)] if rows else rows
    output.show(answer, lambda names: shown)
    if output.as_json:
        return
    if not rows:
        click.echo("no job ran in this time", err=True)
    elif waste == "gpus" and not any(row.info["gpu_sampled_seconds"] for row in rows):
        click.echo("no GPUs were sampled in this time", err=True)
    if answer["left_out"]:
        click.echo(f"{plural(answer['left_out'], 'more row')}: see --count", err=True)
    told = _gpu_advice(rows) if waste and output.header else []
    if told:
        click.echo("\n" + "\n".join(told))
    if capacity and output.header:
        click.echo(f"\n{_machine(answer, capacity)}")


def _gpu_advice(rows: Sequence[ShownUse]) -> list[str]:
    """Return advice for the rows with most hours of idle GPUs, of those sampled for an hour or more and idle for over
    half of it.
    """
    found = [row for row in rows if row.info["gpu_sampled_seconds"] >= HOUR_S
             and row.info["gpu_busy_seconds"] < ADVISED_BELOW * row.info["gpu_sampled_seconds"]]  # fmt: skip
    found.sort(key=lambda row: _idle_gpus(row.info), reverse=True)
    return [
        f"{printable(row.title)}: asked {_rounded(row.info['gpu_sampled_seconds'] / HOUR_S)} GPU-hours (sampled), used "
        f"{_rounded(row.info['gpu_busy_seconds'] / HOUR_S)}: ask for fewer GPUs"
        for row in found[:ADVISED_MAX]
    ]


def _title(by: str, name: str) -> str:
    return user_name(int(name)) if by == "user" else name or NONE


def _minute(time_s: float) -> str:
    return time_text(time_s, "%Y-%m-%d %H:%M")


def _capacity(answer: Mapping[str, Any]) -> float | None:
    """Core-seconds of all cores that were not excluded."""
    found = answer["capacity"]
    return None if found is None else float(sum(found.values()) - found["excluded"])


def _machine(answer: Mapping[str, Any], capacity: float) -> str:
    """Return a text about the use of the machine's time."""
    found = answer["capacity"]
    parts = [f"{100 * found['allocated'] / capacity:.1f}% used"]
    parts += [
        f"{100 * found[state] / capacity:.1f}% {word}{_cost(found[state]) if state != 'free' else ''}"
        for state, word in LOST.items() if found[state] or state == "free"
    ]  # fmt: skip
    seen = duration_text(answer["observed"])
    return f"Machine: {_rounded(capacity / HOUR_S)} core-hours observed in {seen}: {', '.join(parts)}"


def _cost(core_seconds: float) -> str:
    return f" ({_rounded(core_seconds / HOUR_S)} core-hours)"


def _print_csv(by: str, rows: list[ShownUse], has_header: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if has_header:
        writer.writerow([by, *CSV])
    for row in rows:
        writer.writerow([printable(row.title), *(value(row) for value in CSV.values())])


def _seconds(key: str) -> Callable[[ShownUse], object]:
    return lambda row: None if row.info[key] is None else f"{row.info[key]:.3f}"


CSV: Final[dict[str, Callable[[ShownUse], object]]] = {
    "jobs": lambda row: row.info["jobs"],
    "running": lambda row: row.info["running"],
    **{name: _result(name) for name in ("completed", "failed", "canceled", "timeout")},
    "core_hours": lambda row: f"{row.info['core_seconds'] / HOUR_S:.4f}",
    "gpu_hours": lambda row: f"{row.info['gpu_seconds'] / HOUR_S:.4f}",
    "used_percent": lambda row: _part(row.info["core_seconds"], row.core_seconds),
    "cpu_percent": lambda row: _part(row.info["cpu_seconds"], row.info["cpu_core_seconds"]),
    **{f"{key}_s": _seconds(key) for key in ("wait_mean", "wait_p50", "wait_p95")},
    "wasted_core_hours": lambda row: f"{_wasted(row.info) / HOUR_S:.4f}" if row.info["cpu_core_seconds"] else None,
    "gpu_percent": lambda row: _part(row.info["gpu_busy_seconds"], row.info["gpu_sampled_seconds"]),
    "wasted_gpu_hours": lambda row: f"{_idle_gpus(row.info) / HOUR_S:.4f}" if row.info["gpu_sampled_seconds"] else None,
}
"""Columns after the name, with full precision and without units."""
