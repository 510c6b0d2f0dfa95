"""What is fuzzed: a parser with its seeds, what its inputs look like, and which errors it may raise.

Law: `run` takes any bytes. It returns, or raises a FluxschedError or one of the target's declared errors; all else is a
defect, also an assertion of the target itself, such as that what was printed is read back as the same value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgpack


class Shape(Enum):
    """How inputs are made from others: as texts, or as trees that are encoded in some way."""

    TEXT = "text"
    JSON = "json"
    MSGPACK = "msgpack"


@dataclass(frozen=True)
class Target:
    """One parser. `words` are what its grammar knows, `errors` what it raises besides FluxschedError."""

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    shape: Shape = Shape.TEXT
    words: tuple[str, ...] = ()
    errors: tuple[type[Exception], ...] = ()


def text_of(data: bytes) -> str:
    """An argument as Python hands it to a program: bytes that are no UTF-8 are half pairs."""
    return data.decode("utf-8", "surrogateescape")


def of_text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    """A parser of texts as one of bytes."""
    return lambda data: run(text_of(data))


def texts(*seeds: str) -> Callable[[], Iterable[bytes]]:
    """Seeds that are texts."""
    return lambda: [seed.encode() for seed in seeds]


def json_seeds(objects: Iterable[Any]) -> list[bytes]:
    """Objects as JSON."""
    return [json.dumps(each).encode() for each in objects]


def parts_of(data: bytes) -> list[bytes]:
    """The parts of a message: an input is their list in msgpack, and what is none is a message of one part."""
    try:
        found = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException):
        return [data]
    parts = found if isinstance(found, list) else [found]
    return [part if isinstance(part, bytes) else str(part).encode("utf-8", "replace") for part in parts]


def packed(value: Any) -> bytes:
    """The msgpack of a seed."""
    made: bytes = msgpack.packb(value)
    return made
