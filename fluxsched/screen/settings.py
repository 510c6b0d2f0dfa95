"""What the command line says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fluxsched.screen.panes.look import TerminalLook


class ScreenSettings(NamedTuple):
    """How the terminal is, and which jobs are shown first."""

    look: TerminalLook
    parse_filter: Callable[[str], dict[str, Any]]
    """The parameters of the view `jobs` for the text of a filter. Raises InvalidValue."""
    parse_urgency: Callable[[str], int]
    filter_text: str = ""
    every_state: bool = False
