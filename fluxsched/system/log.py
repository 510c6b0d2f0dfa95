"""The instance's log: one line an event, to a file in the run directory and, when asked, to stderr; as text or JSON.

Law: a line says for which request it was written where that is known: its id is the matchtag that the client chose (RFC
6), so both sides know it and no message gets longer.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from fluxsched.core.jobid import exit_code, format_f58

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LINE_ON_TERMINAL: Final = "%(name)s: %(message)s"
FIELDS: Final = ("request", "topic", "peer", "jobid", "rank")
"""Fields of a JSON line beside time, level, logger and text, where known."""


class Subject(Protocol):
    """Subject that is being handled, such as a request."""

    def log_fields(self) -> Mapping[str, str]:
        """Return the fields of log lines written meanwhile: some of FIELDS."""
        ...


def request_id(matchtag: int) -> str:
    """Return the id of a request in the logs of the client and the instance."""
    return f"{matchtag:08x}"


def message_fields(matchtag: int, topic: str, peer: str) -> dict[str, str]:
    """Return the fields of log lines about a message: its peer, and its request if a response is wanted."""
    found = {"topic": topic, "peer": peer}
    return {"request": request_id(matchtag), **found} if matchtag else found


def of_job(jobid: int, rank: int | None = None) -> dict[str, str]:
    """Return `extra` of a line about a job, or about its task of this rank."""
    found = {"jobid": format_f58(jobid)}
    return found if rank is None else {**found, "rank": str(rank)}


class SubjectFilter(logging.Filter):
    """Lets every line pass, with the fields of what is being handled."""

    def __init__(self, subject: Callable[[], Subject | None]) -> None:
        super().__init__()
        self._subject = subject

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields that the line does not have itself."""
        subject = self._subject()
        if subject is not None:
            for name, value in subject.log_fields().items():
                record.__dict__.setdefault(name, value)
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII; `text` is the last key."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a record."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        found.update({name: record.__dict__[name] for name in FIELDS if name in record.__dict__})
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        found["text"] = record.getMessage()
        return json.dumps(found)


def formatter(format: str, line: str) -> logging.Formatter:
    """Return the formatter of lines in one of FORMATS; `line` is their form as text."""
    return JsonFormatter() if format == JSON else logging.Formatter(line)


# ---- setting up of logs

LINES_MAX = 20
"""Lines of one kind that are written in WINDOW_S: a peer that is wrong in a loop must not fill the disk."""
WINDOW_S = 10.0


def set_up_logging(
    path: Path | None, verbose: int, format: str = TEXT, subject: Callable[[], Subject | None] = lambda: None
) -> None:
    """Send warnings and worse to stderr (all with `verbose`), and everything of note to the file `path`.

    `subject` says what is being handled: lines in JSON tell its fields.
    """
    logging.raiseExceptions = False  # a log that cannot be written, for a full disk say, must not fill a terminal
    root = logging.getLogger("fluxsched")
    root.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    root.propagate = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setLevel(logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.WARNING)
    terminal.setFormatter(formatter(format, LINE_ON_TERMINAL))
    terminal.addFilter(SubjectFilter(subject))
    terminal.addFilter(FloodFilter(terminal))
    root.addHandler(terminal)
    if path is not None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(formatter(format, LINE))
        file.addFilter(SubjectFilter(subject))
        file.addFilter(FloodFilter(file))
        root.addHandler(file)


class FloodFilter(logging.Filter):
    """Lets LINES_MAX lines of one kind through to a handler in WINDOW_S, then says how many more there were.

    A kind is a logger, a level and a text before its values are put in: what a peer chooses makes no new one. Lines for
    debugging all pass: they are written only where a user asked for them.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._windows: dict[tuple[str, int, str], list[float]] = {}
        """Start of each kind's window, and the number of lines in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is written."""
        if record.levelno <= logging.DEBUG:
            return True
        self._end_windows(record.created)
        window = self._windows.setdefault((record.name, record.levelno, str(record.msg)), [record.created, 0])
        window[1] += 1
        return window[1] <= LINES_MAX

    def _end_windows(self, now_s: float) -> None:
        over = [kind for kind, (begun_s, _) in self._windows.items() if not 0 <= now_s - begun_s < WINDOW_S]
        for name, level, text in over:
            begun_s, count = self._windows.pop((name, level, text))
            if count > LINES_MAX:
                said = f"{count - LINES_MAX:.0f} more like this in the last {now_s - begun_s:.0f} s: {text}"
                self._handler.acquire()
                try:
                    self._handler.emit(logging.LogRecord(name, level, "", 0, said, None, None))
                finally:
                    self._handler.release()


def logger(name: str) -> logging.Logger:
    """Return the logger of one part, `fluxsched.NAME`."""
    return logging.getLogger(f"fluxsched.{name}")


def left(exc: SystemExit, line: str | None = None) -> str:
    """Return how and where foreign code ended its process: `exit status 3 (mine.py:7)`."""
    return exception_text(exc, line).replace(f"SystemExit: {exc}", f"exit status {exit_code(exc)}", 1)


def exception_text(exc: BaseException, line: str | None = None) -> str:
    """Return the exception and its place in one line; `line` is the place at fault where known, else the innermost
    one.
    """
    frames = traceback.extract_tb(exc.__traceback__)
    if line is None and frames:
        line = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(exc).__name__}: {exc}" + (f" ({line})" if line else "")
