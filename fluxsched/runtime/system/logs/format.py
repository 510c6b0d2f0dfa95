"""How lines of the log are written: as text, or as one JSON object each; and what they say of the request at hand.

Law: a line says for which request it was written where that is known: its id is the matchtag that the client chose
(RFC 6), so both sides know it and no message gets longer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from fluxsched.core.jobid import format_f58

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
LINE: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
LINE_ON_TERMINAL: Final = "%(name)s: %(message)s"
FIELDS: Final = ("request", "topic", "peer", "jobid", "rank")
"""What a JSON line tells beside time, level, logger and text, where it is known."""


class Subject(Protocol):
    """What is being handled, such as a request."""

    def log_fields(self) -> Mapping[str, str]:
        """What lines written meanwhile tell of it: some of FIELDS."""
        ...


def request_id(matchtag: int) -> str:
    """A request as logs name it, the client's and the instance's."""
    return f"{matchtag:08x}"


def message_fields(matchtag: int, topic: str, peer: str) -> dict[str, str]:
    """What lines tell of a message: whose it is, and its request, where an answer is wanted."""
    found = {"topic": topic, "peer": peer}
    return {"request": request_id(matchtag), **found} if matchtag else found


def of_job(jobid: int, rank: int | None = None) -> dict[str, str]:
    """`extra` of a line about a job, or about its task of this rank."""
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
        """The line."""
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
    """What writes lines in one of FORMATS; `line` is how they look as text."""
    return JsonFormatter() if format == JSON else logging.Formatter(line)
