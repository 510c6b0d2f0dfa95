"""A part of the screen that is drawn line by line.

Law: only lines that differ from what is on the terminal are sent to it, so that a quiet machine costs nothing over ssh.
A pane that is not shown draws nothing.
"""

from __future__ import annotations

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from fluxsched.screen.panes.look import TerminalLook


class Pane(Widget):
    """Draws what `make_lines` returns."""

    DEFAULT_CSS = "Pane { background: transparent; }"

    def __init__(self, look: TerminalLook, *, id: str, can_focus: bool = False) -> None:
        super().__init__(id=id)
        self.look = look
        self.can_focus = can_focus
        self._drawn: list[Strip] = []

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """The lines from the top, each of `width` cells; missing ones are empty."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Make the lines anew, and send those that changed."""
        width, height = self.size
        if not self.display or not width or not height:
            self._drawn = []
            return
        lines = self.make_lines(width, height)[:height]
        lines += [Strip.blank(width)] * (height - len(lines))
        old, self._drawn = self._drawn, lines
        if len(old) != height or (old and old[0].cell_length != width):
            self.refresh()
            return
        changed = [y for y, (before, after) in enumerate(zip(old, lines, strict=True)) if before != after]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_lines(self, crop: Region) -> list[Strip]:
        """What Textual asks: lines have their styles already."""
        width, height = self.size
        if len(self._drawn) != height or (self._drawn and self._drawn[0].cell_length != width):
            lines = self.make_lines(width, height)[:height]
            self._drawn = lines + [Strip.blank(width)] * (height - len(lines))
        return [self._drawn[y].crop(crop.x, crop.right) for y in crop.line_range if y < height]

    def on_resize(self) -> None:
        """Everything is drawn anew."""
        self._drawn = []
        self.refresh()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Titles and cursors show where the keys go."""
        super().watch_has_focus(has_focus)
        self.redraw()
