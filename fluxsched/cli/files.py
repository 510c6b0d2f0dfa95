"""Files that an option names, read whole: of a bounded size, UTF-8, or an error that names the file."""

from __future__ import annotations

from pathlib import Path

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
        raise InvalidValue(f"{option}: the file '{printable(name)}' cannot be opened: {fault}") from None
    if len(data) > FILE_BYTES_MAX:
        raise LimitExceeded(f"{option}: the file '{printable(name)}' is larger than {FILE_BYTES_MAX} bytes")
    return text
