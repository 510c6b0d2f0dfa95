"""`jobs --watch` and `resource status --watch`: a table redrawn on a terminal, elsewhere one line per change.

Law: the terminal is left as it was found, however this ends; while it is suspended it is the shell's. The instance
reports events (job-manager.watch), and is asked for details at a bounded rate, for no more jobs than are shown. The
instance says when something has changed (resource.watch); it is asked for the table at a bounded rate, and not when
jobs only come and go.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple, Protocol

import click

from fluxsched.cli.base import EndingSignals
from fluxsched.cli.options import InstanceHandle, Output, come_back
from fluxsched.cli.output import Format, plural, print_flushed, print_stream, render, time_text
from fluxsched.cli.target_rows import ResourceRow
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.text import printable
from fluxsched.errors import Disconnected, RPCError
from fluxsched.system.clock import SystemClock
from fluxsched.views.feeds import LIST_START_MAX
from fluxsched.views.jobs import JobRow
from fluxsched.views.machine import USED

_ENTER, _LEAVE = b"\x1b[?1049h\x1b[?25l\x1b[?7l", b"\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class Scroll(NamedTuple):
    """Lines, or whole screens, by which a key moves what is shown."""

    lines: int = 0
    screens: int = 0


_EVERYTHING = 1 << 30
"""More lines than any table has."""
_PAGE_UP, _PAGE_DOWN, _START, _END = Scroll(0, -1), Scroll(0, 1), Scroll(-_EVERYTHING), Scroll(_EVERYTHING)
SCROLLS: Mapping[bytes, Scroll] = {
    b"\x1b[A": Scroll(-1), b"\x1bOA": Scroll(-1), b"k": Scroll(-1),
    b"\x1b[B": Scroll(1), b"\x1bOB": Scroll(1), b"j": Scroll(1),
    b"\x1b[5~": _PAGE_UP, b"b": _PAGE_UP, b"\x1b[6~": _PAGE_DOWN, b" ": _PAGE_DOWN,
    b"\x1b[H": _START, b"\x1bOH": _START, b"\x1b[1~": _START, b"g": _START,
    b"\x1b[F": _END, b"\x1bOF": _END, b"\x1b[4~": _END, b"G": _END,
}  # fmt: skip
"""Bytes that arrow keys, Page Up, Page Down, Home and End send, and the keys of `less` for the same."""
_KEY = re.compile(rb"\x1b(?:\[[0-9;]*|O)[A-Za-z~]|.", re.DOTALL)


def has_screen() -> bool:
    """Return whether a person uses a terminal, and can press a key."""
    return sys.stdout.isatty() and sys.stdin.isatty()


class PressedKeys:
    """Keys that are pressed while a screen is shown; `quit` once one is a q. `stale` if the screen must be drawn
    anew.
    """

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self.quit = False
        self.stale = False
        self._scrolls: list[Scroll] = []

    def look(self) -> None:
        """Read what was typed, if anything was."""
        if self.fd is None or not select.select([self.fd], [], [], 0)[0]:
            return
        data = os.read(self.fd, 1024)
        pressed = _KEY.findall(data)
        self.quit |= b"q" in pressed or b"Q" in pressed
        self._scrolls += [SCROLLS[key] for key in pressed if key in SCROLLS]
        if not data:
            self.fd = None

    def scrolled(self, first: int, room: int, reach: int) -> int:
        """Return the line to be shown first, after the keys, of `reach` lines of which `room` fit."""
        last, scrolls, self._scrolls = max(0, reach - room), self._scrolls, []
        for scroll in scrolls or [Scroll()]:
            first = min(max(0, first + scroll.lines + scroll.screens * room), last)
        return first


@contextmanager
def terminal() -> Iterator[PressedKeys]:
    """Take a screen of our own, with keys without Enter."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    keys = PressedKeys(fd)

    def enter() -> None:
        tty.setcbreak(fd)
        os.write(out, _ENTER)

    def leave() -> None:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        os.write(out, _LEAVE)

    def suspended(signum: int, frame: object) -> None:
        """Ctrl-Z: the shell gets its terminal, and we take ours when we go on."""
        leave()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        signal.signal(signum, suspended)
        enter()
        keys.stale = True

    out = sys.stdout.fileno()
    sys.stdout.flush()
    usual = signal.signal(signal.SIGTSTP, suspended)
    try:
        enter()
        yield keys
    finally:
        signal.signal(signal.SIGTSTP, usual)
        sys.stdout.flush()
        leave()


def draw(lines: Sequence[str], height: int) -> None:
    """Show these lines, as many as fit, in place of what was there."""
    sys.stdout.write(_HOME + "\n".join(line + _REST_OF_LINE for line in lines[:height]) + _REST_OF_SCREEN)
    sys.stdout.flush()


# ---- watch

ASKED_EVERY_S = 0.5
"""Minimum interval between requests for the changes of a busy instance (seconds)."""
REFRESHED_EVERY_S = 5.0
"""Interval between requests to an idle instance: reasons and estimates change without an event (seconds)."""
DRAWN_EVERY_S = 1.0
"""Interval at which times are drawn anew (seconds)."""
GATHERED_S = 0.1
"""Time for which changes are gathered for one request (seconds)."""
HEADING_LINES = 2
"""Lines of a screen above those of the table: its title, and the headings of the columns."""
ASKED_IDS_MAX = 1000
"""Changed jobs that are asked for at a time."""

EVENTS = ("submit", "depend", "priority", "urgency", "alloc", "grow", "release", "finish", "exception", "clean")
"""Events that change a row."""

MakeRows = Callable[[Sequence[Mapping[str, Any]]], list[JobRow]]
TakeChange = Callable[[Mapping[str, Any]], None]


class Watched(NamedTuple):
    """Requests of a watched table: the list, the changes, and the function that makes rows of the answers."""

    request: Mapping[str, Any]
    changes: Mapping[str, Any]
    rows: MakeRows
    ids: frozenset[int]
    """The jobs that were named: it ends when these have."""


class _Changes:
    """Stream of changes from an instance; `take` is called with each."""

    def __init__(self, handle: InstanceHandle, topic: str, request: dict[str, Any] | None, take: TakeChange) -> None:
        self._take = take
        self._ended = False
        self._fault: RPCError | None = None
        handle.subscribe(topic, request, self._arrived)

    def _arrived(self, answer: Mapping[str, Any] | RPCError | None) -> None:
        if isinstance(answer, Mapping):
            self._take(answer)
        else:
            self._ended, self._fault = True, self._fault or answer

    @property
    def is_over(self) -> bool:
        """Return whether no more changes will arrive. Raises the fault of a failed stream."""
        if self._fault is not None:
            raise self._fault
        return self._ended


class Screen(Protocol):
    """Table on a terminal, for as long as a connection lasts."""

    count: int
    """Lines that there are, as far as is known."""
    reach: int
    """Lines of them that can be shown."""

    @property
    def is_over(self) -> bool:
        """Return whether all that is watched has ended, or no more changes will arrive."""

    @property
    def pause_s(self) -> float:
        """Return the time from one request to the next as it is now (seconds); without an end until something
        changes.
        """

    def ask(self, first: int, room: int) -> None:
        """Ask the instance for so many lines, or all, from the first that is shown."""

    def table(self, first: int, room: int) -> tuple[str, list[str]]:
        """Return what the lines are, in the singular, and the heading with so many lines from the first."""


def _show(handle: InstanceHandle, begin: Callable[[], Screen]) -> int:
    """Draw a table again and again; the last one is left on the terminal. `begin` makes one for each connection."""
    shown: list[str] = []
    with EndingSignals(), suppress(KeyboardInterrupt), terminal() as keys:  # interrupting is how people end it
        _keep_drawing(handle, begin, keys, shown)
    for line in shown:
        click.echo(line)
    return 0


def _keep_drawing(handle: InstanceHandle, begin: Callable[[], Screen], keys: PressedKeys, shown: list[str]) -> None:
    """Draw until a q is typed, or all that is watched, or the instance, has ended; `shown` gets the last lines."""
    while True:
        try:
            return _draw_while_connected(handle, begin(), keys, shown)
        except Disconnected as fault:
            text = printable(f"{fault}: connecting again when it is back")
            handle.reconnect(partial(draw, [text], 1))


def _draw_while_connected(handle: InstanceHandle, screen: Screen, keys: PressedKeys, shown: list[str]) -> None:
    asked_s = drawn_s = -REFRESHED_EVERY_S
    seen: object = None
    first = 0
    while not (keys.quit or screen.is_over):
        now_s, size = SystemClock.monotonic_s(), shutil.get_terminal_size()
        room = max(1, size.lines - HEADING_LINES)
        first = keys.scrolled(first, room, screen.reach)
        seen, before = (size, first), seen
        if is_asked := seen != before or now_s >= asked_s + screen.pause_s:
            asked_s = now_s
            screen.ask(first, room)
        if is_asked or now_s >= drawn_s + DRAWN_EVERY_S or keys.stale:
            keys.stale, drawn_s = False, now_s
            noun, shown[:] = screen.table(first, room)
            title = f"{part_text(first, room, screen.count, screen.reach, noun)}, q ends this"
            draw([f"{time_text(SystemClock.wall_s(), '%H:%M:%S')}  {title}", *shown], size.lines)
        next_s = min(asked_s + screen.pause_s, drawn_s + DRAWN_EVERY_S)
        handle.listen(max(next_s - SystemClock.monotonic_s(), 0.0), keys)


def part_text(first: int, room: int, count: int, reach: int, noun: str) -> str:
    """Return which of all lines are shown, and how to see the others."""
    everything = plural(count, noun)
    if count <= min(room, reach):
        return everything
    others = ", arrow and page keys show others" if reach > room else ""
    return f"{first + 1:,}-{min(first + room, reach):,} of {everything}{others}"


# ---- watched jobs


class News:
    """The jobs with events since this was last taken."""

    def __init__(self, handle: InstanceHandle, ids: frozenset[int]) -> None:
        self._changed: dict[int, None] = {}
        request: dict[str, Any] = {"names": list(EVENTS), **({"ids": sorted(ids)} if ids else {})}
        self.changes = _Changes(handle, "job-manager.watch", request, self._take)

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._changed.update((event[0], None) for event in answer["events"])

    def __bool__(self) -> bool:
        return bool(self._changed)

    def taken(self) -> list[int]:
        """Return the ids of these jobs, and forget them."""
        changed, self._changed = self._changed, {}
        return list(changed)


def watch(handle: InstanceHandle, watched: Watched, output: Output) -> int:
    """Show jobs until interrupted, or until those that were named have ended: the exit status."""
    if has_screen() and not output.as_json:
        return _show(handle, lambda: _JobScreen(handle, watched, output))
    return _job_lines(handle, watched, output)


def _are_over(found: Sequence[Mapping[str, Any]], ids: frozenset[int]) -> bool:
    return bool(ids and found) and all(job["state"] == "INACTIVE" for job in found)


# -- lines ------------------------------------------------------------------------------------------------------


def _job_lines(handle: InstanceHandle, watched: Watched, output: Output) -> int:
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
            print_stream(row.info for row in rows)
        else:
            for line in render(rows, layout, output.fields, header=header):
                print_flushed(line)

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
        if news.changes.is_over:
            return False
        handle.listen(None)
    until_s = SystemClock.monotonic_s() + GATHERED_S
    while news and not news.changes.is_over and (rest_s := until_s - SystemClock.monotonic_s()) > 0:
        handle.listen(rest_s)
    return True


def _look(row: JobRow) -> str:
    """Return the part of a job that makes a line: its status and its urgency."""
    return f"{row.status()} {row.info['urgency']}"


# -- a screen ---------------------------------------------------------------------------------------------------


class _JobScreen:
    """Jobs on a terminal; times in the table go on while nothing changes."""

    def __init__(self, handle: InstanceHandle, watched: Watched, output: Output) -> None:
        self._handle = handle
        self._watched = watched
        self._output = output
        self._news = News(handle, watched.ids)
        self._found: Sequence[Mapping[str, Any]] = ()
        self.count = self.reach = 0

    @property
    def is_over(self) -> bool:
        return self._news.changes.is_over or _are_over(self._found, self._watched.ids)

    @property
    def pause_s(self) -> float:
        return ASKED_EVERY_S if self._news else REFRESHED_EVERY_S

    def ask(self, first: int, room: int) -> None:
        self._news.taken()
        most = self._watched.request["max_entries"]
        wanted = {"order": "active", "start": first, "max_entries": max(1, min(room, most - first))}
        answer = self._handle.rpc("job-manager.list", {**self._watched.request, **wanted})
        self._found = answer["jobs"]
        self.count = max(answer.get("count") or 0, len(self._found))
        self.reach = min(self.count, most, LIST_START_MAX + room)

    def table(self, first: int, room: int) -> tuple[str, list[str]]:
        output = self._output
        return "job", render(self._watched.rows(self._found), output.layout, output.fields, header=output.header)


# ---- watched targets

REMEDY = "watch it again"

Rows = Callable[[Mapping[str, Any], bool], Sequence[ResourceRow]]
"""Rows of a resource.status answer: those that were asked for, or, if true, those of all states."""


class MachineNews:
    """Changes of the machine since the last look."""

    def __init__(self, handle: InstanceHandle, told: TakeChange = lambda answer: None) -> None:
        self.is_due = False
        self._told = told
        self._out_of_use: dict[str, Idset] = {}
        self.changes = _Changes(handle, "resource.watch", None, self._take)

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._told(answer)
        self.is_due |= any(key in answer for key in ("R", "drains", "groups", "made_up")) or self._moves(answer)

    def _moves(self, answer: Mapping[str, Any]) -> bool:
        """Return whether a target becomes usable or unusable."""
        before = dict(self._out_of_use)
        for state, text in answer.get("states", {}).items():
            ranks = Idset.parse(text)
            self._out_of_use = {other: had - ranks for other, had in self._out_of_use.items() if had - ranks}
            if state not in USED:
                self._out_of_use[state] = self._out_of_use.get(state, EMPTY) | ranks
        return before != self._out_of_use


def watch_status(handle: InstanceHandle, rows: Rows, output: Output) -> int:
    """Show the table until interrupted: the exit status."""
    if output.as_json:
        return _messages(handle)
    if has_screen():
        return _show(handle, lambda: _StatusScreen(handle, rows, output))
    return _status_lines(handle, rows, output)


def _messages(handle: InstanceHandle) -> int:
    """Print the instance's messages as they arrive."""
    while True:
        try:
            news = MachineNews(handle, lambda answer: print_stream([answer]))
            while not news.changes.is_over:
                handle.listen(None)
            return 0
        except Disconnected as fault:
            come_back(handle, fault, REMEDY)


def _status_lines(handle: InstanceHandle, rows: Rows, output: Output) -> int:
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
    """Wait until something is new and it is time to ask; return False if nothing more will come."""
    until_s = SystemClock.monotonic_s() + ASKED_EVERY_S
    while not news.is_due or SystemClock.monotonic_s() < until_s:
        if news.changes.is_over:
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
        """Follow a target out of the state that was asked for."""
        output, is_first = self._output, self._layout is None
        now = {_labels(row, output): row for row in self._rows(answer, True)}
        wanted = self._rows(answer, False)
        before, self._asked = self._asked, _all_ranks(wanted)
        self._layout = self._layout or _settled(output, [*now.values()])
        told = wanted if is_first else _changed(now, self._known, before | self._asked)
        self._known = now
        for line in render(told, self._layout, output.fields, header=is_first and output.header):
            print_flushed(line)


def _settled(output: Output, rows: Sequence[ResourceRow]) -> Format:
    """Return the columns of all lines to come: without those that may be left out and have nothing in them."""
    kept = [
        column._replace(droppable=False)
        for column in output.layout.columns
        if not column.droppable or any(output.fields[column.name].value(row) for row in rows)
    ]
    return output.layout._replace(columns=tuple(kept))


def _labels(row: ResourceRow, output: Output) -> tuple[object, ...]:
    """Return the labels of a row that are shown, which targets of one row share."""
    return tuple(value for name, value in row.labels.items() if name in output.layout.names)


def _all_ranks(rows: Sequence[ResourceRow]) -> Idset:
    found = EMPTY
    for row in rows:
        found |= row.ranks
    return found


def _changed(
    now: Mapping[tuple[object, ...], ResourceRow], known: Mapping[tuple[object, ...], ResourceRow], asked: Idset
) -> list[ResourceRow]:
    """Return the rows that have new targets, with these targets alone."""
    found = []
    for labels, row in now.items():
        before = known[labels].ranks if labels in known else EMPTY
        if ranks := (row.ranks & asked) - before:
            found.append(row._replace(ranks=ranks))
    return found


class _StatusScreen:
    """Table of `resource status --watch`, asked for anew when something has changed."""

    def __init__(self, handle: InstanceHandle, rows: Rows, output: Output) -> None:
        self._handle = handle
        self._rows = rows
        self._output = output
        self._news = MachineNews(handle)
        self._news.is_due = True
        self._lines: list[str] = []
        self.count = self.reach = 0

    @property
    def is_over(self) -> bool:
        return self._news.changes.is_over

    @property
    def pause_s(self) -> float:
        return ASKED_EVERY_S if self._news.is_due else inf

    def ask(self, first: int, room: int) -> None:
        self._news.is_due = False
        output, found = self._output, self._rows(self._handle.rpc("resource.status"), False)
        self._lines = render(found, output.layout, output.fields, header=output.header)
        self.count = self.reach = len(self._lines) - output.header

    def table(self, first: int, room: int) -> tuple[str, list[str]]:
        at = int(self._output.header)
        return "line", [*self._lines[:at], *self._lines[at + first :]]
