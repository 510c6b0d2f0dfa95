"""`fluxsched jobs --watch`: the table as it changes; redrawn on a terminal, elsewhere one line per change.

Law: the instance reports events (job-manager.watch), and is asked for details at a bounded rate, for no more jobs
than are shown.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import click

from fluxsched.cli.common import show
from fluxsched.cli.common.options import InstanceHandle, Output, come_back
from fluxsched.cli.common.screen import PressedKeys, draw, has_screen, terminal
from fluxsched.cli.common.signals import EndingSignals
from fluxsched.cli.common.table import render
from fluxsched.core.text import printable
from fluxsched.errors import Disconnected, RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.jobs import JobRow

ASKED_EVERY_S = 0.5
"""How often a busy instance is asked what has changed, at the shortest (seconds)."""
REFRESHED_EVERY_S = 5.0
"""How often an idle one is asked: reasons and estimates change without an event (seconds)."""
DRAWN_EVERY_S = 1.0
"""How often times are drawn anew (seconds)."""
GATHERED_S = 0.1
"""How long changes are gathered for one look (seconds)."""
ASKED_IDS_MAX = 1000
"""Changed jobs that are asked for at a time."""

EVENTS = ("submit", "depend", "priority", "urgency", "alloc", "grow", "release", "finish", "exception", "clean")
"""What changes a row."""

MakeRows = Callable[[Sequence[Mapping[str, Any]]], list[JobRow]]


class Watched(NamedTuple):
    """What is watched: the list request of the table, that of changes, and how rows are made of what is found."""

    request: Mapping[str, Any]
    changes: Mapping[str, Any]
    rows: MakeRows
    ids: frozenset[int]
    """The jobs that were named: it ends when these have."""


class News:
    """The jobs with events since this was last taken."""

    def __init__(self, handle: InstanceHandle, ids: frozenset[int]) -> None:
        self._changed: dict[int, None] = {}
        self._ended = False
        self._fault: RPCError | None = None
        request: dict[str, Any] = {"names": list(EVENTS), **({"ids": sorted(ids)} if ids else {})}
        handle.subscribe("job-manager.watch", request, self._take)

    def _take(self, answer: Mapping[str, Any] | RPCError | None) -> None:
        if isinstance(answer, Mapping):
            self._changed.update((event[0], None) for event in answer["events"])
        else:
            self._ended, self._fault = True, self._fault or answer

    def __bool__(self) -> bool:
        return bool(self._changed)

    def taken(self) -> list[int]:
        """Their ids; nothing is left."""
        changed, self._changed = self._changed, {}
        return list(changed)

    @property
    def is_over(self) -> bool:
        """Whether no more will come. Raises what the stream failed with."""
        if self._fault is not None:
            raise self._fault
        return self._ended


def watch(handle: InstanceHandle, watched: Watched, output: Output) -> int:
    """Show jobs until interrupted, or until those that were named have ended: the exit status."""
    if has_screen() and not output.as_json:
        return _screen(handle, watched, output)
    return _lines(handle, watched, output)


def _are_over(found: Sequence[Mapping[str, Any]], ids: frozenset[int]) -> bool:
    return bool(ids and found) and all(job["state"] == "INACTIVE" for job in found)


# -- lines ------------------------------------------------------------------------------------------------------


def _lines(handle: InstanceHandle, watched: Watched, output: Output) -> int:
    news = News(handle, watched.ids)
    told: dict[int, str] = {}
    layout = output.layout._replace(columns=tuple(one._replace(droppable=False) for one in output.layout.columns))

    def tell(found: Sequence[Mapping[str, Any]], *, header: bool = False) -> None:
        rows = [row for row in watched.rows(found) if told.get(row.info["id"]) != _look(row)]
        for row in rows:
            told[row.info["id"]] = _look(row)
            if row.info["state"] == "INACTIVE" and row.info["id"] not in watched.ids:
                del told[row.info["id"]]  # nothing more comes of it
        if output.as_json:
            show.print_stream(row.info for row in rows)
        else:
            for line in render(rows, layout, output.fields, header=header):
                show.flushed(line)

    def tell_changed(changed: Sequence[int]) -> None:
        for at in range(0, len(changed), ASKED_IDS_MAX):
            request = {**watched.changes, "ids": changed[at : at + ASKED_IDS_MAX], "max_entries": ASKED_IDS_MAX}
            found = handle.rpc("job-manager.list", request)["jobs"]
            tell(list(reversed(found)))
            left.difference_update(job["id"] for job in found if job["state"] == "INACTIVE")

    found = handle.rpc("job-manager.list", dict(watched.request))["jobs"]
    tell(found, header=output.header)
    left = {job["id"] for job in found if job["state"] != "INACTIVE"} & watched.ids
    is_back = False
    while left or not watched.ids:
        try:
            if is_back:
                is_back, news = False, News(handle, watched.ids)
                tell_changed(list(told))
                now = handle.rpc("job-manager.list", dict(watched.request))["jobs"]
                tell([job for job in now if job["state"] != "INACTIVE"])
            elif not _gather(handle, news):
                break
            else:
                tell_changed(news.taken())
        except Disconnected as fault:
            come_back(handle, fault, "watch them again")
            is_back = True
    return 0


def _gather(handle: InstanceHandle, news: News) -> bool:
    """Wait for changes, and a moment for more of them; False if none will come."""
    if not news:
        if news.is_over:
            return False
        handle.listen(None)
    until_s = SystemClock.monotonic_s() + GATHERED_S
    while news and not news.is_over and (rest_s := until_s - SystemClock.monotonic_s()) > 0:
        handle.listen(rest_s)
    return True


def _look(row: JobRow) -> str:
    """What of a job makes a line: its status and its urgency."""
    return f"{row.status()} {row.info['urgency']}"


# -- a screen ---------------------------------------------------------------------------------------------------


def _screen(handle: InstanceHandle, watched: Watched, output: Output) -> int:
    """Draw the table again and again; the last one is left on the terminal."""
    rows: list[JobRow] = []
    with EndingSignals(), suppress(KeyboardInterrupt), terminal() as keys:  # interrupting is how people end it
        _keep_drawing(handle, watched, output, keys, rows)
    for line in render(rows, output.layout, output.fields, header=output.header):
        click.echo(line)
    return 0


def _keep_drawing(
    handle: InstanceHandle, watched: Watched, output: Output, keys: PressedKeys, rows: list[JobRow]
) -> None:
    """Until a q, the end of all that is watched, or of the instance; `rows` are what was shown last."""
    while True:
        try:
            return _draw_while_connected(handle, watched, output, keys, rows)
        except Disconnected as fault:
            text = printable(f"{fault}: connecting again when it is back")
            handle.reconnect(partial(draw, [text], 1))


def _draw_while_connected(
    handle: InstanceHandle, watched: Watched, output: Output, keys: PressedKeys, rows: list[JobRow]
) -> None:
    news = News(handle, watched.ids)
    found: Sequence[Mapping[str, Any]] = ()
    asked_s = drawn_s = -REFRESHED_EVERY_S
    size = None
    while not (keys.quit or news.is_over or _are_over(found, watched.ids)):
        now_s = SystemClock.monotonic_s()
        due_s = asked_s + (ASKED_EVERY_S if news else REFRESHED_EVERY_S)
        size, old = shutil.get_terminal_size(), size
        if now_s >= due_s:
            news.taken()
            count = min(watched.request["max_entries"], max(1, size.lines - 2))
            found = handle.rpc("job-manager.list", {**watched.request, "max_entries": count})["jobs"]
            asked_s = now_s
        if now_s >= min(due_s, drawn_s + DRAWN_EVERY_S) or size != old or keys.stale:
            keys.stale = False
            rows[:] = watched.rows(found)
            _draw(rows, output, size.lines)
            drawn_s = now_s
        next_s = min(asked_s + (ASKED_EVERY_S if news else REFRESHED_EVERY_S), drawn_s + DRAWN_EVERY_S)
        handle.listen(max(next_s - SystemClock.monotonic_s(), 0.0), keys)


def _draw(rows: Sequence[JobRow], output: Output, height: int) -> None:
    title = f"{show.time_text(SystemClock.wall_s(), '%H:%M:%S')}  {show.plural(len(rows), 'job')} shown, q ends this"
    draw([title, *render(rows, output.layout, output.fields, header=output.header)], height)
