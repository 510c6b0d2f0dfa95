"""A text over the panes, in sheets: the details of a job, a target, a queue or a group, and the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events
from textual.strip import Strip

from fluxsched.screen.panes.look import Run, TerminalLook
from fluxsched.screen.panes.pane import Pane


class Sheet(NamedTuple):
    """One of the texts: its name, and its lines for a width."""

    name: str
    lines: Callable[[int], Sequence[Sequence[Run]]]
    from_end: bool = False
    """Whether the end is shown first, as of an output that grows."""


class ReaderPane(Pane):
    """Shown over the panes until Esc, q or Enter."""

    def __init__(self, look: TerminalLook, closed: Callable[[], None], *, id: str) -> None:
        super().__init__(look, id=id, can_focus=True)
        self.title = ""
        self.sheets: Sequence[Sheet] = ()
        self._when_closed = closed
        self._at = 0
        self._top: int | None = 0
        """The first line shown; None: as many as fit, from the end."""

    def open(self, title: str, sheets: Sequence[Sheet]) -> None:
        """Show these."""
        self.title, self.sheets = title, sheets
        self._turn_to(0)

    @property
    def sheet(self) -> str:
        """The name of the sheet shown."""
        return self.sheets[self._at].name if self.sheets else ""

    def _turn_to(self, at: int) -> None:
        self._at = at % max(1, len(self.sheets))
        self._top = None if self.sheets and self.sheets[self._at].from_end else 0
        self.redraw()

    def on_key(self, event: events.Key) -> None:
        """Scroll, turn to another sheet, close."""
        page = max(1, self.size.height - 2)
        steps = {"up": -1, "down": 1, "j": 1, "k": -1, "pageup": -page, "pagedown": page, "space": page, "b": -page}
        turns = {"left": -1, "right": 1, "tab": 1, "shift+tab": -1, "h": -1, "l": 1}
        event.stop()
        event.prevent_default()
        if event.key in steps:
            self._scroll(steps[event.key])
        elif event.key in turns:
            self._turn_to(self._at + turns[event.key])
        elif event.key in ("home", "g"):
            self._top = 0
            self.redraw()
        elif event.key in ("end", "G"):
            self._top = None
            self.redraw()
        elif event.character and event.character.isdigit() and 0 < int(event.character) <= len(self.sheets):
            self._turn_to(int(event.character) - 1)
        elif event.key in ("escape", "q", "enter", "f10", "f1", "question_mark"):
            self._when_closed()

    def on_mouse_scroll_down(self) -> None:
        """Three lines."""
        self._scroll(3)

    def on_mouse_scroll_up(self) -> None:
        """Three lines."""
        self._scroll(-3)

    def on_click(self, event: events.Click) -> None:
        """A sheet's name turns to it."""
        if event.y == 0:
            left = len(self.title) + 3
            for at, sheet in enumerate(self.sheets):
                right = left + len(sheet.name) + 4
                if left <= event.x < right:
                    self._turn_to(at)
                left = right

    def _scroll(self, by: int) -> None:
        last = self._last_top(self.size.width, self.size.height)
        top = last if self._top is None else self._top
        at = max(0, min(top + by, last))
        self._top = None if at == last and self.sheets[self._at].from_end else at
        self.redraw()

    def _last_top(self, width: int, height: int) -> int:
        return max(0, len(self.sheets[self._at].lines(width)) - max(1, height - 2)) if self.sheets else 0

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """The sheets' names, and the lines of the one that is shown."""
        if not self.sheets:
            return []
        runs: list[Run] = [(f" {self.title} ", "bold"), (" ", "")]
        if len(self.sheets) > 1:
            for at, sheet in enumerate(self.sheets):
                mark = "title-focused" if at == self._at else "dim"
                runs.append((f"[{sheet.name}] " if at == self._at else f" {sheet.name}  ", mark))
        lines = list(self.sheets[self._at].lines(width))
        last = max(0, len(lines) - max(1, height - 2))
        top = last if self._top is None else min(self._top, last)
        shown = lines[top : top + max(1, height - 2)]
        strips = [self.look.strip(runs, width), self.look.strip([(self.look.sign("─", "-") * width, "dim")], width)]
        strips += [self.look.strip([(" ", ""), *line], width) for line in shown]
        return strips
