"""`fluxsched top`: the application. It puts the panes in their places, follows the instance, and hands keys on.

Law: deltas are drawn together, at the rate of `picture.Pacer`; a key is answered at once. What fails is said on the
screen, in the words of the instance; only our own faults end it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.screen import Screen

from fluxsched.errors import FluxschedError, InvalidValue
from fluxsched.screen import commands
from fluxsched.screen.look import KEYS, PANES, Pane, Rect, ScreenSettings, TerminalLook, is_too_small, places, refusal
from fluxsched.screen.panes import (
    FiguresBar,
    KeyLine,
    LogLine,
    LogPane,
    MachinePane,
    NoticeLines,
    Question,
    QuestionBox,
    ReaderPane,
    Sentence,
    Sheet,
    StateLook,
    StatusLine,
)
from fluxsched.screen.picture import CLOCK_EVERY_S, Followed, Pacer, Picture, ViewFollower
from fluxsched.screen.table import GROUP_COLUMNS, JOB_COLUMNS, QUEUE_COLUMNS, TablePane
from fluxsched.system.clock import SystemClock
from fluxsched.views.follower import Follower
from fluxsched.views.jobs import JobRow
from fluxsched.views.machine import STATES
from fluxsched.views.words import time_text

ROWS_MAX = 200
"""Jobs that are listed: more are for filters, or for `fluxsched jobs`."""
QUEUES_EVERY_S = 5.0
"""Interval between requests for the queues (seconds): people open and close them."""
QUEUES_MAX = 100
"""Maximum number of queues that are shown."""


class Board(Screen[None], inherit_bindings=False):
    """The only screen; its keys are those of the table in `look.py`."""


class TopApp(App[None], inherit_bindings=False):
    """The screen, for a follower."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Board { layers: panes box; background: ansi_default; }
    Pane { position: absolute; layer: panes; display: none; }
    #reader, #box { layer: box; }
    """
    BINDINGS = [Binding("ctrl+c", "leave", show=False, priority=True)]  # noqa: RUF012  (Textual's own form)

    def __init__(self, follower: ViewFollower, settings: ScreenSettings) -> None:
        super().__init__(ansi_color=True)
        self.settings = settings
        self.follower = follower
        look = settings.look
        self.picture = Picture(self.note)
        self.filter_text = settings.filter_text
        self.every_state = settings.every_state
        self.searched = ""
        self.zoomed: str | None = None
        self.traced: str | None = None
        """The beginnings of topics whose messages are shown."""
        self.pane = "jobs"
        """The pane that the keys go to, but for what is opened over it."""
        self.table = "jobs"
        """The table that is shown where there is room for one."""
        states = {
            state.word: StateLook(_legend_sign(look, state.sign), _legend_style(look, state.terminal))
            for state in STATES
        }
        self.figures = FiguresBar(look, states, id="figures")
        self.notices = NoticeLines(look, id="notices")
        self.machine = MachinePane(look, id="machine")
        self.jobs = TablePane(look, JOB_COLUMNS, lambda row: row.info["id"], id="jobs", title="Jobs")
        self.queues = TablePane(look, QUEUE_COLUMNS, lambda entry: entry["name"], id="queues", title="Queues")
        self.groups = TablePane(look, GROUP_COLUMNS, lambda entry: entry["name"], id="groups", title="Groups")
        self.log_pane = LogPane(look, id="log")
        self.status = StatusLine(look, id="status")
        self.keys = KeyLine(look, id="keys")
        self.sentence = Sentence(look, id="sentence")
        self.reader = ReaderPane(look, self.close_reader, id="reader")
        self.box = QuestionBox(look, self.say, self._box_closed, id="box")
        self.pacer = Pacer(self._draw)
        self.followed = Followed(follower, self.say_fault)
        self._rects: Mapping[str, Rect] = {}
        self._known_s = SystemClock.wall_s()
        """The time that run times are shown of: it stands still while the instance is lost, and so do they."""

    def get_default_screen(self) -> Screen[None]:
        """Return the screen of this application."""
        return Board()

    def compose(self) -> ComposeResult:
        """All parts; `arrange` shows those that fit."""
        yield from (self.figures, self.notices, self.machine, self.jobs, self.queues, self.groups, self.log_pane,
                    self.status, self.keys, self.sentence, self.reader, self.box)  # fmt: skip

    @property
    def panes(self) -> Mapping[str, Pane]:
        """Return the panes in the order of Tab."""
        return dict(zip(PANES, (self.machine, self.jobs, self.queues, self.groups, self.log_pane), strict=True))

    def on_mount(self) -> None:
        """Begin to follow the instance when the application starts."""
        take = {"machine": self._take_machine, "figures": self._take_figures, "notices": self._take_notices}
        for topic, taken in take.items():
            self.followed.follow(topic, topic, None, taken)
        self.follow_jobs()
        self.set_interval(CLOCK_EVERY_S, self.pacer.wake)
        self.set_interval(QUEUES_EVERY_S, self._ask_queues)
        self.arrange()
        self.focus_pane("jobs")

    async def on_unmount(self) -> None:
        """Stop following the instance when the application ends."""
        self.pacer.stop()
        await self.followed.close()

    # -- what arrives -------------------------------------------------------------------------------------------

    def follow_jobs(self) -> None:
        """Follow the jobs that the filter means. Raises InvalidValue."""
        words = f"{'-a ' if self.every_state else ''}{self.filter_text}"
        request = {**self.settings.parse_filter(words), "max_entries": ROWS_MAX}
        self.followed.follow("jobs", "jobs", request, self._take_jobs)

    def _take_instance(self, body: Mapping[str, Any]) -> None:
        was_lost = self.picture.lost
        self.picture.take_instance(body)
        self.figures.lost = self.picture.lost
        self.keys.role = self.picture.role
        if was_lost is not None and self.picture.lost is None:
            self._ask_queues()
        self.pacer.wake()

    def _take_machine(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "instance":
            self._take_instance(body)
            return
        self.picture.take_machine(kind, body)
        self.machine.show(self.picture.machine, is_rebuilt=kind == "whole" or "groups" in body)
        if kind == "whole" or "groups" in body:
            self.call_later(self.arrange)
        self.pacer.wake()

    def _take_jobs(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind != "instance":
            self.picture.take_jobs(kind, body)
            self.pacer.wake()

    def _take_figures(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind != "instance":
            self.picture.take_figures(kind, body, SystemClock.monotonic_s())
            self.pacer.wake()

    def _take_notices(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind != "instance":
            self.picture.take_notices(body)
            self.notices.texts = [each["text"] for each in reversed(self.picture.notices)]
            self.call_later(self.arrange)
            self.pacer.wake()

    def _ask_queues(self) -> None:
        if self.picture.lost is None:
            self.run_worker(self._fetch_queues(), exclusive=True, group="queues")

    async def _fetch_queues(self) -> None:
        try:
            names = (await self.follower.ask("job-manager.queue-list", None))["queues"][:QUEUES_MAX]
            found = [await self.follower.ask("job-manager.queue-status", {"name": name} if name else {})
                     for name in names or [""]]  # fmt: skip
        except FluxschedError as error:
            self.queues.empty_text = str(error)
            return
        self.picture.queues = [{"name": name, **one} for name, one in zip(names or [""], found, strict=True)]
        self.pacer.wake()

    def note(self, style: str, text: str) -> None:
        """Write a line to the log."""
        self.log_pane.add(LogLine(SystemClock.wall_s(), style, text))

    # -- drawing ------------------------------------------------------------------------------------------------

    def _draw(self, drawn: Callable[[], None]) -> None:
        if not self.is_running:
            return
        self.draw()
        self.call_after_refresh(drawn)

    def draw(self) -> None:
        """Draw what is known now."""
        self.fill()
        for pane in self.query(Pane):
            pane.redraw()

    def fill(self) -> None:
        """Give the panes what is known; drawing is the caller's."""
        now_s = SystemClock.wall_s()
        picture = self.picture
        if picture.lost is None:
            self._known_s = now_s
        self.figures.figures = picture.figures(now_s)
        self.figures.clock = time_text(now_s, "%H:%M:%S")
        self.jobs.fill(
            [
                JobRow(info, self._known_s, str(info.get("reason") or ""), is_ascii=not self.settings.look.is_unicode)
                for info in picture.rows()
            ]
        )
        self.jobs.note = self._jobs_note()
        none = "the instance is lost" if picture.lost else "no job is shown" if self.filter_text else "no active job"
        self.jobs.empty_text = picture.refused.get("jobs", none)
        counts = {queue["name"]: queue for queue in picture.metrics.get("queues") or ()}
        self.queues.fill([{**queue, **counts.get(queue["name"], {})} for queue in picture.queues])
        self.groups.fill(picture.machine.groups)
        self.groups.empty_text = picture.refused.get("machine", "")
        self.machine.note = self.groups.empty_text or picture.outage_note()
        self._about()

    def _jobs_note(self) -> str:
        left_out = self.picture.jobs.get("left_out") or 0
        shown = len(self.jobs.rows)
        words = [f"{shown:,} of {shown + left_out:,}" if left_out else f"{shown:,}"]
        words = words if self.picture.lost is None else []
        words += ["all states"] if self.every_state else []
        words += [f"filter: {self.filter_text}"] if self.filter_text else []
        return "  ".join(words)

    def _about(self) -> None:
        """More of what is under the cursor, in the line above the keys."""
        pane = self.panes[self.pane]
        if pane is self.machine:
            self.status.about = commands.about_targets(self.picture, self.machine.ranks)
        elif isinstance(pane, TablePane):
            self.status.about = commands.about_row(pane)
        else:
            self.status.about = ""

    def say(self, text: str, style: str = "good") -> None:
        """Say what was done, until the next key; the log keeps it."""
        if text:
            self.note(style, text)
            self.status.said, self.status.said_style = text, style
            self.status.redraw()
            self.log_pane.redraw()

    def say_fault(self, text: str) -> None:
        """Show the reason of a refusal."""
        self.say(text, "bad")

    # -- places -------------------------------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        """Arrange the panes for another size."""
        self.arrange(event.size.width, event.size.height)

    def arrange(self, width: int = 0, height: int = 0) -> None:
        """Show what fits, where it belongs."""
        if not width:
            width, height = self.size
        tables = {"queues": 2 + len(self.picture.queues), "groups": 2 + len(self.picture.machine.groups)}
        machine_lines = self.machine.lines_wanted
        rects = dict(places(width, height, table=self.table, zoomed=self.zoomed, machine_lines=machine_lines,
                            notices=len(self.picture.notices), **tables))  # fmt: skip
        if "sentence" not in rects:
            room = Rect(0, rects["figures"].height, width, height - rects["figures"].height - 2)
            if self.reader.sheets:
                rects["reader"] = room
        if self.box.question is not None:
            lines = min(self.box.lines_wanted(width), height - (2 if not is_too_small(width, height) else 0))
            rects["box"] = Rect(0, max(0, height - lines - (1 if height > lines else 0)), width, max(1, lines))
        if rects == self._rects:
            return
        self._rects = rects
        for pane in self.query(Pane):
            rect = rects.get(str(pane.id))
            pane.styles.display = "none" if rect is None else "block"
            if rect is not None:
                pane.styles.offset = rect.x, rect.y
                pane.styles.width, pane.styles.height = rect.width, rect.height

    def focus_pane(self, name: str) -> None:
        """Let the keys go to a pane; it is shown."""
        self.pane = name
        if name != "machine":
            self.table = name
        if self.zoomed is not None:
            self.zoomed = name
        pane = self.panes[name]
        self.keys.uses = [use for use in KEYS if name in use.panes]
        self.arrange()
        if str(pane.id) not in self._rects:  # the machine on a low terminal
            self.zoomed = name
            self.arrange()
        self.set_focus(pane, scroll_visible=False)
        self._about()
        for one in (pane, self.keys, self.status):
            one.redraw()

    # -- keys ---------------------------------------------------------------------------------------------------

    async def on_key(self, event: events.Key) -> None:
        """Handle a key that no pane has handled."""
        use = next((use for use in KEYS if event.key in use.keys.split(",")), None)
        if event.character and event.character in "12345":
            event.stop()
            self.focus_pane(PANES[int(event.character) - 1])
        elif use is not None:
            event.stop()
            self.press(use.action)

    def press(self, action: str) -> None:
        """Do what a key does here, or say why not."""
        if self.status.said:
            self.status.said = ""
            self.status.redraw()
        use = next(use for use in KEYS if use.action == action)
        why_not = refusal(use, self.picture.role)
        try:
            if why_not is not None:
                raise InvalidValue(why_not)
            if self.pane not in use.panes:
                raise InvalidValue(f"{use.shown} {use.label or use.action}: in the pane {' or '.join(use.panes)}")
            commands.COMMANDS[action](self)
        except FluxschedError as error:
            self.say_fault(str(error))

    def action_leave(self) -> None:
        """Leave the application on Ctrl-C."""
        self.leave()

    def leave(self) -> None:
        """End the application without an error."""
        self.exit()

    def perform(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what waits for the instance, in place of what was asked of it before."""
        self.run_worker(work, exclusive=True, group="details")

    def on_key_line_pressed(self, message: KeyLine.Pressed) -> None:
        """Handle a click on a key."""
        self.press(message.use.action)

    def on_table_pane_chosen(self, message: TablePane.Chosen) -> None:
        """Show details of the row on Enter."""
        self.press("details")

    def on_machine_pane_entered(self) -> None:
        """Show details of the cell on Enter."""
        self.press("details")

    def on_table_pane_moved(self) -> None:
        """Say what is under the cursor now."""
        self._moved()

    def on_machine_pane_moved(self) -> None:
        """Say what is under the cursor now."""
        self._moved()

    def _moved(self) -> None:
        self.status.said = ""
        self._about()
        self.status.redraw()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Pass a click on to a pane, too."""
        name = next((name for name, pane in self.panes.items() if pane is event.widget), None)
        if name is not None and name != self.pane:
            self.focus_pane(name)

    # -- what is over the panes ---------------------------------------------------------------------------------

    def ask(self, question: Question) -> None:
        """Open the box with a question."""
        self.box.open(question)
        self.arrange()
        self.set_focus(self.box, scroll_visible=False)

    def _box_closed(self) -> None:
        self._refocus()

    def read(self, title: str, sheets: list[Sheet]) -> None:
        """Open the reader with these sheets."""
        self.reader.open(title, sheets)
        self.arrange()
        self.set_focus(self.reader, scroll_visible=False)

    def close_reader(self) -> None:
        """Close the reader, and return the focus to the panes."""
        self.reader.sheets = ()
        self.followed.leave("job")
        self._refocus()

    def _refocus(self) -> None:
        self.arrange()
        over = self.reader if self.reader.sheets else self.panes[self.pane]
        self.set_focus(over, scroll_visible=False)


def _legend_sign(look: TerminalLook, sign: str) -> str:
    return look.sign("■", sign) if look.is_colourful else f"{sign} "


def _legend_style(look: TerminalLook, colour: int) -> str:
    return f"color({colour})" if look.is_colourful else "bold"


# ---- running of the screen


def part_esc_and_digits() -> None:
    """Let Esc and a digit be two keys: to Textual they are a character, as Option and the digit are in one terminal."""
    try:
        from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
    except ImportError:  # private to Textual: where it has moved, they stay a character
        return
    for digit in "0123456789-=":
        cast(dict[str, object], ANSI_SEQUENCES_KEYS).pop(f"\x1b{digit}", None)


def run_screen(
    uri: str | None,
    parse_filter: Callable[[str], dict[str, Any]],
    parse_urgency: Callable[[str], int],
    filter_text: str,
    *,
    is_colourful: bool,
    is_unicode: bool,
) -> None:
    """Show the instance at `uri`, else the newest one, on this terminal."""
    part_esc_and_digits()
    for name in ("COLUMNS", "LINES"):  # where a shell exports them, Textual takes them for the size for ever
        os.environ.pop(name, None)
    look = TerminalLook(is_colourful, is_unicode)
    settings = ScreenSettings(look, parse_filter, parse_urgency, filter_text)

    async def show() -> None:
        async with Follower(uri) as follower:
            await TopApp(follower, settings).run_async()

    asyncio.run(show())
