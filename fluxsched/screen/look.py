"""Look and layout: styles, texts cut to cells, keys, places for any size of the terminal, and the base of all panes.

Law: text of users passes `cell`, which leaves nothing that a terminal or a markup language would interpret; styles
take the terminal's own colours, so that its theme, light or dark, stays. Without colour, what a colour says is said by
a sign as well, and styles keep only bold, dim, underlined and reversed. What does not fit is not shown: a terminal
below WIDTH_MIN x HEIGHT_MIN gets a sentence, a small one the machine and one table, a large one everything. Only lines
of a pane that differ from those on the terminal are sent to it, so that a quiet machine costs nothing over ssh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from fluxsched.core.role import Role
from fluxsched.core.text import printable

Run = tuple[str, str]
"""A text and the name of its style."""

_STYLES = {
    "": "",
    "dim": "dim",
    "bold": "bold",
    "title": "bold underline",
    "title-focused": "bold reverse",
    "head": "bold",
    "cursor": "reverse",
    "cursor-away": "bold",
    "tagged": "bold yellow",
    "key": "bold",
    "key-name": "reverse",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
    "info": "cyan",
    "banner": "bold reverse red",
    "notice": "bold cyan",
    "used": "green",
    "unusable": "red",
}


class TerminalLook(NamedTuple):
    """Abilities of the terminal: colours and Unicode."""

    is_colourful: bool
    is_unicode: bool

    def style(self, name: str) -> Style:
        """Return the style of that name, or that Rich calls so, such as `color(32)`."""
        known = _COLOURED if self.is_colourful else _PLAIN
        style = known.get(name)
        return _parsed(name) if style is None else style

    def sign(self, unicode: str, ascii: str) -> str:
        """Return the one that the terminal has."""
        return unicode if self.is_unicode else ascii

    def strip(self, runs: Iterable[Run], width: int, filler: str = "") -> Strip:
        """Return a line of exactly `width` cells; the rest of it has the style `filler`."""
        left = width
        segments = []
        for text, name in runs:
            size = cell_len(text)
            if size > left:
                text, size = set_cell_size(text, left), left
            if size:
                segments.append(Segment(text, self.style(name)))
                left -= size
        if left > 0:
            segments.append(Segment(" " * left, self.style(filler)))
        return Strip(segments, width)


def cell(text: str, width: int, align: str = "<") -> str:
    """Untrusted text in exactly `width` cells; what is cut ends in `+`."""
    text = printable(text)
    size = len(text) if text.isascii() else cell_len(text)
    if size == width:
        return text
    if size > width:
        return set_cell_size(text, width - 1) + "+" if width > 0 else ""
    return " " * (width - size) + text if align == ">" else text + " " * (width - size)


def wrapped(text: str, width: int) -> list[str]:
    """Return a text as lines of at most `width` characters, broken at spaces where that is possible."""
    import textwrap

    lines = []
    for line in text.split("\n"):
        lines += textwrap.wrap(printable(line), max(1, width), drop_whitespace=True) or [""]
    return lines


@lru_cache(256)
def _parsed(text: str) -> Style:
    return Style.parse(text)


def _without_colour(text: str) -> str:
    return " ".join(word for word in text.split() if word in ("bold", "dim", "underline", "reverse"))


_COLOURED = {name: Style.parse(text or "none") for name, text in _STYLES.items()}
_PLAIN = {name: Style.parse(_without_colour(text) or "none") for name, text in _STYLES.items()}


# ---- settings that are kept


class ScreenSettings(NamedTuple):
    """Settings of the screen: the terminal, and the jobs that are shown first."""

    look: TerminalLook
    parse_filter: Callable[[str], dict[str, Any]]
    """The parameters of the view `jobs` for the text of a filter. Raises InvalidValue."""
    parse_urgency: Callable[[str], int]
    filter_text: str = ""
    every_state: bool = False


# ---- keys

PANES = ("machine", "jobs", "queues", "groups", "log")
"""In the order of Tab, and of the keys 1 to 5."""


class KeyUse(NamedTuple):
    """One action: its keys as Textual names them, the one that is shown, and what it does."""

    keys: str
    action: str
    shown: str
    label: str
    """In the last line; empty: only in the help."""
    help: str
    panes: tuple[str, ...] = PANES
    least: Role = Role.GUEST


KEYS = (
    KeyUse("f1,question_mark", "help", "F1", "Help", "This help; any key closes it"),
    KeyUse("f3,slash", "search", "F3", "Search",
           "Find in the pane: a text, in the machine hosts or ranks; / as well; n: the next one"),
    KeyUse("n", "search_next", "n", "", ""),
    KeyUse("f4,backslash", "filter", "F4", "Filter",
           "Show some jobs, by options of `fluxsched jobs`: -u kim -q batch -f failed; \\ as well", ("jobs",)),
    KeyUse("f5,v", "arrange", "F5", "Arrange",
           "Arrange the machine by group, property, host name or switch; v as well"),
    KeyUse("f6,greater_than_sign", "sort", "F6", "Sort", "Sort by a column; > as well; I: the other way round",
           ("jobs", "queues", "groups")),
    KeyUse("I", "invert", "I", "", ""),
    KeyUse("c", "columns", "c", "Columns", "Show or hide a column", ("jobs", "queues", "groups")),
    KeyUse("f9,k", "cancel", "F9", "Cancel", "Cancel jobs; k as well", ("jobs",)),
    KeyUse("h", "hold", "h", "Hold", "Hold waiting jobs, or release those that are held", ("jobs",)),
    KeyUse("r", "urgency", "r", "Urg", "Set the urgency: 0 to 31, hold, default, expedite; F7, F8: one less, more",
           ("jobs",)),
    KeyUse("f7", "urgency_less", "F7", "", "", ("jobs",)),
    KeyUse("f8", "urgency_more", "F8", "", "", ("jobs",)),
    KeyUse("d", "drain", "d", "Drain", "Drain targets: running jobs continue, no new ones start there",
           ("machine", "jobs", "groups"), Role.ADMIN),
    KeyUse("U", "undrain", "U", "Undrain", "Return drained targets to service",
           ("machine", "jobs", "groups"), Role.ADMIN),
    KeyUse("space", "tag", "Space", "Tag", "Tag a job or cell: what follows means all tagged ones; Esc takes tags away",
           ("jobs", "machine")),
    KeyUse("enter", "details", "Enter", "Details",
           "A job's record, why it waits, its events and output; a target's, queue's or group's details",
           ("jobs", "machine", "queues", "groups")),
    KeyUse("u", "user", "u", "User", "Show the jobs of one user", ("jobs",)),
    KeyUse("right", "next_queue", "→", "Queue", "Show the jobs of one queue after the other; ←: backwards",
           ("jobs",)),
    KeyUse("left", "previous_queue", "←", "", "", ("jobs",)),
    KeyUse("a", "every_state", "a", "All", "Show jobs that have ended as well, or not", ("jobs",)),
    KeyUse("t", "trace", "t", "Trace", "Show messages of topics with a prefix; again: stop",
           ("log", "groups"), Role.OWNER),
    KeyUse("z", "zoom", "z", "Zoom", "Give the whole screen to the pane, or not"),
    KeyUse("tab", "next_pane", "Tab", "Pane",
           "The next pane; Shift-Tab: the one before; 1 to 5: machine, jobs, queues, groups, log"),
    KeyUse("shift+tab", "previous_pane", "S-Tab", "", ""),
    KeyUse("escape", "escape", "Esc", "", "Close what is open; else take tags away, then the filter"),
    KeyUse("f10,q", "leave", "F10", "Quit", "Quit; q as well"),
)  # fmt: skip


def refusal(use: KeyUse, role: Role | None) -> str | None:
    """Why a user of this role may not use a key, or None: also if it is not known, then the instance says it."""
    if role is None or role >= use.least:
        return None
    return f"{use.label.lower()} needs the role {use.least}; you are a {role} of this instance"


# ---- arrangement of panes

WIDTH_MIN, HEIGHT_MIN = 40, 10
"""Below, there is room for a sentence only."""
WIDE_FROM, TALL_FROM = 150, 36
"""From this size on all panes are shown at once."""
FIGURE_LINES, STATUS_LINES, KEY_LINES = 3, 1, 1
MACHINE_LINES_MIN = 3
NOTICE_LINES_MAX = 3
"""Lines of notices, a line each: more are in the log, and in `fluxsched notice`."""
LinesWanted = Callable[[int, int], int]
TABLES = ("jobs", "queues", "groups", "log")


class Rect(NamedTuple):
    """A part of the terminal, in cells."""

    x: int
    y: int
    width: int
    height: int


def is_too_small(width: int, height: int) -> bool:
    """Return whether there is only room for a sentence."""
    return width < WIDTH_MIN or height < HEIGHT_MIN


def places(
    width: int, height: int, *, table: str, zoomed: str | None, machine_lines: LinesWanted, queues: int, groups: int,
    notices: int = 0,
) -> Mapping[str, Rect]:  # fmt: skip
    """Return the panes that are shown.

    `machine_lines`: how many of so many lines of a width the map uses; `queues`, `groups`: lines of these tables;
    `table`: the one that is shown where there is room for one; `notices`: how many there are.
    """
    if is_too_small(width, height):
        return {"sentence": Rect(0, 0, width, height)}
    figures = min(FIGURE_LINES, max(1, height - 9))
    noticed = min(notices, NOTICE_LINES_MAX, height // HEIGHT_MIN)
    top, bottom = figures + noticed, height - STATUS_LINES - KEY_LINES
    found = {
        "figures": Rect(0, 0, width, figures),
        "status": Rect(0, bottom, width, STATUS_LINES),
        "keys": Rect(0, height - KEY_LINES, width, KEY_LINES),
    }
    if noticed:
        found["notices"] = Rect(0, figures, width, noticed)
    room = bottom - top
    if zoomed is not None:
        return {**found, zoomed: Rect(0, top, width, room)}
    if width >= WIDE_FROM and height >= TALL_FROM:
        return found | _wide(width, top, room, machine_lines, queues, groups)
    machine = machine_lines(width, max(MACHINE_LINES_MIN, room * 2 // 5))
    if room - machine < 4:
        return {**found, table: Rect(0, top, width, room)}
    return {
        **found, "machine": Rect(0, top, width, machine), table: Rect(0, top + machine, width, room - machine)
    }  # fmt: skip


def _wide(width: int, top: int, room: int, machine_lines: LinesWanted, queues: int, groups: int) -> dict[str, Rect]:
    """Return the machine and the jobs side by side, what is short below them."""
    short = min(max(queues, groups, 6), room // 4)
    tall = room - short - 1
    left = width // 2 - 1
    machine = machine_lines(left, tall)
    right = left + 2
    third = width // 4
    below = top + tall + 1
    found = {
        "machine": Rect(0, top, left, machine),
        "jobs": Rect(right, top, width - right, tall),
        "queues": Rect(0, below, third - 1, short),
        "groups": Rect(third + 1, below, left - third - 1, short),
        "log": Rect(right, below, width - right, short),
    }
    if tall - machine >= 6:  # a small machine: the log gets what it leaves
        found["log"] = Rect(0, top + machine + 1, left, tall - machine - 1)
        found["jobs"] = Rect(right, top, width - right, room)
    return found


# ---- frames of panes


class Pane(Widget):
    """Widget that draws the lines of `make_lines`."""

    DEFAULT_CSS = "Pane { background: transparent; }"

    def __init__(self, look: TerminalLook, *, id: str, can_focus: bool = False) -> None:
        super().__init__(id=id)
        self.look = look
        self.can_focus = can_focus
        self._drawn: list[Strip] = []

    def make_lines(self, width: int, height: int) -> list[Strip]:
        """Return the lines from the top, each of `width` cells; missing ones are empty."""
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
        """Return the strips of a region, for Textual: lines have their styles already."""
        width, height = self.size
        if len(self._drawn) != height or (self._drawn and self._drawn[0].cell_length != width):
            lines = self.make_lines(width, height)[:height]
            self._drawn = lines + [Strip.blank(width)] * (height - len(lines))
        return [self._drawn[y].crop(crop.x, crop.right) for y in crop.line_range if y < height]

    def on_resize(self) -> None:
        """Draw all lines anew for another size."""
        self._drawn = []
        self.refresh()

    def watch_has_focus(self, has_focus: bool) -> None:
        """Titles and cursors show where the keys go."""
        super().watch_has_focus(has_focus)
        self.redraw()
