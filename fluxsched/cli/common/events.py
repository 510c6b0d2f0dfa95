"""Eventlogs (RFC 18) as Flux prints them: `TIMESTAMP NAME key=value...`, or JSON lines."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn

import click

from fluxsched.cli.common import show
from fluxsched.errors import Refused

STYLES = ("raw", "iso", "offset", "human")


class EventPrinter:
    """Prints one event a line, flushed, so that a pipe sees it when it happens."""

    def __init__(self, as_json: bool, style: str) -> None:
        self.as_json = as_json
        self.style = style
        self.first_s: float | None = None

    def show(self, event: Mapping[str, Any]) -> None:
        """Print one event."""
        if self.as_json:
            show.print_stream([event])
        else:
            context = show.context_text(event.get("context") or {})
            show.flushed(f"{self._time(event['timestamp'])} {event['name']}{context}")

    def _time(self, timestamp_s: float) -> str:
        if self.first_s is None:
            self.first_s = timestamp_s
        if self.style == "iso":
            return show.time_text(timestamp_s)
        if self.style == "human":
            return f"[{show.time_text(timestamp_s, '%b%d %H:%M:%S')}]"
        return f"{timestamp_s - self.first_s if self.style == 'offset' else timestamp_s:.6f}"

    @staticmethod
    @contextmanager
    def deadline(limit_s: float | None) -> Iterator[None]:
        """Raise Refused (ETIMEDOUT) in the body after `limit_s`; None is for ever. Main thread only: it is SIGALRM."""

        def fail(signum: int, frame: object) -> NoReturn:
            raise Refused(f"no such event within {show.duration_text(limit_s or 0)}", errno.ETIMEDOUT)

        if limit_s is None or limit_s == float("inf"):
            yield
            return
        before = signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, max(limit_s, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def event_options(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-f`, `-T`, `-H` and `--json`; the handler gets an EventPrinter as `printer`."""

    @wraps(handler)
    def run(*args: Any, layout: str, style: str, human: bool, as_json: bool, **arguments: Any) -> Any:
        printer = EventPrinter(as_json or layout == "json", "human" if human else style)
        return handler(*args, printer=printer, **arguments)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="The same as -f json."),
        click.option("-H", "--human", is_flag=True, help="The same as -T human."),
        click.option("-T", "--time-format", "style", type=click.Choice(STYLES), default="raw", show_default=True),
        click.option("-f", "--format", "layout", type=click.Choice(("text", "json")), default="text"),
    ):
        run = option(run)
    return run
