"""`fluxsched notice`: short texts that admins show to all users, in `submit`, `top` and on the page."""

from __future__ import annotations

import click

from fluxsched.cli.base import Command
from fluxsched.cli.jobspec_options import parse_begin_time
from fluxsched.cli.options import FSD, Converted, Output, TableSpec, Whole, connect, table_options, uri_option
from fluxsched.cli.output import Field
from fluxsched.views.words import moment_text

LIST = TableSpec(
    {"default": "{id:>3} {until:<12} {user:<8} {text}"},
    {
        "id": Field("ID", lambda row: str(row["id"])),
        "text": Field("TEXT", lambda row: row["text"]),
        "user": Field("USER", lambda row: row["user"]),
        "time": Field("TIME", lambda row: moment_text(row["timestamp"])),
        "until": Field("UNTIL", lambda row: moment_text(row["until"]) if row.get("until") else "-"),
    },
)

WORDS = {
    "list": "fluxsched notice",
    "add": "fluxsched notice TEXT",
    "help": "fluxsched notice --help",
    "remove": "fluxsched notice --remove ID",
    "clear": "fluxsched notice --clear",
}
"""Words that are commands of other groups, and what is typed here instead."""


@click.command("notice", cls=Command)
@click.argument("text", metavar="[TEXT]...", nargs=-1)
@click.option("--for", "lasts", type=FSD, metavar="FSD", help="How long it is shown.")
@click.option("--until", type=Converted("time", parse_begin_time), metavar="TIME", help="Until when it is shown.")
@click.option(
    "--remove", "removed", type=Whole(min=1), metavar="ID", multiple=True, help="Remove this one; repeatable."
)
@click.option("--clear", is_flag=True, help="Remove all.")
@table_options(LIST)
@uri_option
def notice(
    text: tuple[str, ...],
    lasts: float | None,
    until: float | None,
    removed: tuple[int, ...],
    clear: bool,
    output: Output,
    uri: str | None,
) -> None:
    """Show TEXT to all users, until it ends or is removed; without TEXT, list the notices that are shown.

    Admins may set and remove them. TIME is +FSD, seconds since the epoch, a time such as 23:59, tomorrow, or a date
    and time.
    """
    _check(text, lasts, until, removed, clear)
    ends = {key: value for key, value in (("for", lasts), ("until", until)) if value is not None}
    with connect(uri, may_guess=not (text or removed or clear)) as handle:
        if text:
            handle.rpc("instance.notice-add", {"text": " ".join(text), **ends})
        if removed:
            handle.rpc("instance.notice-remove", {"ids": [*removed]})
        if clear:
            handle.rpc("instance.notice-remove")
        answer = handle.rpc("instance.notice-list")
        output.show(answer, lambda fields: answer["notices"])


def _check(
    text: tuple[str, ...], lasts: float | None, until: float | None, removed: tuple[int, ...], clear: bool
) -> None:
    if text and text[0] in WORDS:
        raise click.UsageError(f"{text[0]!r} is hardly shown to all users: use `{WORDS[text[0]]}`, or quote TEXT")
    if bool(text) + bool(removed) + clear > 1:
        raise click.UsageError("give one of TEXT, --remove and --clear")
    if lasts is not None and until is not None:
        raise click.UsageError("--for and --until are two ends: give one of them")
    if not text and (lasts is not None or until is not None):
        raise click.UsageError("--for and --until are the end of a notice: give its TEXT, too")
