"""Values of options: files read whole, of a bounded size and UTF-8, and values that are JSON or plain text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded

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
