"""`fluxsched report`: what users, banks, queues, groups or properties used, how long jobs waited, what was lost."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.base import Command
from fluxsched.cli.common.options import InstanceHandle, Output, TableSpec, Whole, table_options, viewing
from fluxsched.cli.common.table import Field
from fluxsched.cli.common.values import WHEN
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue

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


def _wait(key: str) -> Callable[[ShownUse], object]:
    return lambda row: None if row.info[key] is None else show.duration_text(row.info[key])


def _rounded(number: float) -> str:
    """Hours: two digits behind the point are half a minute."""
    return f"{number:.2f}" if number < 100 else f"{number:.1f}" if number < 1000 else f"{number:.0f}"


def _part(part: float, whole: float | None) -> str | None:
    return f"{100 * part / whole:.1f}" if whole else None


REPORT = TableSpec(
    {
        "default": "{name:<10} {jobs:>8} ?:{running:>7h} {failures:>7h} {corehours:>10} ?:{part:>6} ?:{gpuhours:>9} "
                   "?:{efficiency:>5} {mean:>7} {p50:>7} {p95:>7}",
        "long": "{name:<10} {jobs:>8} {running:>7} {completed:>9} {failed:>7} {canceled:>8} {timeout:>7} "
                "{corehours:>10} ?:{part:>6} {gpuhours:>9} ?:{efficiency:>5} {mean:>7} {p50:>7} {p95:>7}",
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
        "mean": Field("WAIT", _wait("wait_mean")),
        "p50": Field("P50", _wait("wait_p50")),
        "p95": Field("P95", _wait("wait_p95")),
    },
)  # fmt: skip


@click.command("report", cls=Command)
@click.option("--by", type=click.Choice(BY), default="user", show_default=True, help="The rows of the table.")
@click.option("--since", metavar="WHEN", type=WHEN, help="Start: -FSD, or a date and time.  [default: -30d]")
@click.option("--until", metavar="WHEN", type=WHEN, help="Until -FSD or a date and time.  [default: now]")
@click.option("-c", "--count", metavar="N", type=Whole(1, ROWS_MAX), default=1000, show_default=True,
              help="Maximum number of rows, those with most core-hours.")  # fmt: skip
@click.option("--csv", "as_csv", is_flag=True, help="Comma separated values, in hours and seconds.")
@table_options(REPORT)
@viewing
def report(
    handle: InstanceHandle,
    by: str,
    since: float | None,
    until: float | None,
    count: int,
    as_csv: bool,
    output: Output,
) -> None:
    """Report what jobs used: core- and GPU-hours, waits, failures, utilisation, and what drains have cost.

    Jobs count where they ended, what they used where they used it; those that run still count with what they have used.
    Times are whole hours, those of more than a month ago whole days. FAILURES are failed jobs and those whose time was
    up. USED% is of the cores that were there, CPU% of those that a job held. WAIT is a mean; P50 and P95 are within a
    fifth or so.
    """
    if since is not None and until is not None and since > until:
        raise InvalidValue("--since is after --until: give an earlier one")
    if as_csv and output.as_json:
        raise InvalidValue("--csv and --json are two formats: give one of them")
    wanted = {"by": by, "since": since, "until": until, "max_entries": count}
    answer = handle.rpc("history.report", {key: value for key, value in wanted.items() if value is not None})
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
    if answer["left_out"]:
        click.echo(f"{show.plural(answer['left_out'], 'more row')}: see --count", err=True)
    if capacity and output.header:
        click.echo(f"\n{_machine(answer, capacity)}")


def _title(by: str, name: str) -> str:
    return show.user_name(int(name)) if by == "user" else name or NONE


def _minute(time_s: float) -> str:
    return show.time_text(time_s, "%Y-%m-%d %H:%M")


def _capacity(answer: Mapping[str, Any]) -> float | None:
    """Core-seconds of all cores that were not excluded."""
    found = answer["capacity"]
    return None if found is None else float(sum(found.values()) - found["excluded"])


def _machine(answer: Mapping[str, Any], capacity: float) -> str:
    """What became of the machine's time."""
    found = answer["capacity"]
    parts = [f"{100 * found['allocated'] / capacity:.1f}% used"]
    parts += [
        f"{100 * found[state] / capacity:.1f}% {word}{_cost(found[state]) if state != 'free' else ''}"
        for state, word in LOST.items() if found[state] or state == "free"
    ]  # fmt: skip
    seen = show.duration_text(answer["observed"])
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
}
"""Columns after the name, with full precision and without units."""
