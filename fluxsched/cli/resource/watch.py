"""`fluxsched resource status --watch`: the table as it changes; redrawn on a terminal, elsewhere one line per change.

Law: the instance says when something has changed (resource.watch); it is asked for the table at a bounded rate, and
not when jobs only come and go.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.options import InstanceHandle, Output, come_back
from fluxsched.cli.common.screen import PressedKeys, draw, has_screen, terminal
from fluxsched.cli.common.signals import EndingSignals
from fluxsched.cli.common.table import Format, render
from fluxsched.cli.resource.rows import ResourceRow
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.errors import Disconnected, RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.machine import USED

ASKED_EVERY_S = 0.5
"""How often the table is asked for at the shortest (seconds)."""
DRAWN_EVERY_S = 1.0
"""How often the time above it is drawn anew (seconds)."""
REMEDY = "watch it again"

Rows = Callable[[Mapping[str, Any], bool], Sequence[ResourceRow]]
"""Rows of a resource.status answer: those that were asked for, or, if true, those of all states."""


class MachineNews:
    """Whether the table has changed since this was last taken."""

    def __init__(self, handle: InstanceHandle, told: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self.is_due = False
        self._ended = False
        self._fault: RPCError | None = None
        self._told = told
        self._out_of_use: dict[str, Idset] = {}
        handle.subscribe("resource.watch", None, self._take)

    def _take(self, answer: Mapping[str, Any] | RPCError | None) -> None:
        if not isinstance(answer, Mapping):
            self._ended, self._fault = True, self._fault or answer
            return
        if self._told is not None:
            self._told(answer)
        self.is_due |= any(key in answer for key in ("R", "drains", "groups", "made_up")) or self._moves(answer)

    def _moves(self, answer: Mapping[str, Any]) -> bool:
        """Whether a target comes into use or goes out of it."""
        before = dict(self._out_of_use)
        for state, text in answer.get("states", {}).items():
            ranks = Idset.parse(text)
            self._out_of_use = {other: had - ranks for other, had in self._out_of_use.items() if had - ranks}
            if state not in USED:
                self._out_of_use[state] = self._out_of_use.get(state, EMPTY) | ranks
        return before != self._out_of_use

    @property
    def is_over(self) -> bool:
        """Whether no more will come. Raises what the stream failed with."""
        if self._fault is not None:
            raise self._fault
        return self._ended


def watch_status(handle: InstanceHandle, rows: Rows, output: Output) -> int:
    """Show the table until interrupted: the exit status."""
    if output.as_json:
        return _messages(handle)
    return _screen(handle, rows, output) if has_screen() else _lines(handle, rows, output)


def _messages(handle: InstanceHandle) -> int:
    """What the instance says, as it says it."""
    while True:
        try:
            news = MachineNews(handle, lambda answer: show.print_stream([answer]))
            while not news.is_over:
                handle.listen(None)
            return 0
        except Disconnected as fault:
            come_back(handle, fault, REMEDY)


def _lines(handle: InstanceHandle, rows: Rows, output: Output) -> int:
    lines = _Lines(rows, output)
    while True:
        try:
            news = MachineNews(handle)
            while True:
                news.is_due = False
                lines.tell(handle.rpc("resource.status"))
                if not _wait(handle, news):
                    return 0
        except Disconnected as fault:
            come_back(handle, fault, REMEDY)


def _wait(handle: InstanceHandle, news: MachineNews) -> bool:
    """Until there is something new, and it is time to ask; False if nothing more will come."""
    until_s = SystemClock.monotonic_s() + ASKED_EVERY_S
    while not news.is_due or SystemClock.monotonic_s() < until_s:
        if news.is_over:
            return news.is_due
        handle.listen(max(until_s - SystemClock.monotonic_s(), 0.0) if news.is_due else None)
    return True


class _Lines:
    """Prints the table, and of later ones what has changed."""

    def __init__(self, rows: Rows, output: Output) -> None:
        self._rows = rows
        self._output = output
        self._layout: Format | None = None
        self._known: dict[tuple[object, ...], ResourceRow] = {}
        self._asked = EMPTY

    def tell(self, answer: Mapping[str, Any]) -> None:
        """A target that was in a state that was asked for is followed out of it."""
        output, is_first = self._output, self._layout is None
        now = {_labels(row, output): row for row in self._rows(answer, True)}
        wanted = self._rows(answer, False)
        before, self._asked = self._asked, _all_ranks(wanted)
        self._layout = self._layout or _settled(output, [*now.values()])
        told = wanted if is_first else _changed(now, self._known, before | self._asked)
        self._known = now
        for line in render(told, self._layout, output.fields, header=is_first and output.header):
            show.flushed(line)


def _settled(output: Output, rows: Sequence[ResourceRow]) -> Format:
    """The columns of all lines to come: without those that may be left out and have nothing in them."""
    kept = [
        column._replace(droppable=False)
        for column in output.layout.columns
        if not column.droppable or any(output.fields[column.name].value(row) for row in rows)
    ]
    return output.layout._replace(columns=tuple(kept))


def _labels(row: ResourceRow, output: Output) -> tuple[object, ...]:
    """What of a row is shown, and so what a target of it must share with another."""
    return tuple(value for name, value in row.labels.items() if name in output.layout.names)


def _all_ranks(rows: Sequence[ResourceRow]) -> Idset:
    found = EMPTY
    for row in rows:
        found |= row.ranks
    return found


def _changed(
    now: Mapping[tuple[object, ...], ResourceRow], known: Mapping[tuple[object, ...], ResourceRow], asked: Idset
) -> list[ResourceRow]:
    """Of each row the targets that were not in it before."""
    found = []
    for labels, row in now.items():
        before = known[labels].ranks if labels in known else EMPTY
        if ranks := (row.ranks & asked) - before:
            found.append(row._replace(ranks=ranks))
    return found


def _screen(handle: InstanceHandle, rows: Rows, output: Output) -> int:
    """Draw the table again and again; the last one is left on the terminal."""
    lines: list[str] = []
    with EndingSignals(), suppress(KeyboardInterrupt), terminal() as keys:
        _keep_drawing(handle, rows, output, keys, lines)
    for line in lines:
        click.echo(line)
    return 0


def _keep_drawing(handle: InstanceHandle, rows: Rows, output: Output, keys: PressedKeys, lines: list[str]) -> None:
    """Until a q, or the end of the instance; `lines` are what was shown last."""
    news = MachineNews(handle)
    asked_s = drawn_s = -DRAWN_EVERY_S
    size = None
    news.is_due = True
    while not (keys.quit or news.is_over):
        now_s = SystemClock.monotonic_s()
        size, old = shutil.get_terminal_size(), size
        if is_asked := news.is_due and now_s >= asked_s + ASKED_EVERY_S:
            news.is_due, asked_s = False, now_s
            found = rows(handle.rpc("resource.status"), False)
            lines[:] = render(found, output.layout, output.fields, header=output.header)
        if is_asked or now_s >= drawn_s + DRAWN_EVERY_S or size != old or keys.stale:
            keys.stale, drawn_s = False, now_s
            draw([f"{show.time_text(SystemClock.wall_s(), '%H:%M:%S')}  q ends this", *lines], size.lines)
        next_s = min(asked_s + ASKED_EVERY_S if news.is_due else drawn_s + DRAWN_EVERY_S, drawn_s + DRAWN_EVERY_S)
        handle.listen(max(next_s - SystemClock.monotonic_s(), 0.0), keys)
