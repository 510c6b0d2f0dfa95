"""What happened, as it comes: events of targets and jobs, messages, refusals. The end is shown until one looks back."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from textual import events
from textual.strip import Strip

from fluxsched.screen.panes.look import TerminalLook, cell
from fluxsched.screen.panes.pane import Pane
from fluxsched.views.words import time_text

LOG_LINES_MAX = 2000
"""Older lines leave; a screen that is open for months must not grow."""


class LogLine(NamedTuple):
    """One line: when (seconds since the epoch), its style, and its text, which may be any user's."""

    at_s: float
    style: str
    text: str


class LogPane(Pane):
    """The last lines that fit."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.title = "Log"
        self.note = ""
        self.held: deque[LogLine] = deque(maxlen=LOG_LINES_MAX)
        self._back = 0
        """How many lines after the last one shown there are."""

    def add(self, line: LogLine) -> None:
        """Append a line; what is shown stays if one looks back."""
        self.held.append(line)
        if self._back:
            self._back = min(self._back + 1, len(self.held) - 1)

    def find(self, text: str, *, go_on: bool) -> bool:
        """Go back to the latest line above the last one shown that has `text`; whether there is one."""
        lines = list(self.held)
        wanted = text.casefold()
        for at in range(len(lines) - 1 - self._back - (1 if go_on else 0), -1, -1):
            if wanted in lines[at].text.casefold():
                self._back = len(lines) - 1 - at
                self.redraw()
                return True
        return False

    def on_key(self, event: events.Key) -> None:
        """Look back and forth."""
        page = max(1, self.size.height - 1)
        steps = {"up": 1, "down": -1, "j": -1, "pageup": page, "pagedown": -page, "home": len(self.held),
                 "end": -len(self.held), "g": -len(self.held), "G": -len(self.held)}  # fmt: skip
        if event.key in steps:
            event.stop()
            self._look_back(steps[event.key])

    def on_mouse_scroll_up(self) -> None:
        """Look back."""
        self._look_back(3)

    def on_mouse_scroll_down(self) -> None:
        """And forth."""
        self._look_back(-3)

    def _look_back(self, by: int) -> None:
        self._back = max(0, min(self._back + by, len(self.held) - max(1, self.size.height - 1)))
        self.redraw()

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """A title and the lines."""
        style = "title-focused" if self.has_focus else "title"
        later = f"  {self._back} newer: End" if self._back else ""
        lines = [self.look.strip([(f" {self.title} ", style), (f" {self.note}", "dim"), (later, "warn")], width)]
        last = len(self.held) - self._back
        shown = [self.held[at] for at in range(max(0, last - height + 1), last)]
        for line in shown:
            clock = time_text(line.at_s, "%H:%M:%S")
            lines.append(self.look.strip([(f" {clock} ", "dim"), (cell(line.text, width - 10), line.style)], width))
        if not shown:
            lines.append(self.look.strip([(" nothing has happened yet", "dim")], width))
        return lines
