"""The instance's log: one line an event, to a file in the run directory and, when asked, to stderr."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def setup(path: Path | None, verbose: int) -> None:
    """Send warnings and worse to stderr (all with `verbose`), and everything of note to the file `path`."""
    logging.raiseExceptions = False  # a log that cannot be written, for a full disk say, must not fill a terminal
    root = logging.getLogger("fluxsched")
    root.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.WARNING)
    terminal.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root.addHandler(terminal)
    if path is not None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(file)


def logger(name: str) -> logging.Logger:
    """The logger of one part, `fluxsched.NAME`."""
    return logging.getLogger(f"fluxsched.{name}")


def left(exc: SystemExit, line: str | None = None) -> str:
    """`exit status 3 (mine.py:7)`: how and where somebody's code ended its process."""
    status = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    return blamed(exc, line).replace(f"SystemExit: {exc}", f"exit status {status}", 1)


def blamed(exc: BaseException, line: str | None = None) -> str:
    """What was raised and where, in one line; `line` is known to be to blame, else it is the innermost one."""
    frames = traceback.extract_tb(exc.__traceback__)
    if line is None and frames:
        line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(exc).__name__}: {exc}" + (f" ({line})" if line else "")
