"""The last two lines: what is said, or of what is under the cursor; and the keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message
from textual.strip import Strip

from fluxsched.core.role import Role
from fluxsched.core.text import printable
from fluxsched.screen.keys import KeyUse, refusal
from fluxsched.screen.panes.look import Run, TerminalLook, cell
from fluxsched.screen.panes.pane import Pane


class StatusLine(Pane):
    """What was said last, until a key is pressed; else more of what is under the cursor."""

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id)
        self.said = ""
        self.said_style = ""
        self.about = ""

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """One line."""
        text, style = (self.said, self.said_style) if self.said else (self.about, "dim")
        return [self.look.strip([(" " + cell(text, width - 1), style)], width)]


class KeyLine(Pane):
    """The keys that mean something here; a click is the key."""

    class Pressed(Message):
        """A key's label was clicked."""

        def __init__(self, use: KeyUse) -> None:
            super().__init__()
            self.use = use

    def __init__(self, look: TerminalLook, *, id: str) -> None:
        super().__init__(look, id=id)
        self.uses: Sequence[KeyUse] = ()
        self.role: Role | None = None
        self._ends: list[tuple[int, KeyUse]] = []

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """As many as fit; quit is always there."""
        runs: list[Run] = []
        self._ends = []
        used = 0
        shown = [use for use in self.uses if use.label]
        last = shown[-1] if shown else None
        reserved = len(last.shown + last.label) if last is not None else 0
        for use in shown:
            size = len(use.shown) + len(use.label) + 1
            if used + size + (-1 if use is last else reserved) > width:
                continue
            allowed = refusal(use, self.role) is None
            runs += [(use.shown, "key" if allowed else "dim"), (use.label, "key-name" if allowed else "dim"), (" ", "")]
            used += size
            self._ends.append((used, use))
        return [self.look.strip(runs, width)]

    def on_click(self, event: events.Click) -> None:
        """Press the key."""
        for end, use in self._ends:
            if event.x < end:
                self.post_message(self.Pressed(use))
                return


class Sentence(Pane):
    """All that is shown on a terminal that is too small for anything else."""

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """As much of it as fits."""
        from fluxsched.screen.arrange import HEIGHT_MIN, WIDTH_MIN
        from fluxsched.screen.panes.look import wrapped

        text = printable(f"too small: {width}x{height}; from {WIDTH_MIN}x{HEIGHT_MIN} on there is a screen. q quits")
        return [self.look.strip([(line, "")], width) for line in wrapped(text, width)]
