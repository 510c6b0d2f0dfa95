"""Reading a whole file that a person named: bounded, UTF-8, and every way it can fail said in one kind of error."""

from __future__ import annotations

from pathlib import Path

from fluxsched.errors import InvalidValue, LimitExceeded


def read_text(path: Path, what: str, limit_bytes: int) -> str:
    """The text of a file. Raises InvalidValue, with the errno of the system where it has one, or LimitExceeded."""
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as fault:
        raise InvalidValue(f"{what} {path} cannot be read: {fault.strerror}", fault.errno) from fault
    except ValueError as fault:  # not a possible path: it holds a NUL, or half a surrogate pair
        raise InvalidValue(f"{what} {str(path)!r} cannot be read: {fault}") from None
    if len(data) > limit_bytes:
        raise LimitExceeded(f"{what} {path} is longer than the limit of {limit_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise InvalidValue(f"{path}:{line}: {what} is not UTF-8 text") from None
