"""Runs the screen for an instance, until it is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from fluxsched.screen.app import TopApp
from fluxsched.screen.panes.look import TerminalLook
from fluxsched.screen.settings import ScreenSettings
from fluxsched.views.follower import Follower


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
    for name in ("COLUMNS", "LINES"):  # where a shell exports them, Textual takes them for the size for ever
        os.environ.pop(name, None)
    look = TerminalLook(is_colourful, is_unicode)
    settings = ScreenSettings(look, parse_filter, parse_urgency, filter_text)

    async def show() -> None:
        async with Follower(uri) as follower:
            await TopApp(follower, settings).run_async()

    asyncio.run(show())
