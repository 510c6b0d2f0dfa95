"""`fluxsched top`: the instance on a terminal, live."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click

from fluxsched.cli.base import Command
from fluxsched.cli.jobs import LISTED_DEFAULT, JobSelection, filter_options, jobs_argument, request_for
from fluxsched.cli.options import WHEN, connect, parse_urgency, uri_option
from fluxsched.cli.output import unicode_ok
from fluxsched.errors import InvalidValue, Refused
from fluxsched.views.jobs import JobConstraint, Jobs, in_states

COLOURLESS_TERMINALS = ("dumb", "vt100", "vt102", "vt220", "linux-m", "xterm-mono")
"""Values of TERM that have no colours."""


@click.command("filter", cls=Command, add_help_option=False)
@jobs_argument
@click.option("-a", "all_states", is_flag=True)
@filter_options()
@click.option("--since", type=WHEN)
def _filter(
    jobs: Jobs, all_states: bool, terms: Callable[[Jobs], dict[str, JobConstraint]], since: float | None
) -> dict[str, Any]:
    """Return the options of `fluxsched jobs` that say which jobs, as parameters of the view `jobs`."""
    asked = JobSelection(jobs, terms(jobs))
    request = request_for(asked, all_states, since, LISTED_DEFAULT)
    return {
        "ids": ",".join(map(str, request.get("ids", ()))),
        "constraint": request.get("constraint") or in_states("active", "inactive"),
        "since": since,
    }


def parse_filter(text: str) -> dict[str, Any]:
    """Return the parameters of the view `jobs` that such options mean. Raises InvalidValue."""
    try:
        with _filter.make_context("filter", shlex.split(text)) as ctx:
            request: dict[str, Any] = _filter.invoke(ctx)
    except ValueError as error:
        raise InvalidValue(f"filter {text!r}: {str(error).lower()}") from None
    except click.UsageError as error:
        raise InvalidValue(f"filter: {error.format_message()}") from None
    return request


@click.command("top", cls=Command, context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="[FILTER...]", nargs=-1, type=click.UNPROCESSED)
@uri_option
def top(uri: str | None, words: tuple[str, ...]) -> None:
    """Show the machine, jobs, queues and groups live; cancel, hold and drain from there.

    FILTER are options of `fluxsched jobs` that select jobs, such as -u kim -q batch. F1 shows the keys.
    Without colour (NO_COLOR, TERM=vt100) signs replace colours.
    """
    if find_spec("textual") is None:
        raise Refused("needs Textual: pip install 'fluxsched[tui]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused("needs a terminal; elsewhere: `fluxsched jobs --watch`, `fluxsched resource status`")
    if not sys.stderr.isatty():
        raise Refused("draws on stderr, which is not a terminal: leave out `2>`")
    text = shlex.join(words)
    try:
        parse_filter(text)
    except InvalidValue as error:
        raise click.UsageError(str(error)) from None
    with connect(uri):  # says what is wrong before the terminal is taken
        pass
    from fluxsched.screen.app import run_screen

    is_colourful = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in COLOURLESS_TERMINALS
    run_screen(uri, parse_filter, parse_urgency, text, is_colourful=is_colourful, is_unicode=unicode_ok())
