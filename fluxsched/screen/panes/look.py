"""How lines look: named styles, and texts cut to cells.

Law: text of users passes `cell`, which leaves nothing that a terminal or a markup language would interpret; styles
take the terminal's own colours, so that its theme, light or dark, stays. Without colour, what a colour says is said by
a sign as well, and styles keep only bold, dim, underlined and reversed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

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
    "used": "green",
    "unusable": "red",
}


class TerminalLook(NamedTuple):
    """What the terminal can show."""

    is_colourful: bool
    is_unicode: bool

    def style(self, name: str) -> Style:
        """The style of that name, or that Rich calls so, such as `color(32)`."""
        known = _COLOURED if self.is_colourful else _PLAIN
        style = known.get(name)
        return _parsed(name) if style is None else style

    def sign(self, unicode: str, ascii: str) -> str:
        """The one that the terminal has."""
        return unicode if self.is_unicode else ascii

    def strip(self, runs: Iterable[Run], width: int, filler: str = "") -> Strip:
        """A line of exactly `width` cells; the rest of it has the style `filler`."""
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
    """A text as lines of at most `width` characters, broken at spaces where that is possible."""
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
