"""Values of options: files read whole, of a bounded size and UTF-8, values that are JSON or plain text, past times."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from fluxsched.cli.common.options import Converted
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.system.clock import SystemClock

FILE_BYTES_MAX = 1 << 20
"""Of rules, of one attribute, of the configuration of a nested instance: naming a device by mistake must not hang."""


def read_text(name: str, option: str) -> str:
    """The text of the file `name`; `~` is the home directory. Raises InvalidValue, OSError naming the file."""
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidValue(f"{option}: the file '{printable(name)}' is not UTF-8 text") from None
    except (ValueError, RuntimeError) as fault:
        raise InvalidValue(f"{option}: cannot open the file '{printable(name)}': {fault}") from None
    if len(data) > FILE_BYTES_MAX:
        raise LimitExceeded(f"{option}: the file '{printable(name)}' is larger than {FILE_BYTES_MAX} bytes")
    return text


def parse_value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidValue(f"{text[:40]}... is nested too deeply to be read") from None
    except ValueError:
        return text


def parse_since(text: str) -> float:
    """Seconds since the epoch, of a duration before now (`-6h`, `6h`), a date and time, or `now`; not in the future."""
    from fluxsched.core.duration import parse_duration

    now_s = SystemClock.wall_s()
    if text == "now":
        return now_s
    try:
        since_s = datetime.fromisoformat(text).timestamp() if text[:4].isdecimal() and "-" in text else None
        since_s = now_s - parse_duration(text.removeprefix("-")) if since_s is None else since_s
    except (ValueError, OverflowError):
        raise InvalidValue(
            f"{text!r} is neither a duration, such as -6h, nor a date, such as 2030-01-31T12:00"
        ) from None
    if not 0.0 <= since_s <= now_s:
        raise InvalidValue(f"{text!r} is not between 1970 and now")
    return since_s


WHEN = Converted("when", parse_since)
