"""`fluxsched top` in a real terminal, tmux, over a real instance: it draws, acts, fits and ends."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import PROGRAM, User

pytest.importorskip("textual", reason="the screen is an extra: fluxsched[tui]")
pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux on PATH")


class Tmux:
    """A terminal of its own."""

    def __init__(self, socket: Path, user: User, *words: str, **environ: str) -> None:
        self._socket = socket
        settings = [f"{name}={value}" for name, value in environ.items()]
        self._run("-f", "/dev/null", "new-session", "-d", "-s", "top", "-x", "80", "-y", "24", "env", *settings,
                  PROGRAM, "top", *words, env=user.environment)  # fmt: skip

    def _run(self, *words: str, **more: Any) -> str:
        return subprocess.run(["tmux", "-S", str(self._socket), *words], text=True, capture_output=True, **more).stdout

    def keys(self, *keys: str) -> None:
        self._run("send-keys", "-t", "top", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-t", "top", "-x", str(width), "-y", str(height))

    def shown(self, *, escapes: bool = False) -> str:
        return self._run("capture-pane", "-p", *(["-e"] if escapes else []), "-t", "top")

    def close(self) -> None:
        self._run("kill-server")


def test_it_draws_acts_fits_and_ends(
    daemon: Callable[..., User], until: Callable[..., Any], tmp_path: Path
) -> None:  # fmt: skip
    user = daemon("--fake", "4x4")
    jobid = user.running("--job-name=[red]x[/]", "sleep", "600")
    screen = Tmux(tmp_path / "tmux", user, "--uri", str(user.uri), TERM="vt100", NO_COLOR="1", COLUMNS="80", LINES="24")
    try:
        until(lambda: "[red]x[/]" in screen.shown() and "4 targets" in screen.shown())
        escapes = screen.shown(escapes=True)
        assert "\x1b[3" not in escapes.replace("\x1b[39m", "")
        assert "\x1b[4" not in escapes.replace("\x1b[49m", "").replace("\x1b[4m", "")
        screen.keys("1")
        until(lambda: "rank 0" in screen.shown())
        screen.keys("End")
        until(lambda: "rank 3" in screen.shown())
        screen.keys("d")
        until(lambda: "Drain fake3?" in screen.shown())
        screen.keys("fan", "Enter")
        until(lambda: "1 drained" in screen.shown())
        assert "fan" in user("resource", "drain").out
        screen.resize(10, 3)
        until(lambda: "too small" in screen.shown())
        screen.resize(300, 100)
        until(lambda: "Groups" in screen.shown() and "F10Quit" in screen.shown())
        screen.keys("2")
        until(lambda: "F9Cancel" in screen.shown())
        screen.keys("F9")
        until(lambda: "Cancel 1 job?" in screen.shown())
        screen.keys("Enter")
        until(lambda: "no active job" in screen.shown())
        assert user.info(jobid)["result"] == "CANCELED"
        screen.keys("F10")
        until(lambda: not screen.shown())
    finally:
        screen.close()
